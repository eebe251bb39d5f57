"""How good is a policy? Fresh episodes, nothing learned from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from offrank.core.candidates import Around
from offrank.core.errors import UsageError
from offrank.core.noise import Role, episode_seeds
from offrank.core.rollouts import Request
from offrank.core.space import Space
from offrank.engines.base import Engine
from offrank.policies.trained import TrainedPolicy


def evaluate_policy(
    policy: TrainedPolicy, engine: Engine, episodes: int = 100, seed: int = 0, horizon: int | None = None
) -> dict[str, Any]:
    """Returns and lengths of `episodes` episodes, whose starts depend on `seed` and on nothing a training run used.

    Returns:
        mean, std: of the returns; returns, lengths: lists, one entry per episode; seed.
    """
    if episodes < 1:
        raise UsageError(f"episodes = {episodes}: must be at least 1")
    check_sizes(policy, engine.space)
    index = np.arange(episodes)
    rollouts = engine.run(
        Request(
            policy=policy.kind,
            candidates=Around.itself(policy.theta, episodes),
            whitening=policy.whitening,
            seeds=episode_seeds(seed, 0, Role.EVALUATION, index),  # training evaluates from iteration 1 on
            roles=np.full(episodes, Role.EVALUATION, dtype=np.int64),
            index=index,
            horizon=horizon or engine.space.horizon,
        )
    )
    return {
        "mean": float(rollouts.totals.mean()),
        "std": float(rollouts.totals.std()),
        "returns": rollouts.totals.tolist(),
        "lengths": rollouts.lengths.tolist(),
        "seed": seed,
    }


def check_sizes(policy: TrainedPolicy, space: Space) -> None:
    """Raise UsageError unless the policy fits the environment."""
    n, p = policy.kind.n, policy.kind.p
    if (space.obs_dim, space.act_dim) != (n, p):
        raise UsageError(
            f"the policy maps {n} observations to {p} actions, the environment has {space.obs_dim} and {space.act_dim}"
        )
