"""Requests for episodes outside of a training run: for measurements of speed, agreement and rank quality."""

from __future__ import annotations

import numpy as np

from offrank.core.arrays import IntArray
from offrank.core.candidates import Candidates
from offrank.core.noise import Directions, Role
from offrank.core.normalizer import Whitening
from offrank.core.rollouts import Request


def around_zero(
    shape: tuple[int, int],
    episodes: int,
    horizon: int,
    *,
    scale: float = 0.03,
    pairs: bool = False,
    directions: int | None = None,
    first_seed: int = 0,
    keep: bool = False,
) -> Request:
    """Episodes of perturbed zero policies, as in the first iteration of a run.

    Args:
        shape: (p, n), actions and observations.
        episodes: how many.
        horizon: steps per episode at most.
        scale: of the perturbations; 0 runs the zero policy itself.
        pairs: whether episodes 2k and 2k + 1 are both signs of direction k; otherwise episode k is direction k.
        directions: how many are drawn (default: as many as the episodes use).
        first_seed: of the episodes, which have consecutive seeds.
        keep: whether trajectories are wanted.
    """
    index = np.arange(episodes) // (2 if pairs else 1)
    roles = np.tile([Role.PLUS, Role.MINUS if pairs else Role.PLUS], episodes)[:episodes]
    return Request(
        base=np.zeros(shape),
        whitening=Whitening.identity(shape[1]),
        seeds=first_seed + np.arange(episodes),
        roles=roles.astype(np.int64),
        index=index,
        horizon=horizon,
        scale=scale,
        directions=Directions(0, 0, int(index[-1]) + 1 if directions is None else directions, shape),
        keep=keep,
    )


def signs(candidates: Candidates, index: IntArray, plus: IntArray, minus: IntArray, horizon: int) -> Request:
    """The plus sign of every direction of `index` (m,), then the minus signs, with the given episode seeds (m,)."""
    return Request(
        base=candidates.M,
        whitening=candidates.whitening,
        seeds=np.concatenate([plus, minus]),
        roles=np.repeat([Role.PLUS, Role.MINUS], len(index)).astype(np.int64),
        index=np.tile(index, 2),
        horizon=horizon,
        scale=candidates.scale,
        directions=candidates.directions,
    )
