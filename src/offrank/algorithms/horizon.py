"""The length of training episodes: given by the user, or found during the run.

The difference r+ - r- of a pair is often decided long before the episodes end. If the difference after h steps has
correlation rho(h) with that of whole episodes, and such an episode takes s(h) steps on average, then the signal per
step of episodes cut after h steps is rho(h)^2 / s(h). A run that searches for the length spends a share of its steps
(`probe_share`) on iterations of whole episodes. It measures rho and s there for a few lengths, and cuts the episodes of
the other iterations at the longest length whose signal is close to the best one: shorter episodes bias the search
towards the beginning of an episode. Returns are those the strategy would use: a ranker that adds the estimated value of
the last state to a cut episode does so at every length.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from offrank.algorithms.base import Episodes
from offrank.algorithms.proposal import Pairs, Proposal
from offrank.algorithms.rankers.base import Ranker
from offrank.core.arrays import FloatArray, Memory
from offrank.core.rollouts import Episode, Rollouts, Trajectory

HALVINGS, SHORTEST = 3, 20  # lengths considered: the horizon, halved up to HALVINGS times, at least SHORTEST steps
NEARLY = 2 / 3  # the longest length with this share of the largest signal is chosen
ENOUGH, MEMORY = 8, 32  # pairs needed before episodes are cut; pairs after which older evidence is discarded
COUNT = 0  # column of the number of pairs; the columns of the sums are pairs, xx, xy, yy, steps


def lengths(horizon: int) -> list[int]:
    """The lengths considered, in decreasing order, beginning with the horizon."""
    return [horizon, *(horizon >> k for k in range(1, HALVINGS + 1) if horizon >> k >= SHORTEST)]


def no_evidence(horizon: int) -> Memory:
    """The memory at the start: `evidence` (K, 5), sums per length; `steps` (2,), the steps of the last iteration of
    whole episodes and of the iterations since."""
    return {"evidence": np.zeros((len(lengths(horizon)), 5)), "steps": np.zeros(2, dtype=np.int64)}


def length(known: Memory, iteration: int, episodes: Episodes) -> int:
    """Steps after which an iteration's training episodes are cut."""
    if not episodes.probes:
        return episodes.length(iteration)
    known = known or no_evidence(episodes.horizon)
    whole, since = known["steps"].tolist()
    due = episodes.probe_share * (whole + since) >= whole
    if due or known["evidence"][0, COUNT] < ENOUGH:
        return episodes.horizon
    carried = signal(known["evidence"])
    return lengths(episodes.horizon)[int(np.argmax(carried >= NEARLY * carried.max()))]


def signal(evidence: FloatArray) -> FloatArray:
    """rho^2 / s of every length, (K,).

    rho^2 is adjusted for the number of pairs, like R^2, so that a few pairs give no evidence. It is also bounded by
    that of every longer length: a shorter part of an episode can only correlate better by chance.
    """
    count, xx, xy, yy, steps = evidence.T
    with np.errstate(divide="ignore", invalid="ignore"):
        square = np.where(xy > 0, xy**2 / (xx * yy), 0.0)
        adjusted = np.maximum(square - (1 - square) / count, 0.0)
        found: FloatArray = np.where(adjusted > 0, np.minimum.accumulate(adjusted) * count / steps, 0.0)
    return found


def learn(known: Memory, remembered: Memory, ranker: Ranker, proposal: Proposal, pairs: Pairs) -> Memory:
    """The memory after an iteration. Only pairs of whole episodes add evidence.

    Args:
        known: the memory before the iteration.
        remembered: the ranker's memory before the iteration.
        ranker, proposal, pairs: of the iteration.
    """
    episodes = proposal.episodes
    if not episodes.probes:
        return known
    known, steps = known or no_evidence(episodes.horizon), pairs.rollouts.steps
    if proposal.length < episodes.horizon:
        return known | {"steps": known["steps"] + [0, steps]}
    evidence = max(1 - len(pairs.index) / MEMORY, 0.0) * known["evidence"]
    whole = pairs.plus - pairs.minus
    size = np.sqrt(np.mean(whole * whole))
    if size > 0.0:  # equal returns carry no information
        for row, h in zip(evidence, lengths(episodes.horizon), strict=True):
            short = cut(pairs, h, episodes)
            seen = ranker.finish(remembered, replace(proposal, length=h), short)
            x, y = (seen.plus - seen.minus) / size, whole / size
            spent = len(x) * short.rollouts.lengths.mean()
            row += np.array([len(x), np.sum(x * x), np.sum(x * y), np.sum(y * y), spent])
    return {"evidence": evidence, "steps": np.array([steps, 0])}


def cut(pairs: Pairs, h: int, episodes: Episodes) -> Pairs:
    """The pairs with their episodes cut after h steps. Their trajectories must have been kept."""
    rollouts = Rollouts.of([Episode.of(_cut(t, h), keep=True) for t in pairs.rollouts.trajectories])
    return Pairs.of(pairs.index, rollouts, episodes)


def _cut(trajectory: Trajectory, h: int) -> Trajectory:
    if len(trajectory.rewards) <= h:
        return trajectory
    seen = trajectory.observations
    actions = None if trajectory.actions is None else trajectory.actions[:h]
    return Trajectory(seen[:h], trajectory.rewards[:h], terminated=False, last_observation=seen[h], actions=actions)
