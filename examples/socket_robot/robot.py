"""A simulated robot behind a socket: 50 steps per second of its own time, lost packets, falls, and a battery.

    python robot.py                               listen on port 5050, until killed
    python robot.py --mass 1.5 --friction 0.5     another robot: heavier, on a slippery floor
    python robot.py --randomise 0.3               another robot in every episode: each mass, and the friction

It is MuJoCo's half cheetah, in a plane, with six motors. It runs as fast as it can and counts the seconds that a real
one would take. One connection at a time, lines of text, numbers in decimal; floats survive the way unchanged:

    client: start SEED STEPS       robot: wait REASON SECONDS, for each reason: fallen, charging, reset; then ready
                                   robot: observe K O1 ... O17, before step K = 0, 1, ...
    client: action K A1 ... A6     robot: the next observe, or: end STEPS FELL
    client: log                    robot: step K O1 ... O17 A1 ... A6 REWARD, for each; then last O1 ... O17
    client: clock                  robot: clock, and the seconds of its life as JSON

The radio loses observations, and then nothing is answered, and actions: the robot does the last one that it received
again. Which packets are lost depends on the episode's seed and the step alone. The log is the robot's own record, with
the actions that it carried out. `start`, `log` and `clock` are sent again until they arrive, as by TCP.

A fall (the body is tilted by more than a radian) ends an episode, and a person has to say "ready" before the next one;
so it is after an episode that was cut because the connection or the robot itself broke. Seconds, battery and whether it
lies on the floor are in a file, so that a robot that was killed knows of them.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path

import mujoco
import numpy as np

from offrank.tasks.locomotion import TASKS

ACTIONS, RATE = 6, 50
SILENCE = 10.0  # seconds (of yours) without an action, after which the robot stops


@dataclass
class Life:
    """What the robot knows after it was switched off. Times are in seconds of its own time."""

    motion: float = 0.0
    reset: float = 0.0
    fallen: float = 0.0  # waiting for a person
    charging: float = 0.0
    used: float = 0.0  # of the battery, since it was charged
    episodes: int = 0
    falls: int = 0
    cut: int = 0  # episodes that were not finished
    moving: bool = False
    down: bool = False  # whether a person has to put it on its feet

    @staticmethod
    def read(path: Path) -> Life:
        life = Life(**json.loads(path.read_text())) if path.exists() else Life()
        life.stop()
        return life

    def stop(self) -> None:
        """If an episode was under way, it is cut, and the robot goes limp."""
        if self.moving:
            self.moving, self.down, self.cut = False, True, self.cut + 1

    def write(self, path: Path) -> None:
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(path)


class Body:
    """The physics: masses and friction, the start of an episode, a step."""

    def __init__(self, mass: float, friction: float, randomise: float, tilt: float):
        self.model = copy(TASKS["HalfCheetah-v3"].model)
        self.data = mujoco.MjData(self.model)
        self.substeps = round(1 / (RATE * self.model.opt.timestep))
        self.mass, self.friction, self.randomise, self.tilt = mass, friction, randomise, tilt
        self.as_built = [np.array(x) for x in (self.model.body_mass, self.model.body_inertia, self.model.geom_friction)]

    def start(self, seed: int) -> np.ndarray:
        rng, model, data = np.random.default_rng([seed, 0]), self.model, self.data
        low, high = 1 - self.randomise, 1 + self.randomise
        mass, friction = self.mass * rng.uniform(low, high, (model.nbody, 1)), self.friction * rng.uniform(low, high)
        model.body_mass[:] = self.as_built[0] * mass[:, 0]
        model.body_inertia[:] = self.as_built[1] * mass
        model.geom_friction[:] = self.as_built[2] * friction
        mujoco.mj_setConst(model, data)
        mujoco.mj_resetData(model, data)
        data.qpos[:] += rng.uniform(-0.1, 0.1, model.nq)
        data.qvel[:] = 0.1 * rng.standard_normal(model.nv)
        return self.observe()

    def observe(self) -> np.ndarray:
        return np.concatenate([self.data.qpos[1:], self.data.qvel])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """One fiftieth of a second. The reward is metres per second forward, less the effort."""
        x = self.data.qpos[0]
        self.data.ctrl[:] = np.clip(action, -1, 1)
        mujoco.mj_step(self.model, self.data, self.substeps)
        reward = (self.data.qpos[0] - x) * RATE - 0.1 * float(np.square(self.data.ctrl).sum())
        return self.observe(), float(reward), bool(abs(self.data.qpos[2]) > self.tilt)


class Robot:
    """Answers one client at a time."""

    def __init__(self, body: Body, args: argparse.Namespace):
        self.body, self.args, self.life = body, args, Life.read(args.state)
        self.log: list[str] = []

    def serve(self, connection: socket.socket) -> None:
        """Until the client goes away."""
        self.lines, self.connection = connection.makefile("r"), connection
        self.log = []
        for line in self.lines:
            match line.split():
                case ["start", seed, steps]:
                    self.episode(int(seed), int(steps))
                case ["log"]:
                    self.send(*self.log)
                case ["clock"]:
                    self.send(f"clock {json.dumps(asdict(self.life))}")
                case _:
                    self.send(f"error {line.strip()!r}: say start SEED STEPS, action K A1 ... A{ACTIONS}, log or clock")

    def send(self, *lines: str) -> None:
        self.connection.sendall("".join(f"{line}\n" for line in lines).encode())

    def episode(self, seed: int, steps: int) -> None:
        self.prepare(steps)
        observation, action, fell, k = self.body.start(seed), np.zeros(ACTIONS), False, 0
        lost = np.random.default_rng([seed, 1]).random((steps, 2)) < self.args.loss
        self.log = []
        self.connection.settimeout(SILENCE)
        try:
            while k < steps and not fell:
                if not lost[k, 0]:
                    self.send(f"observe {k} {text(observation)}")
                    received = self.receive(k)
                    action = action if lost[k, 1] else received
                before = observation
                time.sleep(1 / RATE if self.args.real_time else 0)
                observation, reward, fell = self.body.step(action)
                self.log.append(f"step {k} {text(before)} {text(action)} {reward!r}")
                k += 1
        finally:
            self.connection.settimeout(None)  # learning between episodes may take long
            self.life.motion += k / RATE
            self.life.used += k / RATE
        self.log.append(f"last {text(observation)}")
        self.life.episodes += 1
        self.life.falls += fell
        self.life.moving, self.life.down = False, fell
        self.life.write(self.args.state)
        self.send(f"end {k} {int(fell)}")

    def prepare(self, steps: int) -> None:
        """Whatever has to happen before the robot can start. The battery lasts for whole episodes."""
        waits = {"fallen": self.args.person} if self.life.down else {}
        if self.life.used + steps / RATE > self.args.battery:
            waits["charging"] = self.args.charge
            self.life.used = 0.0
        for reason, seconds in (waits | {"reset": self.args.reset}).items():
            setattr(self.life, reason, getattr(self.life, reason) + seconds)
            self.send(f"wait {reason} {seconds}")
        self.life.moving, self.life.down = True, False  # on disk: a robot that is killed now lies on the floor
        self.life.write(self.args.state)
        self.send("ready")

    def receive(self, k: int) -> np.ndarray:
        words = self.lines.readline().split()
        if words[:2] != ["action", str(k)] or len(words) != ACTIONS + 2:
            raise ConnectionError(f"{' '.join(words)!r} instead of action {k} A1 ... A{ACTIONS}")
        return np.array([float(word) for word in words[2:]])


def text(numbers: np.ndarray) -> str:
    return " ".join(map(repr, numbers.tolist()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=5050, help="0: any that is free")
    parser.add_argument("--state", type=Path, default=Path("robot.json"), help="file of seconds, battery and falls")
    parser.add_argument("--loss", type=float, default=0.02, help="share of packets that are lost, each way")
    parser.add_argument("--mass", type=float, default=1.0, help="factor of all masses")
    parser.add_argument("--friction", type=float, default=1.0, help="factor of the friction")
    parser.add_argument("--randomise", type=float, default=0.0, help="0.3: factors of 0.7 to 1.3, new in every episode")
    parser.add_argument("--tilt", type=float, default=1.0, help="radians; beyond it the robot has fallen")
    parser.add_argument("--reset", type=float, default=5.0, help="seconds before every episode")
    parser.add_argument("--person", type=float, default=60.0, help="seconds after a fall, until a person says ready")
    parser.add_argument("--battery", type=float, default=300.0, help="seconds of motion that it lasts")
    parser.add_argument("--charge", type=float, default=3600.0, help="seconds of charging it")
    parser.add_argument("--real-time", action="store_true", help="move as slowly as a real one")
    args = parser.parse_args()

    robot = Robot(Body(args.mass, args.friction, args.randomise, args.tilt), args)
    with socket.create_server(("127.0.0.1", args.port)) as server:
        print(f"listening on port {server.getsockname()[1]}", flush=True)
        while True:
            connection, _ = server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                try:
                    robot.serve(connection)
                except (OSError, ValueError) as error:
                    print(f"connection lost: {error}", flush=True)
                finally:
                    robot.life.stop()
                    robot.life.write(args.state)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("switched off")
