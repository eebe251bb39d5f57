"""A linear policy by way of a nonlinear one: guided search whose actor has a hidden layer that fades away.

A matrix that follows a critic's gradient from the start gets stuck where a policy with a hidden layer does not. So the
actor begins as `skip:W`, a = M z + V tanh(W z + c), and learns as in `guided`. Then the norm of V is held under a bound
that falls to 0, while critics and actor learn on: M takes over, step by step, what V did. What is left is a = M z.

Shortly before, critics and replay buffer begin anew, as they do where a run starts from a saved policy: with those of
the whole run before, some actors get stuck as the layer goes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from offrank.algorithms.guided import Guided, GuidedSettings
from offrank.algorithms.learning import actor_critic, replay
from offrank.core.arrays import WRITTEN, FloatArray, Memory, Metrics, prefixed
from offrank.core.errors import UsageError
from offrank.core.normalizer import Normalizer
from offrank.core.policy import Policy
from offrank.core.state import State
from offrank.core.work import Asking
from offrank.policies import canonical, make_policy
from offrank.policies.trained import TrainedPolicy


@dataclass(frozen=True)
class FadedSettings(GuidedSettings):
    """Settings of `guided`, and when the hidden layer fades."""

    name: ClassVar[str] = "faded"
    also: ClassVar[tuple[str, ...]] = (GuidedSettings.name,)  # whose presets are taken over
    from_a_policy: ClassVar[dict[str, Any]] = {}  # the policy changes in any case
    unchanged: ClassVar[str] = "fade_to"

    begins_as: str = "skip:32"  # the kind of policy that the actor is before the hidden layer fades
    fade_from: int = 160_000  # training steps after which it begins to fade; critics begin anew two warm-ups before
    fade_to: int = 210_000  # training steps after which it is gone, and the policy linear

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "begins_as", canonical(self.begins_as))
        if not self.begins_as.startswith("skip:"):
            raise UsageError(f"begins_as = {self.begins_as}: must be skip:W, which is linear without its hidden layer")
        if not 0 <= self.fade_from < self.fade_to:
            raise UsageError(
                f"fade_from = {self.fade_from}, fade_to = {self.fade_to}: the first must be less than the second"
            )

    @property
    def anew(self) -> int:
        """The training steps after which critics and replay buffer begin anew; not if that is where the run begins."""
        return max(0, self.fade_from - 2 * self.warmup_steps)

    def left(self, steps: int) -> float:
        """The share of the norm of V that is left after so many training steps, 1 to 0: a cube, because what little is
        left at last counts most."""
        return min(1.0, max(0.0, (self.fade_to - steps) / (self.fade_to - self.fade_from))) ** 3


@dataclass(frozen=True)
class Faded(Guided):
    """Guided search of a linear policy, whose actor has a hidden layer at first."""

    settings: FadedSettings

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.kind.is_linear:
            raise UsageError(f"faded ends with a linear policy, not {self.kind.name}: guided trains those")

    @cached_property
    def actor(self) -> Policy:
        return make_policy(self.settings.begins_as, self.kind.n, self.kind.p)

    def begin(self, seed: int, init: TrainedPolicy | None) -> tuple[FloatArray, Normalizer]:
        """A policy to start from is the actor's."""
        return Guided(self.space, self.actor, self.episodes, self.settings, self.ranker).begin(seed, init)

    def start(self, seed: int, init: TrainedPolicy | None = None) -> State:
        state = super().start(seed, init)
        return replace(state, memory=state.memory | {"begun": np.zeros((), dtype=np.int64)})

    def begun(self, state: State) -> int:
        return int(state.memory["begun"])

    def iteration(self, state: State) -> Asking[tuple[State, Metrics]]:
        if 0 < self.settings.anew <= state.steps and not self.begun(state):
            state = self._anew(state)
        after, metrics = yield from super().iteration(state)
        return after, metrics | {"hidden_norm": self._norm(after)}

    def _anew(self, state: State) -> State:
        """The state with the same actor, and critics and replay buffer that begin anew."""
        memory = state.memory
        learner = actor_critic.new_learner(self.settings, self.actor, memory["actor.theta"], state.seed)
        table = replay.empty(self.actor) | {WRITTEN: memory[f"replay.{WRITTEN}"]}  # its rows are counted on
        begun: Memory = {"begun": np.array(state.steps, dtype=np.int64), "near": np.array(True)}
        return replace(state, memory=memory | learner | prefixed("replay.", table) | begun)

    def policy(self, state: State) -> TrainedPolicy:
        """The linear part of the actor, which is all of it in the end."""
        matrix: Any = self.actor.layers(state.memory["actor.theta"].astype(np.float64))[-1].skip
        return TrainedPolicy.for_space(self.space, self.kind, matrix.ravel(), state.normalizer.freeze())

    def directions(self, state: State, eps: FloatArray) -> FloatArray:
        """Those of V become shorter as V does: in the end every perturbed policy is linear."""
        self.actor.layers(eps)[-1].weights[:] *= self.settings.left(state.steps)
        return eps

    def limit(self, state: State, steps: int) -> float | None:
        """The norm of V as it is, less what fades meanwhile."""
        now, then = self.settings.left(state.steps), self.settings.left(state.steps + steps)
        if then == 1:
            return np.inf
        return self._norm(state) * then / now if now > 0 else 0.0

    def _norm(self, state: State) -> float:
        """Of V."""
        return float(np.linalg.norm(self.actor.layers(state.memory["actor.theta"])[-1].weights))
