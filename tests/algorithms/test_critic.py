"""The critic ranker, and the trust in its predictions."""

from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np
import pytest

from helpers import (
    FunctionEngine,
    iterate,
    linear_system,
    matrix,
    proposal,
    ranker_memory,
    request_of,
    search,
)
from offrank.algorithms.base import Episodes
from offrank.algorithms.learning import networks as network
from offrank.algorithms.learning import replay
from offrank.algorithms.proposal import Pairs, Proposal
from offrank.algorithms.rankers import Critic, Random, trust
from offrank.algorithms.rankers.critic import along
from offrank.algorithms.strategies import ARS
from offrank.core.arrays import FloatArray, Memory
from offrank.core.errors import UsageError
from offrank.core.normalizer import Whitening
from offrank.core.rollouts import Trajectory
from offrank.core.work import answered
from offrank.policies import make_policy
from offrank.runs.recipe import resolve

P, N_OBS = 3, 5
LINEAR, SMALL = make_policy("linear", N_OBS, P), make_policy("linear", 3, 2)


class Known(Critic):
    """A critic with a known gradient along the first parameter."""

    name = "known"

    def gradient(self, proposal: Proposal, memory: Memory) -> FloatArray:
        g = np.zeros_like(proposal.theta)
        g[0] = 7.0
        return g


def candidates(N: int = 50, b: int = 4, iteration: int = 0) -> Proposal:
    return replace(proposal(np.zeros((P, N_OBS)), N, b, 0.1, Episodes(10), seed=3, iteration=iteration), keep=True)


def outcome(c: Proposal, g: FloatArray) -> Pairs:
    """The first b pairs, with returns that are linear in the parameters."""
    index = np.arange(c.b)
    slope = c.directions.take(index) @ g
    run = answered(c.evaluate(index), engine().run)
    return replace(run, plus=slope, minus=-slope)


def engine(horizon: int = 10) -> FunctionEngine:
    return FunctionEngine(linear_system(N_OBS, P), N_OBS, P, horizon)


# --- trust


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.8])
def test_trust_is_the_same_whether_directions_were_random_or_chosen_for_their_predictions(rho: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=40_000)
    y = 50 * (rho * x + np.sqrt(1 - rho**2) * rng.normal(size=len(x)))
    chosen = np.abs(x) > 2
    everything, selected = (trust.observe(trust.no_evidence(), x[at], y[at], 0.9) for at in (slice(None), chosen))
    assert trust.correlation(everything) == pytest.approx(rho, abs=0.02)
    assert trust.correlation(selected) == pytest.approx(rho, abs=0.02)
    if rho > 0:  # signs are biased by the choice, so they are only logged
        assert trust.sign_accuracy(selected) > trust.sign_accuracy(everything) + 0.05


def test_trust_decays() -> None:
    x = np.array([1.0, -2.0, 0.5])
    sums = trust.observe(trust.no_evidence(), x, x, 0.5)
    assert trust.correlation(sums) == 1.0
    for _ in range(20):
        sums = trust.observe(sums, x, -x, 0.5)
    assert trust.correlation(sums) < -0.99 and trust.sign_accuracy(sums) < 0.01


def test_no_evidence_is_no_trust() -> None:
    nothing = trust.no_evidence()
    assert trust.correlation(nothing) == 0.0 and trust.sign_accuracy(nothing) == 0.5
    equal_returns = trust.observe(nothing, np.ones(3), np.zeros(3), 0.9)
    assert np.array_equal(equal_returns, nothing)


def test_one_enormous_difference_does_not_outlast_the_evidence_after_it() -> None:
    x = np.array([1.0, -2.0, 0.5, 1.5])
    sums = trust.observe(trust.no_evidence(), x, np.array([1e6, 1.0, -1.0, 2.0]), 0.9)
    for _ in range(20):
        sums = trust.observe(sums, x, x, 0.9)
    assert trust.correlation(sums) > 0.9


# --- use of a learned ranker


