"""The GPU engine, on Warp's CPU device: slow, but the same kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers import pair_request
from offrank.engines import Gpu, make_engine
from offrank.engines.mujoco import MujocoEngine
from offrank.errors import EngineError, EpisodeError, UsageError
from offrank.tasks import TASKS

pytest.importorskip("mujoco_warp", reason="pip install 'offrank[gpu]'")

from offrank.engines.warp import WarpEngine


@pytest.fixture(scope="module")
def hopper() -> WarpEngine:
    return WarpEngine(TASKS["Hopper-v3"], Gpu(worlds=3, device="cpu"))  # fewer worlds than episodes: they are reused


@pytest.mark.timeout(600)
def test_short_episodes_agree_with_the_cpu_falls_included(hopper: WarpEngine) -> None:
    request = pair_request(hopper.info, 4, horizon=40, keep=True)
    mine, other = hopper.run(request), MujocoEngine(TASKS["Hopper-v3"], 2).run(request)
    assert np.array_equal(mine.lengths, other.lengths)
    assert (mine.lengths < 40).any() and (mine.lengths == 40).any()
    np.testing.assert_allclose(mine.totals, other.totals, rtol=2e-3)
    for a, b in zip(mine.trajectories, other.trajectories, strict=True):
        assert a.terminated == b.terminated
        np.testing.assert_allclose(a.observations[:10], b.observations[:10], atol=2e-3)
        np.testing.assert_allclose(a.rewards[:10], b.rewards[:10], atol=2e-3)


@pytest.mark.timeout(600)
def test_moments_on_the_device_are_those_of_the_states(hopper: WarpEngine) -> None:
    request = pair_request(hopper.info, 3, horizon=30)
    lean, kept = hopper.run(request), hopper.run(replace(request, keep=True))
    assert lean.trajectories == () and len(kept.trajectories) == 6
    np.testing.assert_allclose(lean.totals, kept.totals, rtol=1e-6)
    np.testing.assert_allclose(lean.moments.mean, kept.moments.mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(lean.moments.m2, kept.moments.m2, rtol=1e-7, atol=1e-12)


@pytest.mark.timeout(600)
def test_requests_share_the_worlds_and_a_failed_one_leaves_the_others_alone(hopper: WarpEngine) -> None:
    good = pair_request(hopper.info, 2, horizon=20)
    bad = replace(pair_request(hopper.info, 2, horizon=20, seed=50), base=np.full((3, 11), np.nan))
    tickets = [hopper.submit(good), hopper.submit(bad), hopper.submit(good)]
    found: dict = {}
    while len(found) < 3:
        found |= dict(hopper.completed(timeout=1.0))
    assert isinstance(found[tickets[1]], EpisodeError) and found[tickets[1]].seed in range(50, 54)
    assert np.array_equal(found[tickets[0]].lengths, found[tickets[2]].lengths)


def test_without_a_gpu_it_says_what_to_do() -> None:
    import warp as wp

    if wp.is_cuda_available():
        pytest.skip("there is a GPU")
    with pytest.raises(EngineError, match="no NVIDIA GPU or no working driver: use --engine mujoco"):
        make_engine("Hopper-v3", "warp")
    with pytest.raises(EngineError, match="there is no device 'cuda:7': one of cpu"):
        make_engine("Hopper-v3", "warp", gpu=Gpu(device="cuda:7"))


def test_it_runs_our_tasks_only() -> None:
    with pytest.raises(UsageError, match="the warp engine runs Swimmer-v3"):
        make_engine("Pendulum-v1", "warp")
