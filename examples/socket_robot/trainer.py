"""Train the robot behind the socket, with interruptions on either side.

    python robot.py                                                        the robot, in another terminal
    python trainer.py train first --steps 25000                            train
    python trainer.py evaluate first/final.offrank                         ten episodes, and what they returned
    python trainer.py train first --steps 37500                            go on, maybe on a robot that has changed
    python trainer.py train second --init first/final.offrank --episodes 50     or fine-tune the policy alone

Kill either at any moment, in any way, and start it again by the same command. The trainer continues from its journal,
with the next episode; when the robot is away, it waits for it. An episode that broke off is run again from its start,
not told: it costs at most five seconds of motion, and the run ends in the same policy as if nothing had happened.
(Where episodes are long, tell what there is, with truncated=True.)
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeVar

import numpy as np

import offrank

T = TypeVar("T")
OBSERVATIONS, ACTIONS = 17, 6
HORIZON = 500  # steps, ten seconds; training episodes are half as long
SETTINGS = {"train_horizon": 250, "discount": 0.995, "n_steps": 4}  # look further ahead: steps are short


@dataclass
class Record:
    """An episode, as the robot recorded it."""

    observations: np.ndarray  # (T + 1, n)
    actions: np.ndarray  # (T, p), as carried out
    rewards: np.ndarray  # (T,)
    fell: bool
    missing: list[int]  # steps whose observation did not arrive


class Robot:
    """The client's end of the socket. It connects when it is needed, and again when the connection has broken; after
    `patience` seconds without a robot it gives up."""

    def __init__(self, port: int, patience: float = 60.0):
        self.port, self.patience = port, patience
        self._connection: socket.socket | None = None
        self._lines: TextIO

    def run(self, act: Callable[[np.ndarray, int], np.ndarray], seed: int, steps: int) -> Record:
        """One whole episode, begun again as often as it breaks off."""
        return self._again(lambda: self._episode(act, seed, steps))

    def clock(self) -> dict[str, float]:
        """The seconds of the robot's life."""
        return self._again(lambda: json.loads(self._ask("clock", "clock")))

    def _again(self, attempt: Callable[[], T]) -> T:
        while True:
            try:
                return attempt()
            except (OSError, EOFError) as error:
                print(f"connection lost ({error}); again", flush=True)
                self._hang_up()

    def _episode(self, act: Callable[[np.ndarray, int], np.ndarray], seed: int, steps: int) -> Record:
        words = self._ask(f"start {seed} {steps}").split()
        while words[0] == "wait":
            if words[1] != "reset":
                print(f"{words[1]}: {float(words[2]):g} seconds", flush=True)
            words = self._read().split()
        expect("ready", words[0])
        expected, missing = 0, list[int]()
        while (words := self._read().split())[0] == "observe":
            k = int(words[1])
            missing += range(expected, k)
            expected = k + 1
            self._send(f"action {k} " + " ".join(map(repr, act(numbers(words[2:]), k).tolist())))
        expect("end", words[0])
        count, fell = int(words[1]), words[2] == "1"
        missing += range(expected, count)
        self._send("log")
        table = np.array([numbers(self._read(f"step {k}").split()) for k in range(count)])
        last = numbers(self._read("last").split())
        observations, actions = table[:, :OBSERVATIONS], table[:, OBSERVATIONS:-1]
        return Record(np.vstack([observations, last]), actions, table[:, -1], fell, missing)

    def _ask(self, line: str, begins: str = "") -> str:
        self._send(line)
        return self._read(begins)

    def _send(self, line: str) -> None:
        if self._connection is None:
            self._connection, self._lines = self._connect()
        self._connection.sendall(f"{line}\n".encode())

    def _read(self, begins: str = "") -> str:
        """The next line, without what it has to begin with."""
        line = self._lines.readline()
        if not line.endswith("\n"):
            raise EOFError("the robot went away")
        expect(begins, line[: len(begins)])
        return line[len(begins) :]

    def _connect(self) -> tuple[socket.socket, TextIO]:
        until = time.monotonic() + self.patience
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
            except OSError:
                if time.monotonic() > until:
                    sys.exit(f"error: no robot on port {self.port}")
                time.sleep(0.05)
            else:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection, connection.makefile("r")

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._lines.close()
            self._connection.close()
        self._connection = None


def expect(wanted: str, got: str) -> None:
    if got != wanted:
        sys.exit(f"error: the robot said {got!r} instead of {wanted!r}: is it another program?")


def numbers(words: list[str]) -> np.ndarray:
    return np.array([float(word) for word in words])


def train(robot: Robot, args: argparse.Namespace) -> None:
    run = offrank.AskTell(
        offrank.Guided,
        obs_dim=OBSERVATIONS,
        act_dim=ACTIONS,
        low=-1.0,
        high=1.0,
        seed=args.seed,
        horizon=HORIZON,
        total_steps=args.steps,
        iterations=None if args.episodes is None else args.episodes // 2,  # two episodes each
        journal=args.journal,
        init=args.init,
        step_noise=args.step_noise,
        **(SETTINGS | dict(args.set)),
    )
    while not run.done:
        for episode in run.ask():
            ran = robot.run(episode.act, episode.seed, episode.horizon)
            run.tell(episode, ran.rewards, ran.observations, terminated=ran.fell, actions=ran.actions)
            how = f"{len(ran.rewards)} steps, {len(ran.missing)} observations lost{', fell' if ran.fell else ''}"
            print(f"{episode.id}: return {ran.rewards.sum():.1f}, {how}", flush=True)
    run.close()
    print(f"{run.result['episodes']} episodes, {run.result['steps']} steps -> {args.journal}/final.offrank")


def evaluate(robot: Robot, args: argparse.Namespace) -> None:
    policy = offrank.load(args.policy).policy
    ran = [robot.run(lambda o, _: policy.predict(o), 10**9 + i, HORIZON) for i in range(args.episodes)]
    returns = [float(one.rewards.sum()) for one in ran]
    print(json.dumps({"mean": np.mean(returns), "falls": sum(one.fell for one in ran), "returns": returns}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--port", type=int, default=5050)
    shared.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a robot that is away")
    one = verbs.add_parser("train", parents=[shared])
    one.set_defaults(do=train)
    one.add_argument("journal", type=Path, help="folder of told episodes and checkpoints")
    one.add_argument("--steps", type=int, help="stop after so many")
    one.add_argument("--episodes", type=int, help="stop after so many, an even number")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--init", help="a policy to start from")
    one.add_argument("--step-noise", type=float, default=0.2, help="on every action, in half ranges; 0 is gentler")
    one.add_argument("--set", action="append", default=[], type=setting, metavar="NAME=NUMBER", help="of guided")
    two = verbs.add_parser("evaluate", parents=[shared])
    two.set_defaults(do=evaluate)
    two.add_argument("policy", type=Path)
    two.add_argument("--episodes", type=int, default=10)
    args = parser.parse_args()

    robot = Robot(args.port, args.patience)
    args.do(robot, args)
    print(json.dumps(robot.clock()))


def setting(words: str) -> tuple[str, float]:
    name, value = words.split("=")
    return name, int(value) if value.isdigit() else float(value)


if __name__ == "__main__":
    try:
        main()
    except offrank.UsageError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted; start it again to continue")
