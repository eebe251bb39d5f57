from __future__ import annotations

import numpy as np
import pytest

from helpers import FunctionEngine, iterate, linear_system, matrix
from offrank.algorithms.base import Episodes
from offrank.algorithms.rankers import Kernel, OnPolicy, Random
from offrank.algorithms.strategies import ARS
from offrank.algorithms.strategies.ars import FORMS
from offrank.core.errors import OffrankError, UsageError
from offrank.core.noise import Directions
from offrank.core.normalizer import Whitening
from offrank.core.rollouts import Trajectory

N_OBS, N_ACT = 4, 2


@pytest.fixture
def engine() -> FunctionEngine:
    return FunctionEngine(linear_system(N_OBS, N_ACT), N_OBS, N_ACT)


def plain_ars(
    simulate, iterations: int, N: int, b: int, alpha: float, nu: float, shift: float, form: str, momentum: float = 0.0
):
    """Algorithm 2 of the ARS paper as a plain loop, with our seeds and directions."""
    from offrank.core.noise import Role, episode_seeds

    scaled, normalised, _ = FORMS[form]
    M, average, states = np.zeros((N_ACT, N_OBS)), np.zeros((N_ACT, N_OBS)), []
    for j in range(iterations):
        mean, std = np.zeros(N_OBS), np.ones(N_OBS)
        if normalised and states:
            mean, std = np.mean(states, axis=0), np.std(states, axis=0, ddof=1)
        delta = Directions(0, j, N, M.size).take(np.arange(N)).reshape(N, *M.shape)
        r = np.zeros((N, 2))
        for k in range(N):
            for s, (sign, role) in enumerate(((1, Role.PLUS), (-1, Role.MINUS))):
                seed = int(episode_seeds(0, j, role, np.array([k]))[0])
                t = simulate(M + sign * nu * delta[k], Whitening(mean, 1 / std), seed, 10)
                r[k, s] = np.sum(t.rewards - shift)
                states += list(t.observations)
        order = np.argsort(-r.max(axis=1), kind="stable")[:b]
        sigma = np.std(r[order]) if scaled else 1.0
        step = sum((r[k, 0] - r[k, 1]) * delta[k] for k in order) / (b * sigma)
        average = momentum * average + (1 - momentum) * step
        M = M + alpha * average
    return M


@pytest.mark.parametrize("form", FORMS)
def test_each_form_equals_the_published_algorithm(engine: FunctionEngine, form: str) -> None:
    N, b = (8, 3) if form.endswith("-t") else (5, 5)
    alpha = 1e-4 if form == "BRS" else 0.05
    strategy = ARS(n_directions=N, n_top=b, step_size=alpha, noise_std=0.1, form=form)
    state, _ = iterate(strategy, OnPolicy(), engine, 6, episodes=Episodes(10, reward_shift=0.5))
    expected = plain_ars(engine.simulate, 6, N, b, alpha, 0.1, 0.5, form)
    np.testing.assert_allclose(matrix(state), expected, rtol=1e-9, atol=1e-12)
    assert np.abs(expected).max() > 1e-4


def test_momentum_averages_the_steps(engine: FunctionEngine) -> None:
    strategy = ARS(n_directions=8, n_top=3, step_size=0.05, noise_std=0.1, momentum=0.7)
    state, _ = iterate(strategy, OnPolicy(), engine, 6, episodes=Episodes(10))
    expected = plain_ars(engine.simulate, 6, 8, 3, 0.05, 0.1, 0.0, "V2-t", momentum=0.7)
    np.testing.assert_allclose(matrix(state), expected, rtol=1e-9, atol=1e-12)
    without = plain_ars(engine.simulate, 6, 8, 3, 0.05, 0.1, 0.0, "V2-t")
    assert np.abs(expected - without).max() > 1e-3


def test_forms_without_t_use_every_direction() -> None:
    with pytest.raises(UsageError, match="n_top = n_directions = 8"):
        ARS(n_directions=8, n_top=4, form="V2")


@pytest.mark.parametrize(
    ("ranker", "episodes"),
    [(OnPolicy(), 2 * 8), (Random(), 2 * 3), (Kernel(n_behaviour=2), 2 * 3 + 2)],
)
def test_episodes_per_iteration(engine: FunctionEngine, ranker, episodes: int) -> None:
    iterate(ARS(n_directions=8, n_top=3), ranker, engine, 1)
    assert sum(len(request) for request in engine.requests) == episodes


