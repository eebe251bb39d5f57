"""LQR: the system, its engine, and the computations of its study."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov

from helpers import pair_request, same_rollouts
from offrank.cli import main
from offrank.core.normalizer import Whitening
from offrank.engines import make_engine
from offrank.engines.numpy import NumpyEngine
from offrank.lab.studies import regulators
from offrank.lab.studies.lqr import best_cost
from offrank.policies import make_policy
from offrank.runs.metrics import read_metrics
from offrank.tasks.lqr import LQR

TASK = LQR()
STABLE = -0.2 * np.eye(3) + 0.05 * np.random.default_rng(0).normal(size=(3, 3))


def test_the_best_controller_costs_what_is_published() -> None:
    gain = regulators.best_gain(TASK)
    assert best_cost() == pytest.approx(0.137287, abs=5e-7)
    assert TASK.radius(gain) == pytest.approx(0.9685, abs=5e-5)
    assert TASK.radius(np.zeros((3, 3))) == pytest.approx(1.0241, abs=5e-5)


def test_no_other_controller_costs_less() -> None:
    gain, rng = regulators.best_gain(TASK), np.random.default_rng(1)
    assert all(TASK.cost(gain + 1e-3 * rng.normal(size=(3, 3))) > best_cost() for _ in range(50))


def test_the_exact_cost_is_lyapunovs_and_that_of_a_long_episode() -> None:
    S = solve_discrete_lyapunov(TASK.A + TASK.B @ STABLE, np.eye(3))
    assert TASK.cost(STABLE) == pytest.approx(np.trace((TASK.Q + STABLE.T @ TASK.R @ STABLE) @ S))
    offset, x, costs = np.array([0.3, -0.1, 0.2]), TASK.start(100), []
    for w in TASK.disturbances(0, 100 * 500).reshape(500, 100, 3):
        x, cost, _ = TASK.step(x, x @ STABLE.T + offset, w)
        costs.append(cost.mean())
    assert TASK.cost(STABLE, offset) == pytest.approx(np.mean(costs[50:]), rel=0.03)


def test_the_exact_cost_of_a_policy_includes_its_normaliser() -> None:
    whitening = Whitening(np.array([1.0, -2.0, 0.5]), np.array([0.5, 2.0, 1.0]))
    gain, linear = STABLE * whitening.scale, make_policy("linear", 3, 3)
    assert TASK.exact(linear, STABLE.ravel(), whitening)["cost"] == pytest.approx(
        TASK.cost(gain, -gain @ whitening.mean)
    )


def test_an_unstable_controller_costs_infinitely_much() -> None:
    assert TASK.cost(np.zeros((3, 3))) == np.inf


@pytest.mark.parametrize("scale", [0.02, 1.0])  # the second explodes
def test_an_episode_does_not_depend_on_the_others_of_its_batch(scale: float) -> None:
    together = NumpyEngine(TASK).run(pair_request(NumpyEngine(TASK).space, 20, scale, keep=True))
    request = pair_request(NumpyEngine(TASK).space, 20, scale, keep=True)
    for some in ([3], [0, 7, 39], list(range(5, 24))):
        alone = NumpyEngine(TASK).run(request.take(some))
        assert np.array_equal(alone.totals, together.totals[some])
        assert np.array_equal(alone.moments.m2, together.moments.m2[some])
        for k, i in enumerate(some):
            assert np.array_equal(alone.trajectories[k].observations, together.trajectories[i].observations)


@pytest.mark.parametrize("scale", [0.02, 1.0])
def test_the_engine_equals_the_environment_stepped_one_by_one(scale: float) -> None:
    ours, theirs = make_engine("LQR"), make_engine("LQR", "gymnasium", workers=0)
    assert ours.name == "numpy" and theirs.name == "gymnasium"
    request = pair_request(ours.space, 4, scale, keep=True)
    a, b = ours.run(request), theirs.run(request)
    assert same_rollouts(a, b)
    for x, y in zip(a.trajectories, b.trajectories, strict=True):
        assert x.terminated == y.terminated and np.array_equal(x.last_observation, y.last_observation)


@pytest.mark.parametrize("scale", [10.0, 1e150, 1e300])
def test_an_exploding_state_scores_a_finite_worst_cost(scale: float) -> None:
    engine = NumpyEngine(TASK)
    rollouts = engine.run(pair_request(engine.space, 3, scale, keep=True))
    assert np.isfinite(rollouts.totals).all() and np.isfinite(rollouts.moments.m2).all()
    assert (rollouts.lengths < TASK.horizon).all() and all(t.terminated for t in rollouts.trajectories)
    assert (rollouts.totals >= -TASK.horizon * TASK.worst).all()
    gentle = engine.run(pair_request(engine.space, 3, 0.01))
    assert rollouts.totals.max() < gentle.totals.min()


def test_requests_of_different_horizons_share_the_engine() -> None:
    engine = NumpyEngine(TASK)
    requests = [pair_request(engine.space, 2, horizon=h) for h in (5, 9)]
    tickets = [engine.submit(request) for request in requests]
    outcomes = {}
    while len(outcomes) < 2:
        outcomes |= dict(engine.completed())
    assert [set(outcomes[t].lengths) for t in tickets] == [{5}, {9}]


def test_train_logs_the_exact_cost(tmp_path: Path) -> None:
    words = ["train", "LQR", "--algo", "ars", "--iterations", "3", "--eval-episodes", "4", "--quiet"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    log = [r for r in read_metrics(tmp_path / "metrics.jsonl") if r["kind"] == "iteration"]
    assert len(log) == 3 and all(r["cost"] is None or r["cost"] > best_cost() for r in log)
    assert json.loads((tmp_path / "config.json").read_text())["engine"] == "numpy"


# --- methods that ARS is compared with


def test_without_noise_nominal_control_finds_the_best_controller_at_once() -> None:
    quiet = QuietLQR()
    (gain,) = regulators.nominal(quiet, 0, [20])
    assert gain is not None and np.allclose(gain, regulators.best_gain(TASK), atol=1e-6)


def test_without_noise_lspi_finds_the_best_controller_at_once() -> None:
    (gain,) = regulators.lspi(QuietLQR(), 0, [60])
    assert gain is not None and np.allclose(gain, regulators.best_gain(TASK), atol=1e-5)


class QuietLQR(LQR):
    """Without noise: the state depends on the input only, so estimates are exact."""

    def disturbances(self, seed: int, horizon: int) -> np.ndarray:
        return np.zeros((horizon, 3))


@pytest.mark.parametrize(
    ("method", "points"), [(regulators.nominal, [200, 20_000]), (regulators.lspi, [50_000, 200_000])]
)
def test_more_data_give_a_better_controller(method, points: list[int]) -> None:
    gains = list(method(TASK, 1, points))
    costs = [TASK.cost(gain) for gain in gains]
    assert best_cost() < costs[1] < costs[0] and costs[1] < 1.1 * best_cost()
    assert np.array_equal(gains[0], next(iter(method(TASK, 1, points[:1]))))  # later data do not change earlier results


def test_transitions_are_those_of_the_system() -> None:
    x, u, cost, after = regulators.transitions(TASK, STABLE, 3, 700)
    assert len(x) == len(u) == len(cost) == len(after) == 700
    residual = after - x @ TASK.A.T - u @ TASK.B.T
    assert residual.std() == pytest.approx(1.0, abs=0.1)
    forms = np.einsum("ti,ij,tj->t", x, TASK.Q, x) + np.einsum("ti,ij,tj->t", u, TASK.R, u)
    assert np.allclose(cost, forms)


def test_products_after_a_gain_are_those_of_the_closed_loop() -> None:
    x = np.random.default_rng(0).normal(size=(5, 3))
    direct = regulators._products(np.hstack([x, x @ STABLE.T]))
    assert np.allclose(regulators._products(x) @ regulators._products_after(STABLE), direct)
