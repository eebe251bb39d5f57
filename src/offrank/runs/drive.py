"""Driving runs: one engine serves the requests of several runs concurrently.

A single run is a fleet of one. Runs do not wait for each other: as soon as a run's request is complete, its next one is
submitted to the engine. Lessons are carried out in threads, one per CPU; on a GPU, the engine's or another, in
batches, one after the other, while the engine runs the episodes of other runs.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType

from offrank.core.arithmetic import one_blas_thread, usable_cpus
from offrank.core.arrays import Memory
from offrank.core.errors import FleetError, Interrupted, OffrankError, RunFailed
from offrank.core.noise import size_cache
from offrank.core.rollouts import Request
from offrank.core.work import Lesson, Outcome, Work, device_lock
from offrank.engines.base import Engine
from offrank.runs.run import Run

POLL = 0.1  # maximum number of seconds between checks of signals and updates of the progress display
SOON = 0.002  # the same, while lessons are carried out that may end at any moment
SWITCH = 0.0005  # seconds after which a thread that launches a GPU's work gets the interpreter


class Signals:
    """A signal handler that stores the first signal, so that it is handled when no run is being changed.

    A second Ctrl-C is a user who does not want to wait. A second SIGTERM is not: whoever ends a group of processes
    sends it to each, and so does one of them.
    """

    def __init__(self, engine: Engine | None) -> None:
        self.caught: int | None = None
        self._engine = engine

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        second, self.caught = self.caught is not None and signum == signal.SIGINT, signum
        hangs = self._engine is not None and self._engine.interruptible  # perhaps; no run is being changed meanwhile
        if second or hangs:
            raise KeyboardInterrupt


@contextmanager
def catching_signals(engine: Engine | None = None) -> Iterator[Signals]:
    """Catch Ctrl-C and SIGTERM inside this context. Has no effect outside of the main thread.

    A handler that was not set from Python cannot be restored, so its signal is not caught.
    """
    signals = Signals(engine)
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


Learned = tuple[Run, Lesson, Outcome | OffrankError]


class LessonThreads:
    """Lessons carried out in threads of this process: array code releases the interpreter's lock."""

    def __init__(self, threads: int):
        self._pool = ThreadPoolExecutor(threads, "lesson")
        self._going: dict[Future[Memory | OffrankError], tuple[Run, Lesson]] = {}

    @property
    def poll(self) -> float:
        """How long to wait for episodes, in seconds, before lessons are looked at."""
        return SOON if self._going else POLL

    def add(self, run: Run, lesson: Lesson) -> None:
        self._going[self._pool.submit(lesson.attempt)] = run, lesson

    def due(self, active: Sequence[Run], idle: bool) -> list[Learned]:
        """The lessons that have ended.

        Args:
            active: the runs that have not ended; lessons of others are dropped.
            idle: whether there is nothing else to do, so that the next lesson is waited for.
        """
        going = set(active)
        for dropped in [future for future, (run, _) in self._going.items() if run not in going]:
            dropped.cancel()
            del self._going[dropped]
        ended, _ = wait(self._going, POLL if idle else 0, FIRST_COMPLETED)
        return [(*self._going.pop(future), future.result()) for future in list(self._going) if future in ended]

    def close(self) -> None:
        """Lessons that have not begun are dropped, the others are waited for."""
        self._pool.shutdown(cancel_futures=True)


