"""Runs policies in one Gymnasium environment: spaces, flattening, clipping, checks."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces.utils import flatten, flatten_space

from offrank.core.arrays import FloatArray
from offrank.core.errors import EpisodeError, UsageError, did_you_mean
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy
from offrank.core.rollouts import Episode, Trajectory, check_finite
from offrank.core.space import Space
from offrank.tasks import NATIVE
from offrank.tasks.environment import register
from offrank.tasks.models import quiet_mujoco

STEP = ("observation", "reward", "terminated", "truncated", "info")
MAX_LINE = 1000  # characters of an environment's error
DEFAULT_HORIZON = 1000  # of an environment without a time limit

INSTALL = {  # modules with well-known tasks
    "shimmy": "pip install 'shimmy[dm-control]' 'mujoco<4'",
    "gymnasium_robotics": "pip install gymnasium-robotics 'mujoco<3.4'",
}
EnvFactory = Callable[[], "gym.Env[Any, Any]"]


@contextmanager
def _same_folder() -> Iterator[None]:
    """The working directory stays what it is, whatever an environment does: paths of the run are relative to it."""
    folder = Path.cwd()
    try:
        yield
    finally:
        with suppress(OSError):
            os.chdir(folder)


def registered(env_id: str, env_args: dict[str, Any]) -> EnvFactory:
    """A function that makes a registered environment. It holds the environment's specification, so it also works in a
    process where the environment is not registered.

    Raises:
        UsageError: there is no such environment.
    """
    register()
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except Exception as error:
            hint = f" ({INSTALL[module]})" if module in INSTALL and isinstance(error, ModuleNotFoundError) else ""
            raise UsageError(f"cannot import {module!r} for task {env_id!r}: {one_line(error)}{hint}") from error
    try:
        spec = gym.spec(f"offrank/{name}" if name in NATIVE else name)
    except gym.error.Error as error:
        known = [*NATIVE, *gym.registry]
        hint = did_you_mean(name, known) or f"; ours are {', '.join(NATIVE)}, or any Gymnasium id"
        raise UsageError(f"unknown task {env_id!r}{hint}") from error

    def make() -> gym.Env[Any, Any]:
        try:
            with quiet_mujoco(), _same_folder():  # Gymnasium's HalfCheetah has a deprecated attribute
                return gym.make(spec, disable_env_checker=True, **env_args)
        except (Exception, SystemExit) as error:
            raise UsageError(f"cannot make {env_id!r}: {one_line(error)}") from error

    return make


class EnvRunner:
    """An environment, with conversions of its observations and actions to those of a policy.

    Raises:
        UsageError: the observation or action space is not supported.
    """

    def __init__(self, env: gym.Env[Any, Any], clip_actions: bool):
        self.env = env
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), gym.Space):
                own = type(getattr(env, "unwrapped", env)).__name__
                raise UsageError(f"the environment {own} has no {name}: set it to a gymnasium.Space")
        self._observation_space = observation = env.observation_space
        self._action_space = action = env.action_space
        flat = flatten_space(observation) if observation.is_np_flattenable else None
        if not isinstance(flat, gym.spaces.Box):
            raise UsageError(f"observation space {observation} is not supported: it must flatten to a Box")
        self._plain = isinstance(observation, gym.spaces.Box)
        if self._plain and observation.dtype == np.uint8 and len(observation.shape or ()) == 3:
            raise UsageError(
                f"observation space {observation} is not supported: images; if it holds something else, wrap the "
                "environment in gymnasium.wrappers.FlattenObservation"
            )
        self._clip = clip_actions
        horizon = (env.spec.max_episode_steps if env.spec else None) or DEFAULT_HORIZON
        obs_dim = int(np.prod(flat.shape))
        if isinstance(action, gym.spaces.Box):
            self._bounds = action.low.astype(np.float64), action.high.astype(np.float64)
            bounds = [bound.ravel() for bound in self._bounds] if clip_actions else [None, None]
            shape = action.shape if len(action.shape) != 1 else None
            dtype = str(action.dtype) if clip_actions else "float64"  # raw actions are not rounded
            size = int(np.prod(action.shape))
            self.space = Space(obs_dim, size, horizon, low=bounds[0], high=bounds[1], shape=shape, dtype=dtype)
        elif isinstance(action, gym.spaces.Discrete):
            self.space = Space(obs_dim, int(action.n), horizon, discrete=True, first=int(action.start))
        elif isinstance(action, gym.spaces.MultiDiscrete):
            first, choices = int(action.start.flat[0]), tuple(int(k) for k in action.nvec.flat)
            if (action.start != first).any():
                raise UsageError(f"action space {action} is not supported: its parts must start at the same number")
            shape = action.shape if len(action.shape) != 1 else None
            self.space = Space(obs_dim, sum(choices), horizon, True, first, shape=shape, choices=choices)
        else:
            raise UsageError(f"action space {action} is not supported: it must be a Box, Discrete or MultiDiscrete")

    def observation(self, raw: Any) -> FloatArray:
        """An observation as a flat float64 vector (n,).

        Raises:
            UsageError: it has another size than the observation space says.
        """
        given = np.asarray(raw if self._plain else flatten(self._observation_space, raw))
        if given.dtype.kind == "c":
            raise UsageError(f"an observation of type {given.dtype}: it must be real")
        flat = given.astype(np.float64)
        if flat.size != self.space.obs_dim:
            declared = self._observation_space.shape or (self.space.obs_dim,)
            raise UsageError(f"an observation of shape {flat.shape}: the observation space has the shape {declared}")
        return flat.ravel()

    def action(self, output: FloatArray) -> Any:
        """The environment's action for a policy's output (p,)."""
        if self.space.discrete:
            chosen = self.space.choose(output)
            return chosen.astype(self._action_space.dtype) if self.space.choices else int(chosen)
        output = output.reshape(self._action_space.shape)
        if not self._clip:
            return output  # in float64: rounding it would change the episode
        return np.clip(output, *self._bounds).astype(self._action_space.dtype)

    @_same_folder()
    def run(
        self,
        policy: Policy,
        theta: FloatArray,
        whitening: Whitening,
        seed: int,
        horizon: int,
        noise: FloatArray | None,
        keep: bool,
    ) -> Episode:
        """Run one episode of a policy, with noise (horizon, p) added to its actions.

        Raises:
            EpisodeError: an action, observation or reward is not finite or too large, or the environment failed.
        """
        observations: list[FloatArray] = []
        rewards: list[float] = []
        terminated = False
        step = -1
        try:
            raw, _ = _values("reset", self.env.reset(seed=seed), ("observation", "info"))
            observation = self.observation(raw)
            for step in range(horizon):
                with np.errstate(over="ignore", invalid="ignore"):  # reported below, with the step
                    output = policy.act(theta, whitening(observation))
                if not np.isfinite(output).all():
                    check_finite(np.stack([*observations, observation]), np.array([*rewards, 0.0]), seed)
                    raise EpisodeError("non-finite action", seed, step)
                if noise is not None:
                    output = self.space.clip(output) + noise[step]
                raw, reward, *ended, _ = _values("step", self.env.step(self.action(output)), STEP)
                observations.append(observation)
                rewards.append(_number(reward))
                observation = self.observation(raw)
                terminated, truncated = map(_flag, ("terminated", "truncated"), ended)
                if terminated or truncated:
                    break
        except EpisodeError:
            raise
        except UsageError as error:  # what it returned does not fit
            raise EpisodeError(str(error), seed, max(step, 0)) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, too: an environment must not end the run
            raise EpisodeError(f"the environment raised {one_line(error)}", seed, max(step, 0)) from error
        seen, paid = np.stack(observations), np.array(rewards)
        check_finite(np.concatenate([seen, observation[None]]), paid, seed)
        return Episode.of(Trajectory(seen, paid, bool(terminated), observation), keep)


def _number(reward: Any) -> float:
    try:
        if isinstance(reward, str | bytes):
            raise TypeError
        return float(reward)
    except (TypeError, ValueError) as error:
        raise UsageError(f"a reward of type {type(reward).__name__}, {reward!r}: it must be a number") from error


def _flag(name: str, value: Any) -> bool:
    if value is True or value is False:  # as most environments say it
        return value
    if isinstance(value, str | bytes | None) or np.ndim(value) > 0:
        raise UsageError(f"{name} = {value!r}: it must be true or false")
    return bool(value)


def _values(method: str, returned: Any, names: Sequence[str]) -> Any:
    """What `reset` or `step` returned, if it is as many values as Gymnasium's interface has."""
    if isinstance(returned, tuple) and len(returned) == len(names):
        return returned
    given = f"{len(returned)} values" if isinstance(returned, tuple) else f"one value ({type(returned).__name__})"
    raise UsageError(f"the environment's {method} returned {given}: it must return ({', '.join(names)})")


def one_line(error: BaseException) -> str:
    """An exception as one line: its type, and its message with the lines joined; of a long one, beginning and end."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # of an exception whose own text cannot be made
        text = ""
    if len(text) > MAX_LINE:
        text = f"{text[: MAX_LINE // 2]} ... {text[-MAX_LINE // 2 :]}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
