"""Episodes on a Ray cluster (`pip install 'offrank[ray]'`).

Each worker is an actor with a local engine. A request is sent once per node, as an object in Ray's store: parameters,
normaliser, seeds and the integers from which directions are rebuilt, never the directions. Its episodes are given to
idle workers in small groups (pieces). If a worker dies, hangs or is lost with its node, its pieces are run again by
other workers: an episode is a function of its seed, so the result has the same bits.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from offrank.core.errors import EpisodeError, OffrankError, UsageError
from offrank.core.rollouts import Request, Rollouts
from offrank.engines.base import Engine
from offrank.engines.ray.cluster import Cluster
from offrank.engines.ray.pool import POLL, Piece, Worker, WorkerPool

ATTEMPTS = 3  # number of workers that an episode may lose before its request fails
PIECE = 0.2  # target duration of a piece, in seconds: long compared with sending a message


class RayEngine(Engine):
    """Runs episodes on a cluster.

    Args:
        make: makes the engine of a worker; it is sent by cloudpickle.
        cluster: the cluster.
        workers: number of workers to ask Ray for, even if there is no room for them yet; None: as many as there is
            room for.
        slots: episodes that a worker's engine runs in parallel.
    """

    name = "ray"

    def __init__(self, make: Callable[[], Engine], cluster: Cluster, workers: int | None = None, slots: int = 1):
        super().__init__()
        if workers == 0:
            raise UsageError("workers = 0: the ray engine needs at least one")
        self._slots, self._limit = slots, cluster.episode_seconds
        self._piece_seconds = min(PIECE, (self._limit or math.inf) / 4)  # target duration of a piece
        self._episode_seconds = 0.0  # moving average of the duration of an episode; 0: not known yet
        self.seconds = 0.0  # total time that workers have spent in episodes
        self._waiting: deque[tuple[int, int]] = deque()  # (ticket, episode)
        self._requests: dict[int, Any] = {}  # Ray references, by ticket
        self._lost: Counter[tuple[int, int]] = Counter()  # number of workers lost in an episode
        self._closed = False
        self._pool = WorkerPool(make, cluster, workers)
        self.space = self._pool.space

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._pool.close()

    def _enqueue(self, ticket: int, request: Request) -> None:
        self._requests[ticket] = self._pool.ray.put(request)
        self._waiting.extend((ticket, i) for i in range(len(request)))

    def _withdraw(self, ticket: int) -> None:
        self._waiting = deque(key for key in self._waiting if key[0] != ticket)
        self._requests.pop(ticket, None)

    def _work(self, timeout: float | None) -> None:
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not self._done:
            episodes = len(self._waiting) + sum(len(p) for worker in self._pool.workers for p in worker.pieces)
            self._pool.grow(math.ceil(episodes / self._slots))
            self._assign()
            for worker, answer in self._pool.answers(max(min(end - time.monotonic(), POLL), 0.0)):
                if answer is None:
                    self._remove_lost(worker, "its process died")
                else:
                    self._receive(worker, *answer)
            self._remove_hanging()
            if time.monotonic() >= end:
                return

    def _abandon(self) -> None:
        self._waiting.clear()
        self._requests.clear()
        self._lost.clear()
        for worker in [worker for worker in self._pool.workers if worker.pieces]:
            self._pool.stop(worker)

    def _assign(self) -> None:
        """Give every idle worker a piece. Busy workers get a second one, so that they need not wait for it, as long as
        there are enough episodes for all workers: at the end, none should queue behind a slow episode."""
        pool = self._pool
        for worker in [*pool.idle, *(w for w in pool.workers if len(w.pieces) == 1)]:
            if len(self._waiting) > (len(pool.workers) if worker.pieces else 0):
                piece = self._next_piece()
                pool.give(worker, piece, self._requests[piece[0][0]])

    def _next_piece(self) -> Piece:
        """The next episodes for one worker: about `_piece_seconds` of work, but not more than its share of the queue.

        An episode that lost a worker before is sent alone, so that the cause of another loss is known.
        """
        share = math.ceil(len(self._waiting) / (4 * len(self._pool.workers)))
        known = self._episode_seconds
        size = max(min(share, int(self._piece_seconds / known)) if known else 1, self._slots)
        piece = [self._waiting.popleft()]
        while len(piece) < size and self._waiting and not self._lost[piece[0]]:
            following = self._waiting[0]
            if following[0] != piece[0][0] or self._lost[following]:
                break
            piece.append(self._waiting.popleft())
        return piece

    def _receive(self, worker: Worker, outcome: Rollouts | OffrankError, seconds: float) -> None:
        """Store the results of a piece."""
        piece = self._pool.release(worker)
        ticket = piece[0][0]
        if isinstance(outcome, EpisodeError):
            self._fail(ticket, outcome)
        elif isinstance(outcome, OffrankError):
            raise outcome
        else:
            self.seconds += seconds
            latest, average = seconds / len(piece), self._episode_seconds
            self._episode_seconds = 0.8 * average + 0.2 * latest if average else latest
            for key, episode in zip(piece, outcome.episodes(), strict=True):
                self._lost.pop(key, None)
                self._finish(*key, episode)
            if ticket not in self._open:
                self._requests.pop(ticket, None)

    def _remove_hanging(self) -> None:
        now = time.monotonic()
        for worker in [w for w in self._pool.workers if w.pieces and now - w.since > (self._limit or math.inf)]:
            self._remove_lost(worker, f"it took more than {self._limit:g} s")

    def _remove_lost(self, worker: Worker, why: str) -> None:
        """Remove a worker and put its episodes back at the front of the queue. The loss is counted for those of the
        piece it was running; an episode with ATTEMPTS losses fails its request."""
        self._pool.stop(worker)
        running, *following = worker.pieces
        for piece in following:
            self._waiting.extendleft(key for key in reversed(piece) if key[0] in self._open)
        for key in reversed(running):
            ticket, episode = key
            if ticket not in self._open:
                continue
            self._lost[key] += 1
            if self._lost[key] < ATTEMPTS:
                self._waiting.appendleft(key)
                continue
            seed = int(self._open[ticket][0].seeds[episode])
            self._fail(ticket, EpisodeError(f"lost its worker {ATTEMPTS} times, at last because {why}", seed, None))
        self._pool.check_idle()  # they may be lost too, which must not be counted for their next episodes