class LessonQueue:
    """Lessons waiting for a GPU. A thread carries them out, one batch after the other.

    A batch takes little longer for many runs than for few. So when the GPU is free, all lessons that wait then and have
    the batch key of the first are the next batch. The episodes of the runs before it are run meanwhile.
    """

    def __init__(self, device: str):
        self._device = device
        self._waiting: dict[Hashable, list[tuple[Run, Lesson]]] = {}  # in the order in which they were added
        self._pool = ThreadPoolExecutor(1, "lessons")
        self._batch: tuple[list[tuple[Run, Lesson]], Future[list[Memory | OffrankError]]] | None = None
        self._switch: float | None = None  # the interpreter's interval of switching threads before the first lesson

    @property
    def poll(self) -> float:
        """How long to wait for episodes, in seconds, before lessons are looked at."""
        return SOON if self._batch is not None else POLL

    def add(self, run: Run, lesson: Lesson) -> None:
        if self._switch is None:
            self._switch = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH)
        self._waiting.setdefault((type(lesson), lesson.batch_key), []).append((run, lesson))

    def due(self, active: Sequence[Run], idle: bool) -> list[Learned]:
        """The lessons that have ended. Starts the next batch.

        Args:
            active: the runs that have not ended; lessons of others are dropped.
            idle: whether there is nothing else to do, so that a batch is waited for.
        """
        going, done = set(active), list[Learned]()
        if self._batch is None:
            self._start(going)
        if self._batch is not None:
            lessons, future = self._batch
            wait([future], POLL if idle else 0)
            if future.done():
                outcomes = zip(lessons, future.result(), strict=True)
                done = [(run, lesson, outcome) for (run, lesson), outcome in outcomes if run in going]
                self._batch = None
                self._start(going)
        return done

    def _start(self, going: set[Run]) -> None:
        """Start the batch of the key that has waited longest, if there is one."""
        while self._waiting and self._batch is None:
            waiting = self._waiting.pop(next(iter(self._waiting)))
            if batch := [(run, lesson) for run, lesson in waiting if run in going]:
                runs, lessons = zip(*batch, strict=True)
                self._batch = batch, self._pool.submit(self._carry_out, runs, lessons)

    def _carry_out(self, runs: Sequence[Run], lessons: Sequence[Lesson]) -> list[Memory | OffrankError]:
        with device_lock:
            return type(lessons[0]).carry_out_together(lessons, runs, self._device)

    def close(self) -> None:
        """The batch that has begun is waited for."""
        self._pool.shutdown(cancel_futures=True)
        if self._switch is not None:
            sys.setswitchinterval(self._switch)


class _Drive:
    """One call of `drive`: the active runs, and the work each of them waits for."""

    def __init__(
        self,
        runs: Iterable[Run],
        engine: Engine,
        side_by_side: int | None,
        failures: Sequence[RunFailed],
        lessons: str | None,
    ):
        self._remaining, self._engine, self._side_by_side = iter(runs), engine, side_by_side
        self._waiting: dict[int, tuple[Run, Request]] = {}  # by ticket of the engine
        self._started: list[Run] = []
        device = engine.device if lessons is None else lessons
        self._lessons: LessonThreads | LessonQueue
        if device is None or device == "cpu":
            self._lessons = LessonThreads(engine.threads or usable_cpus())
        else:
            self._lessons = LessonQueue(device)
        self.failures = list(failures)

    @property
    def active(self) -> list[Run]:
        """The runs that have started and not ended."""
        self._started = [run for run in self._started if not run.done]
        return self._started

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self.active)

    def start_runs(self) -> None:
        """Start remaining runs, up to `side_by_side` active ones."""
        more = False
        limit = self._side_by_side
        while (limit is None or len(self.active) < limit) and (run := next(self._remaining, None)) is not None:
            try:
                run.start()
            except OffrankError as error:  # the run has not changed: its checkpoint is not written again
                self.failures.append(RunFailed(run.name, error))
                run.close()
                continue
            except BaseException:
                run.close()
                raise
            self._started.append(run)
            self._step(run, lambda: None)
            more = True
        if more:
            size_cache(2 * sum(run.algorithm.cached_bytes for run in self.active))

    def close(self) -> None:
        self._lessons.close()

    def work(self) -> None:
        """Wait for results, for at most POLL seconds, and pass them to the runs."""
        completed = self._engine.completed(self._lessons.poll)
        for ticket, outcome in completed:
            if ticket in self._waiting:  # it may have been dropped meanwhile
                run, request = self._waiting.pop(ticket)
                self._receive(run, request, outcome)
        for run, lesson, learned in self._lessons.due(self.active, idle=not self._waiting):
            self._receive(run, lesson, learned)

    def _receive(self, run: Run, work: Work, outcome: Outcome | OffrankError) -> None:
        self._step(run, partial(run.receive, work, outcome))

    def _step(self, run: Run, step: Callable[[], None]) -> None:
        """Do a step of a run and submit its new work. If either fails, save the run and add it to the failures."""
        try:
            step()
            self._submit(run)
        except OffrankError as error:
            if (unsaved := _pause(run)) is not None:
                error.add_note(f"not saved: {unsaved}")
            self.failures.append(RunFailed(run.name, error))
        if run.done:
            for other in [ticket for ticket, (owner, _) in self._waiting.items() if owner is run]:
                self._engine.drop(other)
                del self._waiting[other]

    def _submit(self, run: Run) -> None:
        while new := run.take():
            for work in new:
                if isinstance(work, Request):
                    self._waiting[self._engine.submit(work)] = (run, work)
                else:
                    self._lessons.add(run, work)


