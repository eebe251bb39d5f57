"""The random numbers of a run, each a function of its purpose.

A counter-based generator (Philox) maps (seed, purpose, iteration, index) to random numbers and has no state. A
direction is rebuilt from a few integers wherever it is needed, so directions are never sent over the network or
written to a checkpoint, and no result depends on the order in which numbers are drawn.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.random import Generator, Philox

from offrank.core.arrays import FloatArray, IntArray

BLOCK = 32  # directions drawn from one generator: creating a generator costs as much as about a thousand numbers
CACHE, MAX_CACHE = 2**26, 2**30  # bytes of directions kept in memory: unless `size_cache` is called, and at most


class Purpose(IntEnum):
    """Purpose of a stream of random numbers. It is part of every key, so that no two streams coincide."""

    DIRECTIONS = 1
    EPISODE_SEEDS = 2
    START_STATE = 3
    PROCESS_NOISE = 4
    EXPLORATION = 5
    CRITIC = 6
    POLICY = 7
    RANKING = 8
    ACTIONS = 9


class Role(IntEnum):
    """Purpose of an episode."""

    BEHAVIOUR = 0
    PLUS = 1
    MINUS = 2
    EVALUATION = 3
    MEMBER = 4  # of a population
    RACE = 5  # a short one, to rank members


def philox(seed: int, purpose: Purpose, a: int = 0, b: int = 0) -> Philox:
    """The bit generator of a stream. Streams that differ in any argument never overlap."""
    return Philox(
        key=np.array([seed, purpose], dtype=np.uint64),
        counter=np.array([0, a, b, 0], dtype=np.uint64),
    )


def episode_seeds(seed: int, iteration: int, role: Role, index: IntArray) -> IntArray:
    """Seeds (E,) of the episodes `index` (E,) of one role in one iteration. They are integers in [0, 2^31), which
    `reset(seed=...)` of every environment accepts."""
    if len(index) == 0:
        return np.zeros(0, dtype=np.int64)
    raw = philox(seed, Purpose.EPISODE_SEEDS, int(role), iteration).random_raw(int(index.max()) + 1)
    return (np.asarray(raw)[index] >> np.uint64(33)).astype(np.int64)


def action_noise(seed: int, steps: int, p: int) -> FloatArray:
    """Standard normal noise (steps, p) on the actions of the episode with this seed. That of fewer steps is the
    beginning of that of more."""
    noise: FloatArray = Generator(philox(seed, Purpose.ACTIONS)).standard_normal((steps, p))
    return noise


@dataclass(frozen=True)
class Directions:
    """The directions delta_0 ... delta_{count-1} of one iteration, each (d,) with i.i.d. standard normal entries.

    Direction k depends on (seed, iteration, k) only: the first b of N directions are those of a run that samples b.
    """

    seed: int
    iteration: int
    count: int
    size: int  # d

    def take(self, index: IntArray) -> FloatArray:
        """Directions `index` (m,), as an (m, d) array."""
        out = np.empty((len(index), self.size))
        for block in np.unique(index // BLOCK):
            here = index // BLOCK == block
            out[here] = self._block(int(block))[index[here] % BLOCK]
        return out

    def one(self, index: int) -> FloatArray:
        """Direction `index`, as a (d,) array that must not be modified."""
        direction: FloatArray = self._block(index // BLOCK)[index % BLOCK]
        return direction

    def blocks(self) -> Iterator[FloatArray]:
        """All directions in order, as (m, d) arrays that must not be modified."""
        return map(self._block, range(-(-self.count // BLOCK)))

    def _block(self, block: int) -> FloatArray:
        rows = min(BLOCK, self.count - block * BLOCK)
        return _cache.get((self.seed, self.iteration, block, rows, self.size))


_Key = tuple[int, int, int, int, int]


def size_cache(directions: int) -> None:
    """Set the size of the cache of directions, in bytes, up to MAX_CACHE. It should hold the directions of the current
    iteration of every active run, as far as they are read again. The latest block is always kept."""
    _cache.resize(min(directions, MAX_CACHE))


class _BlockCache:
    """The most recently used blocks of directions, up to `limit` bytes. An iteration reads its directions up to four
    times (to rank, to run each sign, to update); drawing them again would be most of its work."""

    def __init__(self, limit: int):
        self.limit = limit
        self._blocks: OrderedDict[_Key, FloatArray] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: _Key) -> FloatArray:
        with self._lock:
            if key in self._blocks:
                self._blocks.move_to_end(key)
                return self._blocks[key]
        seed, iteration, block, rows, size = key
        drawn = Generator(philox(seed, Purpose.DIRECTIONS, block, iteration)).standard_normal((rows, size))
        with self._lock:
            if key not in self._blocks:  # another thread may have drawn it meanwhile
                self._blocks[key] = drawn
                self._bytes += drawn.nbytes
            self._evict()
        return drawn

    def resize(self, limit: int) -> None:
        with self._lock:
            self.limit = limit
            self._evict()

    def _evict(self) -> None:
        while self._bytes > self.limit and len(self._blocks) > 1:
            self._bytes -= self._blocks.popitem(last=False)[1].nbytes


_cache = _BlockCache(CACHE)
