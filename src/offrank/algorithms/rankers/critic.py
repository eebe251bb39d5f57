"""A ranker with a critic: Q, learned off-policy from every training transition, says where the actions should go.

The gradient of the return of a deterministic policy is the mean over the states it visits of grad_a Q(s, a) at its own
action, times what the policy multiplies its weights by (D. Silver et al., "Deterministic Policy Gradient Algorithms",
ICML 2014). For linear policies a = M z that is

    G = mean over recent states of grad_a Q(z, M z) z^T     (p, n),

and directions are ordered by |<G, delta>|. Q is the mean of small networks over (z, a). Their targets are the rewards
of a few real steps, and beyond them each network's own slow copy at the current policy's action. Few steps, because
what was done after the first was some old policy's choice; a long memory, because an action's effect is told from the
state's only where many different policies have acted (docs/rankers.md has the comparison).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from offrank.algorithms.learning import networks as network
from offrank.algorithms.learning import replay
from offrank.algorithms.learning.networks import Floats
from offrank.algorithms.rankers.base import Ranking
from offrank.algorithms.rankers.learned import Learned
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import FloatArray, IntArray, Memory, part
from offrank.core.candidates import Candidates, Lesson, Pairs
from offrank.core.errors import UsageError
from offrank.core.noise import Purpose, philox

BATCH = 256
CHUNK = 16  # batches made ready together
SLOW = float(np.float32(0.005))  # how fast the slow copies follow, an update
OUTLIER = 10.0  # normalised states are cut here: one wild feature must not outweigh all others
STATES = 2000  # of the last iteration, at most, over which the gradient is averaged
RECENT = 80_000  # rows whose rewards set the unit of value
UNIT = 10.0  # deviations of the rewards to a unit of value


@dataclass(frozen=True)
class Critic(Learned):
    """Orders directions by the first-order effect a learned Q function predicts: 2b episodes an iteration."""

    name: ClassVar[str] = "critic"
    needs_continuous_actions: ClassVar[bool] = True
    needs_transitions: ClassVar[bool] = True

    suggests: ClassVar[Mapping[str, Any]] = {"n_directions": 4000, "probe_share": 0.15}

    warmup: int = 5  # iterations that the fallback ranks in any case
    explore: float = 0.0  # share of the directions run that is random
    trust_needed: float = -0.1  # stands back only when it is plainly wrong
    networks: int = 2  # whose mean is the critic
    hidden: int = 64  # units in each of a network's two hidden layers
    n_steps: int = 5  # k, steps of real rewards before the network's own word is taken
    discount: float = 0.995
    passes: float = 10.0  # how often a transition is learned from, on average, in the iteration that brought it
    critic_rate: float = 1e-3  # learning rate of the network
    replay: int = 160_000  # transitions remembered
    tails: bool = True  # whether training episodes that were cut are credited with the value of where they stood

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("networks", "hidden", "n_steps", "replay"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} = {getattr(self, name)}: must be at least 1")
        for name in ("passes", "critic_rate"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} = {getattr(self, name)}: must be positive")
        if not 0 <= self.discount < 1:
            raise UsageError(f"discount = {self.discount}: must be in [0, 1)")

    def start(self, p: int, n: int, seed: int) -> Memory:
        memory = super().start(p, n, seed) | _named("replay.", replay.empty(p, n))
        memory["fresh"] = np.zeros((), dtype=np.int64)  # rows of the last iteration
        return memory | self._fresh_networks(p, n, seed, iteration=0)

    def gradient(self, candidates: Candidates, memory: Memory) -> FloatArray:
        fresh = min(int(memory["fresh"]), len(memory["replay.state"]))
        if fresh == 0:
            return np.zeros_like(candidates.M)
        seen = memory["replay.state"][-fresh:]
        z = _normalised(candidates, seen[:: -(-len(seen) // STATES)])
        n = z.shape[1]
        with one_blas_thread():
            G = network.input_gradient(part(memory, "q."), _would_do(candidates, z))[:, n:].T @ z
        return G.astype(np.float64) / len(z)

    def finish(self, memory: Memory, candidates: Candidates, pairs: Pairs) -> Pairs:
        """The pairs, with what the critic expects after the cut added to the return of every episode that was cut."""
        unit = float(memory["unit"])
        if not self.tails or unit == 0.0 or candidates.length == candidates.episodes.horizon:
            return pairs
        run = pairs.rollouts.trajectories
        z = _normalised(candidates, np.stack([t.last for t in run]).astype(np.float32))
        with one_blas_thread():
            value = unit * network.forward(part(memory, "q."), _would_do(candidates, z))[2].mean(axis=(0, 2))
        value[[t.terminated for t in run]] = 0.0
        return replace(pairs, plus=pairs.plus + value[0::2], minus=pairs.minus + value[1::2])

    def learn(self, memory: Memory, candidates: Candidates, ranking: Ranking, pairs: Pairs) -> Memory:
        after = super().learn(memory, candidates, ranking, pairs)
        new = self._rows(candidates, ranking.pairs or pairs)
        after |= _named("replay.", replay.extend(part(memory, "replay."), new, self.replay))
        after["fresh"] = np.array(sum(len(r["gain"]) for r in new), dtype=np.int64)
        return after

    def lesson(self, memory: Memory, candidates: Candidates) -> CriticLesson:
        return CriticLesson(self, memory, candidates)

    def _rows(self, candidates: Candidates, run: Pairs) -> list[Memory]:
        """The new episodes as the replay keeps them."""
        how = candidates.whitening, candidates.episodes.reward_shift, self.n_steps, self.discount
        with one_blas_thread():
            trajectories = zip(run.rollouts.trajectories, candidates.weights_of(run), strict=True)
            return [replay.rows(trajectory, W, *how) for trajectory, W in trajectories]

    def train(self, memory: Memory, candidates: Candidates) -> Memory:
        """The networks after this iteration's updates."""
        q, slow, first, second = (
            {name: value.copy() for name, value in part(memory, f"{which}.").items()} for which in NETWORKS
        )
        state, action, boot, ahead = (memory[f"replay.{name}"] for name in ("state", "action", "boot", "ahead"))
        gain, unit = self.in_units(memory)
        drawn = self.draws(memory, candidates)
        step = int(memory["step"])
        for first_update in range(0, len(drawn), CHUNK):
            at = drawn[first_update : first_update + CHUNK]
            done = np.concatenate([_normalised(candidates, state[at]), action[at]], axis=2)
            after = _would_do(candidates, _normalised(candidates, state[at + ahead[at]]))
            for i, x in enumerate(done):
                y = gain[at[i], None] + boot[at[i], None] * network.forward(slow, after[i])[2]
                step += 1
                size = network.step_size(self.critic_rate, step)
                network.adam(q, network.squared_error_gradient(q, x, y), first, second, size)
                network.follow(slow, q, SLOW)
        return self.judged((q, slow, first, second), step, unit, candidates)

    def draws(self, memory: Memory, candidates: Candidates) -> IntArray:
        """The rows that each update of this iteration learns from, (updates, BATCH)."""
        starts = np.flatnonzero(memory["replay.ahead"])
        updates = math.ceil(self.passes * min(int(memory["fresh"]), len(starts)) / BATCH)
        seed, iteration = candidates.directions.seed, candidates.directions.iteration
        random = Generator(philox(seed, Purpose.CRITIC, iteration, 1))
        rows: IntArray = starts[random.integers(len(starts), size=(updates, BATCH))]
        return rows

    def judged(self, nets: Sequence[Memory], step: int, unit: float, candidates: Candidates) -> Memory:
        """Networks, slow copies and moments as the memory holds them; a critic that diverged begins anew."""
        if not all(np.isfinite(value).all() for value in nets[0].values()):
            p, n = candidates.M.shape
            return self._fresh_networks(p, n, candidates.directions.seed, candidates.directions.iteration + 1)
        return _networks(nets, step, unit)

    def in_units(self, memory: Memory) -> tuple[NDArray[Any], float]:
        """What the k steps of every row gained, in units that keep values of order one.

        Where no episode ends early, the mean reward is taken off: it says nothing about actions, but would have to be
        learned a hundred times over. Where episodes end, it says that going on is worth something, and stays.
        """
        gain, boot, ahead = (memory[f"replay.{name}"] for name in ("gain", "boot", "ahead"))
        weight = (1 - self.discount**ahead) / (1 - self.discount)
        held = ahead > 0
        rate = gain[held][-RECENT:] / weight[held][-RECENT:]
        usual = 0.0 if np.any(boot[held] == 0) else rate.mean()
        unit = UNIT * float(rate.std()) + 1e-6
        return np.asarray((gain - usual * weight) / unit, dtype=np.float32), unit

    def _fresh_networks(self, p: int, n: int, seed: int, iteration: int) -> Memory:
        q = network.draw(Generator(philox(seed, Purpose.CRITIC, iteration)), self.networks, n + p, self.hidden)
        return _networks((q, q, network.zeros_like(q), network.zeros_like(q)), 0, 0.0)


