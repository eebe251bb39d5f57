"""The same episodes on a Ray cluster (`pip install 'offrank[ray]'`).

Each worker is an actor that holds a local engine. A request crosses the wire once a node, as an object in Ray's store:
base weights, normaliser, seeds and the counters that rebuild the directions, never the directions. Its episodes are
handed out in small pieces to whoever is free. A piece whose worker is lost, with its node or by hanging, is run again
elsewhere: an episode is a function of its seed, so the outcome is the same bits.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle

from offrank.engines.actor import Actor, Hello
from offrank.engines.base import Engine
from offrank.engines.cluster import CONNECTION, Cluster
from offrank.engines.environment import one_line
from offrank.engines.fingerprint import differences, fingerprint
from offrank.errors import EngineError, EpisodeError, OffrankError, UsageError
from offrank.rollouts import Request, Rollouts

ATTEMPTS = 3  # how often an episode may lose its worker, or no worker may start, before we give up
PIECE = 0.1  # seconds of work that are worth a message
POLL = 0.1  # seconds between looks at the clock
WATCH = 1.0  # seconds between looks at the size of the cluster
QUIET = 15.0  # seconds without any worker before we say so
PATIENCE = 600.0  # seconds without any worker before we give up: a cluster may take minutes to grow

Key = tuple[int, int]  # (ticket, episode)


@dataclass(eq=False)
class _Worker:
    """An actor, and what it was last asked."""

    handle: Any
    question: Any = None  # the reference of the answer that is due
    keys: list[Key] = field(default_factory=list)  # the piece it runs; empty: it was asked how it is
    since: float = 0.0
    ready: bool = False  # it has answered once


class RayEngine(Engine):
    """Runs episodes on a cluster.

    Args:
        make: makes the engine that a worker holds; travels by cloudpickle.
        cluster: where.
        workers: ask Ray for so many, whether there is room for them or not yet; None: as many as there is room for.
        slots: episodes that a worker's engine runs at once.
    """

    name = "ray"

    def __init__(self, make: Callable[[], Engine], cluster: Cluster, workers: int | None = None, slots: int = 1):
        super().__init__()
        if workers == 0:
            raise UsageError("workers = 0: the ray engine needs at least one")
        self._cluster, self._asked, self._slots = cluster, workers, slots
        self._workers: list[_Worker] = []
        self._idle: deque[_Worker] = deque()
        self._due: dict[Any, _Worker] = {}  # by the reference of the answer
        self._waiting: deque[Key] = deque()
        self._requests: dict[int, Any] = {}  # references, by ticket
        self._lost: Counter[Key] = Counter()
        self._longest = min(PIECE, (cluster.episode_seconds or math.inf) / 4)  # seconds of a piece
        self._pace = 0.0  # seconds an episode, lately; 0: not known yet
        self._room = 0
        self._look_at = self._start_at = 0.0
        self._unborn = 0  # workers in a row that did not start
        self._alive_at, self._warned = time.monotonic(), False
        self._fingerprint = fingerprint()
        self._closed = True
        self._ray = CONNECTION.join(cluster.address)
        self._closed = False
        try:
            self._new = self._describe(make)
            self._wait_for_one()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for worker in list(self._workers):
            self._dismiss(worker)
        CONNECTION.leave()

    def _describe(self, make: Callable[[], Engine]) -> Callable[[], Any]:
        """A function that asks Ray for one more worker."""
        cluster = self._cluster
        options = {
            "num_cpus": cluster.cpus_per_worker,
            "resources": dict(cluster.resources),
            "scheduling_strategy": "SPREAD",
            "max_restarts": 0,  # we ask for a new one ourselves, where there is room by then
        }
        if cluster.runtime_env:
            options["runtime_env"] = dict(cluster.runtime_env)
        actor = self._ray.remote(Actor).options(**options)
        try:
            setup = self._ray.put(cloudpickle.dumps(make))
        except Exception as error:
            raise UsageError(f"the environment's constructor cannot be sent to a worker: {one_line(error)}") from error
        return lambda: actor.remote(setup, [str(Path(path).absolute()) for path in sys.path])

    def _wait_for_one(self) -> None:
        """Until a worker has told us what the environment is like."""
        self._room = self._cluster.room(self._ray.nodes())
        if not self._room and self._asked is None:
            needs = ", ".join(f"{amount:g} {name}" for name, amount in self._cluster.needs.items())
            raise UsageError(f"no node of the cluster has what one worker needs: {needs}")
        self._start()
        while not self._idle:
            self._take_in(POLL)
            self._check_patience()
            if not self._workers and time.monotonic() >= self._start_at:
                self._start()

    # --- what Engine asks for

    def _enqueue(self, ticket: int, request: Request) -> None:
        self._requests[ticket] = self._ray.put(request)
        self._waiting.extend((ticket, i) for i in range(len(request)))
        self._alive_at = time.monotonic()

    def _work(self, timeout: float | None) -> None:
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not self._done:
            self._grow()
            self._hand_out()
            self._take_in(max(min(end - time.monotonic(), POLL), 0.0))
            self._replace_hanging()
            self._check_patience()
            if time.monotonic() >= end:
                return

    def _abandon(self) -> None:
        self._waiting.clear()
        self._requests.clear()
        self._lost.clear()
        for worker in [worker for worker in self._workers if worker.keys]:
            self._dismiss(worker)

    # --- workers come and go

    def _grow(self) -> None:
        """Ask for workers while there is room and work for them; take back what the cluster no longer has room for."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + WATCH
            self._room = self._cluster.room(self._ray.nodes())
        limit = self._room if self._asked is None else self._asked
        starting = [worker for worker in self._workers if not worker.ready]
        for worker in starting[: max(len(self._workers) - limit, 0)]:
            self._dismiss(worker)
        episodes = len(self._waiting) + sum(len(worker.keys) for worker in self._workers)
        while now >= self._start_at and len(self._workers) < min(limit, math.ceil(episodes / self._slots)):
            self._start()

    def _start(self) -> None:
        worker = _Worker(self._new())
        self._workers.append(worker)
        self._greet(worker)

    def _greet(self, worker: _Worker) -> None:
        worker.question = worker.handle.hello.remote()
        self._due[worker.question] = worker

    def _welcome(self, worker: _Worker, hello: Hello | OffrankError) -> None:
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
        if not hasattr(self, "info"):
            self.info = hello.info
        worker.ready, self._unborn = True, 0
        self._idle.append(worker)

    def _bury(self, worker: _Worker, why: str) -> None:
        """Forget a worker that died while nothing of ours ran on it."""
        self._dismiss(worker)
        if worker.ready:
            return
        self._unborn += 1
        self._start_at = time.monotonic() + min(2.0**self._unborn, 60.0)
        if self._unborn >= ATTEMPTS and not any(other.ready for other in self._workers):
            raise EngineError(f"no worker can be started: {why}")

    def _dismiss(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._due.pop(worker.question, None)
        with suppress(ValueError):
            self._idle.remove(worker)
        if self._ray.is_initialized():  # otherwise it died with its cluster, and asking would start another
            with suppress(Exception):
                self._ray.kill(worker.handle)

    def _check_patience(self) -> None:
        now = time.monotonic()
        if any(worker.ready for worker in self._workers):
            self._alive_at, self._warned = now, False
        elif now - self._alive_at > PATIENCE:
            raise EngineError(f"the cluster has had no room for a worker for {PATIENCE:g} s")
        elif now - self._alive_at > QUIET and not self._warned:
            self._warned = True
            warnings.warn(f"no worker for {QUIET:g} s: the cluster is full or still starting one", stacklevel=2)

    # --- pieces go out and come back

    def _hand_out(self) -> None:
        """Give every idle worker a piece, while there are any."""
        while self._waiting and self._idle:
            worker = self._idle.popleft()
            worker.keys, worker.since = self._piece(), time.monotonic()
            ticket, episodes = worker.keys[0][0], [episode for _, episode in worker.keys]
            worker.question = worker.handle.run.remote(self._requests[ticket], episodes)
            self._due[worker.question] = worker

    def _piece(self) -> list[Key]:
        """The next episodes for one worker: long enough to be worth a message, short enough to share the rest fairly.

        An episode that lost a worker before goes alone, so that it is known whose fault the next loss is.
        """
        share = math.ceil(len(self._waiting) / (2 * len(self._workers)))
        size = max(min(share, int(self._longest / self._pace)) if self._pace else 1, self._slots)
        piece = [self._waiting.popleft()]
        while len(piece) < size and self._waiting and not self._lost[piece[0]]:
            following = self._waiting[0]
            if following[0] != piece[0][0] or self._lost[following]:
                break
            piece.append(self._waiting.popleft())
        return piece

    def _take_in(self, timeout: float) -> None:
        """Wait for an answer, and take all there are."""
        if not self._due:
            time.sleep(timeout)
            return
        first, _ = self._ray.wait(list(self._due), num_returns=1, timeout=timeout)
        if first:
            answers, _ = self._ray.wait(list(self._due), num_returns=len(self._due), timeout=0)
            for answer in answers:
                if answer in self._due:  # not of a worker that was dismissed meanwhile
                    self._receive(self._due.pop(answer), answer)

    def _receive(self, worker: _Worker, answer: Any) -> None:
        errors = self._ray.exceptions
        try:
            said = self._ray.get(answer)
        except errors.RayTaskError as error:
            raise EngineError(f"a worker failed: {one_line(error.cause or error)}") from error
        except errors.RayError as error:
            if worker.keys:
                self._lose(worker, "its process died")
            else:
                self._bury(worker, str(error).strip().splitlines()[-1].strip())
            return
        if worker.keys:
            self._note(worker, *said)
        else:
            self._welcome(worker, said)

    def _note(self, worker: _Worker, outcome: Rollouts | OffrankError, seconds: float) -> None:
        """Take in what came of a piece."""
        keys, worker.keys = worker.keys, []
        self._idle.append(worker)
        ticket = keys[0][0]
        if isinstance(outcome, EpisodeError):
            self._give_up(ticket, outcome)
        elif isinstance(outcome, OffrankError):
            raise outcome
        else:
            pace = seconds / len(keys)
            self._pace = 0.8 * self._pace + 0.2 * pace if self._pace else pace
            for key, episode in zip(keys, outcome.episodes(), strict=True):
                self._lost.pop(key, None)
                self._finish(*key, episode)
            if ticket not in self._open:
                self._requests.pop(ticket, None)

    def _give_up(self, ticket: int, error: EpisodeError) -> None:
        """Report a request as failed, and do not run the rest of it."""
        self._waiting = deque(key for key in self._waiting if key[0] != ticket)
        self._requests.pop(ticket, None)
        self._fail(ticket, error)

    def _replace_hanging(self) -> None:
        limit = self._cluster.episode_seconds
        if limit is not None:
            now = time.monotonic()
            for worker in [w for w in self._workers if w.keys and now - w.since > limit]:
                self._lose(worker, f"it took more than {limit:g} s")

    def _lose(self, worker: _Worker, why: str) -> None:
        """Put the episodes of a lost worker back in front of the queue."""
        self._dismiss(worker)
        for key in reversed(worker.keys):
            ticket, episode = key
            if ticket not in self._open:
                continue
            self._lost[key] += 1
            if self._lost[key] < ATTEMPTS:
                self._waiting.appendleft(key)
                continue
            seed = int(self._open[ticket][0].seeds[episode])
            self._give_up(ticket, EpisodeError(f"lost its worker {ATTEMPTS} times, at last because {why}", seed, None))
        while self._idle:  # may have gone the same way, and a dead worker must not be held against an episode
            self._greet(self._idle.popleft())
