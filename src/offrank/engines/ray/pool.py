"""The workers that the ray engine has on its cluster: asked for where there is room, checked, replaced, given back."""

from __future__ import annotations

import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle

from offrank.core.errors import EngineError, OffrankError, UsageError
from offrank.core.space import Space
from offrank.engines.base import Engine
from offrank.engines.gymnasium.stage import one_line
from offrank.engines.ray.actor import Actor, Hello
from offrank.engines.ray.cluster import CONNECTION, Cluster
from offrank.engines.ray.fingerprint import differences, fingerprint

ATTEMPTS = 3  # workers in a row that may fail to start, where none works, before we give up
POLL = 0.1  # seconds between looks at the clock
WATCH = 1.0  # seconds between looks at the size of the cluster
QUIET = 30.0  # seconds without any worker before we say so
PATIENCE = 600.0  # and before we give up: a cluster may take minutes to grow

Piece = list[tuple[int, int]]  # (ticket, episode)


@dataclass(eq=False)
class Worker:
    """An actor, and what it has to do."""

    handle: Any
    pieces: deque[Piece] = field(default_factory=deque)  # the one it runs, and the one it runs next
    since: float = 0.0  # when it began the first of them, as far as we know
    ready: bool = False  # it has answered once


class WorkerPool:
    """The workers of one engine.

    Args:
        make: makes the engine that a worker holds; travels by cloudpickle.
        cluster: where.
        asked: ask Ray for so many workers, whether there is room or not yet; None: as many as there is room for.
    """

    space: Space  # what the first worker said of its environment

    def __init__(self, make: Callable[[], Engine], cluster: Cluster, asked: int | None):
        self.workers: list[Worker] = []
        self.idle: deque[Worker] = deque()
        self._due: dict[Any, Worker] = {}  # by the reference of the answer
        self._cluster, self._asked = cluster, asked
        self._room = 0
        self._look_at = self._start_at = 0.0
        self._failed_starts = 0  # workers in a row that did not start
        self._fingerprint = fingerprint()
        self.ray = CONNECTION.join(cluster.address)
        self._alive_at, self._warned = time.monotonic(), False
        try:
            self._new = self._describe(make)
            self._wait_for_one()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for worker in list(self.workers):
            self.dismiss(worker)
        CONNECTION.leave()

    def grow(self, useful: int) -> None:
        """Ask for workers, up to as many as are useful and there is room for; take back what there is no room for.

        Raises:
            EngineError: there has been no worker for too long.
        """
        self._check_patience()
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + WATCH
            self._room = self._cluster.room(self.ray.nodes())
        limit = self._room if self._asked is None else self._asked
        starting = [worker for worker in self.workers if not worker.ready]
        for worker in starting[: max(len(self.workers) - limit, 0)]:
            self.dismiss(worker)
        while now >= self._start_at and len(self.workers) < min(limit, useful):
            self._start()

    def give(self, worker: Worker, piece: Piece, request: Any) -> None:
        """Have a worker run a piece of a request, given by its reference, after the one that it runs now."""
        if not worker.pieces:
            worker.since = time.monotonic()
            self.idle.remove(worker)
        worker.pieces.append(piece)
        self._due[worker.handle.run.remote(request, [episode for _, episode in piece])] = worker

    def answers(self, timeout: float) -> Iterator[tuple[Worker, Any]]:
        """Wait for an answer; yields the workers that had a piece, each with what came of it, or None if it died.

        Raises:
            EngineError: no worker can be started, or one is unlike us.
        """
        if not self._due:
            time.sleep(timeout)
            return
        first, _ = self.ray.wait(list(self._due), num_returns=1, timeout=timeout)
        if not first:
            return
        for answer in self.ray.wait(list(self._due), num_returns=len(self._due), timeout=0)[0]:
            worker = self._due.pop(answer, None)
            if worker is None:
                continue  # it was dismissed a moment ago
            said, why = self._hear(answer)
            if worker.pieces:
                yield worker, said
            elif said is None:
                self._remove_dead(worker, why)
            else:
                self._admit(worker, said)

    def release(self, worker: Worker) -> Piece:
        """A worker is done with its first piece, which is returned."""
        piece, worker.since = worker.pieces.popleft(), time.monotonic()
        if not worker.pieces:
            self.idle.append(worker)
        return piece

    def dismiss(self, worker: Worker) -> None:
        """End a worker, whatever it does."""
        self.workers.remove(worker)
        self._due = {answer: other for answer, other in self._due.items() if other is not worker}
        with suppress(ValueError):
            self.idle.remove(worker)
        if self.ray.is_initialized():  # otherwise it died with its cluster, and asking would start another
            with suppress(Exception):
                self.ray.kill(worker.handle)

    def greet_idle(self) -> None:
        """Ask the idle ones whether they are still there, before they are given anything."""
        while self.idle:
            self._greet(self.idle.popleft())

    def _describe(self, make: Callable[[], Engine]) -> Callable[[], Any]:
        """A function that asks Ray for one more actor."""
        cluster = self._cluster
        options: dict[str, Any] = {
            "num_cpus": cluster.cpus_per_worker,
            "resources": dict(cluster.resources),
            "scheduling_strategy": "SPREAD",
            "max_restarts": 0,  # we ask for a new one ourselves, where there is room by then
        }
        if cluster.runtime_env:
            options["runtime_env"] = dict(cluster.runtime_env)
        actor = self.ray.remote(Actor).options(**options)
        try:
            setup = self.ray.put(cloudpickle.dumps(make))
        except Exception as error:
            raise UsageError(f"the environment's constructor cannot be sent to a worker: {one_line(error)}") from error
        return lambda: actor.remote(setup, [str(Path(path).absolute()) for path in sys.path])

    def _wait_for_one(self) -> None:
        """Until a worker has told us what the environment is like."""
        self._room = self._cluster.room(self.ray.nodes())
        if not self._room and self._asked is None:
            needs = ", ".join(f"{amount:g} {name}" for name, amount in self._cluster.needs.items())
            raise UsageError(f"no node of the cluster has what one worker needs: {needs}")
        while not self.idle:
            self.grow(1)
            list(self.answers(POLL))

    def _start(self) -> None:
        worker = Worker(self._new())
        self.workers.append(worker)
        self._greet(worker)

    def _greet(self, worker: Worker) -> None:
        self._due[worker.handle.hello.remote()] = worker

    def _hear(self, answer: Any) -> tuple[Any, str]:
        """What a worker answered, or None and why there will be no answer."""
        try:
            return self.ray.get(answer), ""
        except self.ray.exceptions.RayTaskError as error:
            raise EngineError(f"a worker failed: {one_line(error.cause or error)}") from error
        except self.ray.exceptions.RayError as error:
            return None, str(error).strip().splitlines()[-1].strip()

    def _admit(self, worker: Worker, hello: Hello | OffrankError) -> None:
        """Take a worker whose engine is made, if its episodes will have our bits."""
        if isinstance(hello, OffrankError):
            raise hello
        if not worker.ready and (what := differences(self._fingerprint, hello.fingerprint)):
            if not self._cluster.mixed_nodes:
                raise EngineError(
                    f"the node {hello.host} would give other bits than this one: it has {what}; make them alike, "
                    "or go on all the same with --mixed-nodes (mixed_nodes=True)"
                )
            warnings.warn(f"the node {hello.host} may give other bits than this one: it has {what}", stacklevel=2)
        if not hasattr(self, "space"):
            self.space = hello.space
        worker.ready, self._failed_starts = True, 0
        self.idle.append(worker)

    def _remove_dead(self, worker: Worker, why: str) -> None:
        """Forget a worker that died while nothing of ours ran on it."""
        self.dismiss(worker)
        if worker.ready:
            return
        self._failed_starts += 1
        self._start_at = time.monotonic() + min(2.0**self._failed_starts, 60.0)
        if self._failed_starts >= ATTEMPTS and not any(other.ready for other in self.workers):
            raise EngineError(f"no worker can be started: {why}")

    def _check_patience(self) -> None:
        now = time.monotonic()
        if any(worker.ready for worker in self.workers):
            self._alive_at, self._warned = now, False
        elif now - self._alive_at > PATIENCE:
            raise EngineError(f"the cluster has had no room for a worker for {PATIENCE:g} s")
        elif now - self._alive_at > QUIET and not self._warned:
            self._warned = True
            warnings.warn(f"no worker for {QUIET:g} s: the cluster is full or still starting one", stacklevel=2)