@dataclass(frozen=True)
class CriticLesson(Lesson):
    """The updates of a critic's networks in one iteration of a run."""

    critic: Critic
    memory: Memory  # with the iteration's own transitions
    candidates: Candidates

    def carry_out(self) -> Memory:
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):  # what diverges is found out at the end
            return self.critic.train(self.memory, self.candidates)


NETWORKS = ("q", "slow", "first", "second")  # the networks, their slow copies, Adam's two moments


def _networks(nets: Sequence[Memory], step: int, unit: float) -> Memory:
    """As the memory holds them. `unit`: reward in a unit of their value; 0: they have not learned yet."""
    out: Memory = {"step": np.array(step, dtype=np.int64), "unit": np.array(unit)}
    for which, arrays in zip(NETWORKS, nets, strict=True):
        out |= _named(f"{which}.", arrays)
    return out


def _normalised(candidates: Candidates, states: Floats) -> Floats:
    whitening = candidates.whitening
    z = (states - whitening.mean.astype(np.float32)) * whitening.scale.astype(np.float32)
    return np.clip(z, -OUTLIER, OUTLIER, out=z)


def _would_do(candidates: Candidates, z: Floats) -> Floats:
    """Normalised states (..., n) and the current policy's actions there, side by side."""
    return np.concatenate([z, z @ candidates.M.T.astype(np.float32)], axis=-1)


def _named(prefix: str, arrays: Memory) -> Memory:
    return {prefix + name: value for name, value in arrays.items()}
