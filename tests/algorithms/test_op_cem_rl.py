"""OP-CEM-RL: which members the rankers choose, what they cost, and what becomes of the episodes they run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy import stats

from helpers import FunctionEngine, linear_system
from offrank.algorithms.base import Episodes
from offrank.algorithms.cem_rl import OPCEMRL, OPCEMRLSettings
from offrank.algorithms.generation import Generation
from offrank.algorithms.learning import networks, td3
from offrank.algorithms.rankers import MEMBER_RANKERS
from offrank.algorithms.rankers.members import KernelOfMembers, Race, Value, near_starts, rank_correlation
from offrank.core.arrays import FloatArray, part
from offrank.core.noise import Role
from offrank.core.normalizer import Whitening
from offrank.core.rollouts import Request, Trajectory
from offrank.core.space import Space
from offrank.core.work import Lesson, answered
from offrank.policies import make_policy

N_OBS, N_ACT, HORIZON = 3, 2, 12
KIND = make_policy("linear", N_OBS, N_ACT)
SMALL: dict[str, Any] = {"hidden": 16, "batch": 8, "warmup_steps": 50, "population": 4, "elites": 2}
SMALL |= {"gradient_members": 3, "candidates": 10}


def engine() -> FunctionEngine:
    return FunctionEngine(linear_system(N_OBS, N_ACT), N_OBS, N_ACT, HORIZON)


def op_cem_rl(ranker: str, space: Space | None = None, **settings: Any) -> OPCEMRL:
    space = space or Space(N_OBS, N_ACT, HORIZON)
    chosen = MEMBER_RANKERS[ranker](**({"race_steps": 5} if ranker == "race" else {}))
    return OPCEMRL(space, KIND, Episodes(HORIZON), OPCEMRLSettings(**(SMALL | settings)), chosen)


def requests(algorithm: OPCEMRL, generations: int) -> tuple[list[list[Request]], Any, list[dict[str, Any]]]:
    """The requests of each generation, the last state, and the log."""
    on, state, log, asked = engine(), algorithm.start(0), [], []
    for _ in range(generations):
        asked.append([])
        steps = 0
        iteration, outcome = algorithm.iteration(state), None
        while True:
            try:
                work = next(iteration) if outcome is None else iteration.send(outcome)
            except StopIteration as done:
                state, metrics = done.value
                break
            if isinstance(work, Lesson):
                outcome = work.carry_out()
            else:
                asked[-1].append(work)
                outcome = on.run(work)
                steps += outcome.steps
        state = state.counted(steps, 0)
        log.append(metrics)
    return asked, state, log


@pytest.mark.parametrize(("ranker", "extra"), [("random", 0), ("value", 0), ("race", 50), ("kernel", HORIZON)])
def test_only_the_chosen_are_run_and_every_step_is_learned_from(ranker: str, extra: int) -> None:
    asked, state, log = requests(op_cem_rl(ranker), 4)
    whole = [some[-1] for some in asked]
    assert all(len(request) == 4 and request.horizon == HORIZON for request in whole)
    # two generations of warm-up, in which only the kernel needs no critic
    expected = [4 * HORIZON + (extra if ranker == "kernel" or generation >= 2 else 0) for generation in range(4)]
    assert [sum(len(r) * r.horizon for r in some) for some in asked] == expected
    episodes = sum(len(r) for some in asked for r in some)
    assert len(state.memory["replay.gain"]) == sum(expected) + episodes  # and a row for each last state
    assert state.normalizer.count == sum(expected)
    assert int(state.memory["last_steps"]) == expected[-1]
    assert all(0 <= entry["gradient_chosen"] <= 1 and -1 <= entry["rank_correlation"] <= 1 for entry in log[2:])


def test_a_race_is_short_and_of_every_candidate() -> None:
    asked, _, _ = requests(op_cem_rl("race"), 3)
    race, whole = asked[2]
    assert (len(race), race.horizon, set(race.roles)) == (10, 5, {Role.RACE})
    raced = [race.theta(i) for i in range(10)]
    assert all(any(np.array_equal(whole.theta(i), theta) for theta in raced) for i in range(4))
    assert not set(race.seeds) & set(whole.seeds)


def generation(thetas: FloatArray, learned: bool = True, low: float | None = None) -> Generation:
    """Members with a critic that values a normalised state by its first entry, and a first action of 0 or more."""
    space = Space(N_OBS, N_ACT, HORIZON) if low is None else Space(
        N_OBS, N_ACT, HORIZON, low=np.full(N_ACT, low), high=np.full(N_ACT, -low))  # fmt: skip
    critic = td3.new_critics(OPCEMRLSettings(**SMALL), KIND, 0)
    for name in part(critic, "q."):
        critic[f"q.{name}"] = np.zeros_like(critic[f"q.{name}"])
    for layer, (into, out) in {"w1": (N_OBS, 0), "w2": (0, 0), "w3": (0, 0)}.items():
        critic[f"q.{layer}"][:, into, out] = 1.0  # max(first action, 0)
    states = np.random.default_rng(1).normal(size=(40, N_OBS)).astype(np.float32)
    ahead = np.ones(40, dtype=np.int64)
    ahead[[19, 39]] = 0
    known = {"critic": partial(td3.first_value, critic), "replay": {"state": states, "ahead": ahead}} if learned else {}
    mean, whitening = np.zeros(KIND.size), Whitening.identity(N_OBS)
    return Generation(space, KIND, thetas, mean, whitening, Episodes(HORIZON), 0, 1, **known)


def test_states_near_the_start_are_told_by_where_episodes_end() -> None:
    replay = generation(np.zeros((1, 6))).replay
    np.testing.assert_array_equal(near_starts(replay, 3), replay["state"][[0, 1, 2, 20, 21, 22]])
    assert len(near_starts(replay, 1000)) == 40


def test_the_value_is_the_critics_over_those_states_at_actions_as_they_are_taken() -> None:
    thetas = np.random.default_rng(0).normal(size=(8, KIND.size))
    for low in (None, -0.1):
        members = generation(thetas, low=low)
        choice = answered(Value(start_steps=3).rank(members, 2), engine().run)
        states = members.replay["state"][[0, 1, 2, 20, 21, 22]]
        first = np.stack([KIND.act(theta, states)[:, 0] for theta in thetas])
        expected = np.clip(first, 0, 0.1 if low else None).mean(axis=1)
        np.testing.assert_allclose(choice.scores, expected, rtol=1e-4, atol=1e-6)
        assert set(choice.chosen) == set(np.argsort(-expected)[:2]) and choice.ran == ()


def test_a_race_is_scored_by_its_rewards_and_the_value_of_where_it_ended() -> None:
    def simulate(weights: FloatArray, whitening: Whitening, seed: int, horizon: int) -> Trajectory:
        falls = weights[0, 0] > 1
        return Trajectory(np.ones((horizon, N_OBS)), np.full(horizon, 0.5), falls, 2 * np.ones(N_OBS))

    thetas = np.zeros((3, KIND.size))
    thetas[1:, :N_OBS] = [[0.5, 0, 0], [2.0, 0, 0]]
    choice = answered(
        Race(race_steps=4).rank(generation(thetas), 1), FunctionEngine(simulate, N_OBS, N_ACT, HORIZON).run
    )
    np.testing.assert_allclose(choice.scores, [2.0, 2.0 + 1.0, 2.0], rtol=1e-6)  # the last one fell: nothing beyond
    assert choice.chosen.tolist() == [1] and choice.ran[0].rollouts.steps == 12


def test_the_kernel_is_the_papers_on_rollouts_of_the_mean() -> None:
    thetas = 0.3 * np.random.default_rng(0).normal(size=(5, KIND.size))
    mean = 0.2 * np.random.default_rng(1).normal(size=KIND.size)
    members = replace(generation(thetas, learned=False), mean=mean)
    choice = answered(KernelOfMembers(n_behaviour=2, bandwidth=0.7).rank(members, 2), engine().run)
    behaviour = choice.ran[0].rollouts
    assert len(behaviour.trajectories) == 2 and np.array_equal(choice.ran[0].thetas, [mean, mean])
    rewards = [t.rewards for t in behaviour.trajectories]
    eta = np.concatenate(rewards).mean()
    Q = np.concatenate([[(r[t:] - eta).sum() for t in range(len(r))] for r in rewards])
    z = np.concatenate([t.observations for t in behaviour.trajectories])
    for theta, score in zip(thetas, choice.scores, strict=True):
        change = np.square(KIND.act(theta, z) - KIND.act(mean, z)).sum(axis=1)
        assert score == pytest.approx((np.exp(-change / 0.7**2) * Q).mean())


def test_without_a_critic_the_choice_is_random_but_repeatable() -> None:
    thetas = np.zeros((30, KIND.size))
    chosen = [answered(MEMBER_RANKERS[name]().rank(generation(thetas, learned=False), 10), engine().run).chosen.tolist()
              for name in ("value", "race", "random", "random")]  # fmt: skip
    assert chosen[0] == chosen[1] == chosen[2] == chosen[3] != list(range(10))


def test_the_logged_correlation_is_spearmans() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 15))
    assert rank_correlation(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert rank_correlation(x, np.zeros(15)) == 0.0


def test_values_are_those_of_the_first_critic() -> None:
    critic = td3.new_critics(OPCEMRLSettings(**SMALL), KIND, 0)
    inside = np.random.default_rng(0).normal(size=(4, N_OBS + N_ACT)).astype(np.float32)
    first = networks.forward(part(critic, "q."), inside)[2][0, :, 0]
    np.testing.assert_allclose(td3.first_value(critic, inside[:, :N_OBS], inside[:, N_OBS:]), first, rtol=1e-6)
