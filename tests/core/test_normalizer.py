from __future__ import annotations

import numpy as np
import pytest

from helpers import pair_request
from offrank.core.normalizer import Moments, Normalizer, Whitening
from offrank.core.rollouts import Episode, Rollouts, Trajectory
from offrank.engines.native.engine import MujocoEngine
from offrank.tasks import TASKS


def moments_of(*episodes: np.ndarray) -> Moments:
    outcomes = [Episode.of(Trajectory(e, np.zeros(len(e)), False), keep=False) for e in episodes]
    return Rollouts.of(outcomes).moments


def test_merging_episodes_gives_the_moments_of_all_their_states() -> None:
    rng = np.random.default_rng(0)
    episodes = [rng.normal(5, 3, size=(length, 4)) for length in (1, 7, 200)]
    states = np.concatenate(episodes)
    whitening = Normalizer.empty(4).merge(moments_of(*episodes[:2])).merge(moments_of(episodes[2])).freeze()
    np.testing.assert_allclose(whitening.mean, states.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(1 / whitening.scale, states.std(axis=0, ddof=1), rtol=1e-13)


def test_before_the_first_state_nothing_is_changed() -> None:
    whitening = Normalizer.empty(3).freeze()
    assert np.array_equal(whitening.mean, np.zeros(3)) and np.array_equal(whitening.scale, np.ones(3))


def test_the_deviation_of_two_states_is_that_of_a_sample() -> None:
    whitening = Normalizer.empty(1).merge(moments_of(np.array([[1.0], [3.0]]))).freeze()
    assert whitening.mean[0] == 2 and 1 / whitening.scale[0] == pytest.approx(np.sqrt(2))


def test_constant_features_are_switched_off() -> None:
    states = np.random.default_rng(0).normal(size=(100, 2)) * [1.0, 0.0] + [0.0, 1e6]
    whitening = Normalizer.empty(2).merge(moments_of(states)).freeze()
    assert whitening.scale[0] > 0 and whitening.scale[1] == 0
    assert whitening(np.array([0.3, 1e6 + 1]))[1] == 0


def test_a_large_mean_does_not_swamp_a_small_deviation() -> None:
    states = 1e6 + 1e-3 * np.random.default_rng(0).normal(size=(5000, 1))
    whitening = Normalizer.empty(1).merge(moments_of(*np.split(states, 5))).freeze()
    np.testing.assert_allclose(1 / whitening.scale, states.std(ddof=1), rtol=1e-5)


def test_humanoid_has_exactly_its_257_varying_features() -> None:
    """106 entries are always 0 and 13 are body masses; rounding errors must not make them vary."""
    engine = MujocoEngine(TASKS["Humanoid-v3"], threads=2)
    normalizer = Normalizer.empty(376)
    for seed in (0, 100):
        normalizer = normalizer.merge(engine.run(pair_request(engine.space, 6, seed=seed)).moments)
    assert np.count_nonzero(normalizer.freeze().scale) == 257


def test_ant_has_exactly_its_27_live_features() -> None:
    engine = MujocoEngine(TASKS["Ant-v3"], threads=2)
    normalizer = Normalizer.empty(111).merge(engine.run(pair_request(engine.space, 2, horizon=100)).moments)
    assert np.array_equal(np.flatnonzero(normalizer.freeze().scale), np.arange(27))


def test_whitening_of_many_states_is_that_of_each() -> None:
    rng = np.random.default_rng(0)
    whitening = Whitening(rng.normal(size=4), rng.uniform(size=4))
    states = rng.normal(size=(9, 4))
    assert np.array_equal(whitening(states), np.stack([whitening(s) for s in states]))
