"""Tiny Gymnasium environments for tests: `toy_envs:Point-v0` and variants."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

HORIZON = 20


class Point(gym.Env):
    """A point in the plane, pushed by its action: s' = 0.9 s + 0.2 a + noise, reward -|s - target|^2 - |a|^2 / 100.

    With target 0 the best policy is linear in the state. Everything is float64 and drawn from the seed of the episode.
    """

    def __init__(self, target: float = 0.0, shape: tuple[int, ...] = (2,)):
        self.target, self.state = target, np.zeros(2)
        self.observation_space: spaces.Space = spaces.Box(-np.inf, np.inf, (2,), dtype=np.float64)
        self.action_space: spaces.Space = spaces.Box(-2.0, 2.0, shape, dtype=np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.t = 0
        self.state = self.np_random.normal(size=2)
        return self.observation(), {}

    def step(self, action):
        push = self.push(action)
        reward = -float(np.sum((self.state - self.target) ** 2)) - float(push @ push) / 100
        self.state = 0.9 * self.state + 0.2 * push + 0.01 * self.np_random.normal(size=2)
        self.t += 1
        return self.observation(), reward, False, False, {}

    def observation(self) -> Any:
        return self.state.copy()

    def push(self, action) -> np.ndarray:
        return np.asarray(action, dtype=np.float64).ravel()


class DictPoint(Point):
    """Point whose observation is a dictionary; flattened in the order of its keys: (x, y)."""

    def __init__(self, target: float = 0.0):
        super().__init__(target)
        axis = spaces.Box(-np.inf, np.inf, (1,), dtype=np.float64)
        self.observation_space = spaces.Dict({"x": axis, "y": axis})

    def observation(self) -> dict[str, np.ndarray]:
        return {"x": self.state[:1].copy(), "y": self.state[1:].copy()}


class Choice(Point):
    """Point with three actions, counted from `start`: to the left, none, to the right."""

    def __init__(self, target: float = 0.0, start: int = 0):
        super().__init__(target)
        self.action_space = spaces.Discrete(3, start=start)
        self.start = start

    def push(self, action) -> np.ndarray:
        assert self.action_space.contains(action), action
        return np.array([int(action) - self.start - 1.0, 0.0])


class Choices(Point):
    """Point whose action has two parts: three choices along one axis, two along the other."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.MultiDiscrete([3, 2])

    def push(self, action) -> np.ndarray:
        assert self.action_space.contains(action), action
        return np.array([action[0] - 1.0, 2.0 * action[1] - 1.0])


class NoObservationSpace(Point):
    """Its author forgot the observation space."""

    def __init__(self) -> None:
        super().__init__()
        del self.observation_space


class Misbehaving(Point):
    """Does something unusual at its third step."""

    def __init__(self, how: str):
        super().__init__()
        self.how, self.steps = how, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self.steps = 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        self.steps += 1
        if self.steps < 3:
            return observation, reward, terminated, truncated, info
        if self.how == "exit":
            sys.exit(0)
        if self.how == "unprintable":
            raise Unprintable
        if self.how == "base":
            raise BaseException("that nobody catches")
        if self.how == "move":
            os.chdir("/")
        return {
            "text": (observation, "5", terminated, truncated, info),
            "flag": (observation, reward, "False", truncated, info),
            "complex": (observation * 1j, reward, terminated, truncated, info),
            "glitch": (observation * 1e40, reward, terminated, truncated, info),
        }.get(self.how, (observation, reward, terminated, truncated, info))


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Picture(Point):
    """It is seen by a camera."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Box(0, 255, (8, 8, 3), dtype=np.uint8)


class ComplexReward(Point):
    """Its rewards are no real numbers."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + 1j, *rest


class WordAction(Point):
    """Its action is a text, which policies cannot produce."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Text(4)


class SequenceObservation(Point):
    """Its observation has no fixed length."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Sequence(spaces.Box(-1.0, 1.0, (2,)))


class Nan(Point):
    """A NaN at step `at` (counted from 0): the reward, or the observation that the step leads to."""

    def __init__(self, at: int = 5, observation: bool = False):
        super().__init__()
        self.at, self.in_observation = at, observation

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.t == self.at + 1:
            if self.in_observation:
                observation = np.full_like(observation, np.nan)
            else:
                reward = float("nan")
        return observation, reward, terminated, truncated, info


