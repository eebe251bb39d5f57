"""The native engine: episodes of the six tasks, each run from start to end in compiled code, on all cores.

An episode never returns to Python between its steps (`_rollout.c`). Threads take episodes from a common queue, of
whichever request, so there is no barrier, short episodes hold up nobody, and an ended episode costs nothing. An
episode's arithmetic is its own: results do not depend on threads or company.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from offrank.core.arithmetic import usable_cpus
from offrank.core.errors import EpisodeError
from offrank.core.rollouts import Episode, Request
from offrank.core.space import Space
from offrank.engines.base import Engine
from offrank.engines.native.compiled import Int
from offrank.engines.native.simulation import Simulation
from offrank.tasks.locomotion import Task
from offrank.tasks.models import quiet_mujoco


class MujocoEngine(Engine):
    """Runs episodes of one task on `threads` threads (0: all CPUs). Each thread has a simulation of its own."""

    name = "mujoco"

    def __init__(self, task: Task, threads: int = 0, simulation: Callable[[Task], Simulation] | None = None):
        super().__init__()
        self.task = task
        self._simulation = simulation or Simulation
        self.space = Space(task.obs_dim, task.act_dim, task.horizon)
        self._threads = threads or usable_cpus()
        self._round = _Round()
        self._workers: list[threading.Thread] = []

    def close(self) -> None:
        self._abandon()

    def _abandon(self) -> None:
        self._round.over.value = 1
        for _ in self._workers:
            self._round.jobs.put(None)
        for worker in self._workers:
            worker.join()  # within a control step: the compiled loop looks at `over`
        self._round, self._workers = _Round(), []

    def _enqueue(self, ticket: int, request: Request) -> None:
        wanted = min(self._threads, sum(missing for _, _, missing in self._open.values()))
        for index in range(len(request)):
            self._round.jobs.put((ticket, index, request))
        while len(self._workers) < wanted:
            arguments = (self._simulation, self.task, self._round)
            self._workers.append(threading.Thread(target=_serve, args=arguments, daemon=True))
            self._workers[-1].start()

    def _withdraw(self, ticket: int) -> None:
        self._round.dropped.add(ticket)

    def _work(self, timeout: float | None) -> None:
        end = None if timeout is None else time.perf_counter() + timeout
        while not self._done:
            try:
                wait = None if end is None else max(end - time.perf_counter(), 0.0)
                ticket, index, outcome = self._round.outcomes.get(timeout=wait)
            except queue.Empty:
                return
            if isinstance(outcome, EpisodeError):
                self._fail(ticket, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                self._finish(ticket, index, outcome)


class _Round:
    """The queues between an engine and its threads, until it abandons them."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[tuple[int, int, Request] | None] = queue.SimpleQueue()
        self.outcomes: queue.SimpleQueue[tuple[int, int, Episode | BaseException]] = queue.SimpleQueue()
        self.dropped: set[int] = set()  # tickets whose episodes no longer matter
        self.over = Int(0)  # looked at by the compiled loop, too


def _serve(make: Callable[[Task], Simulation], task: Task, round: _Round) -> None:
    """Run episodes from the queue, in a thread."""
    simulation = None
    while (job := round.jobs.get()) is not None and not round.over.value:
        ticket, index, request = job
        if ticket in round.dropped:
            continue
        try:
            with quiet_mujoco():  # what MuJoCo says of a diverged simulation is for us alone
                simulation = simulation or make(task)
                outcome: Episode | BaseException = simulation.run(request, index, round.over)
        except BaseException as error:
            outcome = error
        round.outcomes.put((ticket, index, outcome))
