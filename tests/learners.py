"""Runs as the batched trainers see them: owners of a replay that grows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offrank.algorithms.learning import replay
from offrank.core.arrays import Memory
from offrank.core.normalizer import Whitening
from offrank.core.rollouts import Trajectory
from offrank.core.space import Space
from offrank.policies import make_policy

N_OBS, N_ACT, LIMIT = 3, 2, 200
BOX = Space(N_OBS, N_ACT, 12, low=np.full(N_ACT, -0.3), high=np.full(N_ACT, 0.3))
SMALL = {"hidden": 16, "batch": 8, "replay": LIMIT, "actor_rate": 1e-2}


class Owner:
    done = False


class Living(Owner):
    """The part of a run that a trainer needs: episodes that make its replay longer."""

    def __init__(self, seed: int, policy: str, space: Space):
        self.kind, self.space, self.seed = make_policy(policy, N_OBS, N_ACT), space, seed
        self.random = np.random.default_rng(seed)
        self.replay: Memory = replay.empty(self.kind)
        self.whitening = Whitening(np.full(N_OBS, 0.1 * seed), np.full(N_OBS, 0.8))
        self.iteration = self.written = 0

    def live(self, episodes: int) -> None:
        rows = []
        for _ in range(episodes):
            seen, rewards = self.random.normal(size=(13, N_OBS)), self.random.normal(size=12)
            trajectory = Trajectory(seen[:-1], rewards, bool(self.random.integers(2)), seen[-1])
            theta = self.random.normal(size=self.kind.size)
            rows.append(replay.rows(trajectory, self.kind, theta, Whitening.identity(N_OBS), 0.0, 1, 0.9))
        self.replay.pop("written", None)
        self.replay = replay.extend(self.replay, rows, LIMIT)
        self.written += 13 * episodes
        self.replay["written"] = np.array(self.written)


def devices() -> list[Any]:
    """The CPU, and a GPU where there is one."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
    return ["cpu", pytest.param("cuda:0", marks=gpu)]


def assert_close(one: Any, other: Any) -> None:
    """Equal within the differences of sums in another order."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert other[name].dtype == value.dtype and other[name].shape == value.shape
        exact = {"rtol": 0, "atol": 0} if value.dtype.kind == "i" else {"rtol": 2e-3, "atol": 2e-5}
        np.testing.assert_allclose(other[name], value, **exact, err_msg=name)
