"""The interface of an algorithm, and the settings of training episodes that all algorithms share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from offrank.core.arrays import FloatArray, Metrics
from offrank.core.errors import UsageError
from offrank.core.normalizer import Normalizer
from offrank.core.policy import Policy
from offrank.core.rollouts import Rollouts
from offrank.core.space import Space
from offrank.core.state import State
from offrank.core.work import Asking
from offrank.policies.trained import TrainedPolicy

INIT_STATES = 1_000_000  # that the normaliser of an initial policy weighs as many as, so that it hardly changes


@dataclass(frozen=True)
class Episodes:
    """How training episodes are run and scored. The same for every algorithm."""

    horizon: int
    reward_shift: float = 0.0  # survival bonus, subtracted from the reward of every training step
    train_horizon: int = 0  # steps after which training episodes are cut in the first iteration; 0: the horizon
    horizon_growth: float = 0.0  # steps added to train_horizon per iteration, up to the horizon
    probe_share: float = 0.0  # share of the steps spent on whole episodes, to find a train_horizon; 0: do not search

    def __post_init__(self) -> None:
        for name in ("train_horizon", "horizon_growth"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} = {getattr(self, name)}: must not be negative")
        if not 0 <= self.probe_share < 1:
            raise UsageError(f"probe_share = {self.probe_share}: must be in [0, 1)")
        if self.horizon_growth > 0 and self.train_horizon == 0:
            raise UsageError(f"horizon_growth = {self.horizon_growth:g} needs a train_horizon to grow from")

    def returns(self, rollouts: Rollouts) -> FloatArray:
        """Returns (E,) of training episodes, without the survival bonus."""
        shifted: FloatArray = rollouts.totals - self.reward_shift * rollouts.lengths
        return shifted

    @property
    def cuts(self) -> bool:
        """Whether training episodes may be shorter than the horizon."""
        return self.train_horizon > 0 or self.probes

    @property
    def probes(self) -> bool:
        """Whether the run searches for the length of its training episodes."""
        return self.probe_share > 0 and self.train_horizon == 0

    def refuse_probing(self, algo: str) -> None:
        """Raise UsageError if a search for the length is asked of an algorithm that has none."""
        if self.probe_share > 0:
            raise UsageError(
                f"probe_share = {self.probe_share:g}: {algo} does not search for the length of its episodes; "
                "train_horizon sets it"
            )

    def length(self, iteration: int) -> int:
        """Steps after which the training episodes of an iteration are cut, if the run does not search for it."""
        if self.train_horizon == 0:
            return self.horizon
        return min(self.horizon, self.train_horizon + int(self.horizon_growth * iteration))


@dataclass(frozen=True)
class Algorithm(ABC):
    """An algorithm with its settings, for one environment. It has no state of its own: methods take and return it."""

    space: Space
    kind: Policy  # the kind of policy it trains
    episodes: Episodes

    @abstractmethod
    def start(self, seed: int, init: TrainedPolicy | None = None) -> State:
        """The state before the first iteration, whose policy is `init` or one that acts as zero.

        Raises:
            UsageError: `init` is no policy that this algorithm could have trained here.
        """

    @abstractmethod
    def iteration(self, state: State) -> Asking[tuple[State, Metrics]]:
        """One iteration. A generator that yields its work and returns the next state and the metrics to log. It has no
        side effects."""

    @abstractmethod
    def policy(self, state: State) -> TrainedPolicy:
        """The policy of a state, as it is evaluated and saved."""

    @property
    def normalises(self) -> bool:
        """Whether policies act on normalised states."""
        return True

    def begin(self, seed: int, init: TrainedPolicy | None) -> tuple[FloatArray, Normalizer]:
        """The parameters (d,) and the normaliser to start from. Raises as `start` does."""
        kind, n = self.kind, self.kind.n
        if init is None:
            return kind.start(seed), Normalizer.empty(n)
        if (init.kind.n, init.kind.p) != (n, kind.p):
            raise UsageError(
                f"the initial policy is for observations ({init.kind.n},) and actions ({init.kind.p},): here they are "
                f"({n},) and ({kind.p},)"
            )
        if init.discrete != self.space.discrete:
            theirs, ours = ("discrete" if some.discrete else "continuous" for some in (init, self.space))
            raise UsageError(f"the initial policy has {theirs} actions: this environment's are {ours}")
        if init.choices != self.space.choices:
            theirs, ours = (", ".join(map(str, some.choices)) or "one part" for some in (init, self.space))
            raise UsageError(f"the initial policy's actions have the choices {theirs}: this environment's {ours}")
        if init.kind != kind:
            raise UsageError(f"the initial policy is {init.kind.name}, not {kind.name}: its kind cannot change")
        plain = not init.whitening.mean.any() and (init.whitening.scale == 1).all()
        if not self.normalises and not plain:
            raise UsageError("the initial policy acts on normalised states, and these settings do not normalise them")
        return init.theta, Normalizer.like(init.whitening, INIT_STATES)

    @property
    def cached_bytes(self) -> int:
        """Bytes of random directions that an iteration reads more than once."""
        return 0
