"""The state of a run: everything its next iteration depends on, as arrays and numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from offrank.core.arrays import WRITTEN, Memory, part, prefixed, tables
from offrank.core.checks import LARGEST
from offrank.core.normalizer import Normalizer


@dataclass(frozen=True)
class State:
    """State between two iterations. The random numbers of the next one depend on `seed` and `iteration` only."""

    seed: int
    normalizer: Normalizer
    iteration: int = 0  # iterations completed
    steps: int = 0  # environment steps of training, including behaviour rollouts
    episodes: int = 0  # training episodes
    memory: Memory = field(default_factory=dict)  # the algorithm's own part

    def counted(self, steps: int, episodes: int) -> State:
        """The state with steps and episodes added to its counters."""
        return replace(self, steps=self.steps + steps, episodes=self.episodes + episodes)

    def arrays(self) -> Memory:
        """The state as arrays by name, to be saved."""
        counters = [self.seed, self.iteration, self.steps, self.episodes, self.normalizer.count]
        return {
            "counters": np.array(counters, dtype=np.uint64),
            "normalizer_mean": self.normalizer.mean,
            "normalizer_m2": self.normalizer.m2,
            **prefixed("memory.", self.memory),
        }

    @staticmethod
    def from_arrays(arrays: Memory) -> State:
        if arrays["counters"].dtype != np.uint64:
            raise ValueError(f"counters of type {arrays['counters'].dtype}, not uint64")
        seed, iteration, steps, episodes, count = (int(c) for c in arrays["counters"])
        normalizer = Normalizer(count, arrays["normalizer_mean"], arrays["normalizer_m2"])
        return State(seed, normalizer, iteration, steps, episodes, part(arrays, "memory."))

    def check(self, start: State) -> None:
        """Check that this can be a later state of a run, given its first one: arrays of the same names, types and
        sizes, all numbers finite. Tables may have any number of rows, and what a run adds later is not checked.

        Raises:
            ValueError: it cannot.
        """
        if self.seed != start.seed or max(self.iteration, self.steps, self.episodes, self.normalizer.count) >= 2**53:
            raise ValueError("its counters are not those of the run")
        given, known = self.arrays(), start.arrays()
        rows = {prefix: len(given[f"{prefix}ahead"]) for prefix in tables(known) if f"{prefix}ahead" in given}
        for name, first in known.items():
            table = next((prefix for prefix in rows if name.startswith(prefix)), None)
            if name not in given:
                if table is not None and name == f"{table}{WRITTEN}":
                    continue  # checkpoints of before there was the number do not have it
                raise ValueError(f"it has no {name}")
            array, shape = given[name], first.shape
            if table is not None and shape:
                shape = (rows[table], *shape[1:])
            if array.shape != shape or array.dtype != first.dtype:
                raise ValueError(f"{name} of shape {array.shape} and type {array.dtype}, not {shape} and {first.dtype}")
            most = 1e300 if name == "normalizer_m2" else LARGEST  # it is a sum of squares
            if array.dtype == np.int64 and not array.shape and not 0 <= array < 2**53:
                raise ValueError(f"{name} is {array}")
            if array.dtype.kind == "f" and not float(np.abs(array).max(initial=0)) <= most:
                raise ValueError(f"{name} is not finite, or too large")
        if (self.normalizer.m2 < 0).any():
            raise ValueError("normalizer_m2 is negative")
        for prefix, count in rows.items():
            if given.get(f"{prefix}{WRITTEN}", count) < count:
                raise ValueError(f"{prefix.removesuffix('.')} has more rows than were written")
            ahead = given[f"{prefix}ahead"]
            if count and (ahead.min() < 0 or (np.arange(count) + ahead).max() >= count):
                raise ValueError(f"a transition of {prefix.removesuffix('.')} ends beyond its last row")
