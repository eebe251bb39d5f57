"""One run: iterations, evaluations, when to save and when to stop.

A run is driven from outside, by `drive` or by AskTell. `take` returns the work to do next; `receive` takes its result
and advances the run. Between any two calls the run can be saved; a run restored from that file asks for the same work
again.

An evaluation overlaps the iterations after it. These are speculative: their results are held back until the evaluation
is complete, and discarded if it ends the run. The result is the same as without overlap, with less waiting.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from filelock import BaseFileLock

from offrank.core.arrays import Metrics
from offrank.core.errors import OffrankError
from offrank.core.files import write_json
from offrank.core.noise import Role
from offrank.core.rollouts import Request, Rollouts
from offrank.core.space import Space
from offrank.core.state import State
from offrank.core.work import Asking, Outcome, Work
from offrank.policies.trained import TrainedPolicy
from offrank.runs.callback import Callback, OnRecord
from offrank.runs.config import RunConfig
from offrank.runs.folder import BEST, CHECKPOINT, CONFIG, METRICS
from offrank.runs.lock import lock_folder
from offrank.runs.metrics import MetricsFile
from offrank.runs.record import Evaluation, Record

Loop = Generator[Work | None, Any, None]  # yields work, or None to wait for the current evaluation


class Run(Record):
    """A run of one algorithm on one task with one seed.

    Args:
        config: the configuration.
        space: of the environment.
        folder: the run folder; None keeps everything in memory.
        callbacks: each is called with (run, record) for every line of the log; its `close`, if it has one, at the end.
            See `offrank.runs.callback.Callback` for more.
        checkpoint_seconds: maximum time between checkpoints; they are also written at evaluations and at the end.
        init: the policy to start from, whose SHA-256 is config.init. Not needed for a run that is restored.
    """

    def __init__(
        self,
        config: RunConfig,
        space: Space,
        folder: Path | None = None,
        callbacks: tuple[OnRecord, ...] = (),
        checkpoint_seconds: float = 30.0,
        init: TrainedPolicy | None = None,
    ):
        super().__init__(config, space, init)
        self.folder, self.callbacks, self.checkpoint_seconds = folder, callbacks, checkpoint_seconds
        self.overlaps = True  # whether iterations go on during an evaluation; set before the start
        self._metrics: MetricsFile | None = None
        self._lock: BaseFileLock | None = None  # on the folder, while the run is open
        self._asked_to_stop = False
        self._last_checkpoint = time.perf_counter()
        self._loop: Loop | None = None
        self._new: list[Work] = []  # work that `take` has not returned yet
        self._wanted: Work | None = None  # the work that the loop waits for
        self._evaluating: Request | None = None  # the current evaluation, which is of self.state
        self._unconfirmed: Rollouts | None = None  # its first episodes, while they are confirmed by more
        self._speculative: list[tuple[State, Metrics]] = []  # iterations completed during the evaluation
        self._error: OffrankError | None = None  # raised in one of them

    # --- driving

    def claim(self) -> None:
        """Lock the run's folder, which must exist, against other processes until the run is closed.

        Raises:
            BusyError: another process is writing to it.
        """
        if self.folder is not None and self._lock is None:
            self._lock = lock_folder(self.folder)

    def start(self) -> None:
        """Start the run, or continue it from the restored checkpoint."""
        self._clock = self._last_checkpoint = time.perf_counter()
        self.stop_reason, self._asked_to_stop, self.final = None, False, None
        if self.folder is not None and self._metrics is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.claim()
            if self.config.init is not None and not (self.folder / CHECKPOINT).is_file():
                self.checkpoint()  # from here on the file of the initial policy is not needed
            write_json(self.folder / CONFIG, self.config.to_json())
            self._metrics = MetricsFile(self.folder / METRICS, self._metrics_size)
        self._discard()
        for callback in self._objects:
            if callback.on_start(self) is False:
                self.stop()
        self._loop = self._run_loop()
        self._advance(None)

    @property
    def done(self) -> bool:
        """Whether the run has ended, or was paused."""
        return self._loop is None

    def take(self) -> list[Work]:
        """The work to do now that earlier calls have not returned."""
        new, self._new = self._new, []
        return new

    def receive(self, work: Work, outcome: Outcome | OffrankError) -> None:
        """Take the result of work that `take` returned, and advance the run.

        Raises:
            OffrankError: an episode, a lesson or the iteration failed. During an evaluation, which may end the run, the
                error of an iteration is raised once the evaluation is complete.
        """
        if work is self._evaluating:
            if isinstance(outcome, OffrankError):
                raise outcome
            assert isinstance(outcome, Rollouts)
            self._finish_evaluation(outcome)
        elif work is self._wanted:
            self._continue_loop(outcome)
        else:
            raise ValueError("the result of work that this run is not waiting for")

    def stop(self) -> None:
        """Stop the run after this iteration."""
        self._asked_to_stop = True

    def pause(self) -> None:
        """Discard the current iteration and evaluation, save and close. They are repeated when the run is continued.

        Raises:
            OffrankError: it cannot be saved; the last checkpoint is intact, and the folder is unlocked.
        """
        self._discard()
        self._loop = None
        try:
            self.checkpoint()
        finally:
            self.close()

    def close(self) -> None:
        """Close the files and unlock the folder."""
        self._wall_before, self._clock = self.wall_s, time.perf_counter()
        metrics, self._metrics = self._metrics, None
        lock, self._lock = self._lock, None
        self._segments = {}  # another process may write to the folder from now on
        with ExitStack() as closing:  # called from the last to the first, also where one raises
            if lock is not None:
                closing.callback(lock.release, force=True)
            if metrics is not None:
                closing.callback(metrics.close)
            for callback in reversed(self.callbacks):
                closing.callback(getattr(callback, "close", lambda: None))

    def lose_folder(self) -> None:
        """Write nothing more: another run of this process has taken over the folder, and its lock."""
        if self._metrics is not None:
            self._metrics.close()
        self._lock = self._metrics = self.folder = None

    def _continue_loop(self, outcome: Outcome | OffrankError) -> None:
        try:
            if isinstance(outcome, OffrankError):
                raise outcome
            self._advance(outcome)
        except OffrankError as error:
            if self._evaluating is None:
                raise
            self._error, self._wanted = error, None

    def _advance(self, outcome: Outcome | None) -> None:
        """Run the loop up to its next piece of work."""
        assert self._loop is not None
        self._wanted = None
        try:
            self._wanted = next(self._loop) if outcome is None else self._loop.send(outcome)
        except StopIteration:
            self._loop = None
        if self._wanted is not None:
            self._new.append(self._wanted)

    def _discard(self) -> None:
        """Discard the current iteration and evaluation, and speculative results."""
        self._new, self._wanted, self._evaluating, self._speculative, self._error = [], None, None, [], None
        self._unconfirmed = None

    # --- the loop of a run

    def _run_loop(self) -> Loop:
        while True:
            if self._evaluation_due():
                if self._evaluating is not None:
                    yield None
                self._evaluating = self._evaluation()
                self._new.append(self._evaluating)
                if self.config.count_evaluation or not self.overlaps:  # on a robot, a discarded iteration is costly
                    yield None
            if self._evaluating is not None and self._reason_to_stop() is not None:
                yield None
            if self._reason_to_stop() is not None:
                break
            yield from self._iterate()
            if self._evaluating is None and time.perf_counter() - self._last_checkpoint >= self.checkpoint_seconds:
                self.checkpoint()
        yield from self._end()

    def _end(self) -> Loop:
        self.stop_reason = self._reason_to_stop()
        self.checkpoint()
        extra = self.config.evaluates and not self._evaluated() and not self._asked_to_stop
        if extra and not self.config.count_evaluation:  # on a robot, an unscheduled evaluation would be costly
            self.final = self._measure((yield self._evaluation()), final=True)
        if self.folder is not None:
            self._write_outcome(self.folder)
        for callback in self._objects:
            callback.on_end(self)
        self.close()

    def _iterate(self) -> Asking[None]:
        """One iteration of the algorithm. The training steps of a run are counted here, and nowhere else."""
        iteration = self.algorithm.iteration(self._latest)
        steps = episodes = 0
        outcome: Outcome | None = None
        while True:
            try:
                work = next(iteration) if outcome is None else iteration.send(outcome)
            except StopIteration as done:
                state, metrics = done.value
                break
            outcome = yield work
            if isinstance(work, Request):
                assert isinstance(outcome, Rollouts)
                steps, episodes = steps + outcome.steps, episodes + len(work)
        state = state.counted(steps, episodes)
        if self.space.exact is not None:
            policy = self.algorithm.policy(state)
            metrics |= self.space.exact(policy.kind, policy.theta, policy.whitening)
        self._speculative.append((state, metrics))
        if self._evaluating is None:
            self._commit()

    @property
    def _latest(self) -> State:
        """The state after the last iteration, speculative or not."""
        return self._speculative[-1][0] if self._speculative else self.state

    def _commit(self) -> None:
        """Make speculative iterations part of the run, until a callback stops it."""
        while self._speculative:
            self.state, metrics = self._speculative.pop(0)
            self.log("iteration", metrics)
            if self._asked_to_stop:
                self._speculative = []

    def _evaluation_due(self) -> bool:
        config = self.config
        if config.init is not None and self._latest.steps == 0 and not self.evaluations:  # what training must beat
            return config.evaluates and not config.count_evaluation and self._evaluating is None
        if config.eval_steps is not None:  # a multiple was passed since the last evaluation
            return self._latest.steps // config.eval_steps > self._evaluated_steps // config.eval_steps
        every, done = config.eval_every, self._latest.iteration
        return every > 0 and done > 0 and done % every == 0 and not (self._evaluated() and not self._speculative)

    @property
    def _evaluated_steps(self) -> int:
        """Training steps up to the last evaluation, which may not be complete."""
        if self._evaluating is not None:
            return self.state.steps
        return self.evaluations[-1].steps if self.evaluations else 0

    def _evaluation(self, confirm: bool = False) -> Request:
        """A request for evaluation episodes of the current policy; to confirm an evaluation, for others."""
        first, policy = self.config.eval_episodes, self.policy
        index = np.arange(first, first + self.config.confirm_episodes) if confirm else np.arange(first)
        run = self.state.seed, self.state.iteration, Role.EVALUATION, index
        return Request.of_one(policy.kind, policy.theta, policy.whitening, *run, self.config.horizon)

    def _measure(self, rollouts: Rollouts, **marks: bool) -> Evaluation:
        """Count and log an evaluation, marked as final or unconfirmed, and return its result."""
        self.evaluation_steps += rollouts.steps
        count = len(rollouts.totals)
        if self.config.count_evaluation:
            self.state = self.state.counted(rollouts.steps, count)
        mean, std = float(rollouts.totals.mean()), float(rollouts.totals.std())
        length = float(rollouts.lengths.mean())
        record: Metrics = {"return_mean": mean, "return_std": std, "length_mean": length, "eval_episodes": count}
        marks |= {} if self.overlaps else {"alone": True}
        self.log("evaluation", record | marks)
        return Evaluation(self.state.iteration, self.state.steps, mean, std, count)

    def _finish_evaluation(self, rollouts: Rollouts) -> None:
        """Store an evaluation. Then end the run, or commit the iterations completed meanwhile.

        One that reaches the threshold is first confirmed, if there are episodes for that. Both are then stored at once,
        so that an interrupted evaluation is repeated from its start.
        """
        threshold, first = self.config.threshold, self._unconfirmed
        reaches = threshold is not None and rollouts.totals.mean() >= threshold and self.state.steps > 0
        if self.config.confirm_episodes > 0 and reaches and first is None:
            self._unconfirmed, self._evaluating = rollouts, self._evaluation(confirm=True)
            self._new.append(self._evaluating)
            return
        if first is not None:
            self._measure(first, unconfirmed=True)
        evaluation = self._measure(rollouts)
        self.evaluations.append(evaluation)
        if self.best is None or evaluation.mean > self.best[0].mean:
            self.best = (evaluation, self.policy)
        self.checkpoint()
        waiting, error = self._wanted is None and self._error is None, self._error
        ends = self.reached is not None or self._asked_to_stop
        if not ends:
            self._commit()
            ends = self._asked_to_stop
        if ends:
            self._discard()
            self._loop = self._end()
            self._advance(None)
            return
        self._evaluating = self._unconfirmed = self._error = None
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

    def log(self, kind: str, metrics: Metrics) -> None:
        """Write a line to the log, and call the callbacks with it. It must have a return_mean."""
        state = self.state
        record: Metrics = {"kind": kind, "iteration": state.iteration, "steps": state.steps, "episodes": state.episodes}
        record |= metrics | {"wall_s": round(self.wall_s, 3)}
        if self._metrics is not None:
            self._metrics.write(record)
        for callback in self.callbacks:
            if callback(self, record) is False:
                self.stop()

    @property
    def _objects(self) -> list[Callback]:
        """The callbacks that are not plain functions."""
        return [callback for callback in self.callbacks if isinstance(callback, Callback)]

    # --- saving

    def move_to(self, folder: Path) -> None:
        """Write to another folder from now on. Its metrics begin with the next iteration."""
        self.folder, self._metrics_size, self._segments = folder, 0, {}

    def checkpoint(self) -> None:
        """Write the whole run to its folder, if it has one."""
        self._last_checkpoint = time.perf_counter()
        if self.folder is None:
            return
        if self._metrics is not None:
            self._metrics.sync()
            self._metrics_size = self._metrics.size
        self._save_to(self.folder)
        if self.best is not None and self._evaluated():
            evaluation, policy = self.best
            if evaluation is self.evaluations[-1]:
                policy.save(self.folder / BEST, self.policy_meta(evaluation))
