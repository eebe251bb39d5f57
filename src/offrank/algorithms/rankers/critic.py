"""A ranker with a critic: a Q function, learned off-policy from all training transitions.

The gradient of the return of a deterministic policy is the mean over the states it visits of grad_a Q(s, a) at its own
action, pulled back through the policy to its parameters (D. Silver et al., "Deterministic Policy Gradient Algorithms",
ICML 2014):

    g = mean over recent states of (d action / d theta)^T grad_a Q(z, action)     (d,),

for linear policies a = M z the matrix of grad_a Q z^T. To first order r+ - r- is proportional to <g, delta>, so
directions are ordered by |<g, delta>|. Candidates cost no episodes, so N can be in the thousands. The sign and size of
every step are still determined by real episodes. Every prediction is compared with the measured difference
(`trust.py`). While the critic's predictions are wrong, and in the first iterations, directions are chosen at random.

Q is the mean of small networks over (z, a). Their targets are the rewards of a few real steps plus the value of each
network's target network at the current policy's action. Few steps, because the actions after the first were chosen by
an older policy. The replay buffer is large, because the effects of action and state can only be separated where many
different policies have acted (docs/notebook has the comparisons).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from offrank.algorithms.learning import networks, replay
from offrank.algorithms.learning.networks import Floats
from offrank.algorithms.proposal import Pairs, Proposal
from offrank.algorithms.rankers.base import Ranker, Ranking, top
from offrank.algorithms.rankers.controls import Random
from offrank.algorithms.rankers.trust import correlation, no_evidence, observe, sign_accuracy
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import FloatArray, IntArray, Memory, part, prefixed
from offrank.core.checks import usable
from offrank.core.errors import OffrankError, UsageError
from offrank.core.noise import Purpose, philox
from offrank.core.policy import Policy
from offrank.core.work import Asking, Lesson

BATCH = 256
CHUNK = 16  # batches gathered at a time
SLOW = float(np.float32(0.005))  # rate of the target networks' moving average, per update
OUTLIER = 10.0  # normalised states are clipped to this, so that one extreme feature does not dominate
STATES = 2000  # maximum number of states of the last iteration over which the gradient is averaged
RECENT = 80_000  # most recent rows, whose rewards set the scale of the values
UNIT = 10.0  # a value of 1 is this many standard deviations of the rewards


@dataclass(frozen=True)
class Critic(Ranker):
    """Orders directions by their first-order effect on the return, as a learned Q function predicts it. 2b episodes per
    iteration."""

    name: ClassVar[str] = "critic"
    needs_transitions: ClassVar[bool] = True

    suggests: ClassVar[Mapping[str, Any]] = {"n_directions": 4000, "probe_share": 0.15}  # candidates cost no episodes

    warmup: int = 5  # first iterations, whose directions are random
    explore: float = 0.0  # share of random directions among those that are run
    trust_needed: float = -0.1  # correlation of prediction and outcome below which directions are random
    trust_decay: float = 0.9  # factor by which the evidence for the correlation decays per iteration
    networks: int = 2  # number of networks; the critic is their mean
    hidden: int = 64  # units in each of a network's two hidden layers
    n_steps: int = 5  # k, steps of real rewards in a target
    discount: float = 0.995  # factor per step by which later rewards count less
    passes: float = 10.0  # updates per iteration, in passes over the iteration's new transitions
    critic_rate: float = 1e-3  # learning rate of the networks
    replay: int = 160_000  # capacity of the replay buffer, in transitions
    tails: bool = True  # whether the estimated value of the last state is added to the return of a cut episode

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise UsageError(f"warmup = {self.warmup}: must not be negative")
        if not 0 <= self.explore <= 1:
            raise UsageError(f"explore = {self.explore}: must be in [0, 1]")
        if not -1 <= self.trust_needed <= 1:
            raise UsageError(f"trust_needed = {self.trust_needed}: must be in [-1, 1] (-1 trusts always)")
        if not 0 <= self.trust_decay < 1:
            raise UsageError(f"trust_decay = {self.trust_decay}: must be in [0, 1)")
        for name in ("networks", "hidden", "n_steps", "replay"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} = {getattr(self, name)}: must be at least 1")
        for name in ("passes", "critic_rate"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} = {getattr(self, name)}: must be positive")
        if not 0 <= self.discount < 1:
            raise UsageError(f"discount = {self.discount}: must be in [0, 1)")

    def start(self, policy: Policy, seed: int) -> Memory:
        memory: Memory = {"trust": no_evidence()} | prefixed("replay.", replay.empty(policy))
        memory["fresh"] = np.zeros((), dtype=np.int64)  # number of rows added in the last iteration
        return memory | self._new_networks(policy, seed, iteration=0)

    def rank(self, proposal: Proposal, memory: Memory) -> Asking[Ranking]:
        trust = correlation(memory["trust"])
        g = self.gradient(proposal, memory)
        size = float(np.linalg.norm(g))
        predicted = along(proposal, g / size) if size > 0 else None
        learned = trust >= self.trust_needed and proposal.iteration >= self.warmup
        if predicted is not None and learned:
            ranking = Ranking(self.choose(proposal, predicted), np.abs(predicted), predicted)
        else:
            ranking = yield from Random().rank(proposal, {})
            ranking, learned = replace(ranking, predicted=predicted), False
        accuracy = sign_accuracy(memory["trust"])
        ranking.metrics.update(ranker_trust=trust, ranker_sign_accuracy=accuracy, ranker_learned=learned)
        return ranking

    def choose(self, proposal: Proposal, predicted: FloatArray) -> IntArray:
        """The b directions to run, ascending: a share `explore` of them random, the others by their prediction."""
        b, done = proposal.b, proposal.iteration
        random = int((done + 1) * b * self.explore) - int(done * b * self.explore)  # the share holds over iterations
        chosen = top(np.abs(predicted), b - random)
        rest = np.setdiff1d(np.arange(proposal.N), chosen, assume_unique=True)
        return np.sort(np.concatenate([chosen, rest[:random]]))

    def gradient(self, proposal: Proposal, memory: Memory) -> FloatArray:
        """g (d,), up to a positive factor; 0 before the first transitions."""
        fresh = min(int(memory["fresh"]), len(memory["replay.state"]))
        if fresh == 0:
            return np.zeros_like(proposal.theta)
        seen = memory["replay.state"][-fresh:]
        z = _normalised(proposal, seen[:: -(-len(seen) // STATES)])
        n = z.shape[1]
        with one_blas_thread():
            per_action = networks.input_gradient(part(memory, "q."), _with_actions(proposal, z))[:, n:]
            total = proposal.policy.pull_back(proposal.theta.astype(np.float32), z, per_action)
        g: FloatArray = total.astype(np.float64) / len(z)
        return g

    def finish(self, memory: Memory, proposal: Proposal, pairs: Pairs) -> Pairs:
        """The pairs, with the critic's value of the last state added to the return of every cut episode."""
        unit = float(memory["unit"])
        if not self.tails or unit == 0.0 or proposal.length == proposal.episodes.horizon:
            return pairs
        run = pairs.rollouts.trajectories
        z = _normalised(proposal, np.stack([t.last for t in run]).astype(np.float32))
        with one_blas_thread():
            value = unit * networks.forward(part(memory, "q."), _with_actions(proposal, z))[2].mean(axis=(0, 2))
        value[[t.terminated for t in run]] = 0.0
        return replace(pairs, plus=pairs.plus + value[0::2], minus=pairs.minus + value[1::2])

    def learn(self, memory: Memory, proposal: Proposal, ranking: Ranking, pairs: Pairs) -> Memory:
        run = ranking.pairs or pairs  # all pairs that were run
        after = dict(memory)
        if ranking.predicted is not None:
            difference = run.plus - run.minus
            after["trust"] = observe(memory["trust"], ranking.predicted[run.index], difference, self.trust_decay)
        new = self._rows(proposal, run)
        after |= prefixed("replay.", replay.extend(part(memory, "replay."), new, self.replay))
        after["fresh"] = np.array(sum(len(r["gain"]) for r in new), dtype=np.int64)
        return after

    def lesson(self, memory: Memory, proposal: Proposal) -> CriticLesson:
        return CriticLesson(self, memory, proposal)

    def _rows(self, proposal: Proposal, run: Pairs) -> list[Memory]:
        """The rows of the new episodes, for the replay buffer."""
        how = proposal.whitening, proposal.episodes.reward_shift, self.n_steps, self.discount
        with one_blas_thread():
            trajectories = zip(run.rollouts.trajectories, proposal.thetas_of(run), strict=True)
            return [replay.rows(trajectory, proposal.policy, theta, *how) for trajectory, theta in trajectories]

    def train(self, memory: Memory, proposal: Proposal) -> Memory:
        """The networks after this iteration's updates."""
        q, slow, first, second = networks.unpack(memory)
        state, action, boot, ahead = (memory[f"replay.{name}"] for name in ("state", "action", "boot", "ahead"))
        gain, unit = self.in_units(memory)
        drawn = self.draws(memory, proposal)
        step = int(memory["step"])
        for first_update in range(0, len(drawn), CHUNK):
            at = drawn[first_update : first_update + CHUNK]
            done = np.concatenate([_normalised(proposal, state[at]), action[at]], axis=2)
            after = _with_actions(proposal, _normalised(proposal, state[at + ahead[at]]))
            for i, x in enumerate(done):
                y = gain[at[i], None] + boot[at[i], None] * networks.forward(slow, after[i])[2]
                step += 1
                size = networks.step_size(self.critic_rate, step)
                networks.adam(q, networks.squared_error_gradient(q, x, y), first, second, size)
                networks.follow(slow, q, SLOW)
        return self.outcome((q, slow, first, second), step, unit, proposal)

    def draws(self, memory: Memory, proposal: Proposal) -> IntArray:
        """The rows of the batch of each update of this iteration, (updates, BATCH)."""
        starts = np.flatnonzero(memory["replay.ahead"])
        updates = math.ceil(self.passes * min(int(memory["fresh"]), len(starts)) / BATCH)
        seed, iteration = proposal.directions.seed, proposal.iteration
        random = Generator(philox(seed, Purpose.CRITIC, iteration, 1))
        rows: IntArray = starts[random.integers(len(starts), size=(updates, BATCH))]
        return rows

    def outcome(self, nets: Sequence[Memory], step: int, unit: float, proposal: Proposal) -> Memory:
        """Networks, target networks and Adam's moments, as stored in the memory. Networks that diverged are
        reinitialised."""
        if not usable(*(value for net in nets for value in net.values())):
            return self._new_networks(proposal.policy, proposal.directions.seed, proposal.iteration + 1)
        return _networks(nets, step, unit)

    def in_units(self, memory: Memory) -> tuple[NDArray[Any], float]:
        """The k-step rewards of every row (L,), scaled so that values are of order one; and the scale.

        If no episode ends early, the mean reward is subtracted: it does not depend on actions, but would dominate the
        values. If episodes end early, it is the reward for surviving, and is kept.
        """
        gain, boot, ahead = (memory[f"replay.{name}"] for name in ("gain", "boot", "ahead"))
        weight = (1 - self.discount**ahead) / (1 - self.discount)
        held = ahead > 0
        rate = gain[held][-RECENT:] / weight[held][-RECENT:]
        usual = 0.0 if np.any(boot[held] == 0) else rate.mean()
        unit = UNIT * float(rate.std()) + 1e-6
        return np.asarray((gain - usual * weight) / unit, dtype=np.float32), unit

    def _new_networks(self, policy: Policy, seed: int, iteration: int) -> Memory:
        random = Generator(philox(seed, Purpose.CRITIC, iteration))
        q = networks.draw(random, self.networks, policy.n + policy.p, self.hidden)
        return _networks((q, q, networks.zeros_like(q), networks.zeros_like(q)), 0, 0.0)


