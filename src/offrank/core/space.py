"""What an algorithm needs to know about the environment."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from offrank.core.arrays import FloatArray, IntArray, Metrics
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy


@dataclass(frozen=True)
class Space:
    """Sizes of observations and actions, the type of the actions, and the length of an episode."""

    obs_dim: int
    act_dim: int
    horizon: int  # maximum number of steps of an episode, set by the environment
    discrete: bool = False  # the action is `first` + the index of the largest output
    first: int = 0
    low: FloatArray | None = None  # (p,) bounds that actions are clipped to; None: no clipping
    high: FloatArray | None = None
    shape: tuple[int, ...] | None = None  # of an action, if it is not (p,)
    dtype: str = "float64"  # of an action
    choices: tuple[int, ...] = ()  # of a discrete action with several parts: how many choices each of them has
    exact: Callable[[Policy, FloatArray, Whitening], Metrics] | None = None  # metrics computed without an episode

    @property
    def box(self) -> tuple[FloatArray, FloatArray] | None:
        """The bounds (p,) of a policy's outputs, if they have any: those of the actions; of discrete actions, whose
        outputs matter by their order alone, -1 and 1."""
        if self.discrete:
            return -np.ones(self.act_dim), np.ones(self.act_dim)
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def box_key(self) -> Hashable:
        """Equal for equal boxes."""
        return None if (box := self.box) is None else tuple(bound.tobytes() for bound in box)

    def choose(self, outputs: FloatArray) -> IntArray:
        """The discrete actions for outputs (..., p): of each part, the index of the largest output."""
        if not self.choices:
            return np.asarray(outputs.argmax(axis=-1) + self.first)
        parts = np.split(outputs, np.cumsum(self.choices)[:-1], axis=-1)
        chosen = np.stack([part.argmax(axis=-1) for part in parts], axis=-1) + self.first
        return chosen.reshape((*outputs.shape[:-1], *(self.shape or chosen.shape[-1:])))

    def clip(self, outputs: Any) -> Any:
        """Outputs (..., p) within their box, in their own precision."""
        if (box := self.box) is None:
            return outputs
        return np.clip(outputs, *(bound.astype(outputs.dtype) for bound in box))
