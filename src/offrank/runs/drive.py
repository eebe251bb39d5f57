"""Driving runs: one engine serves the requests of several runs concurrently.

A single run is a fleet of one. Runs do not wait for each other: as soon as a run's request is complete, its next one is
submitted to the engine. Lessons are carried out in threads, one per CPU. On a GPU, the engine's or another, they are
collected for a short time and carried out in batches.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import FrameType

from offrank.core.arithmetic import one_blas_thread, usable_cpus
from offrank.core.arrays import Memory
from offrank.core.errors import FleetError, Interrupted, OffrankError, RunFailed
from offrank.core.noise import size_cache
from offrank.core.rollouts import Request
from offrank.core.work import Lesson, Outcome, Work
from offrank.engines.base import Engine
from offrank.runs.run import Run

POLL = 0.1  # maximum number of seconds between checks of signals and updates of the progress display
SOON = 0.002  # the same, while lessons are carried out that may end at any moment
PATIENCE = 0.05  # seconds that a lesson waits for others in any case


class Signals:
    """A signal handler that stores the first signal, so that it is handled when no run is being changed."""

    def __init__(self, engine: Engine | None) -> None:
        self.caught: int | None = None
        self._engine = engine

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        second, self.caught = self.caught is not None, signum
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
    """Lessons carried out in threads of this process: array code releases the interpreter's lock.

    From the first lesson on BLAS has one thread. Lessons limit it, too, but a limit is that of the process: the first
    lesson to end would lift it for the others.
    """

    def __init__(self, threads: int):
        self._pool = ThreadPoolExecutor(threads, "lesson")
        self._going: dict[Future[Memory | OffrankError], tuple[Run, Lesson]] = {}
        self._limit: ExitStack | None = None

    @property
    def poll(self) -> float:
        """How long to wait for episodes, in seconds, before lessons are looked at."""
        return SOON if self._going else POLL

    def add(self, run: Run, lesson: Lesson) -> None:
        if self._limit is None:
            self._limit = ExitStack()
            self._limit.enter_context(one_blas_thread())
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
        if self._limit is not None:
            self._limit.close()


class LessonQueue:
    """Lessons waiting for a device, grouped by batch key.

    A batch takes about as long for many runs as for few. So it is carried out when all runs with lessons of its key are
    waiting, when the first has waited for as long as the last such batch took (at least PATIENCE), or if there is
    nothing else to do. Runs without such lessons do not count.
    """

    def __init__(self, device: str):
        self._device = device
        self._waiting: dict[Hashable, list[tuple[Run, Lesson]]] = defaultdict(list)
        self._since: dict[Hashable, float] = {}  # time at which the first of them was added
        self._took: dict[Hashable, float] = {}  # seconds of the last batch
        self._kind: dict[Run, Hashable] = {}  # key of a run's last lesson
        self.poll = POLL

    def close(self) -> None: ...

    def add(self, run: Run, lesson: Lesson) -> None:
        key = (type(lesson), lesson.batch_key)
        self._kind[run] = key
        self._since.setdefault(key, time.monotonic())
        self._waiting[key].append((run, lesson))

    def due(self, active: Sequence[Run], idle: bool) -> list[Learned]:
        """Carry out the batches that need not wait any longer.

        Args:
            active: the runs that have not ended.
            idle: whether there is nothing else to do.
        """
        done: list[Learned] = []
        going = set(active)
        self._kind = {run: key for run, key in self._kind.items() if run in going}
        for key in list(self._waiting):
            waiting = self._waiting[key] = [(run, lesson) for run, lesson in self._waiting[key] if run in going]
            peers = sum(kind == key for kind in self._kind.values())
            began = time.monotonic()
            patient = began - self._since[key] < max(PATIENCE, self._took.get(key, 0.0))
            if waiting and not idle and patient and len(waiting) < peers:
                continue
            del self._waiting[key], self._since[key]
            if waiting:
                runs, lessons = zip(*waiting, strict=True)
                outcomes = type(lessons[0]).carry_out_together(lessons, runs, self._device)
                self._took[key] = time.monotonic() - began
                done += [(run, lesson, outcome) for (run, lesson), outcome in zip(waiting, outcomes, strict=True)]
        return done


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
    """
    opened = runs if isinstance(runs, Sequence) else ()
    with catching_signals(engine) as signals:
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
