"""One run: iterations, evaluations, when to save and when to stop.

A run is driven from outside. `take` hands out what it wants run next; `receive` takes an outcome and moves on. Whoever
drives it may be an engine, a fleet, or a person with a robot. Between any two calls the run can be saved, and a run
loaded from that file asks for the same again.

An evaluation overlaps the iterations after it. They are held back until it is in, and dropped if it ends the run: the
same result as one after the other, with less waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import BaseFileLock

from offrank.arrays import FloatArray, Memory, Metrics, part
from offrank.candidates import Asking, Episodes
from offrank.checkpoint import load_arrays, save_arrays, write_json
from offrank.config import RunConfig
from offrank.engines.base import EnvInfo
from offrank.errors import EpisodeError, OffrankError, UsageError
from offrank.lock import lock_folder
from offrank.metrics import MetricsFile
from offrank.noise import Role, episode_seeds
from offrank.normalizer import Whitening
from offrank.policy import LinearPolicy
from offrank.rollouts import Request, Rollouts
from offrank.runfolder import BEST, CHECKPOINT, CONFIG, FINAL, METRICS, RESULT, versions
from offrank.state import State

Course = Generator[Request | None, Rollouts, None]  # yields None to wait for the evaluation under way
Callback = Callable[["Run", Metrics], bool | None]  # is told every record of the log; False stops the run


@dataclass(frozen=True)
class Evaluation:
    """The mean return of the policy after so many iterations and training steps."""

    iteration: int
    steps: int
    mean: float
    std: float


class Run:
    """A run of one algorithm on one task with one seed.

    Args:
        config: what to run.
        info: the environment's spaces.
        folder: where files go; None keeps everything in memory.
        callbacks: each is called with (run, record) for every line of the log.
        checkpoint_seconds: the longest time between checkpoints, apart from evaluations and the end.
    """

    def __init__(
        self,
        config: RunConfig,
        info: EnvInfo,
        folder: Path | None = None,
        callbacks: tuple[Callback, ...] = (),
        checkpoint_seconds: float = 30.0,
    ):
        recipe = config.recipe
        recipe.check(info)
        self.config, self.info, self.folder, self.callbacks = config, info, folder, callbacks
        self.strategy, self.ranker = recipe.strategy, recipe.ranker
        self.episodes = Episodes(horizon=config.horizon, **recipe.episodes)
        self.state = self.strategy.start(info.act_dim, info.obs_dim, config.seed, self.ranker)
        self.evaluations: list[Evaluation] = []
        self.best: tuple[Evaluation, LinearPolicy] | None = None
        self.final: Evaluation | None = None  # the extra one at the end of a budget: never a crossing
        self.evaluation_steps = 0
        self.stop_reason: str | None = None
        self.checkpoint_seconds = checkpoint_seconds
        self._metrics: MetricsFile | None = None
        self._metrics_size = 0  # as the last checkpoint noted it
        self._lock: BaseFileLock | None = None  # on the folder, while the run may write to it
        self._asked_to_stop = False
        self._wall_before, self._clock = 0.0, time.perf_counter()
        self._last_checkpoint = self._clock
        self._course: Course | None = None
        self._fresh: list[Request] = []  # wanted, and not yet handed out
        self._wanted: Request | None = None  # of the course
        self._measuring: Request | None = None  # the evaluation under way; self.state is what it measures
        self._ahead: list[tuple[State, Metrics]] = []  # iterations done meanwhile, held back
        self._error: OffrankError | None = None  # what went wrong in one of them

    # --- driving

    def claim(self) -> None:
        """Keep other processes out of the run's folder, which is there, until the run is closed.

        Raises:
            BusyError: another process is writing to it.
        """
        if self.folder is not None and self._lock is None:
            self._lock = lock_folder(self.folder)

    def start(self) -> None:
        """Begin, or go on from where the loaded checkpoint stands."""
        self._clock = self._last_checkpoint = time.perf_counter()
        self.stop_reason, self._asked_to_stop, self.final = None, False, None
        if self.folder is not None and self._metrics is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.claim()
            write_json(self.folder / CONFIG, self.config.to_json())
            self._metrics = MetricsFile(self.folder / METRICS, self._metrics_size)
        self._drop()
        self._course = self._go()
        self._advance(None)

    @property
    def done(self) -> bool:
        """Whether the run has ended, or was paused."""
        return self._course is None

    def take(self) -> list[Request]:
        """What the run wants to have run and has not handed out before."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def receive(self, request: Request, outcome: Rollouts | EpisodeError) -> None:
        """Take the outcome of a request that `take` gave, and move on.

        Raises:
            OffrankError: an episode went wrong, or what was learned from it. With an evaluation under way that may
                end the run, it is raised when that is in.
        """
        if request is self._measuring:
            if isinstance(outcome, EpisodeError):
                raise outcome
            self._measured(outcome)
        elif request is self._wanted:
            try:
                if isinstance(outcome, EpisodeError):
                    raise outcome
                self._advance(outcome)
            except OffrankError as error:
                if self._measuring is None:
                    raise
                self._error, self._wanted = error, None
        else:
            raise ValueError("the outcome of a request that is not under way")

    def stop(self) -> None:
        """Ask the run to stop after this iteration."""
        self._asked_to_stop = True

    def pause(self) -> None:
        """Drop what is under way and save: it will be replayed."""
        self._drop()
        self._course = None
        self.checkpoint()
        self.close()

    def close(self) -> None:
        self._wall_before, self._clock = self.wall_s, time.perf_counter()
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        if self._lock is not None:
            self._lock.release(force=True)
            self._lock = None

    def _advance(self, rollouts: Rollouts | None) -> None:
        """Let the course go on to its next request."""
        assert self._course is not None
        self._wanted = None
        try:
            self._wanted = next(self._course) if rollouts is None else self._course.send(rollouts)
        except StopIteration:
            self._course = None
        if self._wanted is not None:
            self._fresh.append(self._wanted)

    def _drop(self) -> None:
        """Forget what is under way and what was held back."""
        self._fresh, self._wanted, self._measuring, self._ahead, self._error = [], None, None, [], None

    # --- the course of a run

    def _go(self) -> Course:
        while True:
            if self._evaluation_due():
                if self._measuring is not None:
                    yield None
                self._measuring = self._evaluation()
                self._fresh.append(self._measuring)
                if self.config.count_evaluation:  # where evaluation costs, so does an iteration in vain
                    yield None
            if self._measuring is not None and self._reason_to_stop() is not None:
                yield None
            if self._reason_to_stop() is not None:
                break
            yield from self._iterate()
            if self._measuring is None and time.perf_counter() - self._last_checkpoint >= self.checkpoint_seconds:
                self.checkpoint()
        yield from self._end()

    def _end(self) -> Course:
        self.stop_reason = self._reason_to_stop()
        self.checkpoint()
        extra = self.config.eval_every > 0 and not self._evaluated() and not self._asked_to_stop
        if extra and not self.config.count_evaluation:  # where evaluation costs, nobody asked for this one
            self.final = self._measure((yield self._evaluation()), final=True)
        if self.folder is not None:
            self._write_outcome(self.folder)
        self.close()

    def _iterate(self) -> Asking[None]:
        """One iteration of the strategy. Every training step of a run is counted here, and nowhere else."""
        iteration = self.strategy.iteration(self._latest, self.ranker, self.episodes)
        steps = episodes = 0
        rollouts: Rollouts | None = None
        while True:
            try:
                request = next(iteration) if rollouts is None else iteration.send(rollouts)
            except StopIteration as done:
                state, metrics = done.value
                break
            rollouts = yield request
            steps, episodes = steps + rollouts.steps, episodes + len(request)
        state = state.counted(steps, episodes)
        if self.info.exact is not None:
            metrics |= self.info.exact(state.M, self.strategy.whitening(state))
        self._ahead.append((state, metrics))
        if self._measuring is None:
            self._catch_up()

    @property
    def _latest(self) -> State:
        """The state after the last iteration, held back or not."""
        return self._ahead[-1][0] if self._ahead else self.state

    def _catch_up(self) -> None:
        """Make what was held back part of the run; a callback may stop it on the way."""
        while self._ahead:
            self.state, metrics = self._ahead.pop(0)
            self._log("iteration", metrics)
            if self._asked_to_stop:
                self._ahead = []

    def _evaluated(self) -> bool:
        return bool(self.evaluations) and self.evaluations[-1].iteration == self.state.iteration

    def _evaluation_due(self) -> bool:
        every, done = self.config.eval_every, self._latest.iteration
        return every > 0 and done > 0 and done % every == 0 and not (self._evaluated() and not self._ahead)

    def _evaluation(self) -> Request:
        """Fresh episodes of the policy as it is."""
        index = np.arange(self.config.eval_episodes)
        return Request(
            base=self.state.M,
            whitening=self.policy.whitening,
            seeds=episode_seeds(self.state.seed, self.state.iteration, Role.EVALUATION, index),
            roles=np.full(len(index), Role.EVALUATION, dtype=np.int64),
            index=index,
            horizon=self.config.horizon,
        )

    def _measure(self, rollouts: Rollouts, final: bool = False) -> Evaluation:
        """What an evaluation came to; nothing is learned from it."""
        self.evaluation_steps += rollouts.steps
        count = len(rollouts.totals)
        if self.config.count_evaluation:
            self.state = self.state.counted(rollouts.steps, count)
        mean, std = float(rollouts.totals.mean()), float(rollouts.totals.std())
        length = float(rollouts.lengths.mean())
        record: Metrics = {"return_mean": mean, "return_std": std, "length_mean": length, "eval_episodes": count}
        self._log("evaluation", record | ({"final": True} if final else {}))
        return Evaluation(self.state.iteration, self.state.steps, mean, std)

    def _measured(self, rollouts: Rollouts) -> None:
        """An evaluation is in: end the run, or go on with what was held back."""
        evaluation = self._measure(rollouts)
        self.evaluations.append(evaluation)
        if self.best is None or evaluation.mean > self.best[0].mean:
            self.best = (evaluation, self.policy)
        self.checkpoint()
        waiting, error = self._wanted is None and self._error is None, self._error
        ends = self.reached is not None or self._asked_to_stop
        if not ends:
            self._catch_up()
            ends = self._asked_to_stop
        if ends:
            self._drop()
            self._course = self._end()
            self._advance(None)
            return
        self._measuring = self._error = None
        if error is not None:
            raise error
        if waiting:
            self._advance(None)

    def _reason_to_stop(self) -> str | None:
        config, state = self.config, self._latest
        if self.reached is not None:
            return "threshold"
        if config.steps is not None and state.steps >= config.steps:
            return "steps"
        if config.iterations is not None and state.iteration >= config.iterations:
            return "iterations"
        return "stopped" if self._asked_to_stop else None

    # --- what came of it

    @property
    def policy(self) -> LinearPolicy:
        """The policy as it is now."""
        info = self.info
        whitening = self.strategy.whitening(self.state)
        return policy_for(info, self.state.M, whitening)

    @property
    def reached(self) -> Evaluation | None:
        """The first evaluation at or over the threshold. A final, extra evaluation never counts."""
        threshold = self.config.threshold
        if threshold is None:
            return None
        return next((e for e in self.evaluations if e.mean >= threshold), None)

    @property
    def wall_s(self) -> float:
        """Seconds spent, earlier sittings included."""
        return self._wall_before + time.perf_counter() - self._clock

    @property
    def result(self) -> dict[str, Any]:
        """The outcome as numbers."""
        reached, config, best = self.reached, self.config, self.best_of_all[0]
        return {
            "task": config.task,
            "algo": config.algo,
            "ranker": config.ranker,
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
            "policy_sha256": self.policy.sha256,
            "versions": versions(),
        }

    @property
    def best_of_all(self) -> tuple[Evaluation | None, LinearPolicy]:
        """The best policy of any evaluation, a final one included; the current one while there was none."""
        if self.final is not None and (self.best is None or self.final.mean > self.best[0].mean):
            return self.final, self.policy
        return self.best or (None, self.policy)

    @property
    def last(self) -> Evaluation | None:
        """The evaluation of the policy as it is now, if there was one."""
        return self.final or (self.evaluations[-1] if self._evaluated() else None)

    def _write_outcome(self, folder: Path) -> None:
        evaluation, policy = self.best_of_all
        policy.save(folder / BEST, self._policy_meta(evaluation))
        self.policy.save(folder / FINAL, self._policy_meta(self.last))
        write_json(folder / RESULT, self.result)

    def _policy_meta(self, evaluation: Evaluation | None) -> dict[str, Any]:
        return {"config": self.config.to_json(), "evaluation": None if evaluation is None else vars(evaluation)}

    def _log(self, kind: str, metrics: Metrics) -> None:
        state = self.state
        record: Metrics = {"kind": kind, "iteration": state.iteration, "steps": state.steps, "episodes": state.episodes}
        record |= metrics | {"wall_s": round(self.wall_s, 3)}
        if self._metrics is not None:
            self._metrics.write(record)
        for callback in self.callbacks:
            if callback(self, record) is False:
                self.stop()

    # --- saving

    def move_to(self, folder: Path) -> None:
        """Write to another folder from now on. Its log begins here, whatever was learned before."""
        self.folder, self._metrics_size = folder, 0

    def checkpoint(self) -> None:
        """Write all of the run to its folder, if it has one."""
        self._last_checkpoint = time.perf_counter()
        if self.folder is None:
            return
        if self._metrics is not None:
            self._metrics.sync()
            self._metrics_size = self._metrics.size
        self.save(self.folder / CHECKPOINT)
        if self.best is not None and self._evaluated():
            evaluation, policy = self.best
            if evaluation is self.evaluations[-1]:
                policy.save(self.folder / BEST, self._policy_meta(evaluation))

    def save(self, path: Path) -> None:
        """Write all of the run to one file."""
        arrays: Memory = {f"state.{k}": v for k, v in self.state.arrays().items()}
        table = [(e.iteration, e.steps, e.mean, e.std) for e in self.evaluations]
        arrays["evaluations"] = np.array(table, dtype=np.float64).reshape(-1, 4)
        arrays |= self.policy.arrays()
        best_at = -1
        if self.best is not None:
            best_at = self.evaluations.index(self.best[0])
            arrays |= {f"best.{k}": v for k, v in self.best[1].arrays().items()}
        meta = {
            "config": self.config.to_json(),
            "best_at": best_at,
            "wall_s": self.wall_s,
            "evaluation_steps": self.evaluation_steps,
            "metrics_size": self._metrics_size,
            "versions": versions(),
        }
        save_arrays(path, "run", arrays, meta)

    def restore(self, path: Path) -> None:
        """Take up the state that `save` wrote; the metrics are cut back to it when the run starts.

        Raises:
            UsageError: the file is of another run.
        """
        _, arrays, meta = load_arrays(path, "run")
        theirs, ours = RunConfig.from_json(meta["config"]).identity, self.config.identity
        for name, mine in ours.items():
            if theirs[name] != mine:
                raise UsageError(f"{path} is of another run: its {name} is {theirs[name]!r}, not {mine!r}")
        self.state = State.from_arrays(part(arrays, "state."))
        self.evaluations = [Evaluation(int(i), int(s), float(m), float(d)) for i, s, m, d in arrays["evaluations"]]
        self.best = None
        if meta["best_at"] >= 0:
            best = LinearPolicy.from_arrays(part(arrays, "best."))
            self.best = (self.evaluations[meta["best_at"]], best)
        self.evaluation_steps = meta["evaluation_steps"]
        self._wall_before, self._clock = meta["wall_s"], time.perf_counter()
        self._metrics_size = meta["metrics_size"]


def policy_for(info: EnvInfo, M: FloatArray, whitening: Whitening) -> LinearPolicy:
    """The policy with these weights, acting as the environment needs it."""
    return LinearPolicy(M, whitening, info.discrete, info.first, info.low, info.high, info.shape, info.dtype)