class Glitch(Point):
    """A huge number at step `at` (counted from 0): the reward, or the observation that the step leads to."""

    def __init__(self, at: int = 5, value: float = 1e160, observation: bool = False):
        super().__init__()
        self.at, self.value, self.in_observation = at, value, observation

    def step(self, action):
        observation, reward, *rest = super().step(action)
        if self.t == self.at + 1:
            if self.in_observation:
                observation = np.full_like(observation, self.value)
            else:
                reward = self.value
        return observation, reward, *rest


class WrongShape(Point):
    """Its observation has `size` numbers, and its space two, from step `at` on."""

    def __init__(self, size: int = 3, at: int = 0):
        super().__init__()
        self.size, self.at = size, at

    def observation(self) -> np.ndarray:
        return np.ones(self.size) if self.t >= self.at else super().observation()


class OldReset(Point):
    """Its reset returns the observation alone."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        return super().reset(seed=seed)[0]


class OldStep(Point):
    """Its step returns four values."""

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class Raise(Point):
    """Raises at step `at`, counted from 0."""

    def __init__(self, at: int = 3):
        super().__init__()
        self.at = at

    def step(self, action):
        if self.t == self.at:
            raise ZeroDivisionError("the toy broke\non purpose")
        return super().step(action)


class Crash(Point):
    """Kills its own process at the start of an episode, and adds a line to `marker`, while that has fewer than `times`.

    Later processes read the lines, so episodes succeed after enough crashes.
    """

    def __init__(self, marker: str, times: int = 1):
        super().__init__()
        self.marker, self.times = Path(marker), times

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        lines = self.marker.read_text().splitlines() if self.marker.exists() else []
        if len(lines) < self.times:
            with self.marker.open("a") as file:
                file.write(f"{os.getpid()}\n")
            self.end()
        return super().reset(seed=seed, options=options)

    def end(self) -> None:
        os._exit(3)


class CrashAt(Point):
    """Kills its own process at the start of the episode with this seed, every time."""

    def __init__(self, seed: int):
        super().__init__()
        self.seed = seed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        if seed == self.seed:
            os._exit(3)
        return super().reset(seed=seed, options=options)


class Slow(Point):
    """Sleeps `delay` seconds per step."""

    def __init__(self, delay: float = 0.01, target: float = 0.0):
        super().__init__(target)
        self.delay = delay

    def step(self, action):
        time.sleep(self.delay)
        return super().step(action)


class Hang(Crash):
    """Hangs in `reset`, instead of killing its process."""

    def end(self) -> None:
        time.sleep(3600)


class Uneven(Point):
    """Writes its process id to `log` once per episode. The episode with seed 0 takes `delay` seconds longer."""

    def __init__(self, log: str, delay: float = 1.0):
        super().__init__()
        self.log, self.delay = Path(log), delay

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        time.sleep(self.delay if seed == 0 else 0.0)
        with self.log.open("a") as file:
            file.write(f"{seed} {os.getpid()}\n")
        return super().reset(seed=seed, options=options)


ENVIRONMENTS = {
    "Point-v0": Point,
    "DictPoint-v0": DictPoint,
    "Choice-v0": Choice,
    "Choices-v0": Choices,
    "NoObservationSpace-v0": NoObservationSpace,
    "Misbehaving-v0": Misbehaving,
    "Picture-v0": Picture,
    "ComplexReward-v0": ComplexReward,
    "WordAction-v0": WordAction,
    "SequenceObservation-v0": SequenceObservation,
    "Nan-v0": Nan,
    "Glitch-v0": Glitch,
    "Raise-v0": Raise,
    "Crash-v0": Crash,
    "CrashAt-v0": CrashAt,
    "Slow-v0": Slow,
    "Hang-v0": Hang,
    "Uneven-v0": Uneven,
}

for _id, _class in ENVIRONMENTS.items():
    if _id not in gym.registry:
        gym.register(_id, entry_point=f"toy_envs:{_class.__name__}", max_episode_steps=HORIZON)
