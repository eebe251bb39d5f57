"""Any Gymnasium environment, in worker processes.

Each idle worker is given one episode at a time. A worker that dies or hangs is replaced and its episode is run again:
an episode is a function of its seed, so the result has the same bits.
"""

from __future__ import annotations

import math
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym

from offrank.core.arithmetic import usable_cpus
from offrank.core.errors import EpisodeError, OffrankError, UsageError
from offrank.core.rollouts import Request
from offrank.engines.base import Engine
from offrank.engines.gymnasium.env_runner import EnvFactory, EnvRunner
from offrank.engines.gymnasium.worker import Job, Outcome, Ready, Setup

ATTEMPTS = 3  # number of workers that may be lost in an episode before its request fails
STARTUP = 60.0  # seconds that a worker may take to make its environment, where the time of episodes is limited
REPORTED = (3, 10, 30, 100, 300, 1000)  # numbers of lost workers at which a warning says so


class GymnasiumEngine(Engine):
    """Runs episodes in `workers` processes (None: one per CPU; 0: in this process).

    An environment object, as opposed to a function that makes one, is always run in this process. A worker whose
    episode takes more than `episode_seconds` is replaced.
    """

    name = "gymnasium"

    def __init__(
        self,
        env: EnvFactory | gym.Env[Any, Any],
        workers: int | None = None,
        clip_actions: bool = True,
        episode_seconds: float | None = None,
    ):
        super().__init__()
        given = isinstance(env, gym.Env)
        self._runner = EnvRunner(env if isinstance(env, gym.Env) else env(), clip_actions)
        self.space = self._runner.space
        self._count = 0 if given else usable_cpus() if workers is None else workers
        if episode_seconds is not None and not self._count:
            raise UsageError(
                "episode_seconds needs worker processes: an episode that hangs in this process cannot be stopped from "
                "within; give workers=1 or more, and a function that makes the environment"
            )
        self._limit = episode_seconds
        if self._count and not isinstance(env, gym.Env):
            self._setup = Setup(cloudpickle.dumps(env), clip_actions)
            self._runner.env.close()
        self._waiting: deque[tuple[int, int]] = deque()
        self._failures: Counter[tuple[int, int]] = Counter()
        self._lost = 0  # workers, of all episodes
        self._workers: list[_Worker] = []
        self._inbox: queue.Queue[tuple[_Worker, Outcome | Ready | None]] = queue.Queue()

    def close(self) -> None:
        self._abandon()
        if not self._count:
            self._runner.env.close()

    def _abandon(self) -> None:
        self._waiting.clear()
        self._failures.clear()
        for worker in self._workers:
            worker.stop()
        self._workers = []
        self._inbox = queue.Queue()

    def _enqueue(self, ticket: int, request: Request) -> None:
        self._waiting.extend((ticket, i) for i in range(len(request)))

    def _withdraw(self, ticket: int) -> None:
        self._waiting = deque(key for key in self._waiting if key[0] != ticket)

    def _work(self, timeout: float | None) -> None:
        end = None if timeout is None else time.perf_counter() + timeout
        while not self._done:
            if self._count:
                self._assign()
                self._receive(None if end is None else max(end - time.perf_counter(), 0.0))
            else:
                key = self._waiting.popleft()
                job = self._job(key)
                try:
                    with self._in_foreign_code():
                        episode = job.run(self._runner)
                    self._finish(*key, episode)
                except EpisodeError as error:
                    self._fail(key[0], error)
            if end is not None and time.perf_counter() > end:
                return

    def _job(self, key: tuple[int, int]) -> Job:
        request, i = self._open[key[0]][0], key[1]
        policy, whitening, horizon, seed = request.policy, request.whitening, request.horizon, int(request.seeds[i])
        noise = request.step_noise(i)
        return Job(key, policy, request.theta(i), whitening, seed, horizon, noise, request.keep)

    def _assign(self) -> None:
        """Give queued episodes to idle workers, after starting as many workers as there are episodes for."""
        while len(self._workers) < min(self._count, len(self._waiting) + sum(w.job is not None for w in self._workers)):
            self._workers.append(_Worker(self._setup, self._inbox))
        for worker in self._workers:
            if not self._waiting:
                return
            if worker.job is None:
                worker.give(self._job(self._waiting.popleft()))

    def _receive(self, timeout: float | None) -> None:
        """Wait for the result of one episode, or for a worker to die or to exceed its time."""
        try:
            worker, outcome = self._inbox.get(timeout=self._until_overdue(timeout))
        except queue.Empty:
            for worker in self._workers:
                if worker.overdue_in(self._limit) <= 0:
                    worker.kill(f"it took more than {self._limit:g} s")  # which is then noticed as any other death
            return
        if isinstance(outcome, Ready):
            return  # its time is limited from here on
        if outcome is None:
            self._remove_dead(worker)
        elif isinstance(outcome.result, EpisodeError):
            worker.job = None
            self._fail(outcome.key[0], outcome.result)
        elif isinstance(outcome.result, OffrankError):
            raise outcome.result
        else:
            worker.job = None
            self._finish(*outcome.key, outcome.result)

    def _until_overdue(self, timeout: float | None) -> float | None:
        """The timeout, or the time until an episode takes too long, if that is sooner."""
        if self._limit is None:
            return timeout
        soonest = min((worker.overdue_in(self._limit) for worker in self._workers), default=math.inf)
        wait = max(min(soonest, math.inf if timeout is None else timeout), 0.0)
        return None if wait == math.inf else wait

    def _remove_dead(self, worker: _Worker) -> None:
        """Remove a dead worker and put its episode back at the front of the queue."""
        if worker in self._workers:
            self._workers.remove(worker)
        job, status = worker.job, worker.stop()
        if job is None or job.key[0] not in self._open:
            return
        why = worker.killed_because or f"its process died (exit status {status})"
        self._lost += 1
        self._failures[job.key] += 1
        if self._failures[job.key] >= ATTEMPTS:
            what = f"lost its worker {ATTEMPTS} times, at last because {why}"
            self._fail(job.key[0], EpisodeError(what, job.seed, None))
            return
        if self._lost in REPORTED:
            many = "1 worker was" if self._lost == 1 else f"{self._lost} workers were"
            warnings.warn(f"{many} lost and replaced so far, at last because {why}", stacklevel=2)
        self._waiting.appendleft(job.key)


