"""The data of a run: its state, its evaluations and its best policy; saving and restoring them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offrank.core.arrays import Memory, part
from offrank.core.errors import FileFormatError, UsageError
from offrank.core.files import FORMAT, save_arrays, write_json
from offrank.core.space import Space
from offrank.core.state import State
from offrank.core.version import versions
from offrank.policies.trained import TrainedPolicy
from offrank.runs.config import RunConfig
from offrank.runs.folder import BEST, CHECKPOINT, FINAL, RESULT, folder_name
from offrank.runs.metrics import MOST
from offrank.runs.segments import Segments, load_in_segments, save_in_segments, segments_of


@dataclass(frozen=True)
class Evaluation:
    """The return of the policy after some iterations and training steps."""

    iteration: int
    steps: int
    mean: float
    std: float
    episodes: int = 0  # 0: of a file from before it was stored


class Record:
    """The data of a run. The subclass `offrank.runs.run.Run` carries the run out."""

    def __init__(self, config: RunConfig, space: Space, init: TrainedPolicy | None = None):
        self.config, self.space = config, space
        self.algorithm = config.recipe.algorithm(space, config.horizon)
        self.state = self.algorithm.start(config.seed, init)
        self.evaluations: list[Evaluation] = []
        self.best: tuple[Evaluation, TrainedPolicy] | None = None
        self.final: Evaluation | None = None  # the extra one at the end of a budget; ignored for the threshold
        self.evaluation_steps = 0
        self.stop_reason: str | None = None
        self._metrics_size = 0  # bytes of the metrics file at the last checkpoint
        self._segments: Segments = {}  # that the last checkpoint of the run's folder names, while it is known
        self._wall_before, self._clock = 0.0, time.perf_counter()

    @property
    def name(self) -> str:
        """`<task>-<algo>-<seed>`, the name of the run in messages."""
        return folder_name(self.config.task, self.config.algo, self.config.seed)

    def _evaluated(self) -> bool:
        return bool(self.evaluations) and self.evaluations[-1].iteration == self.state.iteration

    @property
    def policy(self) -> TrainedPolicy:
        """The current policy."""
        return self.algorithm.policy(self.state)

    @property
    def reached(self) -> Evaluation | None:
        """The first scheduled evaluation whose mean reached the threshold, or None. The final one does not count, nor
        that of a policy to start from, nor one that is to be confirmed."""
        threshold, episodes = self.config.threshold, self.config.confirm_episodes
        if threshold is None:
            return None
        trained = (e for e in self.evaluations if e.steps > 0 and e.episodes >= episodes)
        return next((e for e in trained if e.mean >= threshold), None)

    @property
    def wall_s(self) -> float:
        """Seconds spent on the run, including earlier processes."""
        return self._wall_before + time.perf_counter() - self._clock

    @property
    def result(self) -> dict[str, Any]:
        """The result of the run, as in `result.json`."""
        reached, config, best, policy = self.reached, self.config, self.best_of_all[0], self.policy
        return {
            "task": config.task,
            "algo": config.algo,
            "ranker": config.ranker,
            "policy": config.policy,
            "parameters": policy.kind.size,
            "seed": config.seed,
            "threshold": config.threshold,
            "reached": reached is not None,
            "steps_to_threshold": None if reached is None else reached.steps,
            "budget": config.steps,
            "steps": self.state.steps,
            "episodes": self.state.episodes,
            "iterations": self.state.iteration,
            "evaluation_steps": self.evaluation_steps,
            "best_return": best and best.mean,
            "final_return": self.last and self.last.mean,
            "engine": config.engine,
            "hyperparameters": config.hyperparameters,
            "stop_reason": self.stop_reason,
            "wall_s": self.wall_s,
            "policy_sha256": policy.sha256,
            "versions": versions(),
        }

    @property
    def best_of_all(self) -> tuple[Evaluation | None, TrainedPolicy]:
        """The best evaluation, including the final one, and its policy; (None, current policy) before the first."""
        if self.final is not None and (self.best is None or self.final.mean > self.best[0].mean):
            return self.final, self.policy
        return self.best or (None, self.policy)

    @property
    def last(self) -> Evaluation | None:
        """The evaluation of the current policy, if there was one."""
        return self.final or (self.evaluations[-1] if self._evaluated() else None)

    def _write_outcome(self, folder: Path) -> None:
        evaluation, policy = self.best_of_all
        policy.save(folder / BEST, self.policy_meta(evaluation))
        self.policy.save(folder / FINAL, self.policy_meta(self.last))
        write_json(folder / RESULT, self.result)

    def policy_meta(self, evaluation: Evaluation | None) -> dict[str, Any]:
        """What is saved with a policy: the configuration, and the evaluation of that policy, if there was one."""
        return {"config": self.config.to_json(), "evaluation": None if evaluation is None else vars(evaluation)}

    def save(self, path: Path) -> None:
        """Write the whole run to one file."""
        save_arrays(path, "run", *self._content())

    def _save_to(self, folder: Path) -> None:
        """Write the whole run to its folder: the checkpoint, and the rows of tables that the last one did not have."""
        known, self._segments = self._segments, {}  # where this fails, the next checkpoint writes all rows
        self._segments = save_in_segments(folder / CHECKPOINT, "run", *self._content(), known)

    def _content(self) -> tuple[Memory, dict[str, Any]]:
        """The whole run as arrays and metadata, to be saved."""
        arrays: Memory = {f"state.{k}": v for k, v in self.state.arrays().items()}
        table = [(e.iteration, e.steps, e.mean, e.std, e.episodes) for e in self.evaluations]
        arrays["evaluations"] = np.array(table, dtype=np.float64).reshape(-1, 5)
        arrays |= self.policy.arrays()
        best_at = -1
        if self.best is not None:
            best_at = self.evaluations.index(self.best[0])
            arrays |= {f"best.{k}": v for k, v in self.best[1].arrays().items()}
        meta = {
            "config": self.config.to_json(),
            "best_at": best_at,
            "final": None if self.final is None else list(vars(self.final).values()),
            "wall_s": self.wall_s,
            "evaluation_steps": self.evaluation_steps,
            "metrics_size": self._metrics_size,
            "versions": versions(),
        }
        return arrays, meta

    def restore(self, path: Path) -> None:
        """Restore what `save` or a checkpoint wrote. The metrics file is truncated accordingly when the run starts.

        Raises:
            UsageError: the file is of another run, or of version 0.1.
            FileFormatError: the file is damaged.
        """
        arrays, meta = load_in_segments(path, "run")
        check_format(path, meta)
        try:
            self._take_over(path, arrays, meta)
        except UsageError:
            raise
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            what = f"it has no {error}" if isinstance(error, KeyError) else error
            raise FileFormatError(f"{path} is not a whole checkpoint: {what}") from error

    def _take_over(self, path: Path, arrays: Memory, meta: Mapping[str, Any]) -> None:
        """Set everything from the content of a checkpoint."""
        theirs, ours = RunConfig.from_json(meta["config"]).identity, self.config.identity
        for name, mine in ours.items():
            if theirs[name] != mine:
                raise UsageError(f"{path} is of another run: its {name} is {theirs[name]!r}, not {mine!r}")
        state = State.from_arrays(part(arrays, "state."))
        state.check(self.algorithm.start(self.config.seed))
        self.state = state
        table = arrays["evaluations"]
        if table.dtype != np.float64 or table.ndim != 2 or not (np.abs(table) <= MOST).all():
            raise ValueError("its evaluations are not a table of numbers")
        self.evaluations = [_evaluation(*row) for row in table]
        self.best, final = None, meta.get("final")
        self.final = None if final is None else _evaluation(*final)
        if _number(meta, "best_at") >= 0:
            best = TrainedPolicy.from_arrays(part(arrays, "best."))
            self.best = (self.evaluations[meta["best_at"]], best)
        self.evaluation_steps = int(_number(meta, "evaluation_steps"))
        self._wall_before, self._clock = float(_number(meta, "wall_s")), time.perf_counter()
        if (size := _number(meta, "metrics_size")) != int(size):
            raise ValueError(f"its metrics_size is {size}")
        self._metrics_size = int(size)
        self._segments = segments_of(path, meta)


def _evaluation(iteration: float, steps: float, mean: float, std: float, *episodes: float) -> Evaluation:
    return Evaluation(int(iteration), int(steps), float(mean), float(std), *map(int, episodes))


def _number(meta: Mapping[str, Any], name: str) -> float:
    """A number of a checkpoint's metadata; only the place of the best evaluation may be -1, for none."""
    value, least = meta[name], -1 if name == "best_at" else 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 2**53:
        raise ValueError(f"its {name} is {value!r:.50}")
    return value


def check_format(path: Path, meta: Mapping[str, Any]) -> None:
    """Raise UsageError if a run was saved by a version whose runs cannot be continued."""
    if meta["offrank"] < FORMAT:
        raise UsageError(
            f"{path} was written by offrank 0.1: its policy can be evaluated, recorded and reported, but the run "
            "cannot be continued by this version"
        )
