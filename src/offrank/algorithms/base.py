"""What a run sees of an algorithm, and how training episodes are run and scored for all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from offrank.core.arrays import FloatArray, Metrics
from offrank.core.errors import UsageError
from offrank.core.policy import Policy
from offrank.core.rollouts import Rollouts
from offrank.core.space import Space
from offrank.core.state import State
from offrank.core.work import Asking
from offrank.policies.trained import TrainedPolicy


@dataclass(frozen=True)
class Episodes:
    """How training episodes are run and scored, the same for every algorithm."""

    horizon: int
    reward_shift: float = 0.0  # survival bonus, subtracted at every training step
    train_horizon: int = 0  # steps after which training episodes are cut in the first iteration; 0: the horizon
    horizon_growth: float = 0.0  # steps by which that grows from one iteration to the next, up to the horizon
    probe_share: float = 0.0  # without a train_horizon: share of the steps spent on whole episodes to find one; 0: none

    def __post_init__(self) -> None:
        for name in ("train_horizon", "horizon_growth"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} = {getattr(self, name)}: must not be negative")
        if not 0 <= self.probe_share < 1:
            raise UsageError(f"probe_share = {self.probe_share}: must be in [0, 1)")
        if self.horizon_growth > 0 and self.train_horizon == 0:
            raise UsageError(f"horizon_growth = {self.horizon_growth:g} needs a train_horizon to grow from")

    def returns(self, rollouts: Rollouts) -> FloatArray:
        """Returns of episodes as training sees them."""
        seen: FloatArray = rollouts.totals - self.reward_shift * rollouts.lengths
        return seen

    @property
    def cuts(self) -> bool:
        """Whether training episodes may be shorter than the horizon."""
        return self.train_horizon > 0 or self.probes

    @property
    def probes(self) -> bool:
        """Whether the run finds by itself how long they should be."""
        return self.probe_share > 0 and self.train_horizon == 0

    def length(self, iteration: int) -> int:
        """Steps after which the training episodes of an iteration are cut, where the run does not find that itself."""
        if self.train_horizon == 0:
            return self.horizon
        return min(self.horizon, self.train_horizon + int(self.horizon_growth * iteration))


@dataclass(frozen=True)
class Algorithm(ABC):
    """An algorithm with its settings, for one environment. It carries no state: that is handed in and out."""

    space: Space
    kind: Policy  # of the policies it searches
    episodes: Episodes

    @abstractmethod
    def start(self, seed: int) -> State:
        """The state before the first iteration."""

    @abstractmethod
    def iteration(self, state: State) -> Asking[tuple[State, Metrics]]:
        """One iteration: asks for its work, returns the next state and what to log. Touches nothing else."""

    @abstractmethod
    def policy(self, state: State) -> TrainedPolicy:
        """The policy that is evaluated and saved."""

    @property
    def cached_bytes(self) -> int:
        """Of random directions that an iteration asks for more than once."""
        return 0
