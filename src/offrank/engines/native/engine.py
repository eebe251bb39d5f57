"""The native engine: episodes of the six tasks, each run from start to end in compiled code, on all cores.

An episode never returns to Python between its steps (`_rollout.c`). Threads take episodes of all requests from one
queue, so no thread waits for the longest episode of a batch; those of evaluations let others go first for a second.
Results do not depend on the number of threads or on which episodes run at the same time.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial

from offrank.core.arithmetic import usable_cpus
from offrank.core.errors import EpisodeError
from offrank.core.noise import Role
from offrank.core.rollouts import Episode, Request
from offrank.engines.base import Engine
from offrank.engines.native.compiled import Int
from offrank.engines.native.simulation import Simulation
from offrank.tasks.locomotion import Task
from offrank.tasks.models import quiet_mujoco

PATIENCE = 1.0  # seconds for which an evaluation lets episodes that are asked for later go first


class MujocoEngine(Engine):
    """Runs episodes of one task in `threads` threads (0: one per CPU). Each thread has its own simulation."""

    name = "mujoco"

    def __init__(
        self,
        task: Task,
        threads: int = 0,
        simulation: Callable[[Task], Simulation] | None = None,
        clip_actions: bool = False,
    ):
        super().__init__()
        self.task = task
        self._simulation = simulation or partial(Simulation, clip_actions=clip_actions)
        self.space = task.space(clip_actions)
        self.threads = threads or usable_cpus()
        self._queues = _Queues()
        self._workers: list[threading.Thread] = []

    def close(self) -> None:
        self._abandon()

    def _abandon(self) -> None:
        self._queues.over.value = 1
        for _ in self._workers:
            self._queues.add(None)
        for worker in self._workers:
            worker.join()  # takes at most a control step: the compiled loop checks `over`
        self._queues, self._workers = _Queues(), []

    def _enqueue(self, ticket: int, request: Request) -> None:
        wanted = min(self.threads, sum(missing for _, _, missing in self._open.values()))
        for index in range(len(request)):
            self._queues.add((ticket, index, request), patient=bool(request.roles[index] == Role.EVALUATION))
        while len(self._workers) < wanted:
            arguments = (self._simulation, self.task, self._queues)
            self._workers.append(threading.Thread(target=_run_episodes, args=arguments, daemon=True))
            self._workers[-1].start()

    def _withdraw(self, ticket: int) -> None:
        self._queues.dropped.add(ticket)

    def _work(self, timeout: float | None) -> None:
        end = None if timeout is None else time.perf_counter() + timeout
        while not self._done:
            try:
                wait = None if end is None else max(end - time.perf_counter(), 0.0)
                ticket, index, outcome = self._queues.outcomes.get(timeout=wait)
            except queue.Empty:
                return
            if isinstance(outcome, EpisodeError):
                self._fail(ticket, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                self._finish(ticket, index, outcome)


Job = tuple[int, int, Request] | None  # ticket, number of the episode; None ends a thread


class _Queues:
    """The queues between an engine and its threads. They are replaced when the threads are stopped."""

    def __init__(self) -> None:
        self.jobs: queue.PriorityQueue[tuple[float, int, Job]] = queue.PriorityQueue()
        self._added = 0
        self.outcomes: queue.SimpleQueue[tuple[int, int, Episode | BaseException]] = queue.SimpleQueue()
        self.dropped: set[int] = set()  # tickets whose queued episodes are skipped
        self.over = Int(0)  # 1 stops the threads; also checked by the compiled loop

    def add(self, job: Job, patient: bool = False) -> None:
        """Queue an episode. One of an evaluation is patient: a run goes on while it is evaluated, and what it waits for
        are training episodes. But not for ever: that run may have reached its threshold."""
        self.jobs.put((time.monotonic() + PATIENCE * patient, self._added, job))
        self._added += 1


def _run_episodes(make: Callable[[Task], Simulation], task: Task, queues: _Queues) -> None:
    """Run episodes from the queue, in a thread."""
    simulation = None
    while (job := queues.jobs.get()[2]) is not None and not queues.over.value:
        ticket, index, request = job
        if ticket in queues.dropped:
            continue
        try:
            with quiet_mujoco():  # a diverged simulation is reported as an EpisodeError
                simulation = simulation or make(task)
                outcome: Episode | BaseException = simulation.run(request, index, queues.over)
        except BaseException as error:
            outcome = error
        queues.outcomes.put((ticket, index, outcome))
