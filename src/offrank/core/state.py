"""The state of a run: everything its next iteration depends on, as arrays and numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from offrank.core.arrays import Memory, part, prefixed
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
        seed, iteration, steps, episodes, count = (int(c) for c in arrays["counters"])
        normalizer = Normalizer(count, arrays["normalizer_mean"], arrays["normalizer_m2"])
        return State(seed, normalizer, iteration, steps, episodes, part(arrays, "memory."))
