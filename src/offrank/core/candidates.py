"""The candidates of one iteration, and the two questions an algorithm asks of the environment about them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from offrank.core.arrays import FloatArray, IntArray, Memory
from offrank.core.errors import UsageError
from offrank.core.noise import Directions, Role, episode_seeds
from offrank.core.normalizer import Whitening
from offrank.core.rollouts import Request, Rollouts

T = TypeVar("T")


class Lesson(ABC):
    """Work of a ranker that takes long, and that whoever drives the run may do for many runs at once."""

    @abstractmethod
    def carry_out(self) -> Memory:
        """Do it here and now: what it changes of the ranker's memory."""


# yields requests for episodes and lessons, is sent the Rollouts of the one and the Memory of the other, returns a T
Asking = Generator[Request | Lesson, Any, T]


def answered(asking: Asking[T], run: Callable[[Request], Rollouts]) -> T:
    """What comes of it when every request is run at once."""
    answer: Rollouts | Memory | None = None
    while True:
        try:
            wanted = next(asking) if answer is None else asking.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result
        answer = wanted.carry_out() if isinstance(wanted, Lesson) else run(wanted)


@dataclass(frozen=True)
class Episodes:
    """How training episodes are run and scored, the same for every algorithm."""

    horizon: int
    reward_shift: float = 0.0  # survival bonus, subtracted at every training step
    common_starts: bool = False  # both signs of a pair start from the same state
    count_behaviour_states: bool = False  # behaviour rollouts enter the state statistics too
    train_horizon: int = 0  # steps after which training episodes are cut in the first iteration; 0: the horizon
    horizon_growth: float = 0.0  # steps by which that grows from one iteration to the next, up to the horizon
    probe_share: float = 0.0  # without a train_horizon: share of the steps spent on whole episodes to find one; 0: none
    starts: int = 1  # policies begun, of which the best is gone on with
    start_steps: int = 0  # steps for each of them, if there are several

    def __post_init__(self) -> None:
        for name in ("train_horizon", "horizon_growth"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} = {getattr(self, name)}: must not be negative")
        if not 0 <= self.probe_share < 1:
            raise UsageError(f"probe_share = {self.probe_share}: must be in [0, 1)")
        if self.starts < 1 or self.start_steps < 0:
            raise UsageError(f"starts = {self.starts}, start_steps = {self.start_steps}: at least 1 and not negative")
        if (self.starts > 1) != (self.start_steps > 0):
            given = f"starts = {self.starts}, start_steps = {self.start_steps}"
            raise UsageError(f"{given}: several starts and steps for each of them, or neither")
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

    def length(self, age: int) -> int:
        """Steps after which training episodes are cut, so many iterations after the policy began, where the run does
        not find that itself."""
        if self.train_horizon == 0:
            return self.horizon
        return min(self.horizon, self.train_horizon + int(self.horizon_growth * age))


@dataclass(frozen=True)
class Pairs:
    """Returns of m antithetic pairs, shifted as training sees them."""

    index: IntArray  # (m,) directions, ascending
    plus: FloatArray  # (m,) return of M + scale * delta
    minus: FloatArray  # (m,) return of M - scale * delta
    rollouts: Rollouts  # 2m episodes: plus and minus of a direction side by side

    @staticmethod
    def of(index: IntArray, rollouts: Rollouts, episodes: Episodes) -> Pairs:
        """The pairs that these episodes were."""
        returns = episodes.returns(rollouts)
        return Pairs(index, returns[0::2], returns[1::2], rollouts)

    @property
    def best(self) -> FloatArray:
        return np.maximum(self.plus, self.minus)

    def take(self, directions: IntArray) -> Pairs:
        """The pairs of some of the directions; the rollouts stay those of all."""
        at = np.searchsorted(self.index, directions)
        return Pairs(self.index[at], self.plus[at], self.minus[at], self.rollouts)


@dataclass(frozen=True)
class Candidates:
    """N directions around M: candidate k is the pair M +- scale * delta_k. b of them will be used."""

    M: FloatArray  # (p, n)
    whitening: Whitening
    directions: Directions
    scale: float
    b: int
    episodes: Episodes
    length: int  # steps after which training episodes are cut
    keep: bool = False  # whether the transitions of the pairs are learned from
    first: int = 0  # iteration in which the policy began

    @property
    def age(self) -> int:
        """Iterations since the policy began."""
        return self.directions.iteration - self.first

    @property
    def N(self) -> int:
        return self.directions.count

    def weights_of(self, run: Pairs) -> FloatArray:
        """The policies (2m, p, n) whose episodes the pairs hold, in the same order."""
        delta = np.repeat(self.scale * self.directions.take(run.index), 2, axis=0)
        delta[1::2] *= -1
        return self.M + delta

    def evaluate(self, chosen: IntArray) -> Asking[Pairs]:
        """Run both signs of the chosen directions."""
        index = np.repeat(chosen, 2)
        roles = np.tile([Role.PLUS, Role.MINUS], len(chosen)).astype(np.int64)
        starts = Role.PLUS if self.episodes.common_starts else Role.MINUS
        seeds = np.stack([self._seeds(Role.PLUS, chosen), self._seeds(starts, chosen)], axis=1).ravel()
        rollouts = yield Request(
            base=self.M,
            whitening=self.whitening,
            seeds=seeds,
            roles=roles,
            index=index,
            horizon=self.length,
            scale=self.scale,
            directions=self.directions,
            keep=self.keep,
        )
        return Pairs.of(chosen, rollouts, self.episodes)

    def behave(self, count: int) -> Asking[Rollouts]:
        """Run the unperturbed policy `count` times, keeping the transitions."""
        index = np.arange(count)
        rollouts: Rollouts = yield Request(
            base=self.M,
            whitening=self.whitening,
            seeds=self._seeds(Role.BEHAVIOUR, index),
            roles=np.full(count, Role.BEHAVIOUR, dtype=np.int64),
            index=index,
            horizon=self.length,
            keep=True,
        )
        return rollouts

    def _seeds(self, role: Role, index: IntArray) -> IntArray:
        return episode_seeds(self.directions.seed, self.directions.iteration, role, index)
