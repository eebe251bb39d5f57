"""Callbacks of `learn`: evaluate elsewhere, keep copies of the policy, stop, log. `Callback` is the base of others."""

from __future__ import annotations

import re
from collections import deque
from math import inf
from pathlib import Path

import gymnasium as gym

from offrank.core.arrays import Metrics
from offrank.core.checks import check_path, check_whole, is_number
from offrank.core.errors import UsageError
from offrank.display.loggers import MLflowCallback, TensorBoardCallback, WandbCallback
from offrank.engines import Engine, Env, make_engine, own_engine
from offrank.runs.callback import Callback
from offrank.runs.evaluation import check_sizes, evaluate_policy
from offrank.runs.folder import METRICS
from offrank.runs.metrics import read_metrics
from offrank.runs.opening import make_folder
from offrank.runs.record import Evaluation
from offrank.runs.run import Run


class Periodic(Callback):
    """Base class of callbacks that act after the first iteration at or after every multiple of `every` training steps.

    A subclass says at which steps it acted last, from what it wrote. So a run that was interrupted before it acted, and
    is continued, acts at the start.
    """

    def __init__(self, every: int):
        self._every = check_whole("every", every, 1)
        self._acted = 0

    def on_start(self, run: Run) -> None:
        self._acted = self.acted(run)
        self._act_if_due(run)

    def on_iteration(self, run: Run, record: Metrics) -> None:
        self._act_if_due(run)

    def _act_if_due(self, run: Run) -> None:
        if run.state.steps // self._every > self._acted // self._every:
            self.act(run)
            self._acted = run.state.steps

    def act(self, run: Run) -> None:
        raise NotImplementedError

    def acted(self, run: Run) -> int:
        """The training steps of the run when this callback acted last, in this process or an earlier one."""
        raise NotImplementedError


class EvalCallback(Periodic):
    """Evaluates the current policy on another environment. Each evaluation is a line of the log of its own kind, which
    other callbacks get, too; the best policy is saved.

    Args:
        env: one of our tasks, a Gymnasium id, an environment, or a function that makes one.
        every: training steps between evaluations.
        episodes: per evaluation; their start states differ from one evaluation to the next, and from training's.
        name: the kind of the lines.
        path: file of the best policy; by default `<name>-best.offrank` in the run folder. None without a run folder.

    Raises:
        UsageError: an argument is invalid, or the policy does not fit the environment.
    """

    def __init__(self, env: Env, every: int, episodes: int = 20, *, name: str = "eval", path: str | Path | None = None):
        super().__init__(every)
        if not re.fullmatch(r"[\w.-]+", str(name)) or name in ("iteration", "evaluation"):
            raise UsageError(f"name = {name!r}: must be a word, and neither iteration nor evaluation")
        self._env, self._episodes, self._name = env, check_whole("episodes", episodes, 1), name
        self._path = None if path is None else check_path("path", path)
        self._engine: Engine | None = None
        self._best = -inf

    def on_start(self, run: Run) -> None:
        env, clip = self._env, run.config.clip_actions
        self._engine = make_engine(env, clip_actions=clip) if isinstance(env, str) else own_engine(env, clip=clip)
        check_sizes(run.policy, self._engine.space)
        super().on_start(run)

    def acted(self, run: Run) -> int:
        if run.folder is None:
            self._best = self._best if run.state.steps else -inf
            return run.state.steps
        before = [record for record in read_metrics(run.folder / METRICS) if record["kind"] == self._name]
        self._best = max((record["return_mean"] for record in before), default=-inf)
        return before[-1]["steps"] if before else 0

    def act(self, run: Run) -> None:
        assert self._engine is not None
        found = evaluate_policy(run.policy, self._engine, self._episodes, seed=run.state.iteration)
        mean, std, length = found["mean"], found["std"], sum(found["lengths"]) / self._episodes
        if mean > self._best:
            path = self._path or (run.folder and run.folder / f"{self._name}-best.offrank")
            if path is not None:
                evaluation = Evaluation(run.state.iteration, run.state.steps, mean, std, self._episodes)
                run.policy.save(path, run.policy_meta(evaluation))
            self._best = mean
        record = {"return_mean": mean, "return_std": std, "length_mean": length, "eval_episodes": self._episodes}
        run.log(self._name, record)

    def close(self) -> None:
        if self._engine is not None and not isinstance(self._env, gym.Env):  # an environment object is the caller's
            self._engine.close()
        self._engine = None


