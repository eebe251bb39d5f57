"""What an algorithm must know of the environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from offrank.core.arrays import FloatArray, Metrics
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy


@dataclass(frozen=True)
class Space:
    """Sizes of observations and actions, the kind of actions, and how long an episode is."""

    obs_dim: int
    act_dim: int
    horizon: int  # the environment's own
    discrete: bool = False  # the action is the index of the largest output, counted from `first`
    first: int = 0
    low: FloatArray | None = None  # (p,) bounds that actions are clipped to, if they are
    high: FloatArray | None = None
    shape: tuple[int, ...] | None = None  # of an action, where it is not (p,)
    dtype: str = "float64"  # of an action
    exact: Callable[[Policy, FloatArray, Whitening], Metrics] | None = None  # known of a policy without running it
