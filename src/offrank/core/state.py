"""The state of a run: everything its next iteration depends on, as plain arrays and numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from offrank.core.arrays import Memory, part, prefixed
from offrank.core.normalizer import Normalizer


@dataclass(frozen=True)
class State:
    """Between two iterations. Counters say how much has been done; seed and iteration determine what comes next."""

    seed: int
    normalizer: Normalizer
    iteration: int = 0  # iterations completed
    steps: int = 0  # environment steps of training, behaviour rollouts included
    episodes: int = 0  # training episodes
    memory: Memory = field(default_factory=dict)  # the algorithm's own

    def counted(self, steps: int, episodes: int) -> State:
        return replace(self, steps=self.steps + steps, episodes=self.episodes + episodes)

    def arrays(self) -> Memory:
        """The state as arrays by name, for a file."""
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