def drive(
    runs: Iterable[Run],
    engine: Engine,
    tick: Callable[[], None] | None = None,
    side_by_side: int | None = None,
    failures: Sequence[RunFailed] = (),
    lessons: str | None = None,
) -> None:
    """Drive runs to their end.

    Args:
        runs: not yet started. Each is taken when it is to be started, so they may be opened one by one.
        engine: without any active request.
        tick: called several times per second.
        side_by_side: maximum number of active runs; None for all.
        failures: runs that could not be opened, to be reported with those that fail.
        lessons: where they are carried out: cpu, or a GPU such as cuda; None for the engine's GPU, if it has one.

    Raises:
        Interrupted: by a signal. The active runs were saved, and can be continued to the same bits. It holds the
            failures until then, and the runs that could not be saved.
        FleetError: some of several runs failed, and were saved as before the failure; the others were completed.
        OffrankError: the only run failed, and was saved in the same way; or the engine failed, and all runs were saved.

    If anything else is raised, by a callback or by a library, the active runs are saved first, and all are closed.

    BLAS has one thread meanwhile. Lessons and iterations limit it, too, but a limit is that of the process: the first
    of several lessons to end would lift it for the others; and threads that wait for BLAS keep cores busy.
    """
    opened = runs if isinstance(runs, Sequence) else ()
    with one_blas_thread(), catching_signals(engine) as signals:
        driving = _Drive(runs, engine, side_by_side, failures, lessons)
        try:
            driving.start_runs()
            while driving.busy:
                driving.work()
                driving.start_runs()
                if tick is not None:
                    tick()
                if signals.caught is not None:
                    raise Interrupted(signals.caught, driving.failures)
        except BaseException as error:
            unsaved = [failure for run in list(driving.active) if (failure := _pause(run)) is not None]
            with suppress(Exception):  # the engine itself may have failed
                engine.cancel()
            for run in opened:
                with suppress(OffrankError):
                    run.close()
            if signals.caught is not None and isinstance(error, Interrupted | KeyboardInterrupt):
                raise Interrupted(signals.caught, driving.failures, unsaved) from None
            for failure in unsaved:
                error.add_note(f"not saved: {failure}")
            raise
        finally:
            driving.close()
    if len(driving.failures) == len(opened) == 1 and driving.failures[0].__cause__ is not None:
        raise driving.failures[0].__cause__
    if driving.failures:
        raise FleetError(driving.failures)


def _pause(run: Run) -> RunFailed | None:
    """Save and close a run. Returns the failure if it could not be saved; its last checkpoint is intact then."""
    try:
        run.pause()
    except OffrankError as error:
        return RunFailed(run.name, error)
    return None
