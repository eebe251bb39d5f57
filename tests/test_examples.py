"""The robot behind a socket: its protocol, lost packets, falls, the battery, and kill -9 on either side."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import offrank

FOLDER = Path(__file__).parent.parent / "examples" / "socket_robot"
STEPS = 30


@pytest.fixture(scope="module")
def trainer() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("socket_robot_trainer", FOLDER / "trainer.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


class Program:
    """One of the two programs, in a process of its own."""

    def __init__(self, name: str, *words: object):
        command = [sys.executable, FOLDER / name, *map(str, words)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def until(self, words: str) -> None:
        while words not in (line := self.line()):
            assert line, f"it ended without {words!r}"

    def kill(self) -> None:
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
        self.process.communicate()

    def finish(self) -> str:
        out, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 0
        return out


Start = Callable[..., tuple[Program, int]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a robot; returns it and its port."""
    started = []

    def begin(*words: object, port: int = 0) -> tuple[Program, int]:
        robot = Program("robot.py", "--port", port, "--state", tmp_path / "robot.json", *words)
        started.append(robot)
        return robot, int(robot.line().split()[-1])

    yield begin
    for robot in started:
        robot.kill()


def swing(observation: np.ndarray, step: int) -> np.ndarray:
    return np.sin(0.3 * step + np.arange(6.0))


def test_the_protocol_is_as_documented(start: Start) -> None:
    _, port = start("--loss", 0)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        lines = connection.makefile("r")

        def ask(line: str, answers: int) -> list[list[str]]:
            connection.sendall(f"{line}\n".encode())
            return [lines.readline().split() for _ in range(answers)]

        assert ask("jump", 1)[0][0] == "error"
        wait, ready, first = ask("start 7 2", 3)
        assert (wait, ready, first[:2], len(first)) == (["wait", "reset", "5.0"], ["ready"], ["observe", "0"], 19)
        (second,) = ask("action 0 0.5 0 0 0 0 -2", 1)
        assert second[:2] == ["observe", "1"]
        assert ask("action 1 0 0 0 0 0 0", 1) == [["end", "2", "0"]]
        zero, one, last = ask("log", 3)
        assert zero[:2] == ["step", "0"] and zero[2:19] == first[2:] and len(zero) == 26
        assert one[2:19] == second[2:] and last[0] == "last" and len(last) == 18
        assert json.loads(" ".join(ask("clock", 1)[0][1:]))["motion"] == 0.04


def test_lost_packets_hold_the_last_action_and_are_noticed(trainer: ModuleType, start: Start) -> None:
    robot = trainer.Robot(start("--loss", 0.3)[1])
    ran = robot.run(swing, 3, STEPS)
    wanted = np.array([swing(ran.observations[k], k) for k in range(STEPS)])
    held = [k for k in range(STEPS) if not np.array_equal(ran.actions[k], wanted[k])]
    assert ran.observations.shape == (STEPS + 1, 17) and np.isfinite(ran.observations).all()
    assert ran.missing and set(ran.missing) < set(held)  # some actions were lost, too
    for k in held:
        np.testing.assert_array_equal(ran.actions[k], ran.actions[k - 1] if k else np.zeros(6))
    again, other = robot.run(swing, 3, STEPS), robot.run(swing, 4, STEPS)
    np.testing.assert_array_equal(again.observations, ran.observations)
    assert (again.missing, again.rewards.tolist()) == (ran.missing, ran.rewards.tolist())
    assert other.missing != ran.missing


def test_a_fall_waits_for_a_person_and_an_empty_battery_for_an_hour(trainer: ModuleType, start: Start, capsys) -> None:
    robot = trainer.Robot(start("--tilt", 0.15, "--battery", 1, "--person", 90)[1])
    ran = robot.run(swing, 0, STEPS)
    assert ran.fell and len(ran.rewards) < STEPS
    assert "seconds" not in capsys.readouterr().out
    robot.run(swing, 1, STEPS)
    assert "fallen: 90 seconds" in capsys.readouterr().out
    while robot.clock()["charging"] == 0:
        robot.run(swing, 1, STEPS)
    assert "charging: 3600 seconds" in capsys.readouterr().out
    clock = robot.clock()
    assert clock["charging"] == 3600 and clock["reset"] == 5 * clock["episodes"]
    assert clock["fallen"] == 90 * (clock["falls"] - clock["down"])


# --- kill -9


def train(journal: Path, port: int) -> Program:
    small: dict[str, Any] = {"train_horizon": STEPS, "warmup_steps": STEPS, "hidden": 8, "batch": 8}
    words = [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    return Program("trainer.py", "train", journal, "--port", port, "--episodes", 4, *words)


def policy(journal: Path) -> str:
    return offrank.load(journal / "final.offrank").policy.sha256


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("undisturbed")
    robot = Program("robot.py", "--port", 0, "--state", folder / "robot.json")
    train(folder / "run", int(robot.line().split()[-1])).finish()
    robot.kill()
    return policy(folder / "run")


@pytest.mark.parametrize("killed", ["trainer", "robot", "both"])
def test_kill_9_in_the_middle_of_an_episode_changes_nothing(
    tmp_path: Path, start: Start, undisturbed: str, killed: str
) -> None:
    robot, port = start("--real-time")
    running = train(tmp_path / "run", port)
    running.until("000001-member-0000")  # three of four episodes are told, and the fourth takes 0.6 seconds
    while not json.loads((tmp_path / "robot.json").read_text())["moving"]:
        time.sleep(0.01)
    if killed in ("trainer", "both"):
        running.kill()
    if killed in ("robot", "both"):
        robot.kill()
        start(port=port)
    if killed in ("trainer", "both"):
        running = train(tmp_path / "run", port)
    out = running.finish()
    assert "000001-member-0001" in out and "000000-" not in out  # the journal had the others
    assert "fallen: 60 seconds" in out
    clock = json.loads(out.splitlines()[-1])
    assert (clock["cut"], clock["episodes"]) == (1, 4)
    assert policy(tmp_path / "run") == undisturbed
