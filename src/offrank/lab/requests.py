"""Requests for episodes outside of a training run: for measurements of speed, agreement and rank quality."""

from __future__ import annotations

import numpy as np

from offrank.algorithms.proposal import Proposal
from offrank.core.arrays import IntArray
from offrank.core.candidates import Around
from offrank.core.noise import Directions, Role
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy
from offrank.core.rollouts import Request


def around_start(
    policy: Policy,
    episodes: int,
    horizon: int,
    *,
    scale: float = 0.03,
    pairs: bool = False,
    directions: int | None = None,
    first_seed: int = 0,
    keep: bool = False,
) -> Request:
    """Episodes of perturbed untrained policies, as in the first iteration of a run.

    Args:
        policy: their kind.
        episodes: how many.
        horizon: steps per episode at most.
        scale: of the perturbations; 0 runs the untrained policy itself, which acts as zero.
        pairs: whether episodes 2k and 2k + 1 are both signs of direction k; otherwise episode k is direction k.
        directions: how many are drawn (default: as many as the episodes use).
        first_seed: of the episodes, which have consecutive seeds.
        keep: whether trajectories are wanted.
    """
    index = np.arange(episodes) // (2 if pairs else 1)
    sign = np.tile([1.0, -1.0 if pairs else 1.0], episodes)[:episodes]
    drawn = Directions(0, 0, int(index[-1]) + 1 if directions is None else directions, policy.size)
    return Request(
        policy=policy,
        candidates=Around(policy.start(0), scale, drawn, index, sign),
        whitening=Whitening.identity(policy.n),
        seeds=first_seed + np.arange(episodes),
        roles=np.where(sign > 0, Role.PLUS, Role.MINUS).astype(np.int64),
        index=index,
        horizon=horizon,
        keep=keep,
    )


def signs(proposal: Proposal, index: IntArray, plus: IntArray, minus: IntArray, horizon: int) -> Request:
    """The plus sign of every direction of `index` (m,), then the minus signs, with the given episode seeds (m,)."""
    sign = np.repeat([1.0, -1.0], len(index))
    return Request(
        policy=proposal.policy,
        candidates=Around(proposal.theta, proposal.scale, proposal.directions, np.tile(index, 2), sign),
        whitening=proposal.whitening,
        seeds=np.concatenate([plus, minus]),
        roles=np.repeat([Role.PLUS, Role.MINUS], len(index)).astype(np.int64),
        index=np.tile(index, 2),
        horizon=horizon,
    )
