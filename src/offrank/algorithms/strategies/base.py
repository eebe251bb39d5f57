"""A strategy: how candidates are sampled, and how the policy is updated from their returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from offrank.algorithms.proposal import Pairs, Proposal
from offrank.core.arrays import FloatArray, Memory, Metrics
from offrank.core.checks import check_scale
from offrank.core.errors import UsageError

MAX_DIRECTIONS = 10_000_000  # per iteration: more is probably a typing error, and would take forever


@dataclass(frozen=True)
class Strategy:
    """Base class of strategies. A subclass adds its hyperparameters as fields and implements `update`."""

    name: ClassVar[str]

    n_directions: int = 8  # N, directions sampled per iteration
    n_top: int = 4  # b, directions run and used
    noise_std: float = 0.03  # nu or sigma: a candidate is theta +- noise_std * delta

    def __post_init__(self) -> None:
        self._check("at least 1", lambda value: value >= 1, "n_directions", "n_top")
        self._check(f"at most {MAX_DIRECTIONS:,}", lambda value: value <= MAX_DIRECTIONS, "n_directions")
        check_scale("noise_std", self.noise_std)
        if self.n_top > self.n_directions:
            raise UsageError(
                f"n_top = {self.n_top} is more than n_directions = {self.n_directions}: "
                "b directions are chosen from N, so b <= N"
            )

    def _check(self, wanted: str, holds: Callable[[float], bool], *names: str) -> None:
        for name in names:
            if not holds(getattr(self, name)):
                raise UsageError(f"{name} = {getattr(self, name)}: must be {wanted}")

    def update(self, proposal: Proposal, used: Pairs, memory: Memory) -> tuple[FloatArray, Memory, Metrics]:
        """Update the policy from the b pairs used. Returns theta (d,), the strategy's memory, and metrics to log."""
        raise NotImplementedError

    def memory(self, d: int) -> Memory:
        """The strategy's memory before the first iteration, for policies of d parameters."""
        return {}

    @property
    def normalises(self) -> bool:
        """Whether policies act on normalised states."""
        return True


def return_deviation(used: Pairs) -> float:
    """sigma_R: the population standard deviation of the 2b returns used."""
    return float(np.std(np.concatenate([used.plus, used.minus])))
