from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import FunctionEngine, iterate, linear_system, matrix, proposal
from offrank.algorithms.base import Episodes
from offrank.algorithms.proposal import Pairs, Proposal
from offrank.algorithms.rankers import (
    RANKERS,
    Adaptive,
    Interleaved,
    Kernel,
    LargestChange,
    OnPolicy,
    Random,
    SmallestChange,
    kernel,
)
from offrank.algorithms.rankers.base import Ranking, top
from offrank.algorithms.rankers.kernel import (
    action_changes,
    rewards_to_come,
)
from offrank.algorithms.strategies import ARS
from offrank.core.arrays import FloatArray
from offrank.core.noise import Directions
from offrank.core.normalizer import Whitening
from offrank.core.rollouts import Rollouts, Trajectory
from offrank.core.work import answered
from offrank.policies import make_policy

N_OBS, N_ACT = 5, 3
LINEAR = make_policy("linear", N_OBS, N_ACT)


@pytest.fixture
def engine() -> FunctionEngine:
    return FunctionEngine(linear_system(N_OBS, N_ACT), N_OBS, N_ACT)


def candidates(N: int = 40, b: int = 4, shift: float = 0.0, iteration: int = 0) -> Proposal:
    rng = np.random.default_rng(1)
    whitening = Whitening(rng.normal(size=N_OBS), np.array([0.5, 1.0, 0.0, 2.0, 1.0]))
    M = rng.normal(size=(N_ACT, N_OBS)) / 5
    return proposal(M, N, b, 0.3, Episodes(10, shift), seed=3, iteration=iteration, whitening=whitening)


def plain_kernel_scores(c: Proposal, behaviour: Rollouts, h: float, shift: float) -> FloatArray:
    """The paper's formula, term by term."""
    rewards = np.concatenate([t.rewards - shift for t in behaviour.trajectories])
    eta = sum(rewards) / len(rewards)
    scores = []
    for delta in c.directions.take(np.arange(c.N)).reshape(c.N, N_ACT, N_OBS):
        f = 0.0
        for trajectory in behaviour.trajectories:
            for t in range(len(trajectory.rewards)):
                Q = sum(r - shift - eta for r in trajectory.rewards[t:])
                z = (trajectory.observations[t] - c.whitening.mean) * c.whitening.scale
                f += np.exp(-(np.linalg.norm(c.scale * delta @ z) ** 2) / h**2) * Q
        scores.append(f / len(rewards))
    return np.array(scores)


@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize("h", [0.1, 1.0])
def test_kernel_scores_equal_the_papers_formula(engine: FunctionEngine, h: float, shift: float) -> None:
    c = candidates(shift=shift)
    ranking = answered(Kernel(n_behaviour=2, bandwidth=h).rank(c, {}), engine.run)
    plain = plain_kernel_scores(c, ranking.behaviour, h, shift)
    np.testing.assert_allclose(ranking.scores, plain, rtol=1e-11)
    assert np.array_equal(ranking.chosen, np.sort(np.argsort(-plain, kind="stable")[: c.b]))


@pytest.mark.parametrize("name", ["affine", "skip:6", "mlp:4,3"])
def test_the_change_of_any_policys_action_is_the_mean_of_both_signs(engine: FunctionEngine, name: str) -> None:
    kind = make_policy(name, N_OBS, N_ACT)
    theta = np.random.default_rng(0).normal(size=kind.size) / 3
    directions = Directions(3, 0, 20, kind.size)
    c = replace(candidates(), policy=kind, theta=theta, directions=directions)
    z = np.random.default_rng(1).normal(size=(7, N_OBS))
    found = np.concatenate(list(action_changes(c, z)))
    for k, delta in enumerate(directions.take(np.arange(20))):
        for t, state in enumerate(z):
            moved = [kind.act(theta + sign * c.scale * delta, state) - kind.act(theta, state) for sign in (1, -1)]
            assert found[k, t] == pytest.approx(np.mean([change @ change for change in moved]), rel=1e-9)


def test_a_linear_policys_changes_are_those_of_the_general_rule(engine: FunctionEngine) -> None:
    c = candidates()
    z = c.whitening(np.random.default_rng(1).normal(size=(7, N_OBS)))
    fast = np.concatenate(list(action_changes(c, z)))
    general = kernel._changes(c, z, c.directions.take(np.arange(c.N)))
    np.testing.assert_allclose(fast, general, rtol=1e-9)


