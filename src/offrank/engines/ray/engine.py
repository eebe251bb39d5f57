"""The same episodes on a Ray cluster (`pip install 'offrank[ray]'`).

Each worker is an actor that holds a local engine. A request crosses the wire once per node, as an object in Ray's
store: parameters, normaliser, seeds and the counters that rebuild the directions, never the directions. Its episodes
are handed out in small pieces to whoever is free. A piece whose worker is lost, with its node or by hanging, is run
again elsewhere: an episode is a function of its seed, so the outcome is the same bits.
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

ATTEMPTS = 3  # how often an episode may lose its worker before its request fails
PIECE = 0.2  # seconds of work that are worth a message


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
        self._slots, self._limit = slots, cluster.episode_seconds
        self._longest = min(PIECE, (self._limit or math.inf) / 4)  # seconds of a piece
        self._pace = 0.0  # seconds per episode, lately; 0: not known yet
        self.seconds = 0.0  # that workers have spent in episodes
        self._waiting: deque[tuple[int, int]] = deque()  # (ticket, episode)
        self._requests: dict[int, Any] = {}  # references, by ticket
        self._lost: Counter[tuple[int, int]] = Counter()
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
            self._hand_out()
            for worker, answer in self._pool.answers(max(min(end - time.monotonic(), POLL), 0.0)):
                if answer is None:
                    self._lose(worker, "its process died")
                else:
                    self._note(worker, *answer)
            self._replace_hanging()
            if time.monotonic() >= end:
                return

    def _abandon(self) -> None:
        self._waiting.clear()
        self._requests.clear()
        self._lost.clear()
        for worker in [worker for worker in self._pool.workers if worker.pieces]:
            self._pool.dismiss(worker)

    def _hand_out(self) -> None:
        """Give every idle worker a piece; and every busy one its next, so that it need not wait for our answer, as long
        as there is enough for all: at the end, nothing should queue behind a slow episode."""
        pool = self._pool
        for worker in [*pool.idle, *(w for w in pool.workers if len(w.pieces) == 1)]:
            if len(self._waiting) > (len(pool.workers) if worker.pieces else 0):
                piece = self._next_piece()
                pool.give(worker, piece, self._requests[piece[0][0]])

    def _next_piece(self) -> Piece:
        """The next episodes for one worker: long enough to be worth a message, short enough to share the rest fairly.

        An episode that lost a worker before goes alone, so that it is known whose fault the next loss is.
        """
        share = math.ceil(len(self._waiting) / (4 * len(self._pool.workers)))
        size = max(min(share, int(self._longest / self._pace)) if self._pace else 1, self._slots)
        piece = [self._waiting.popleft()]
        while len(piece) < size and self._waiting and not self._lost[piece[0]]:
            following = self._waiting[0]
            if following[0] != piece[0][0] or self._lost[following]:
                break
            piece.append(self._waiting.popleft())
        return piece

    def _note(self, worker: Worker, outcome: Rollouts | OffrankError, seconds: float) -> None:
        """Take in what came of a piece."""
        piece = self._pool.release(worker)
        ticket = piece[0][0]
        if isinstance(outcome, EpisodeError):
            self._fail(ticket, outcome)
        elif isinstance(outcome, OffrankError):
            raise outcome
        else:
            self.seconds += seconds
            pace = seconds / len(piece)
            self._pace = 0.8 * self._pace + 0.2 * pace if self._pace else pace
            for key, episode in zip(piece, outcome.episodes(), strict=True):
                self._lost.pop(key, None)
                self._finish(*key, episode)
            if ticket not in self._open:
                self._requests.pop(ticket, None)

    def _replace_hanging(self) -> None:
        now = time.monotonic()
        for worker in [w for w in self._pool.workers if w.pieces and now - w.since > (self._limit or math.inf)]:
            self._lose(worker, f"it took more than {self._limit:g} s")

    def _lose(self, worker: Worker, why: str) -> None:
        """Put the episodes of a lost worker back in front of the queue; the loss is held against those it ran."""
        self._pool.dismiss(worker)
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
        self._pool.greet_idle()  # they may have gone the same way, and must not be held against an episode
