"""Guided search: targets and actors, perturbations and their size, what is run and learned, and all that runs have."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offrank
import toy_envs
from helpers import FunctionEngine, linear_system, perform
from offrank.algorithms.base import Episodes
from offrank.algorithms.guided import LEAST, MOST, RECENT, STATES, WARMUP_NOISE, Guided, GuidedSettings
from offrank.algorithms.learning import actor_critic, critics, networks, replay
from offrank.algorithms.learning.actor_critic import ActorCriticLesson
from offrank.algorithms.rankers import MEMBER_RANKERS
from offrank.asktell import AskTell
from offrank.cli import main
from offrank.core.arrays import FloatArray, Memory, part
from offrank.core.errors import UsageError
from offrank.core.noise import Role
from offrank.core.normalizer import Whitening
from offrank.core.rollouts import Request, Trajectory
from offrank.core.space import Space
from offrank.core.state import State
from offrank.core.work import Lesson, answered
from offrank.policies import make_policy

N_OBS, N_ACT, HORIZON = 4, 2, 12
LOW, HIGH = np.array([-0.5, -2.0]), np.array([0.5, 2.0])
BOX = Space(N_OBS, N_ACT, HORIZON, low=LOW, high=HIGH)
SMALL: dict[str, Any] = {"hidden": 16, "batch": 8, "warmup_steps": 30, "step_noise": 0.0, "n_steps": 1}
ROBOT: dict[str, Any] = SMALL | {"train_horizon": 8, "step_noise": 0.1}  # on toy_envs, whose episodes have 20 steps


def engine(space: Space = BOX) -> FunctionEngine:
    """A linear system that takes actions as the space says."""
    made = FunctionEngine(linear_system(N_OBS, N_ACT), N_OBS, N_ACT, HORIZON)
    made.space = space
    return made


def guided(policy: str = "linear", ranker: str = "random", space: Space = BOX, **settings: Any) -> Guided:
    chosen = MEMBER_RANKERS[ranker](**({"race_steps": 5} if ranker == "race" else {}))
    how = GuidedSettings(**(SMALL | settings))
    return Guided(space, make_policy(policy, N_OBS, N_ACT), Episodes(HORIZON), how, chosen)


def iterate(algorithm: Guided, iterations: int, state: State | None = None) -> tuple[State, list[Any], list[Any]]:
    """The last state, the work of each iteration, and the log."""
    on, state, log, asked = engine(algorithm.space), state or algorithm.start(0), [], []
    for _ in range(iterations):
        asked.append([])

        def carry_out(work: Any) -> Any:
            asked[-1].append(work)
            return work.carry_out() if isinstance(work, Lesson) else on.run(work)

        iteration, outcome = algorithm.iteration(state), None
        while True:
            try:
                outcome = carry_out(next(iteration) if outcome is None else iteration.send(outcome))
            except StopIteration as done:
                state, metrics = done.value
                break
        requests = [work for work in asked[-1] if isinstance(work, Request)]
        state = state.counted(sum(len(r) * r.horizon for r in requests), sum(map(len, requests)))  # none ends early
        log.append(metrics)
    return state, asked, log


def thetas(request: Request) -> FloatArray:
    return np.stack([request.theta(i) for i in range(len(request))])


# --- the lesson


def lesson(policy: str = "skip:3", space: Space = BOX, n_steps: int = 1, ends: bool = False, **how: Any) -> Any:
    """One over random transitions, whose reward is larger the nearer the action is to (0.3, -1)."""
    kind, draws = make_policy(policy, N_OBS, N_ACT), np.random.default_rng(0)
    fast = {"hidden": 32, "batch": 32, "critic_rate": 3e-3, "actor_rate": 1e-2, "discount": 0.0, "reward_unit": 1.0}
    settings = GuidedSettings(**(SMALL | fast | {"n_steps": n_steps} | how))
    rows = []
    for _ in range(20):
        seen, rewards = draws.normal(size=(31, N_OBS)), draws.normal(size=30)
        row = replay.rows(Trajectory(seen[:-1], rewards, ends, seen[-1]), kind, kind.start(0),
                          Whitening.identity(N_OBS), 0.0, n_steps, settings.discount)  # fmt: skip
        row["action"][:] = draws.uniform(LOW, HIGH, size=row["action"].shape)
        if settings.discount == 0:
            row["gain"][:] = -np.square((row["action"] - [0.3, -1.0]) / [0.5, 2.0]).sum(axis=1)
        rows.append(row)
    learner = actor_critic.new_learner(settings, kind, kind.start(0), 0)
    return ActorCriticLesson(
        settings, space, kind, Whitening.identity(N_OBS), learner, replay.extend(replay.empty(kind), rows, 10_000),
        updates=3000, seed=0, iteration=1,
    )  # fmt: skip


@pytest.mark.parametrize("policy", ["linear", "affine", "skip:3", "mlp:8,8"])
def test_the_actor_goes_where_the_critics_value_actions_most(policy: str) -> None:
    made = lesson(policy)
    if policy == "linear":  # it has no bias: where the first feature is 1, it can have any action
        made.replay["state"][:, 0] = 1.0
    outcome = made.carry_out()
    z = np.random.default_rng(5).normal(size=(200, N_OBS))
    z[:, 0] = 1.0 if policy == "linear" else z[:, 0]
    actions = made.policy.act(outcome["actor.theta"].astype(float), z).mean(axis=0)
    np.testing.assert_allclose(actions, [0.3, -1.0], atol=0.15)
    assert int(outcome["critic.step"]) == 3000


def test_an_actor_at_the_edge_of_the_box_stays_there() -> None:
    """The critics would like more; beyond the box an action changes nothing, so the gradient ends there."""
    small = Space(N_OBS, N_ACT, HORIZON, low=LOW / 5, high=HIGH / 5)
    made = lesson("affine", small)
    theta, later = (replace(made, updates=u).carry_out()["actor.theta"].astype(float) for u in (1500, 3000))
    action = made.policy.act(theta, np.zeros((1, N_OBS)))[0]
    assert 0.1 <= action[0] < 0.22 and -0.8 < action[1] <= -0.4  # the best in the box, and what Adam's momentum adds
    np.testing.assert_array_equal(theta, later)


def test_beyond_the_box_only_the_way_back_counts() -> None:
    made = lesson("affine")
    twins = [actor_critic.one(part(made.learner, "critic.q."), which) for which in range(2)]
    z = made.replay["state"][:8]
    for beyond in (3.0, -3.0):  # both actions far beyond one side of the box
        actor = {"theta": np.zeros(made.policy.size, dtype=np.float32)}
        actor["theta"][-N_ACT:] = beyond
        actor |= {"first": np.zeros_like(actor["theta"]), "second": np.zeros_like(actor["theta"])}
        action = np.tile(np.clip(beyond, LOW, HIGH).astype(np.float32), (8, 1))
        scale = np.array([0.5, 2.0], dtype=np.float32)
        x = np.concatenate([z, action / scale], axis=1)
        g = np.mean([critics.input_gradient(q, x)[:, N_OBS:] for q in twins], axis=0) / scale
        back = np.where(np.sign(beyond) * g > 0, 0, g).mean(axis=0)
        made._update_actor(twins, actor, z, 1)
        np.testing.assert_allclose(actor["first"][-N_ACT:], -0.1 * back, rtol=1e-4, atol=1e-8)
        assert back.any() and not np.allclose(back, g.mean(axis=0))  # some was cut off, and some was not


def _targets(made: Any, nets: list[Memory], theta: Any, at: Any, eps: Any) -> tuple[Any, Any]:
    """The inputs and targets that an update of the critics regresses on."""
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        gradient = critics.squared_error_gradient
        patch.setattr(critics, "squared_error_gradient", lambda q, x, y: seen.append((x, y)) or gradient(q, x, y))
        twins = [[actor_critic.one(net, which) for net in nets] for which in range(2)]
        made._update_critics(twins, theta, at, eps, 1)
    return seen[0]


@pytest.mark.parametrize(
    "how", [{}, {"level": False}, {"reward_unit": 0.0}, {"reward_unit": 4.0, "pessimism": 0.25}], ids=str
)
@pytest.mark.parametrize("n_steps", [1, 3])
def test_targets_are_by_the_slow_copies_after_n_steps_and_end_with_the_episode(
    n_steps: int, how: dict[str, Any]
) -> None:
    made, random = lesson(discount=0.5, n_steps=n_steps, ends=True, **how), np.random.default_rng(3)
    nets = networks.unpack(part(made.learner, "critic."))
    for value in nets[1].values():
        value += 0.1 * random.normal(size=value.shape).astype(np.float32)
    theta = random.normal(size=made.policy.size).astype(np.float32)
    at = np.array([0, 26, 27, 28, 29, 31, 100])  # an episode has 31 rows, the last a state only
    eps = random.normal(size=(7, N_ACT)).astype(np.float32)
    slow = {name: value.copy() for name, value in nets[1].items()}
    x, y = _targets(made, nets, theta, at, eps)
    scale = np.array([0.5, 2.0])
    left = np.array([30 - a % 31 for a in at])  # steps to the end
    ahead = np.minimum(n_steps, left)
    assert np.array_equal(ahead, made.replay["ahead"][at])
    later = made.replay["state"][at + ahead]
    action = np.clip(np.clip(made.policy.act(theta, later), LOW, HIGH) + eps * scale, LOW, HIGH)
    inputs = np.concatenate([later, action / scale], axis=1).astype(np.float32)
    twins = [critics.forward(actor_critic.one(slow, which), inputs)[2][:, 0] for which in range(2)]
    values = np.mean(twins, axis=0) - made.settings.pessimism * np.abs(twins[0] - twins[1]) / 2
    ended = left <= n_steps
    rows = made.replay["ahead"] > 0
    gain, boot = made.replay["gain"][rows].astype(float), made.replay["boot"][rows].astype(float)
    level = 0.0 if how.get("level") is False else gain.mean() / (1 - boot.mean())
    unit = how.get("reward_unit", 1.0) * gain.std() / n_steps or 1.0
    expected = made.replay["gain"][at] + np.where(ended, 0.0, 0.5**ahead) * (level + unit * values)
    np.testing.assert_allclose(level + unit * y[:, 0], expected, rtol=1e-4, atol=1e-5)
    assert ended.any() and not ended.all()
    np.testing.assert_allclose(x[:, :N_OBS], made.replay["state"][at])
    np.testing.assert_allclose(x[:, N_OBS:], made.replay["action"][at] / scale, rtol=1e-6)


def test_noise_on_targets_is_clipped_in_half_ranges() -> None:
    made = replace(lesson(target_noise=0.2, target_noise_clip=0.3), updates=250)
    draws = list(made._draws())
    eps = np.stack([eps for _, eps in draws])
    assert eps.shape == (250, 32, N_ACT) and np.abs(eps).max() == pytest.approx(0.3)
    assert 0.15 < eps.std() < 0.2
    rows = np.stack([rows for rows, _ in draws])
    assert (made.replay["ahead"][rows] > 0).all() and len(np.unique(rows)) == 20 * 30  # never the last of an episode
    again = list(replace(made, iteration=2)._draws())
    assert not np.array_equal(rows[0], again[0][0])


def test_states_far_out_are_clipped_for_the_critics() -> None:
    far = Whitening(np.zeros(N_OBS), np.full(N_OBS, 100.0))
    z = actor_critic.normalised(far, np.ones((1, N_OBS), dtype=np.float32))
    assert (z == 10.0).all()
    made, a = lesson(), np.zeros((1, N_ACT), dtype=np.float32)
    at = [np.full((1, N_OBS), far, dtype=np.float32) for far in (10, 1e6)]
    near, beyond = (actor_critic.value(made.learner, BOX, z, a) for z in at)
    assert near == beyond


def test_values_are_the_mean_of_both_critics_at_actions_in_half_ranges() -> None:
    made = lesson()
    z, a = made.replay["state"][:5], made.replay["action"][:5]
    q, x = part(made.learner, "critic.q."), np.concatenate([z, a / np.float32([0.5, 2.0])], axis=1)
    out = [critics.forward(actor_critic.one(q, which), x)[2][:, 0] for which in range(2)]
    np.testing.assert_allclose(actor_critic.value(made.learner, BOX, z, a), np.mean(out, axis=0), rtol=1e-6)
    moved = made.learner | {"critic.level": np.float32(7.0), "critic.unit": np.float32(3.0)}
    np.testing.assert_allclose(actor_critic.value(moved, BOX, z, a), 7 + 3 * np.mean(out, axis=0), rtol=1e-6)


def test_values_are_learned_whatever_the_size_of_the_rewards() -> None:
    """Rewards a thousand times larger, from another zero: the same actor, and values that differ by just that."""
    made = replace(lesson(discount=0.9), updates=200)
    gain = 1000 * made.replay["gain"] + np.float32(500) * (made.replay["ahead"] > 0)
    other = replace(made, replay=made.replay | {"gain": gain})
    first, second = made.carry_out(), other.carry_out()
    np.testing.assert_allclose(second["actor.theta"], first["actor.theta"], atol=2e-2)
    z, a = made.replay["state"][:50], made.replay["action"][:50]
    values = [actor_critic.value(made.learner | outcome, BOX, z, a) for outcome in (first, second)]
    assert np.corrcoef(*values)[0, 1] > 0.99
    np.testing.assert_allclose(values[1], 1000 * values[0] + 500 / (1 - 0.9), rtol=0.05, atol=200)


@pytest.mark.parametrize(
    ("low", "high", "half"),
    [(None, None, [1, 1]), ([-2.0, 0.0], [2.0, 1.0], [2, 0.5]), ([-np.inf, 1.0], [np.inf, 1.0], [1, 1])],
)
def test_half_ranges_are_1_where_there_is_no_range(low: Any, high: Any, half: list[float]) -> None:
    bounds = {} if low is None else {"low": np.array(low), "high": np.array(high)}
    assert actor_critic.half_range(Space(3, 2, 5, **bounds), 2).tolist() == half


def test_a_lesson_leaves_its_learner_as_it_was_and_repeats_to_the_same_bits() -> None:
    made = replace(lesson(), updates=20)
    before = {name: value.copy() for name, value in made.learner.items()}
    first, second = made.carry_out(), made.carry_out()
    assert all(np.array_equal(before[name], value) for name, value in made.learner.items())
    assert all(np.array_equal(first[name], second[name]) for name in first) and set(first) == set(before)
    # all that learns has learned
    assert all(name == "critic.step" or not np.array_equal(first[name], before[name]) for name in first)


def test_the_actor_moves_after_every_second_update() -> None:
    made = lesson()
    one, two = (replace(made, updates=k).carry_out()["actor.theta"] for k in (1, 2))
    assert np.array_equal(one, made.learner["actor.theta"]) and not np.array_equal(two, one)


def test_a_lesson_that_diverges_is_one_clear_line() -> None:
    made = replace(lesson(), updates=5)
    made.replay["gain"][:] = np.inf
    with pytest.raises(offrank.OffrankError, match="the critics or the actor became non-finite in iteration 1"):
        made.carry_out()


# --- an iteration


def test_perturbations_are_antithetic_around_the_actor() -> None:
    algorithm = guided("skip:3", population=5, candidates=5)
    state, asked, _ = iterate(algorithm, 3)
    ran = thetas(asked[0][0])
    actor = algorithm.start(0).memory["actor.theta"].astype(float)
    np.testing.assert_allclose(ran[0] + ran[1], 2 * actor, atol=1e-12)
    np.testing.assert_allclose(ran[2] + ran[3], 2 * actor, atol=1e-12)
    assert not np.allclose(ran[0], ran[2]) and len(ran) == 5  # the fifth has no partner
    proposed = algorithm.propose(state).thetas
    np.testing.assert_allclose(proposed[:2].mean(axis=0), state.memory["actor.theta"], rtol=1e-5, atol=1e-7)
    assert asked[0][0].keep and set(asked[0][0].roles) == {Role.MEMBER}


@pytest.mark.parametrize("policy", ["linear", "affine", "skip:3", "mlp:4,4"])
@pytest.mark.parametrize("space", [BOX, Space(N_OBS, N_ACT, HORIZON)], ids=["box", "unbounded"])
def test_perturbations_come_to_change_actions_by_what_is_asked(policy: str, space: Space) -> None:
    algorithm = guided(policy, space=space, action_change=0.1, population=8, candidates=8)
    state, _, log = iterate(algorithm, 20)
    generation, half = algorithm.propose(state), actor_critic.half_range(space, N_ACT)
    states = state.memory["replay.state"][-RECENT:]
    z = generation.whitening(states[:: -(-len(states) // STATES)].astype(float))
    now = space.clip(algorithm.kind.act(generation.mean, z))
    for theta in generation.thetas[::2]:  # each direction by itself
        change = (space.clip(algorithm.kind.act(theta, z)) - now) / half
        assert np.sqrt(np.mean(change**2)) == pytest.approx(0.1, rel=0.15)
    assert log[-1]["noise"] < 0.3 < log[0]["noise"]  # random policies first


@pytest.mark.parametrize(("wanted", "size"), [(1e-9, LEAST), (1e9, MOST)])
def test_the_size_of_perturbations_has_bounds(wanted: float, size: float) -> None:
    algorithm = guided(action_change=wanted)
    state, _, _ = iterate(algorithm, 4)
    eps = np.random.default_rng(0).normal(size=(3, algorithm.kind.size))
    assert (algorithm._sizes(state, state.memory["actor.theta"].astype(float), eps) == size).all()


def test_updates_begin_after_the_warmup_and_are_ratio_times_the_steps() -> None:
    """24 steps an iteration: the second reaches the warm-up of 30."""
    state, asked, log = iterate(guided(ratio=0.33), 6)
    lessons = [[work for work in some if isinstance(work, ActorCriticLesson)] for some in asked]
    assert [len(some) for some in lessons] == [0, 1, 1, 1, 1, 1]
    updates = [some[0].updates for some in lessons[1:]]
    assert updates == [7, 8, 8, 8, 8]  # 7.92 each
    assert int(state.memory["critic.step"]) == sum(updates) == int(5 * 24 * 0.33)
    assert float(state.memory["owed"]) == pytest.approx(5 * 24 * 0.33 - sum(updates))
    assert all(0.2 < entry["noise"] < 0.8 for entry in log[:2])  # random policies, of size 1 / sqrt(4)
    assert "q_start" not in log[1] and all(np.isfinite(entry["q_start"]) for entry in log[2:])
    assert all({"return_mean", "return_best", "length_mean", "return_discounted"} <= set(entry) for entry in log[2:])


def test_a_lesson_of_less_than_one_update_changes_nothing_yet() -> None:
    algorithm = guided(ratio=0.02)
    state, _, _ = iterate(algorithm, 3)
    assert int(state.memory["critic.step"]) == 0 and float(state.memory["owed"]) == pytest.approx(0.96)
    assert np.array_equal(algorithm.policy(state).theta, np.zeros(8))


@pytest.mark.parametrize(("ranker", "extra"), [("random", 0), ("value", 0), ("race", 50), ("kernel", HORIZON)])
def test_of_more_candidates_the_ranker_chooses_and_every_step_is_learned_from(ranker: str, extra: int) -> None:
    state, asked, log = iterate(guided(ranker=ranker, candidates=10, population=3), 4)
    requests = [[work for work in some if isinstance(work, Request)] for some in asked]
    assert all(len(some[-1]) == 3 and some[-1].horizon == HORIZON for some in requests)
    # the first iteration is the warm-up, in which only the kernel needs no critic
    expected = [3 * HORIZON + (extra if ranker == "kernel" or at >= 1 else 0) for at in range(4)]
    assert [sum(len(r) * r.horizon for r in some) for some in requests] == expected
    episodes = sum(len(r) for some in requests for r in some)
    assert len(state.memory["replay.gain"]) == sum(expected) + episodes  # and a row for each last state
    assert state.normalizer.count == sum(expected) == int(state.memory["critic.step"])
    assert all(-1 <= entry["rank_correlation"] <= 1 for entry in log[2:])


def test_a_race_is_of_every_candidate_and_the_best_go_on() -> None:
    algorithm = guided(ranker="race", candidates=10, population=3)
    _, asked, _ = iterate(algorithm, 3)
    race, whole = (work for work in asked[2] if isinstance(work, Request))
    assert (len(race), race.horizon, set(race.roles)) == (10, 5, {Role.RACE})
    raced = thetas(race)
    assert all((raced == theta).all(axis=1).any() for theta in thetas(whole))


def test_all_candidates_are_run_where_no_more_are_drawn() -> None:
    _, asked, log = iterate(guided(ranker="race", candidates=4, population=4), 3)
    assert all(sum(isinstance(work, Request) for work in some) == 1 for some in asked)
    assert not any("rank_correlation" in entry for entry in log)


def test_the_replay_holds_actions_as_the_environment_took_them() -> None:
    tight = Space(N_OBS, N_ACT, HORIZON, low=np.full(N_ACT, -0.01), high=np.full(N_ACT, 0.01))
    state, _, _ = iterate(guided(space=tight), 2)
    assert np.abs(state.memory["replay.action"]).max() == pytest.approx(0.01)


def test_the_reward_shift_is_taken_off_before_learning() -> None:
    usual, shifted = guided(), replace(guided(), episodes=Episodes(HORIZON, reward_shift=2.0))
    gains = [iterate(algorithm, 1)[0].memory["replay.gain"] for algorithm in (usual, shifted)]
    ahead = iterate(usual, 1)[0].memory["replay.ahead"]
    np.testing.assert_allclose((gains[0] - gains[1])[ahead > 0], 2.0, rtol=1e-4)


# --- runs


@pytest.mark.parametrize("ranker", ["random", "race", "value", "kernel"])
def test_runs_resume_to_the_same_bits(tmp_path: Path, ranker: str) -> None:
    small = ROBOT | {"workers": 0, "ranker": ranker, "candidates": 4}
    brief: dict[str, Any] = {"eval_every": 2, "eval_episodes": 2}
    task = "toy_envs:Point-v0"
    offrank.Guided(task, **small).learn(iterations=4, out=tmp_path / "run", checkpoint_seconds=0, **brief)
    parts = offrank.Guided(task, **small).learn(iterations=7, out=tmp_path / "run", resume=True, **brief)
    whole, other = (offrank.Guided(task, seed=s, **small).learn(iterations=7, **brief) for s in (0, 1))
    assert parts.policy.sha256 == whole.policy.sha256 != other.policy.sha256
    assert whole.result["policy"] == "skip:32" and whole.result["ranker"] == ranker
    assert list((tmp_path / "run" / "replay").iterdir())  # rows of the replay, written once
    whole.save(tmp_path / "agent")
    more = offrank.load(tmp_path / "agent", workers=0).learn(iterations=8, eval_every=0)
    assert more.policy.sha256 == whole.learn(iterations=8, eval_every=0).policy.sha256


def test_on_a_robot_it_learns_what_it_learns_in_simulation() -> None:
    small = ROBOT | {"candidates": 4, "ranker": "race", "race_steps": 3, "policy": "skip:4"}
    learner = offrank.Guided("toy_envs:Point-v0", workers=0, **small).learn(iterations=5, eval_every=0)
    run = AskTell(offrank.Guided, 2, 2, low=-2.0, high=2.0, horizon=20, iterations=5, **small)
    asked = set()
    while not run.done:
        for episode in run.ask():
            asked.add((episode.role, episode.horizon))
            run.tell(episode, **perform(episode))
    assert asked == {("member", 8), ("race", 3)}
    assert run.policy.sha256 == learner.policy.sha256


def test_on_a_robot_there_is_no_noise_on_the_actions_unless_asked_for() -> None:
    small = {name: value for name, value in ROBOT.items() if name != "step_noise"}
    quiet, noisy = (
        AskTell(offrank.Guided, 2, 2, low=-2.0, high=2.0, horizon=20, **small, **more)
        for more in ({}, {"step_noise": 0.3})
    )
    observation = np.ones(2)
    for episode in quiet.ask():
        assert episode.noise is None
        assert np.array_equal(episode.act(observation, 3), episode.policy.predict(observation))
    for episode in noisy.ask():
        assert episode.noise is not None and episode.noise.shape == (8, 2)
        wanted = episode.policy.predict(observation) + episode.noise[3]
        assert np.array_equal(episode.act(observation, 3), np.clip(wanted, -2, 2))


def test_the_replay_holds_the_actions_with_their_noise() -> None:
    state, asked, _ = iterate(guided(step_noise=0.3), 5)
    for some in asked[3:]:  # after the warm-up
        request = some[0]
        np.testing.assert_allclose(request.noise, 0.3 * (HIGH - LOW) / 2)
    taken = state.memory["replay.action"][-2 * (HORIZON + 1) : -1].reshape(-1, N_ACT)
    states = state.memory["replay.state"][-2 * (HORIZON + 1) : -1]
    for i in range(2):
        rows = slice(i * (HORIZON + 1), i * (HORIZON + 1) + HORIZON)
        plain = np.clip(request.policy.act(request.theta(i), request.whitening(states[rows].astype(float))), LOW, HIGH)
        wanted = np.clip(plain + request.step_noise(i), LOW, HIGH)
        np.testing.assert_allclose(taken[rows], wanted, atol=1e-5)
        assert np.abs(taken[rows] - plain).max() > 0.1


def test_with_noise_the_warmup_is_of_the_first_policy_and_much_noise() -> None:
    algorithm = guided("skip:3", step_noise=0.1)
    _, asked, _ = iterate(algorithm, 2)
    request = asked[0][0]
    assert (thetas(request) == algorithm.start(0).memory["actor.theta"].astype(float)).all()
    np.testing.assert_allclose(request.noise, WARMUP_NOISE * (HIGH - LOW) / 2)


def test_a_fleet_of_different_algorithms_gives_each_its_own_bits(tmp_path: Path) -> None:
    fleet = offrank.Fleet("LQR", ["guided", "cem"], seeds=[0, 1], horizon=20)  # what guided alone has is in its presets
    fleet.learn(iterations=3, eval_every=0, out=tmp_path)
    alone = offrank.Guided("LQR", seed=1, horizon=20).learn(iterations=3, eval_every=0)
    assert json.loads((tmp_path / "LQR-guided-1" / "result.json").read_text())["policy_sha256"] == alone.policy.sha256


def test_learning_in_a_fleet_has_the_same_bits_as_alone(tmp_path: Path) -> None:
    fleet = offrank.Fleet("toy_envs:Point-v0", "guided", seeds=[0, 1], workers=0, **ROBOT)
    fleet.learn(iterations=5, eval_every=0)
    for seed, run in enumerate(fleet.runs):
        alone = offrank.Guided("toy_envs:Point-v0", seed=seed, workers=0, **ROBOT).learn(iterations=5, eval_every=0)
        assert run.policy.sha256 == alone.policy.sha256 and int(run.state.memory["critic.step"]) > 0


def test_the_same_bits_at_any_number_of_workers() -> None:
    agents = [offrank.Guided("toy_envs:Point-v0", workers=k, **ROBOT).learn(iterations=4, eval_every=0) for k in (0, 2)]
    for agent in agents:
        agent.close()
    assert agents[0].policy.sha256 == agents[1].policy.sha256


def test_actions_are_clipped_on_our_tasks_and_on_others() -> None:
    for task, bound in (("Swimmer-v3", 1.0), ("toy_envs:Point-v0", 2.0)):
        agent = offrank.Guided(task, horizon=20, **({"workers": 0} if ":" in task else {}))
        assert agent.engine.space.high.tolist() == [bound] * 2
    assert offrank.Guided("Swimmer-v3", clip_actions=False).engine.space.low is None


@pytest.mark.parametrize("policy", ["linear", "affine", "skip:8", "mlp:8"])
def test_a_small_task_is_learned_in_seconds(policy: str) -> None:
    """Push a point to where it should be: nothing pays about -30 a whole episode, the best about -6."""
    fast = {"hidden": 32, "batch": 32, "warmup_steps": 200, "actor_rate": 3e-3, "critic_rate": 3e-3, "discount": 0.9}
    fast["slow"] = 0.005
    agent = offrank.Guided("toy_envs:Point-v0", workers=0, policy=policy, action_change=0.1, **fast)
    before = agent.evaluate(episodes=50)["mean"]
    agent.learn(total_steps=3000, eval_every=0)
    after = agent.evaluate(episodes=50)["mean"]
    assert after > 0.5 * before, (before, after)  # both negative


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"candidates": 1}, "candidates = 1: must be at least the population that is run, 2"),
        ({"ratio": 0}, "ratio = 0.0: must be positive"),
        ({"action_change": -1}, "action_change = -1.0: must be positive"),
        ({"n_steps": 0}, "n_steps = 0: must be at least 1"),
        ({"pessimism": 1.5}, r"pessimism = 1.5: must be in \[0, 1\]"),
        ({"population": 0}, "population = 0: must be at least 1"),
        ({"warmup_steps": 0}, "warmup_steps = 0: must be at least 1"),
        ({"batch": 0}, "batch = 0: must be at least 1"),
        ({"discount": 1.5}, "discount = 1.5: must be in \\[0, 1\\]"),
        ({"probe_share": 0.1}, "probe_share = 0.1: guided does not search for the length of its episodes"),
        ({"ranker": "rase"}, "unknown ranker 'rase' of guided: .*did you mean 'race'"),
        ({"elites": 3}, "unknown hyperparameter 'elites' of guided"),
    ],
)
def test_what_cannot_be_is_one_clear_line(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        offrank.Guided("LQR", **given)
    assert "\n" not in str(caught.value)


def test_discrete_actions_are_learned_by_their_outputs() -> None:
    learner = offrank.Guided("toy_envs:Choice-v0", workers=0, seed=1, **(SMALL | {"step_noise": 0.2}))
    before = learner.evaluate(30)["mean"]
    learner.learn(iterations=40, eval_every=0)
    assert learner.evaluate(30)["mean"] > before + 1
    remembered = learner._run.state.memory["replay.action"]
    assert np.abs(remembered).max() <= 1 and len(np.unique(remembered.argmax(axis=1))) > 1


def test_a_discrete_action_is_the_largest_output_with_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    push = toy_envs.Choice.push
    monkeypatch.setattr(toy_envs.Choice, "push", lambda self, action: taken.append(int(action)) or push(self, action))
    learner = offrank.Guided("toy_envs:Choice-v0", workers=0, **(SMALL | {"step_noise": 0.2}))
    learner.learn(iterations=4, eval_every=0)
    memory = learner._run.state.memory
    acted = memory["replay.action"][memory["replay.ahead"] > 0]  # the others are the last states of episodes
    outputs = np.sort(acted, axis=1)
    clear = outputs[:, -1] < 1  # both are beyond the box: the replay does not tell which was larger
    assert len(acted) == len(taken) and clear.sum() > 10
    assert np.array_equal(acted.argmax(axis=1)[clear], np.array(taken)[clear])


def test_on_a_robot_discrete_actions_have_the_same_bits_as_in_an_environment() -> None:
    how: dict[str, Any] = SMALL | {"step_noise": 0.3}
    learner = offrank.Guided("toy_envs:Choice-v0", workers=0, horizon=20, **how).learn(iterations=3, eval_every=0)
    run = offrank.AskTell(offrank.Guided, 2, 3, discrete=True, horizon=20, iterations=3, **how)
    while not run.done:
        for episode in run.ask():
            env, rewards, ended = toy_envs.Choice(), [], False
            observations = [env.reset(seed=episode.seed)[0]]
            for step in range(episode.horizon):
                observation, reward, ended, *_ = env.step(episode.act(observations[-1], step))
                observations.append(observation)
                rewards.append(reward)
                if ended:
                    break
            run.tell(episode, rewards, observations, terminated=ended)
    assert run.policy.sha256 == learner.policy.sha256


def test_from_the_command_line(tmp_path: Path) -> None:
    words = ["train", "toy_envs:Point-v0", "--algo", "guided", "--iterations", "5", "--workers", "0", "--quiet"]
    words += ["--eval-every", "5", "--eval-episodes", "2", "--out", str(tmp_path / "run")]
    words += [word for name, value in ROBOT.items() for word in ("--set", f"{name}={value}")]
    assert main(words) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    alone = offrank.Guided("toy_envs:Point-v0", workers=0, **ROBOT).learn(iterations=5, eval_every=5, eval_episodes=2)
    assert result["policy_sha256"] == alone.policy.sha256
    assert (tmp_path / "run" / "curve.png").is_file()


def test_iterations_answered_in_one_go_are_those_of_a_run() -> None:
    algorithm = guided()
    state, metrics = answered(algorithm.iteration(algorithm.start(0)), engine().run)
    other, _, log = iterate(algorithm, 1)
    assert np.array_equal(state.memory["replay.state"], other.memory["replay.state"]) and metrics == log[0]


def test_a_policy_to_start_from_is_kept_until_the_critics_know_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    lessons: list[ActorCriticLesson] = []
    carry_out = ActorCriticLesson.carry_out
    monkeypatch.setattr(ActorCriticLesson, "carry_out", lambda self: (lessons.append(self), carry_out(self))[1])
    first = offrank.Guided("toy_envs:Point-v0", workers=0, **ROBOT).learn(iterations=3, eval_every=0).policy
    lessons.clear()
    offrank.Guided("toy_envs:Point-v0", workers=0, init=first, **ROBOT).learn(iterations=6, eval_every=0)
    steps = [lesson.updates for lesson in lessons]
    assert lessons[0].alone == steps[0] - 16 == 16 * (ROBOT["warmup_steps"] // 16)  # 2 episodes of 8 steps each
    assert all(lesson.alone == 0 and lesson.updates == 16 for lesson in lessons[1:])
    lessons.clear()
    offrank.Guided("toy_envs:Point-v0", workers=0, **ROBOT).learn(iterations=6, eval_every=0)
    assert all(lesson.alone == 0 and lesson.updates == 16 for lesson in lessons)