def test_observations_that_never_vary_rank_by_the_lowest_index() -> None:
    """Every feature is switched off: no candidate changes an action."""

    def simulate(weights: object, whitening: Whitening, seed: int, horizon: int) -> Trajectory:
        return Trajectory(np.ones((4, N_OBS)), np.arange(4.0) + seed % 3, False, np.ones(N_OBS))

    still = FunctionEngine(simulate, N_OBS, N_ACT)
    _, log = iterate(ARS(n_directions=6, n_top=2), Kernel(), still, 3)
    assert len(log) == 3 and still.requests[-1].index.tolist() == [0, 0, 1, 1]


def test_q_is_centred_over_all_rollouts_and_stops_at_each_ones_end(engine: FunctionEngine) -> None:
    behaviour = answered(candidates().behave(3), engine.run)
    Q = rewards_to_come(behaviour, 0.7)
    first_of_each = Q[[0, 10, 20]]
    np.testing.assert_allclose(first_of_each.sum(), 0.0, atol=1e-9)  # the sum of all (r - eta) is 0
    rewards = np.concatenate([t.rewards for t in behaviour.trajectories])
    np.testing.assert_allclose(Q[[9, 19, 29]], rewards[[9, 19, 29]] - rewards.mean())


def test_kernel_logs_mean_q_and_the_share_of_negative_q(engine: FunctionEngine) -> None:
    ranking = answered(Kernel(n_behaviour=2).rank(candidates(), {}), engine.run)
    Q = rewards_to_come(ranking.behaviour, 0.0)
    assert ranking.metrics["q_mean"] == pytest.approx(Q.mean())
    assert ranking.metrics["q_negative"] == pytest.approx((Q < 0).mean())


@pytest.mark.parametrize(("ranker", "order"), [(SmallestChange(2), 1), (LargestChange(2), -1)])
def test_change_controls_order_by_mean_squared_action_change(
    engine: FunctionEngine, ranker: SmallestChange, order: int
) -> None:
    c = candidates()
    ranking = answered(ranker.rank(c, {}), engine.run)
    z = np.concatenate([c.whitening(t.observations) for t in ranking.behaviour.trajectories])
    deltas = c.directions.take(np.arange(c.N)).reshape(c.N, N_ACT, N_OBS)
    changes = [np.mean(np.sum((c.scale * z @ delta.T) ** 2, axis=1)) for delta in deltas]
    assert np.array_equal(ranking.chosen, np.sort(np.argsort(order * np.array(changes))[: c.b]))


def test_equal_scores_go_to_the_lowest_index() -> None:
    assert np.array_equal(top(np.zeros(9), 3), [0, 1, 2])
    assert np.array_equal(top(np.array([1.0, 2.0, 2.0, 0.0, 2.0]), 2), [1, 2])


def test_underflow_of_every_exponential_goes_to_the_lowest_index(engine: FunctionEngine) -> None:
    ranking = answered(Kernel(bandwidth=1e-9).rank(candidates(), {}), engine.run)
    assert np.array_equal(ranking.scores, np.zeros(40))
    assert np.array_equal(ranking.chosen, np.arange(4))


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 3.0]), min_size=1, max_size=12), st.data())
@settings(max_examples=60, deadline=None)
def test_top_takes_exactly_b_and_none_better_is_left(scores: list[float], data: st.DataObject) -> None:
    b = data.draw(st.integers(1, len(scores)))
    values = np.array(scores)
    chosen = top(values, b)
    left = np.setdiff1d(np.arange(len(scores)), chosen)
    assert len(chosen) == b and np.array_equal(chosen, np.unique(chosen))
    for i in left:
        better = values[chosen] > values[i]
        tied_before = (values[chosen] == values[i]) & (chosen < i)
        assert (better | tied_before).all()


def test_on_policy_keeps_the_pairs_whose_better_sign_did_best(engine: FunctionEngine) -> None:
    c = candidates(N=6, b=2)
    ranking = answered(OnPolicy().rank(c, {}), engine.run)
    assert len(engine.requests) == 1 and len(engine.requests[0]) == 12
    best = np.maximum(ranking.pairs.plus, ranking.pairs.minus)
    assert np.array_equal(ranking.chosen, np.sort(np.argsort(-best)[:2]))


def test_random_equals_on_policy_with_as_many_directions_to_the_last_bit(engine: FunctionEngine) -> None:
    sampled, _ = iterate(ARS(n_directions=32, n_top=3), Random(), engine, 5)
    all_used, _ = iterate(ARS(n_directions=3, n_top=3), OnPolicy(), engine, 5)
    assert np.array_equal(matrix(sampled), matrix(all_used))
    assert np.array_equal(sampled.normalizer.m2, all_used.normalizer.m2)


