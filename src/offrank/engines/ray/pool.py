"""The workers of the ray engine on its cluster: started if there is room, checked, replaced and stopped."""

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
from offrank.engines.gymnasium.env_runner import one_line
from offrank.engines.ray.actor import Actor, WorkerInfo
from offrank.engines.ray.cluster import CONNECTION, Cluster
from offrank.engines.ray.fingerprint import differences, fingerprint

ATTEMPTS = 3  # consecutive failed starts, without any working worker, before an error is raised
POLL = 0.1  # seconds to wait for an answer at a time
RESIZE_SECONDS = 1.0  # between two checks of the size of the cluster
WARN_SECONDS = 30.0  # without any worker before a warning
GIVE_UP_SECONDS = 600.0  # without any worker before an error: a cluster may take minutes to grow

Piece = list[tuple[int, int]]  # (ticket, episode)


@dataclass(eq=False)
class Worker:
    """An actor and its work."""

    handle: Any
    pieces: deque[Piece] = field(default_factory=deque)  # the one it runs, and the one it runs next
    since: float = 0.0  # time at which it started the first of them, as far as known
    ready: bool = False  # whether it has answered once


class WorkerPool:
    """The workers of one engine.

    Args:
        make: makes the engine of a worker; it is sent by cloudpickle.
        cluster: the cluster.
        asked: number of workers to ask Ray for, even if there is no room yet; None: as many as there is room for.
    """

    space: Space  # of the environment, as reported by the first worker

    def __init__(self, make: Callable[[], Engine], cluster: Cluster, asked: int | None):
        self.workers: list[Worker] = []
        self.idle: deque[Worker] = deque()
        self._due: dict[Any, Worker] = {}  # by the reference of the answer
        self._cluster, self._asked = cluster, asked
        self._room = 0
        self._resize_at = self._start_at = 0.0
        self._failed_starts = 0  # consecutive
        self._fingerprint = fingerprint()
        self.ray = CONNECTION.join(cluster.address)
        self._alive_at, self._warned = time.monotonic(), False
        try:
            self._new = self._actor_factory(make)
            self._wait_for_one()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for worker in list(self.workers):
            self.stop(worker)
        CONNECTION.leave()

    def grow(self, useful: int) -> None:
        """Start workers, up to the number that is useful and that there is room for. Stop those that are still waiting
        to be started if there is no room for them any more.

        Raises:
            EngineError: there has been no worker for GIVE_UP_SECONDS.
        """
        self._check_any_worker()
        now = time.monotonic()
        if now >= self._resize_at:
            self._resize_at = now + RESIZE_SECONDS
            self._room = self._cluster.room(self.ray.nodes())
        limit = self._room if self._asked is None else self._asked
        starting = [worker for worker in self.workers if not worker.ready]
        for worker in starting[: max(len(self.workers) - limit, 0)]:
            self.stop(worker)
        while now >= self._start_at and len(self.workers) < min(limit, useful):
            self._start()

    def give(self, worker: Worker, piece: Piece, request: Any) -> None:
        """Queue a piece of a request, given by its Ray reference, at a worker."""
        if not worker.pieces:
            worker.since = time.monotonic()
            self.idle.remove(worker)
        worker.pieces.append(piece)
        self._due[worker.handle.run.remote(request, [episode for _, episode in piece])] = worker

    def answers(self, timeout: float) -> Iterator[tuple[Worker, Any]]:
        """Wait for an answer. Yields each worker that was running a piece, with its result, or None if it died.

        Raises:
            EngineError: no worker can be started, or one would give different bits.
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
                continue  # it was stopped meanwhile
            result, why = self._get(answer)
            if worker.pieces:
                yield worker, result
            elif result is None:
                self._remove_dead(worker, why)
            else:
                self._add_ready(worker, result)

    def release(self, worker: Worker) -> Piece:
        """Remove the first piece of a worker, which is finished, and return it."""
        piece, worker.since = worker.pieces.popleft(), time.monotonic()
        if not worker.pieces:
            self.idle.append(worker)
        return piece

    def stop(self, worker: Worker) -> None:
        """Kill a worker and remove it from the pool."""
        self.workers.remove(worker)
        self._due = {answer: other for answer, other in self._due.items() if other is not worker}
        with suppress(ValueError):
            self.idle.remove(worker)
        if self.ray.is_initialized():  # if not, the worker died with its cluster, and `kill` would start a new cluster
            with suppress(Exception):
                self.ray.kill(worker.handle)

    def check_idle(self) -> None:
        """Check that idle workers are alive before they are given work: they are idle again once they have answered."""
        while self.idle:
            self._ask_info(self.idle.popleft())

    def _actor_factory(self, make: Callable[[], Engine]) -> Callable[[], Any]:
        """A function that asks Ray for one more actor."""
        cluster = self._cluster
        options: dict[str, Any] = {
            "num_cpus": cluster.cpus_per_worker,
            "resources": dict(cluster.resources),
            "scheduling_strategy": "SPREAD",
            "max_restarts": 0,  # `grow` starts a new one, on any node with room
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
        """Wait until the first worker is ready: it reports the environment's space."""
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
        self._ask_info(worker)

    def _ask_info(self, worker: Worker) -> None:
        self._due[worker.handle.info.remote()] = worker

    def _get(self, answer: Any) -> tuple[Any, str]:
        """The answer of a worker and "", or None and the reason if the worker is lost."""
        try:
            return self.ray.get(answer), ""
        except self.ray.exceptions.RayTaskError as error:
            raise EngineError(f"a worker failed: {one_line(error.cause or error)}") from error
        except self.ray.exceptions.RayError as error:
            return None, str(error).strip().splitlines()[-1].strip()

    def _add_ready(self, worker: Worker, info: WorkerInfo | OffrankError) -> None:
        """Add a worker whose engine is made to the idle ones, if its episodes will have the same bits as here."""
        if isinstance(info, OffrankError):
            raise info
        if not worker.ready and (what := differences(self._fingerprint, info.fingerprint)):
            if not self._cluster.mixed_nodes:
                raise EngineError(
                    f"the node {info.host} would give other bits than this one: it has {what}; install the same on "
                    "both, or accept the difference with --mixed-nodes (mixed_nodes=True)"
                )
            warnings.warn(f"the node {info.host} may give other bits than this one: it has {what}", stacklevel=2)
        if not hasattr(self, "space"):
            self.space = info.space
        worker.ready, self._failed_starts = True, 0
        self.idle.append(worker)

    def _remove_dead(self, worker: Worker, why: str) -> None:
        """Remove a worker that died while it was starting or idle.

        Raises:
            EngineError: several workers in a row did not start, and none is working.
        """
        self.stop(worker)
        if worker.ready:
            return
        self._failed_starts += 1
        self._start_at = time.monotonic() + min(2.0**self._failed_starts, 60.0)
        if self._failed_starts >= ATTEMPTS and not any(other.ready for other in self.workers):
            raise EngineError(f"no worker can be started: {why}")

    def _check_any_worker(self) -> None:
        now = time.monotonic()
        if any(worker.ready for worker in self.workers):
            self._alive_at, self._warned = now, False
        elif now - self._alive_at > GIVE_UP_SECONDS:
            raise EngineError(f"the cluster has had no room for a worker for {GIVE_UP_SECONDS:g} s")
        elif now - self._alive_at > WARN_SECONDS and not self._warned:
            self._warned = True
            warnings.warn(f"no worker for {WARN_SECONDS:g} s: the cluster is full or still starting one", stacklevel=2)
