"""Evaluation of a policy in episodes that are not used for training."""

from __future__ import annotations

from typing import Any

import numpy as np

from offrank.core.checks import check_whole
from offrank.core.errors import UsageError
from offrank.core.noise import Role
from offrank.core.rollouts import Request
from offrank.core.space import Space
from offrank.engines.base import Engine
from offrank.policies.trained import TrainedPolicy

MOST_EPISODES = 10_000_000


def evaluate_policy(
    policy: TrainedPolicy, engine: Engine, episodes: int = 100, seed: int = 0, horizon: int | None = None
) -> dict[str, Any]:
    """Run `episodes` episodes of a policy. Their start states depend on `seed` only, and differ from those of training.

    Returns:
        A dict of mean and std of the returns; returns and lengths, lists with one entry per episode; and seed.

    Raises:
        UsageError: the policy does not fit the environment, or a number is invalid.
        EpisodeError: an episode failed.
    """
    episodes, seed = check_whole("episodes", episodes, 1, MOST_EPISODES), check_whole("seed", seed)
    check_sizes(policy, engine.space)
    run = seed, 0, Role.EVALUATION, np.arange(episodes)  # evaluations during training have iteration >= 1
    length = horizon or engine.space.horizon
    rollouts = engine.run(Request.of_one(policy.kind, policy.theta, policy.whitening, *run, length))
    return {
        "mean": float(rollouts.totals.mean()),
        "std": float(rollouts.totals.std()),
        "returns": rollouts.totals.tolist(),
        "lengths": rollouts.lengths.tolist(),
        "seed": seed,
    }


def check_sizes(policy: TrainedPolicy, space: Space) -> None:
    """Raise UsageError unless the sizes of the policy are those of the environment."""
    n, p = policy.kind.n, policy.kind.p
    if (space.obs_dim, space.act_dim) != (n, p):
        raise UsageError(
            f"the policy maps {n} observations to {p} actions, the environment has {space.obs_dim} and {space.act_dim}"
        )
