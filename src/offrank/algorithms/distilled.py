"""A policy distilled from a guided teacher: the teacher learns by gradient, the student copies it and is then searched
around.

What a matrix hardly learns along a critic's gradient it can copy from a policy with a hidden layer. Copying is DAgger
(S. Ross, G. Gordon, J. A. Bagnell, "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online
Learning", AISTATS 2011): the student runs, the teacher says what it would have done there, and the student is fitted to
all of that by least squares. A copy comes close to the threshold and not over it; the rest of the way is that of ARS.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from offrank.algorithms.base import Algorithm
from offrank.algorithms.guided import Guided, GuidedSettings
from offrank.algorithms.learning import replay
from offrank.algorithms.rankers.members import RandomMembers
from offrank.algorithms.search import Search
from offrank.algorithms.strategies import ARS
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import WRITTEN, FloatArray, Memory, Metrics, part, prefixed
from offrank.core.errors import UsageError
from offrank.core.noise import Role
from offrank.core.normalizer import Normalizer
from offrank.core.policy import Policy
from offrank.core.rollouts import Request, Rollouts
from offrank.core.state import State
from offrank.core.work import Asking
from offrank.policies import canonical, make_policy
from offrank.policies.trained import TrainedPolicy

TEACHER, TABLE = "teacher.", "teacher.replay."
RIDGE = 1e-3  # added to the variance of every input of the student, per state


@dataclass(frozen=True)
class DistilledSettings(GuidedSettings):
    """Settings of the teacher, of copying it, and of the search after that."""

    name: ClassVar[str] = "distilled"
    also: ClassVar[tuple[str, ...]] = (GuidedSettings.name,)  # whose presets are the teacher's
    unchanged: ClassVar[str] = "teacher_steps"
    suggests: ClassVar[dict[str, Any]] = GuidedSettings.suggests | {"probe_share": 0.2}  # of the steps of the search

    teacher: str = "skip:32"  # the teacher's kind of policy
    teacher_steps: int = 100_000  # training steps of the teacher
    copy_rounds: int = 12  # rounds in which the student runs and is fitted again
    copy_episodes: int = 4  # episodes per round
    n_directions: int = 8  # N, directions per iteration of the search
    n_top: int = 4  # b, of which the best are used
    noise_std: float = 0.025  # nu: a candidate is theta +- noise_std * delta
    step_size: float = 0.01  # alpha, step size

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("teacher_steps", 0), ("copy_rounds", 1), ("copy_episodes", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} = {getattr(self, name)}: must be at least {least}")
        object.__setattr__(self, "teacher", canonical(self.teacher))
        _ = self.search  # raises if its settings are invalid

    @property
    def search(self) -> ARS:
        """The strategy of the search."""
        return ARS(self.n_directions, self.n_top, self.noise_std, self.step_size)


@dataclass(frozen=True)
class Distilled(Algorithm):
    """Teach, copy, search. A state has the arrays of all three from the start."""

    settings: DistilledSettings
    ranker: Any  # OnPolicy: the search runs every direction

    def __post_init__(self) -> None:
        if len(self.kind.table) > 1 or self.kind.table[0].tanh:
            raise UsageError(f"distilled fits linear and affine policies, not {self.kind.name}: guided trains those")

    @cached_property
    def teacher(self) -> Guided:
        kind = make_policy(self.settings.teacher, self.kind.n, self.kind.p)
        return Guided(self.space, kind, replace(self.episodes, probe_share=0.0), self.settings, RandomMembers())

    @cached_property
    def search(self) -> Search:
        episodes = replace(self.episodes, train_horizon=0, horizon_growth=0.0)
        return Search(self.space, self.kind, episodes, self.settings.search, self.ranker)

    def begin(self, seed: int, init: TrainedPolicy | None) -> tuple[FloatArray, Normalizer]:
        """A policy to start from is the teacher's."""
        return self.teacher.begin(seed, init)

    def start(self, seed: int, init: TrainedPolicy | None = None) -> State:
        state, inputs = self.teacher.start(seed, init), self.kind.size // self.kind.p
        copy: Memory = {
            "round": np.zeros((), dtype=np.int64),  # rounds done; the first is the teacher's
            "squares": np.zeros((inputs, inputs)),  # sum of x x' over all states
            "products": np.zeros((inputs, self.kind.p)),  # and of x times the teacher's action
            "count": np.zeros(()),
            "latest": np.zeros(self.kind.size),  # the policy fitted to them
            "best": np.zeros(()),  # the largest mean return of a round of the student
        }
        searched = self.search.start(seed).memory
        return replace(state, memory=prefixed(TEACHER, state.memory) | prefixed("copy.", copy) | searched)

    def policy(self, state: State) -> TrainedPolicy:
        """The student's; before there is one, it acts as zero."""
        return self.search.policy(state)

    def iteration(self, state: State) -> Asking[tuple[State, Metrics]]:
        rounds = int(state.memory["copy.round"])
        if rounds == 0 and state.steps < self.settings.teacher_steps:
            own = part(state.memory, TEACHER)
            after, metrics = yield from self.teacher.iteration(replace(state, memory=own))
            return replace(after, memory=state.memory | prefixed(TEACHER, after.memory)), metrics
        if rounds <= self.settings.copy_rounds:
            return (yield from self._copy(state, rounds))
        after, metrics = yield from self.search.iteration(state)
        return replace(after, memory=state.memory | after.memory), metrics

    def _copy(self, state: State, rounds: int) -> Asking[tuple[State, Metrics]]:
        """Run the teacher, or after that the student, and fit the student to what the teacher does at all states seen.
        The student's episodes are cut: its mistakes lead it to where nothing can be learned. The normaliser does not
        change meanwhile."""
        memory, teacher = dict(state.memory), self.teacher.kind
        wise = memory[f"{TEACHER}actor.theta"].astype(np.float64)
        whole, cut = self.episodes.horizon, self.episodes.length(state.iteration)
        who = (self.kind, memory["copy.latest"], cut) if rounds else (teacher, wise, whole)
        rollouts = yield from self._run(state, *who)
        mean = float(rollouts.totals.mean())
        if rounds and (rounds == 1 or mean > memory["copy.best"]):
            memory["theta"], memory["copy.best"] = memory["copy.latest"], np.array(mean)
        z = state.normalizer.freeze()(np.concatenate([seen.observations for seen in rollouts.trajectories]))
        x, policy = self._inputs(z), self.kind
        with one_blas_thread():
            y = self.space.clip(teacher.act_together(wise, z))
            error = float(np.mean((self.space.clip(policy.act_together(memory["copy.latest"], z)) - y) ** 2))
            squares = memory["copy.squares"] = memory["copy.squares"] + x.T @ x
            products = memory["copy.products"] = memory["copy.products"] + x.T @ y
            count = memory["copy.count"] = memory["copy.count"] + len(x)
            fitted = np.linalg.solve(squares + RIDGE * float(count) * np.eye(len(squares)), products)
        # theta is the rows of the matrix, then the bias
        memory["copy.latest"] = np.concatenate([fitted[: policy.n].T.ravel(), fitted[policy.n :].ravel()])
        memory["copy.round"] = np.array(rounds + 1)
        if rounds == 0:  # the teacher has taught what it can: only its policy is needed now
            written = {f"{TABLE}{WRITTEN}": memory[f"{TABLE}{WRITTEN}"]}
            memory |= prefixed(TABLE, replay.empty(teacher)) | written
        metrics: Metrics = {
            "return_mean": mean,
            "return_std": float(rollouts.totals.std()),
            "length_mean": float(rollouts.lengths.mean()),
            "weights_norm": float(np.linalg.norm(memory["copy.latest"])),
            "copy_error": error,
        }
        return replace(state, iteration=state.iteration + 1, memory=memory), metrics

    def _run(self, state: State, kind: Policy, theta: FloatArray, length: int) -> Asking[Rollouts]:
        """Episodes of one policy, without noise."""
        run = state.seed, state.iteration, Role.BEHAVIOUR, np.arange(self.settings.copy_episodes)
        rollouts: Rollouts = yield Request.of_one(kind, theta, state.normalizer.freeze(), *run, length, keep=True)
        return rollouts

    def _inputs(self, z: FloatArray) -> FloatArray:
        """What the student's parameters multiply (B, m) at normalised states (B, n)."""
        return np.concatenate([z, np.ones((len(z), 1))], axis=1) if self.kind.table[0].bias else z

    @property
    def cached_bytes(self) -> int:
        return self.search.cached_bytes