class _Worker:
    """A process, its current job, and a thread that forwards its results to the engine."""

    def __init__(self, setup: Setup, inbox: queue.Queue[tuple[_Worker, Outcome | Ready | None]]):
        environment = dict(os.environ, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        environment["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        self.job: Job | None = None
        self.killed_because = ""
        self._ready, self._since = False, time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from offrank.engines.gymnasium.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C goes to the main process only, which closes the workers' stdin
        )
        threading.Thread(target=self._listen, args=(inbox,), daemon=True).start()
        self._send(setup)

    @property
    def pid(self) -> int:
        return self._process.pid

    def give(self, job: Job) -> None:
        self.job, self._since = job, time.monotonic()
        self._send(job)

    def overdue_in(self, limit: float | None) -> float:
        """Seconds until its episode takes longer than the limit, or the making of its environment than STARTUP."""
        if limit is None or self.job is None or self.killed_because:
            return math.inf
        return self._since + (limit if self._ready else max(limit, STARTUP)) - time.monotonic()

    def kill(self, why: str) -> None:
        self.killed_because = why
        self._process.kill()

    def stop(self) -> int:
        """End the process and return its exit status."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        if self.job is not None:
            self._process.kill()
        try:
            return self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _send(self, message: Setup | Job) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # the listener thread detects a dead worker
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()

    def _listen(self, inbox: queue.Queue[tuple[_Worker, Outcome | Ready | None]]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream, suppress(EOFError, OSError, pickle.UnpicklingError, ValueError):
            while True:
                message = pickle.load(stream)
                if isinstance(message, Ready):
                    self._ready, self._since = True, time.monotonic()
                inbox.put((self, message))
        inbox.put((self, None))