@pytest.mark.parametrize(
    ("ranker", "counted"),
    [(OnPolicy(), 2 * 8), (Random(), 2 * 3), (Kernel(n_behaviour=2), 2 * 3)],
)
def test_state_statistics_count_every_pair_that_was_run(engine: FunctionEngine, ranker, counted: int) -> None:
    state, _ = iterate(ARS(n_directions=8, n_top=3), ranker, engine, 1)
    assert state.normalizer.count == counted * 10


def test_statistics_are_frozen_within_an_iteration(engine: FunctionEngine) -> None:
    iterate(ARS(n_directions=8, n_top=3), Kernel(), engine, 2)
    first, second = engine.requests[:2], engine.requests[2:]
    assert all(np.array_equal(r.whitening.scale, np.ones(N_OBS)) for r in first)
    assert np.array_equal(second[0].whitening.mean, second[1].whitening.mean)
    assert not np.array_equal(second[0].whitening.scale, np.ones(N_OBS))


def test_the_survival_bonus_is_taken_off_every_training_step() -> None:
    """The policies get the bonus only and differ in length; without the bonus their returns are equal."""

    def simulate(weights, whitening, seed: int, horizon: int) -> Trajectory:
        length = 3 if weights[0, 0] > 0 else 9
        return Trajectory(np.full((length, N_OBS), float(seed % 7)), np.ones(length), True)

    engine = FunctionEngine(simulate, N_OBS, N_ACT)
    strategy = ARS(n_directions=4, n_top=4)
    kept, _ = iterate(strategy, OnPolicy(), engine, 1, episodes=Episodes(10, reward_shift=1.0))
    assert np.array_equal(matrix(kept), np.zeros((N_ACT, N_OBS)))
    moved, _ = iterate(strategy, OnPolicy(), engine, 1, episodes=Episodes(10, reward_shift=0.0))
    assert np.abs(matrix(moved)).max() > 0


def test_the_signs_of_a_pair_start_apart(engine: FunctionEngine) -> None:
    iterate(ARS(n_directions=4, n_top=2), Random(), engine, 1)
    plus, minus = engine.requests[-1].seeds[0::2], engine.requests[-1].seeds[1::2]
    assert not set(plus) & set(minus)


def test_training_episodes_may_be_cut_and_grow_to_the_horizon(engine: FunctionEngine) -> None:
    cut = Episodes(10, train_horizon=4, horizon_growth=2.5)
    iterate(ARS(n_directions=4, n_top=2), Random(), engine, 4, episodes=cut)
    assert [request.horizon for request in engine.requests] == [4, 6, 9, 10]
    iterate(ARS(n_directions=4, n_top=2), Kernel(n_behaviour=1), engine, 1, episodes=Episodes(10, train_horizon=4))
    assert [request.horizon for request in engine.requests[-2:]] == [4, 4]  # behaviour and pairs


@pytest.mark.parametrize("given", [{"train_horizon": -1}, {"train_horizon": 5, "horizon_growth": -1.0}])
def test_a_negative_training_horizon_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="must not be negative"):
        Episodes(10, **given)


def test_a_training_horizon_grows_from_something() -> None:
    with pytest.raises(UsageError, match="needs a train_horizon to grow from"):
        Episodes(10, horizon_growth=1.0)


def test_non_finite_weights_stop_with_a_clear_line() -> None:
    def simulate(weights, whitening, seed: int, horizon: int) -> Trajectory:
        return Trajectory(np.zeros((1, N_OBS)), np.array([1e308 * np.sign(weights[0, 0])]), True)

    engine = FunctionEngine(simulate, N_OBS, N_ACT)
    with pytest.raises(OffrankError, match="non-finite in iteration 0"), np.errstate(all="ignore"):
        iterate(ARS(n_directions=4, n_top=4, form="BRS"), OnPolicy(), engine, 1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"n_top": 9}, "n_top = 9 is more than n_directions = 8"),
        ({"n_directions": 0}, "n_directions = 0"),
        ({"n_top": 0}, "n_top = 0"),
        ({"step_size": 0.0}, "step_size = 0.0: must be positive"),
        ({"noise_std": -1.0}, "noise_std = -1.0: must be positive"),
        ({"form": "v2t"}, "did you mean 'V2-t'"),
        ({"momentum": 1.0}, r"momentum = 1.0: must be in \[0, 1\)"),
    ],
)
def test_bad_hyperparameters_are_named(given: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ARS(**given)
