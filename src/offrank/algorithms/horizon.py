"""How long training episodes are: as given, or as the run itself finds that they need to be.

What a pair's difference r+ - r- will be is often settled long before the episode ends. If the difference after h steps
has correlation rho(h) with the whole episode's, and takes s(h) steps on average, then a step spent on episodes cut
there carries a signal of rho(h)^2 / s(h). A run that looks for its length spends a share of its steps (`probe_share`)
on iterations of whole episodes, measures rho and s in them for a few lengths, and cuts the others at the longest of
those that carry nearly as much as the best: what is learned from shorter ones is bent towards how an episode begins.
The correlations are of what the strategy would have seen: a ranker that credits cut episodes with the value of where
they stood is asked to do so at every length.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from offrank.algorithms.base import Episodes
from offrank.algorithms.proposal import Pairs, Proposal
from offrank.algorithms.rankers.base import Ranker
from offrank.core.arrays import FloatArray, Memory
from offrank.core.rollouts import Episode, Rollouts, Trajectory

HALVINGS, SHORTEST = 3, 20  # lengths looked at: the horizon, and so many halves of it, down to so many steps
NEARLY = 2 / 3  # of the largest signal: a longer length that carries this much is preferred
ENOUGH, MEMORY = 8, 32  # pairs without which nothing is concluded; pairs after which older ones are forgotten
COUNT = 0  # of the sums: pairs, xx, xy, yy, steps


def lengths(horizon: int) -> list[int]:
    """The lengths looked at, from the horizon down."""
    return [horizon, *(horizon >> k for k in range(1, HALVINGS + 1) if horizon >> k >= SHORTEST)]


def no_evidence(horizon: int) -> Memory:
    """What is known at the start: sums for every length, and the steps of the last whole pairs and of those since."""
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

    rho^2 is adjusted for the number of pairs it was measured on, as R^2 is: little evidence is none. And it is no more
    than that of any longer length: where a longer part of an episode tells little, a shorter one does so by chance.
    """
    count, xx, xy, yy, steps = evidence.T
    with np.errstate(divide="ignore", invalid="ignore"):
        square = np.where(xy > 0, xy**2 / (xx * yy), 0.0)
        adjusted = np.maximum(square - (1 - square) / count, 0.0)
        found: FloatArray = np.where(adjusted > 0, np.minimum.accumulate(adjusted) * count / steps, 0.0)
    return found


def learn(known: Memory, remembered: Memory, ranker: Ranker, proposal: Proposal, pairs: Pairs) -> Memory:
    """What is known about lengths after an iteration's pairs, which say something if they were whole.

    Args:
        known: before it.
        remembered: the ranker's memory before it.
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
    if size > 0.0:  # equal returns say nothing
        for row, h in zip(evidence, lengths(episodes.horizon), strict=True):
            short = cut(pairs, h, episodes)
            seen = ranker.finish(remembered, replace(proposal, length=h), short)
            x, y = (seen.plus - seen.minus) / size, whole / size
            spent = len(x) * short.rollouts.lengths.mean()
            row += np.array([len(x), np.sum(x * x), np.sum(x * y), np.sum(y * y), spent])
    return {"evidence": evidence, "steps": np.array([steps, 0])}


def cut(pairs: Pairs, h: int, episodes: Episodes) -> Pairs:
    """The pairs as they were after h steps; their transitions must have been kept."""
    rollouts = Rollouts.of([Episode.of(_cut(t, h), keep=True) for t in pairs.rollouts.trajectories])
    return Pairs.of(pairs.index, rollouts, episodes)


def _cut(trajectory: Trajectory, h: int) -> Trajectory:
    if len(trajectory.rewards) <= h:
        return trajectory
    seen = trajectory.observations
    return Trajectory(seen[:h], trajectory.rewards[:h], terminated=False, last_observation=seen[h])
