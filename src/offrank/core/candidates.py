"""The policy parameters of each episode of a request: rebuilt from random directions, or given explicitly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from offrank.core.arrays import FloatArray, IntArray
from offrank.core.noise import Directions


class Candidates(ABC):
    """The parameters of the policy of each of E episodes."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def theta(self, episode: int) -> FloatArray:
        """Parameters (d,) of one episode's policy. The array must not be modified."""

    @abstractmethod
    def take(self, episodes: Sequence[int]) -> Candidates:
        """The candidates of the given episodes, in the given order."""


@dataclass(frozen=True)
class Around(Candidates):
    """Episode i follows theta + sign[i] * scale * directions[index[i]]; sign 0 is theta itself.

    The directions are not stored: the engine that runs the episodes rebuilds them from a few integers.
    """

    center: FloatArray  # (d,)
    scale: float
    directions: Directions | None
    index: IntArray  # (E,) number of the direction
    sign: FloatArray  # (E,) -1, 0 or 1

    @staticmethod
    def itself(theta: FloatArray, episodes: int) -> Around:
        """The unperturbed policy theta (d,), for every episode."""
        return Around(theta, 0.0, None, np.zeros(episodes, dtype=np.int64), np.zeros(episodes))

    def __len__(self) -> int:
        return len(self.sign)

    def theta(self, episode: int) -> FloatArray:
        sign = float(self.sign[episode])
        if sign == 0.0 or self.directions is None:
            return self.center
        theta: FloatArray = self.center + (sign * self.scale) * self.directions.one(int(self.index[episode]))
        return theta

    def take(self, episodes: Sequence[int]) -> Around:
        at = list(episodes)
        return replace(self, index=self.index[at], sign=self.sign[at])


@dataclass(frozen=True)
class These(Candidates):
    """Episode i follows thetas[i]: trained actors, elites, members of a population."""

    thetas: FloatArray  # (E, d)

    def __len__(self) -> int:
        return len(self.thetas)

    def theta(self, episode: int) -> FloatArray:
        theta: FloatArray = self.thetas[episode]
        return theta

    def take(self, episodes: Sequence[int]) -> These:
        return These(self.thetas[list(episodes)])