@pytest.mark.parametrize("name", RANKERS)
def test_with_n_equal_b_every_ranker_takes_all(engine: FunctionEngine, name: str) -> None:
    ranker = RANKERS[name]()
    ranking = answered(ranker.rank(candidates(N=4, b=4), ranker.start(LINEAR, 0)), engine.run)
    assert np.array_equal(ranking.chosen, np.arange(4))


def test_interleaved_ranks_on_policy_every_period(engine: FunctionEngine) -> None:
    _, log = iterate(ARS(n_directions=6, n_top=2), Interleaved(period=3), engine, 7)
    assert [entry["on_policy"] for entry in log] == [False, False, True, False, False, True, False]
    sizes = [len(request) for request in engine.requests]
    assert sizes == [1, 4, 1, 4, 12, 1, 4, 1, 4, 12, 1, 4]


def outcome(scores: list[float], returns: list[float]) -> tuple[Ranking, Pairs]:
    index = np.arange(len(scores))
    best = np.array(returns)
    pairs = Pairs(index, best, best - 1, None)  # type: ignore[arg-type]
    return Ranking(chosen=index, scores=np.array(scores)), pairs


def test_adaptive_falls_back_when_scores_contradict_returns() -> None:
    ranker = Adaptive(patience=10**6)
    memory = ranker.start(LINEAR, 0)
    agreeing, contrary = outcome([3, 2, 1], [3, 2, 1]), outcome([3, 2, 1], [1, 2, 3])
    for _ in range(5):
        memory = ranker.learn(memory, candidates(), *agreeing)
        assert not ranker.on_policy_now(0, memory)
    for _ in range(10):
        memory = ranker.learn(memory, candidates(), *contrary)
    assert ranker.on_policy_now(0, memory)
    after = ranker.learn(memory, candidates(), *agreeing)  # that iteration was ranked on-policy
    assert not ranker.on_policy_now(0, after)


def test_adaptive_falls_back_when_returns_stall() -> None:
    ranker = Adaptive(patience=4)
    memory = ranker.start(LINEAR, 0)
    seen = []
    for _ in range(10):
        memory = ranker.learn(memory, candidates(), *outcome([3, 2, 1], [3, 2, 1]))
        seen.append(ranker.on_policy_now(0, memory))
    assert seen == [False] * 4 + [True] + [False] * 4 + [True]


def test_adaptive_does_not_take_the_best_of_an_on_policy_iteration_for_progress() -> None:
    ranker = Adaptive(patience=3)
    memory = ranker.start(LINEAR, 0) | {"fall_back": np.array(True)}
    ranking, best = outcome([9.0, 8.0], [9.0, 8.0])
    everything = Pairs(np.arange(4), np.array([9.0, 8.0, 1.0, 0.0]), np.array([8.0, 7.0, 0.0, -1.0]), None)  # type: ignore[arg-type]
    memory = ranker.learn(memory, candidates(), replace(ranking, pairs=everything), best)
    assert float(memory["average"]) == 4.0


def test_adaptive_logs_its_trust_as_the_learned_rankers_do(engine: FunctionEngine) -> None:
    _, log = iterate(ARS(n_directions=6, n_top=3), Adaptive(patience=2), engine, 12)
    assert {record["on_policy"] for record in log} == {True, False}
    assert all(record["ranker_learned"] == (not record["on_policy"]) for record in log)
    assert log[0]["ranker_trust"] == 1.0 and len({record["ranker_trust"] for record in log}) > 2


def test_adaptive_with_b_of_one_counts_only_the_stall() -> None:
    ranker = Adaptive(patience=2)
    memory = ranker.learn(ranker.start(LINEAR, 0), candidates(), *outcome([1.0], [5.0]))
    assert not ranker.on_policy_now(0, memory) and float(memory["tau"]) == 1.0


def test_ranking_has_no_side_effects(engine: FunctionEngine) -> None:
    """Rankers are frozen and their memory explicit: ranking twice from the same state gives the same."""
    ranker = Adaptive()
    c = candidates()
    first, second = (answered(ranker.rank(c, ranker.start(LINEAR, 0)), engine.run) for _ in range(2))
    assert np.array_equal(first.scores, second.scores)
    with pytest.raises(AttributeError):
        ranker.patience = 3  # type: ignore[misc]
    assert replace(ranker, patience=3).patience == 3
