"""Driving runs: one engine serves whatever the runs ask for at the moment, side by side.

A single run is a fleet of one. Nobody waits for another's phase: as soon as a run's request is complete, its next one
joins what the engine is doing. Where the engine is a GPU, the critics of all runs that have new transitions at the
moment are trained there together.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from types import FrameType

from offrank.algorithms.learning.batched import torch_tutor
from offrank.core.errors import EpisodeError, Interrupted, OffrankError
from offrank.core.noise import make_room
from offrank.core.rollouts import Request, Rollouts
from offrank.engines.base import Engine
from offrank.runs.run import Run

POLL = 0.1  # seconds between looks at the clock, the signals and the progress display


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
    """Catch Ctrl-C and SIGTERM while inside, where that is possible (only the main thread may)."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {number: signal.signal(number, signals) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def drive(
    runs: Iterable[Run], engine: Engine, tick: Callable[[], None] | None = None, side_by_side: int | None = None
) -> None:
    """Drive runs to their end.

    Args:
        runs: not yet started. Each is taken when there is room for it, so they may be opened one by one.
        engine: with nothing under way.
        tick: called several times a second.
        side_by_side: how many runs go at a time; None for all.

    Raises:
        Interrupted: by a signal; the runs under way were saved, and go on from there to the same bits. It holds the
            failures there were until then.
        OffrankError: an episode of a run failed, and that run was saved as it stood before; the others went on to their
            end. Or the engine failed, and all were saved.
    """
    waiting: dict[int, tuple[Run, Request]] = {}
    begun: list[Run] = []
    tutor = cache(torch_tutor)  # made when there is something to teach: PyTorch takes its time to load
    to_come = iter(runs)
    failures: list[OffrankError] = []

    def submit(run: Run) -> None:
        for request in run.take():
            waiting[engine.submit(request)] = (run, request)

    def move_on(run: Run, step: Callable[[], None]) -> None:
        try:
            step()
        except OffrankError as error:
            failures.append(error)
            _pause(run)
        if run.done:
            for other in [t for t, (r, _) in waiting.items() if r is run]:
                engine.drop(other)
                del waiting[other]
        submit(run)

    def receive(ticket: int, outcome: Rollouts | EpisodeError) -> None:
        run, request = waiting.pop(ticket)
        move_on(run, partial(run.receive, request, outcome))

    def teach(at_least: int) -> None:
        """Carry out the lessons that runs wait for, if there are so many."""
        if engine.device is None:
            return  # runs do that themselves
        pupils = [(run, run.lesson) for run in under_way() if run.lesson is not None]
        if len(pupils) < at_least:
            return
        together = tutor(engine.device)
        memories = together.teach(pupils) if together else [lesson.carry_out() for _, lesson in pupils]
        for (run, _), memory in zip(pupils, memories, strict=True):
            move_on(run, partial(run.taught, memory))

    def under_way() -> list[Run]:
        begun[:] = [run for run in begun if not run.done]
        return begun

    def take_up() -> None:
        more = False
        while (side_by_side is None or len(under_way()) < side_by_side) and (run := next(to_come, None)) is not None:
            run.hands_out_lessons = engine.device is not None
            run.start()
            begun.append(run)
            submit(run)
            more = True
        if more:
            make_room(2 * sum(run.direction_bytes for run in under_way()))

    with catching_signals() as signals:
        try:
            take_up()
            while waiting or under_way():
                completed = engine.completed(POLL)
                for ticket, outcome in completed:
                    if ticket in waiting:  # not dropped a moment ago
                        receive(ticket, outcome)
                teach(at_least=1 + len(under_way()) // 2 if completed else 1)  # together, but nobody waits long
                take_up()
                if tick is not None:
                    tick()
                if signals.caught is not None:
                    raise Interrupted(signals.caught, failures)
        except (OffrankError, KeyboardInterrupt):
            for run in list(under_way()):
                _pause(run)
            engine.cancel()
            raise
    if failures:
        raise failures[0]


def _pause(run: Run) -> None:
    """Save a run as it stands. One that cannot be saved keeps its last checkpoint, and must not keep others from it."""
    with suppress(OffrankError):
        run.pause()