@dataclass(frozen=True)
class CriticLesson(Lesson):
    """The updates of a critic's networks in one iteration of a run."""

    critic: Critic
    memory: Memory  # including the transitions of this iteration
    proposal: Proposal

    @property
    def batch_key(self) -> Hashable:
        return self.critic, self.proposal.policy

    @classmethod
    def carry_out_together(
        cls, lessons: Sequence[Self], owners: Sequence[object], device: str
    ) -> list[Memory | OffrankError]:
        from offrank.algorithms.learning.batched import trainer_on

        trainer = trainer_on(device)
        if trainer is None:
            return super().carry_out_together(lessons, owners, device)
        return [*trainer.train(lessons, owners)]

    def carry_out(self) -> Memory:
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):  # `outcome` checks for divergence
            return self.critic.train(self.memory, self.proposal)


def _networks(nets: Sequence[Memory], step: int, unit: float) -> Memory:
    """Networks as stored in the memory. `unit` is the scale of their values; 0 before the first update."""
    return {"step": np.array(step, dtype=np.int64), "unit": np.array(unit), **networks.pack(nets)}


def _normalised(proposal: Proposal, states: Floats) -> Floats:
    whitening = proposal.whitening
    z = (states - whitening.mean.astype(np.float32)) * whitening.scale.astype(np.float32)
    return np.clip(z, -OUTLIER, OUTLIER, out=z)


def _with_actions(proposal: Proposal, z: Floats) -> Floats:
    """Normalised states (..., n) concatenated with the current policy's actions, (..., n + p)."""
    return np.concatenate([z, proposal.policy.act_together(proposal.theta.astype(np.float32), z)], axis=-1)


def along(proposal: Proposal, g: FloatArray) -> FloatArray:
    """<g, delta> of every direction, (N,), computed block by block."""
    with one_blas_thread():
        return np.concatenate([delta @ g for delta in proposal.directions.blocks()])