class CheckpointCallback(Periodic):
    """Keeps copies of the policy, `policy-<steps>.offrank`.

    Args:
        every: training steps between copies.
        folder: where; by default `policies` in the run folder.

    Raises:
        UsageError: an argument is invalid, or there is neither a folder nor a run folder.
    """

    def __init__(self, every: int, folder: str | Path | None = None):
        super().__init__(every)
        self._folder = None if folder is None else check_path("folder", folder)

    def acted(self, run: Run) -> int:
        names = (re.fullmatch(r"policy-(\d+)\.offrank", path.name) for path in self._place(run).glob("policy-*"))
        return max((steps for name in names if name and (steps := int(name[1])) <= run.state.steps), default=0)

    def act(self, run: Run) -> None:
        make_folder(folder := self._place(run))
        run.policy.save(folder / f"policy-{run.state.steps}.offrank", run.policy_meta(run.last))

    def _place(self, run: Run) -> Path:
        folder = self._folder or (run.folder and run.folder / "policies")
        if folder is None:
            raise UsageError("CheckpointCallback needs a folder: give it one, or train with out=")
        return folder


class StopOnReward(Callback):
    """Stops the run when a mean return reaches a value.

    Args:
        value: the mean return.
        name: of an evaluation: those of the run, or those of the EvalCallback of this name.
        episodes: instead, of at least so many of the last training episodes (whole iterations of them).

    Raises:
        UsageError: an argument is invalid.
    """

    def __init__(self, value: float, *, name: str = "evaluation", episodes: int | None = None):
        if not is_number(value):
            raise UsageError(f"value = {value!r}: must be a number")
        self._value, self._name = value, name
        self._episodes = None if episodes is None else check_whole("episodes", episodes, 1)
        self._recent: deque[tuple[int, float]] = deque()  # episodes and mean return of iterations
        self._counted = 0

    def on_start(self, run: Run) -> None:
        self._recent.clear()
        self._counted = run.state.episodes
        log = [] if run.folder is None else read_metrics(run.folder / METRICS)
        if before := [record for record in log if record["kind"] == "iteration"]:
            self._counted = 0 if before[0]["iteration"] == 1 else before[0]["episodes"]
        for record in before:
            self._remember(record)

    def on_iteration(self, run: Run, record: Metrics) -> bool | None:
        self._remember(record)
        count = sum(episodes for episodes, _ in self._recent)
        if self._episodes is None or count < self._episodes:
            return None
        return self._go_on(sum(episodes * mean for episodes, mean in self._recent) / count)

    def on_evaluation(self, run: Run, record: Metrics) -> bool | None:
        if self._episodes is not None or record["kind"] != self._name or record.get("unconfirmed"):
            return None
        if record["steps"] == 0:  # of a policy to start from
            return None
        return self._go_on(record["return_mean"])

    def _remember(self, record: Metrics) -> None:
        recent, wanted = self._recent, self._episodes or 0
        recent.append((record["episodes"] - self._counted, record["return_mean"]))
        self._counted = record["episodes"]
        while sum(episodes for episodes, _ in recent) - recent[0][0] >= wanted and len(recent) > 1:
            recent.popleft()

    def _go_on(self, mean: float) -> bool | None:
        return False if mean >= self._value else None


__all__ = [
    "Callback",
    "CheckpointCallback",
    "EvalCallback",
    "MLflowCallback",
    "StopOnReward",
    "TensorBoardCallback",
    "WandbCallback",
]
