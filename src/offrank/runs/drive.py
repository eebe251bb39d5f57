"""Driving runs: one engine serves whatever the runs ask for at the moment, side by side.

A single run is a fleet of one. Nobody waits for another's phase: as soon as a run's request is complete, its next one
joins what the engine is doing. Where the engine is a GPU, lessons that can be carried out together are collected for a
moment and done there in one batch.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType

from offrank.core.errors import EpisodeError, FleetError, Interrupted, OffrankError, RunFailed
from offrank.core.noise import size_cache
from offrank.core.rollouts import Request
from offrank.core.work import Lesson, Outcome, Work
from offrank.engines.base import Engine
from offrank.runs.run import Run

POLL = 0.1  # seconds between looks at the clock, the signals and the progress display
PATIENCE = 0.25  # seconds that a lesson waits at most for others to be carried out with


class Signals:
    """Remembers the signal that asked us to stop, so that it is honoured between two control steps."""

    def __init__(self) -> None:
        self.caught: int | None = None

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.caught is not None:  # asked twice: at once
            raise KeyboardInterrupt
        self.caught = signum


@contextmanager
def catching_signals() -> Iterator[Signals]:
    """Catch Ctrl-C and SIGTERM while inside, where that is possible (only the main thread may).

    A handler that was not set from Python cannot be put back, so its signal is left to it.
    """
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    ours = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not None]
    before = {number: signal.signal(number, signals) for number in ours}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class LessonQueue:
    """Lessons that wait for a device, by who may be carried out with whom.

    A lesson waits for half of the runs that have lessons of its kind, but never for a run that has none, and never
    longer than PATIENCE.
    """

    def __init__(self, device: str):
        self._device = device
        self._waiting: dict[Hashable, list[tuple[Run, Lesson]]] = defaultdict(list)
        self._since: dict[Hashable, float] = {}  # when the first of them came
        self._kind: dict[Run, Hashable] = {}  # of a run's last lesson

    def add(self, run: Run, lesson: Lesson) -> None:
        key = (type(lesson), lesson.batch_key)
        self._kind[run] = key
        self._since.setdefault(key, time.monotonic())
        self._waiting[key].append((run, lesson))

    def due(self, under_way: Sequence[Run], idle: bool) -> list[tuple[Run, Lesson, Outcome]]:
        """Carry out what need not wait any longer.

        Args:
            under_way: the runs that have not ended.
            idle: whether there is nothing else to do.
        """
        done: list[tuple[Run, Lesson, Outcome]] = []
        going = set(under_way)
        self._kind = {run: key for run, key in self._kind.items() if run in going}
        for key in list(self._waiting):
            waiting = self._waiting[key] = [(run, lesson) for run, lesson in self._waiting[key] if run in going]
            peers = sum(kind == key for kind in self._kind.values())
            patient = time.monotonic() - self._since[key] < PATIENCE
            if waiting and not idle and patient and 2 * len(waiting) <= peers:
                continue
            del self._waiting[key], self._since[key]
            if waiting:
                runs, lessons = zip(*waiting, strict=True)
                outcomes = type(lessons[0]).carry_out_together(lessons, runs, self._device)
                done += [(run, lesson, outcome) for (run, lesson), outcome in zip(waiting, outcomes, strict=True)]
        return done


class _Drive:
    """One call of `drive`: the runs under way, and what each of them waits for."""

    def __init__(self, runs: Iterable[Run], engine: Engine, side_by_side: int | None, failures: Sequence[RunFailed]):
        self._to_come, self._engine, self._side_by_side = iter(runs), engine, side_by_side
        self._waiting: dict[int, tuple[Run, Request]] = {}  # by ticket of the engine
        self._begun: list[Run] = []
        self._lessons = None if engine.device is None else LessonQueue(engine.device)
        self.failures = list(failures)

    @property
    def under_way(self) -> list[Run]:
        self._begun = [run for run in self._begun if not run.done]
        return self._begun

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self.under_way)

    def take_up(self) -> None:
        """Start as many of the runs to come as there is room for."""
        more = False
        limit = self._side_by_side
        while (limit is None or len(self.under_way) < limit) and (run := next(self._to_come, None)) is not None:
            try:
                run.start()
            except OffrankError as error:  # nothing of it has changed: its files stay as they are
                self.failures.append(RunFailed(run.name, error))
                run.close()
                continue
            self._begun.append(run)
            self._move_on(run, lambda: None)
            more = True
        if more:
            size_cache(2 * sum(run.algorithm.cached_bytes for run in self.under_way))

    def work(self) -> None:
        """Wait a moment for outcomes, and let the runs go on with them."""
        completed = self._engine.completed(POLL)
        for ticket, outcome in completed:
            if ticket in self._waiting:  # not dropped a moment ago
                run, request = self._waiting.pop(ticket)
                self._receive(run, request, outcome)
        if self._lessons is not None:
            for run, lesson, learned in self._lessons.due(self.under_way, idle=not completed):
                self._receive(run, lesson, learned)

    def _receive(self, run: Run, work: Work, outcome: Outcome | EpisodeError) -> None:
        self._move_on(run, partial(run.receive, work, outcome))

    def _move_on(self, run: Run, step: Callable[[], None]) -> None:
        """Let a run take a step, and hand out the work that it wants then."""
        try:
            step()
            self._hand_out(run)
        except OffrankError as error:
            if (unsaved := _pause(run)) is not None:
                error.add_note(f"not saved: {unsaved}")
            self.failures.append(RunFailed(run.name, error))
        if run.done:
            for other in [ticket for ticket, (owner, _) in self._waiting.items() if owner is run]:
                self._engine.drop(other)
                del self._waiting[other]

    def _hand_out(self, run: Run) -> None:
        while new := run.take():
            for work in new:
                if isinstance(work, Request):
                    self._waiting[self._engine.submit(work)] = (run, work)
                elif self._lessons is not None:
                    self._lessons.add(run, work)
                else:
                    run.receive(work, work.carry_out())


def drive(
    runs: Iterable[Run],
    engine: Engine,
    tick: Callable[[], None] | None = None,
    side_by_side: int | None = None,
    failures: Sequence[RunFailed] = (),
) -> None:
    """Drive runs to their end.

    Args:
        runs: not yet started. Each is taken when there is room for it, so they may be opened one by one.
        engine: with nothing under way.
        tick: called several times a second.
        side_by_side: how many runs go at a time; None for all.
        failures: runs that could not even be opened, to be reported with those that fail.

    Raises:
        Interrupted: by a signal; the runs under way were saved, and go on from there to the same bits. It holds the
            failures there were until then, and the runs that could not be saved.
        FleetError: some of several runs failed, and were saved as they stood before; the others went on to their end.
        OffrankError: the only run failed, likewise. Or the engine failed, and all were saved.

    Whatever else is raised, by a callback or by a library, the runs under way are saved first, and all are closed.
    """
    opened = runs if isinstance(runs, Sequence) else ()
    with catching_signals() as signals:
        driving = _Drive(runs, engine, side_by_side, failures)
        try:
            driving.take_up()
            while driving.busy:
                driving.work()
                driving.take_up()
                if tick is not None:
                    tick()
                if signals.caught is not None:
                    raise Interrupted(signals.caught, driving.failures)
        except BaseException as error:
            unsaved = [failure for run in list(driving.under_way) if (failure := _pause(run)) is not None]
            with suppress(Exception):  # the engine may be what failed
                engine.cancel()
            for run in opened:
                with suppress(OffrankError):
                    run.close()
            if isinstance(error, Interrupted):
                raise Interrupted(error.signum, error.failures, unsaved) from None
            for failure in unsaved:
                error.add_note(f"not saved: {failure}")
            raise
    if len(driving.failures) == len(opened) == 1 and driving.failures[0].__cause__ is not None:
        raise driving.failures[0].__cause__
    if driving.failures:
        raise FleetError(driving.failures)


def _pause(run: Run) -> RunFailed | None:
    """Save and close a run as it stands; what went wrong, if it could not be saved. Its last checkpoint is intact."""
    try:
        run.pause()
    except OffrankError as error:
        return RunFailed(run.name, error)
    return None
