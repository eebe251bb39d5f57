"""Running mean and variance of the states, used to normalise the input of a policy.

Moments are (count, mean, M2) per episode, merged in the order of the episodes (Chan et al., 1979). Sums of squares
would be simpler, but suffer from cancellation: Humanoid's constant features would get a spurious standard deviation of
1e-6, and the policy would act on noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offrank.core.arrays import FloatArray, IntArray

CONSTANT = 1e-7  # a feature with a smaller standard deviation is switched off: its normalised value is 0


@dataclass(frozen=True)
class Moments:
    """Moments of the states of E episodes: count (E,), mean (E, n) and m2 (E, n), the sum of squared deviations."""

    count: IntArray
    mean: FloatArray
    m2: FloatArray


@dataclass(frozen=True)
class Whitening:
    """A normaliser frozen for one iteration: z = (s - mean) * scale. scale is 0 for a feature that is switched off."""

    mean: FloatArray  # (n,)
    scale: FloatArray  # (n,)

    @staticmethod
    def identity(n: int) -> Whitening:
        return Whitening(np.zeros(n), np.ones(n))

    def __call__(self, observations: FloatArray) -> FloatArray:
        return (observations - self.mean) * self.scale


@dataclass(frozen=True)
class Normalizer:
    """Moments of all training states so far."""

    count: int
    mean: FloatArray  # (n,)
    m2: FloatArray  # (n,)

    @staticmethod
    def empty(n: int) -> Normalizer:
        return Normalizer(0, np.zeros(n), np.zeros(n))

    @staticmethod
    def like(whitening: Whitening, count: int) -> Normalizer:
        """One that freezes to `whitening`, up to rounding, and weighs as much as `count` states."""
        live = whitening.scale != 0
        variance = np.where(live, 1.0 / np.where(live, whitening.scale, 1.0) ** 2, 0.0)
        return Normalizer(count, whitening.mean.copy(), variance * (count - 1))

    def merge(self, moments: Moments) -> Normalizer:
        """The normaliser after adding the episodes of `moments`, in their order."""
        count, mean, m2 = self.count, self.mean.copy(), self.m2.copy()
        for k, other, other_m2 in zip(moments.count.tolist(), moments.mean, moments.m2, strict=True):
            if k == 0:
                continue
            total = count + k
            gap = other - mean
            mean += gap * (k / total)
            m2 += other_m2 + gap * gap * (count * k / total)
            count = total
        return Normalizer(count, mean, m2)

    def freeze(self) -> Whitening:
        """The current mean and standard deviation; 0 and 1 before the first state."""
        if self.count == 0:
            return Whitening.identity(len(self.mean))
        std = np.sqrt(self.m2 / max(self.count - 1, 1))
        live = std >= CONSTANT
        return Whitening(self.mean, np.where(live, 1.0 / np.where(live, std, 1.0), 0.0))
