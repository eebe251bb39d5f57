"""The state of a run: everything its next iteration depends on, as plain arrays and numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from offrank.core.arrays import FloatArray, Memory, part
from offrank.core.normalizer import Normalizer


@dataclass(frozen=True)
class State:
    """Between two iterations. Counters say how much has been done; seed and iteration determine what comes next."""

    seed: int
    M: FloatArray  # (p, n)
    normalizer: Normalizer
    iteration: int = 0  # iterations completed
    steps: int = 0  # environment steps of training, behaviour rollouts included
    episodes: int = 0  # training episodes
    strategy: Memory = field(default_factory=dict)
    ranker: Memory = field(default_factory=dict)
    horizon: Memory = field(default_factory=dict)  # what is known about the lengths of training episodes
    starts: Memory = field(default_factory=dict)  # about the starts so far, where there are several

    def counted(self, steps: int, episodes: int) -> State:
        return replace(self, steps=self.steps + steps, episodes=self.episodes + episodes)

    def arrays(self) -> Memory:
        """The state as arrays by name, for a file."""
        counters = [self.seed, self.iteration, self.steps, self.episodes, self.normalizer.count]
        out: Memory = {
            "counters": np.array(counters, dtype=np.uint64),
            "M": self.M,
            "normalizer_mean": self.normalizer.mean,
            "normalizer_m2": self.normalizer.m2,
        }
        out |= {f"strategy.{name}": value for name, value in self.strategy.items()}
        out |= {f"ranker.{name}": value for name, value in self.ranker.items()}
        out |= {f"horizon.{name}": value for name, value in self.horizon.items()}
        out |= {f"starts.{name}": value for name, value in self.starts.items()}
        return out

    @staticmethod
    def from_arrays(arrays: Memory) -> State:
        seed, iteration, steps, episodes, count = (int(c) for c in arrays["counters"])
        return State(
            seed=seed,
            M=arrays["M"],
            normalizer=Normalizer(count, arrays["normalizer_mean"], arrays["normalizer_m2"]),
            iteration=iteration,
            steps=steps,
            episodes=episodes,
            strategy=part(arrays, "strategy."),
            ranker=part(arrays, "ranker."),
            horizon=part(arrays, "horizon."),
            starts=part(arrays, "starts."),
        )
