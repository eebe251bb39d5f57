"""What an algorithm needs to know about the environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from offrank.core.arrays import FloatArray, Metrics
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
    exact: Callable[[Policy, FloatArray, Whitening], Metrics] | None = None  # metrics computed without an episode

    def clip(self, actions: Any) -> Any:
        """Actions (..., p) as the environment takes them, in their own precision."""
        if self.low is None or self.high is None:
            return actions
        return np.clip(actions, self.low.astype(actions.dtype), self.high.astype(actions.dtype))