def test_a_trusted_ranker_takes_the_directions_furthest_along_its_gradient() -> None:
    c = candidates()
    ranking = answered(Known(explore=0.0, warmup=0).rank(c, Known().start(LINEAR, 0)), engine().run)
    first = c.directions.take(np.arange(c.N))[:, 0]
    np.testing.assert_allclose(ranking.predicted, first)
    assert np.array_equal(ranking.chosen, np.sort(np.argsort(-np.abs(first))[:4]))
    assert ranking.metrics["ranker_learned"]


def test_a_ranker_that_mispredicts_is_replaced_by_random_directions_and_still_measured() -> None:
    ranker, tried = Known(warmup=0), engine()
    memory = ranker.start(LINEAR, 0)
    wrong = np.zeros(P * N_OBS)
    wrong[0] = -1.0
    c = candidates()
    memory = ranker.learn(memory, c, answered(ranker.rank(c, memory), tried.run), outcome(c, wrong))
    ranking = answered(ranker.rank(c, memory), tried.run)
    assert ranking.metrics["ranker_trust"] == pytest.approx(-1.0) and not ranking.metrics["ranker_learned"]
    assert np.array_equal(ranking.chosen, np.arange(c.b)) and not tried.requests
    memory = ranker.learn(ranker.start(LINEAR, 0), c, ranking, outcome(c, -wrong))
    assert trust.correlation(memory["trust"]) == pytest.approx(1.0)  # predictions are made while directions are random


def test_a_rankers_suggestions_are_used_and_can_be_overridden() -> None:
    usual, q = resolve("HalfCheetah-v3", "ars"), resolve("HalfCheetah-v3", "q-ars")
    assert q.ranker.name == "critic" and q.episodes["probe_share"] == 0.15 and q.settings.n_directions == 4000
    assert (usual.settings.n_top, q.settings.n_top) == (4, 8)  # the preset of the pair has priority over the strategy's
    assert q.sources["n_top"].startswith("ours") and q.sources["step_size"] == usual.sources["step_size"]
    assert resolve("HalfCheetah-v3", "ars", "critic").hyperparameters == q.hyperparameters
    assert (
        resolve("HalfCheetah-v3", "q-ars", "random").hyperparameters
        == resolve("HalfCheetah-v3", "ars", "random").hyperparameters
    )
    assert resolve("Hopper-v3", "q-ars").settings.n_top == resolve("Hopper-v3", "ars").settings.n_top
    given = resolve("HalfCheetah-v3", "q-ars", None, {"n_top": 2, "probe_share": 0})
    assert given.settings.n_top == 2 and given.episodes["probe_share"] == 0


def test_candidates_of_the_critic_are_many_unless_given() -> None:
    assert resolve("HalfCheetah-v3", "ars", "critic").settings.n_directions == 4000
    assert resolve("HalfCheetah-v3", "ars", "critic", {"n_directions": 64}).settings.n_directions == 64
    assert resolve("HalfCheetah-v3", "ars", "random").settings.n_directions == 32


def test_the_first_iterations_are_random_and_predictions_are_measured_in_them() -> None:
    _, log = iterate(ARS(n_directions=8, n_top=2), Known(warmup=3, trust_needed=-1.0), engine(), 5)
    assert [entry["ranker_learned"] for entry in log] == [False, False, False, True, True]
    assert log[3]["ranker_trust"] != 0.0


@pytest.mark.parametrize("b", [1, 4])
def test_the_share_of_random_directions_holds_over_iterations(b: int) -> None:
    ranker = Known(explore=0.25)
    random = 0
    for iteration in range(20):
        c = candidates(b=b, iteration=iteration)
        predicted = along(c, ranker.gradient(c, {}))
        best = set(np.argsort(-np.abs(predicted))[:b].tolist())
        chosen = ranker.choose(c, predicted)
        assert len(np.unique(chosen)) == b
        random += len(set(chosen.tolist()) - best)
    assert random == 5 * b


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"explore": 1.5}, "explore = 1.5"),
        ({"trust_decay": 1.0}, "trust_decay = 1.0"),
        ({"n_steps": 0}, "n_steps = 0"),
        ({"discount": 1.0}, "discount = 1.0"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Critic(**given)


# --- critic


def test_new_networks_have_hidden_layers_of_he_and_an_output_near_zero() -> None:
    drawn = network.draw(np.random.default_rng(0), 4, 40, 100)
    deviations = {name: float(weights.std()) for name, weights in drawn.items()}
    expected = {"w1": np.sqrt(2 / 40), "w2": np.sqrt(2 / 100), "w3": np.sqrt(0.1 / 100), "c1": 0, "c2": 0, "c3": 0}
    assert deviations == pytest.approx(expected, rel=0.15)


def test_network_gradients_equal_finite_differences() -> None:
    rng = np.random.default_rng(0)
    drawn = network.draw(rng, 2, 4, 6)
    nets = {name: value + 0.1 * rng.normal(size=value.shape) for name, value in drawn.items()}  # biases off the kinks
    x, y = rng.normal(size=(7, 4)), rng.normal(size=(2, 7, 1))

    def loss() -> FloatArray:
        return ((network.forward(nets, x)[2] - y) ** 2).mean(axis=(1, 2))

    gradient = network.squared_error_gradient(nets, x, y)
    for name, weights in nets.items():
        for at in [(0, 0, 0), (1, 0, weights.shape[2] - 1)]:
            weights[at] += 1e-6
            above = loss()[at[0]]
            weights[at] -= 2e-6
            below = loss()[at[0]]
            weights[at] += 1e-6
            assert gradient[name][at] == pytest.approx((above - below) / 2e-6, rel=1e-4, abs=1e-8)
    step = np.zeros((7, 4))
    step[:, 2] = 1e-6
    above, below = (network.forward(nets, x + s * step)[2].mean(axis=0)[:, 0] for s in (1, -1))
    np.testing.assert_allclose(network.input_gradient(nets, x)[:, 2], (above - below) / 2e-6, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("terminated", [False, True])
def test_replay_holds_k_step_transitions_with_terminal_flags_right(terminated: bool) -> None:
    rng = np.random.default_rng(0)
    seen, W = rng.normal(size=(7, N_OBS)), rng.normal(size=(P, N_OBS))
    rewards = rng.normal(size=6)
    whitening = Whitening(np.ones(N_OBS), np.full(N_OBS, 2.0))
    k, discount, shift = 4, 0.9, 0.5
    trajectory = Trajectory(seen[:6], rewards, terminated, seen[6])
    rows = replay.rows(trajectory, LINEAR, W.ravel(), whitening, shift, k, discount)
    for t in range(6):
        end = min(t + k, 6)
        gain = sum(discount ** (j - t) * (rewards[j] - shift) for j in range(t, end))
        assert rows["gain"][t] == pytest.approx(gain, rel=1e-5)
        assert rows["ahead"][t] == end - t
        assert rows["boot"][t] == pytest.approx(0.0 if terminated and end == 6 else discount ** (end - t))
        np.testing.assert_allclose(rows["action"][t], W @ ((seen[t] - 1) * 2), rtol=1e-5)
    assert rows["ahead"][6] == 0  # the last state is stored, but no transition starts there
    np.testing.assert_allclose(rows["state"], seen, rtol=1e-6)


def test_a_replay_that_grows_leaves_every_earlier_one_as_it_was() -> None:
    columns = {name: like for name, like in replay.empty(SMALL).items() if like.ndim}

    def one(value: int, length: int) -> dict[str, np.ndarray]:
        return {name: np.full((length, *like.shape[1:]), value, like.dtype) for name, like in columns.items()}

    lengths, limit = [1, 4, 30, 2, 7, 7, 0, 9, 1, 50, 3], 20
    held, all_held, whole = replay.empty(SMALL), [], np.zeros(0)
    for value, length in enumerate(lengths):
        parts = [one(value, length - length // 3), one(value, length // 3)]
        replay.extend(held, [one(-1, 5)], limit)  # a speculative iteration that was dropped
        held = replay.extend(held, parts, limit)
        replay.extend(held, [one(-2, 5)], limit)
        whole = np.concatenate([whole, np.full(length, value)])
        all_held.append((held, whole[-limit:]))
        assert held["written"] == len(whole) and held["written"].dtype == np.int64
    for memory, expected in all_held:
        for name, like in columns.items():
            assert memory[name].dtype == like.dtype and memory[name].shape == (len(expected), *like.shape[1:])
            assert (memory[name].reshape(len(expected), -1) == expected[:, None]).all(), name


def test_a_long_replay_is_not_copied_in_every_iteration() -> None:
    columns = {name: like for name, like in replay.empty(SMALL).items() if like.ndim}
    new = {name: np.zeros((10, *like.shape[1:]), like.dtype) for name, like in columns.items()}
    held, places = replay.empty(SMALL), set()
    for _ in range(1000):
        held = replay.extend(held, [new], 1000)
        places.add(id(held["state"].base))
    assert len(held["state"]) == 1000 and len(places) < 30
    state = weakref.ref(held["state"].base)
    del held
    assert state() is None  # there is no other reference to it


def test_cutting_the_replay_leaves_every_transition_whole() -> None:
    held = replay.empty(LINEAR)
    for episode in range(4):
        seen = np.full((6, N_OBS), 10.0 * episode) + np.arange(6)[:, None]
        trajectory = Trajectory(seen[:5], np.ones(5), False, seen[5])
        rows = replay.rows(trajectory, LINEAR, np.zeros(P * N_OBS), Whitening.identity(N_OBS), 0, 2, 0.9)
        held = replay.extend(held, [rows], 15)
    assert len(held["gain"]) == 15
    starts = np.flatnonzero(held["ahead"])
    lead = held["state"][starts + held["ahead"][starts], 0] - held["state"][starts, 0]
    assert np.array_equal(lead, held["ahead"][starts])  # within an episode, states count up by one


@pytest.mark.parametrize("policy", ["linear", "affine", "skip:4"])
def test_critic_finds_the_gradient_of_the_return(policy: str) -> None:
    horizon, task = 30, engine(horizon=30)
    ranker = Critic(n_steps=10, discount=0.9, passes=100.0, critic_rate=3e-3, trust_needed=1.0)
    strategy = ARS(n_directions=8, n_top=8, noise_std=0.05, step_size=1e-9)  # the policy hardly moves
    algorithm = search(strategy, ranker, task.space, policy=policy)
    state, _ = iterate(strategy, ranker, task, 15, policy=policy)
    c = algorithm.propose(state, horizon)

    true = np.zeros(algorithm.kind.size)
    for at in range(len(true)):
        step = np.zeros_like(true)
        step[at] = 0.01
        up, down = (
            task.run(request_of(c.policy, c.theta + s * step, c.whitening, np.arange(30), horizon)) for s in (1, -1)
        )
        true[at] = up.totals.sum() - down.totals.sum()
    found = ranker.gradient(c, ranker_memory(state))
    assert np.sum(found * true) > 0.7 * np.linalg.norm(found) * np.linalg.norm(true)


def test_a_lesson_is_adam_on_targets_of_a_slow_copy_in_plain_numbers() -> None:
    """Every constant of the critic and of Adam is written out here."""
    ranker, task = Critic(hidden=8, passes=3.0), engine(horizon=60)
    algorithm = search(ARS(n_directions=8, n_top=4), ranker, task.space)
    state, _ = iterate(ARS(n_directions=8, n_top=4), ranker, task, 2)
    memory = ranker_memory(state)
    c = replace(algorithm.propose(state, 60), whitening=Whitening(np.zeros(N_OBS), np.full(N_OBS, 8.0)))  # outliers
    found = ranker.lesson(memory, c).carry_out()

    rows = ranker.draws(memory, c)
    assert rows.shape == (int(np.ceil(3.0 * 8 * 61 / 256)), 256) and int(memory["fresh"]) == 8 * 61
    seen, action, boot, ahead, gain = (memory[f"replay.{k}"] for k in ("state", "action", "boot", "ahead", "gain"))
    k = ahead[ahead > 0]
    rate = gain[ahead > 0] * (1 - 0.995) / (1 - 0.995**k)
    unit = 10 * rate.std() + 1e-6
    q, slow, m, v = network.unpack(memory)
    z = np.clip(8.0 * seen, -10, 10)
    assert (np.abs(8.0 * seen) > 10).any()
    for t, at in enumerate(rows, start=int(memory["step"]) + 1):
        after = z[at + ahead[at]]
        value = network.forward(slow, np.concatenate([after, after @ c.theta.reshape(P, N_OBS).T], axis=1))[2]
        weight = (1 - 0.995 ** ahead[at]) / (1 - 0.995)
        y = ((gain[at] - rate.mean() * weight) / unit)[:, None] + boot[at][:, None] * value
        gradient = network.squared_error_gradient(q, np.concatenate([z[at], action[at]], axis=1), y)
        for name, g in gradient.items():
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.999 * v[name] + 0.001 * g**2
            q[name] -= 1e-3 * m[name] / (1 - 0.9**t) / (np.sqrt(v[name] / (1 - 0.999**t)) + 1e-8)
            slow[name] = 0.995 * slow[name] + 0.005 * q[name]
    assert float(found["unit"]) == pytest.approx(unit, rel=1e-4) and int(found["step"]) == t
    for name, value in network.pack((q, slow, m, v)).items():
        np.testing.assert_allclose(found[name], value, rtol=2e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("fresh", "every"), [(2000, 1), (2001, 2), (4001, 3)])
def test_the_gradient_is_a_mean_over_at_most_2000_of_the_newest_states(fresh: int, every: int) -> None:
    c, ranker = candidates(), Critic(hidden=4)
    random, memory = np.random.default_rng(0), Critic(hidden=4).start(LINEAR, 0)
    memory["replay.state"], memory["fresh"] = random.normal(size=(5000, N_OBS)).astype(np.float32), np.array(fresh)
    z = memory["replay.state"][-fresh:][::every]
    per_action = network.input_gradient(network.unpack(memory)[0], np.concatenate([z, np.zeros((len(z), P))], axis=1))
    expected = (per_action[:, N_OBS:, None] * z[:, None, :]).mean(axis=0)
    np.testing.assert_allclose(ranker.gradient(c, memory).reshape(P, N_OBS), expected, rtol=1e-3, atol=1e-6)


def test_rewards_before_the_latest_80000_do_not_set_the_scale_of_the_values() -> None:
    random = np.random.default_rng(0)
    gain = np.concatenate([np.full(1000, 1e6), random.normal(size=80_000)])
    memory = {"replay.gain": gain, "replay.boot": np.full(81_000, 0.9), "replay.ahead": np.ones(81_000, dtype=np.int64)}
    scaled, unit = Critic().in_units(memory)
    assert unit == pytest.approx(10 * gain[1000:].std() + 1e-6)
    np.testing.assert_allclose(scaled[1000:], (gain[1000:] - gain[1000:].mean()) / unit, rtol=1e-4, atol=1e-6)
    memory["replay.boot"][5] = 0.0  # an episode ended early: its mean reward is for surviving
    scaled, unit = Critic().in_units(memory)
    np.testing.assert_allclose(scaled[1000:], gain[1000:] / unit, rtol=1e-4, atol=1e-6)


def test_a_critic_that_diverges_is_reinitialised() -> None:
    ranker = Critic(critic_rate=1e30)
    with np.errstate(all="ignore"):
        state, _ = iterate(ARS(n_directions=8, n_top=2), ranker, engine(), 4)
    assert all(np.isfinite(value).all() for value in ranker_memory(state).values())
    assert int(ranker_memory(state)["step"]) == 0 and np.isfinite(matrix(state)).all()


def test_asking_for_transitions_changes_no_bit() -> None:
    class Curious(Random):
        needs_transitions = True

    plain, curious = (iterate(ARS(n_directions=6, n_top=3), ranker(), engine(), 4)[0] for ranker in (Random, Curious))
    assert {k: v.tobytes() for k, v in plain.arrays().items()} == {k: v.tobytes() for k, v in curious.arrays().items()}
