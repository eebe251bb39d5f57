"""CEM and CEM-RL: the published distribution, critics and actors that learn, and everything that runs have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offrank
from helpers import FunctionEngine, linear_system, perform
from offrank.algorithms.base import Episodes
from offrank.algorithms.cem_rl import CEM, CEMRL, CEMRLSettings, CEMSettings
from offrank.algorithms.learning import networks, replay, td3
from offrank.algorithms.learning.td3 import TD3Lesson
from offrank.algorithms.rankers import OnPolicy
from offrank.asktell import AskTell
from offrank.cli import main
from offrank.core.arrays import FloatArray
from offrank.core.errors import OffrankError, UsageError
from offrank.core.normalizer import Whitening
from offrank.core.rollouts import Request, Trajectory
from offrank.core.space import Space
from offrank.core.state import State
from offrank.core.work import Lesson, answered
from offrank.policies import make_policy

N_OBS, N_ACT, HORIZON = 4, 2, 12
SMALL = {"hidden": 16, "batch": 8, "warmup_steps": 100}


def engine() -> FunctionEngine:
    return FunctionEngine(linear_system(N_OBS, N_ACT), N_OBS, N_ACT, HORIZON)


def cem(policy: str = "linear", **settings: Any) -> CEM:
    kind = make_policy(policy, N_OBS, N_ACT)
    return CEM(Space(N_OBS, N_ACT, HORIZON), kind, Episodes(HORIZON), CEMSettings(**settings), OnPolicy())


def cem_rl(policy: str = "linear", space: Space | None = None, **settings: Any) -> CEMRL:
    kind = make_policy(policy, N_OBS, N_ACT)
    space = space or Space(N_OBS, N_ACT, HORIZON)
    return CEMRL(space, kind, Episodes(HORIZON), CEMRLSettings(**(SMALL | settings)), OnPolicy())


def iterate(algorithm: CEM, iterations: int, on: FunctionEngine | None = None) -> tuple[State, list[dict[str, Any]]]:
    on, state, log = on or engine(), algorithm.start(0), []
    for _ in range(iterations):
        state, metrics = answered(algorithm.iteration(state), on.run)
        state = state.counted(10 * HORIZON, 10)
        log.append(metrics)
    return state, log


# --- the distribution


def test_three_generations_are_the_published_update() -> None:
    algorithm, on = cem(start_variance=0.04, extra_variance=0.02, least_variance=0.001, variance_decay=0.8), engine()
    state = algorithm.start(3)
    mean, variance, extra = np.zeros(8), np.full(8, 0.04), 0.02
    weights = np.array([np.log(6 / i) for i in range(1, 6)])
    weights /= weights.sum()
    for _ in range(3):
        members = algorithm.draw(state, 10)
        np.testing.assert_allclose(members[:5] + members[5:], np.tile(2 * mean, (5, 1)), atol=1e-12)  # antithetic
        state, metrics = answered(algorithm.iteration(state), on.run)
        assert np.array_equal(np.stack([on.requests[-1].theta(i) for i in range(10)]), members)
        returns = on.run(on.requests[-1]).totals
        best = np.argsort(-returns)[:5]
        extra = 0.8 * extra + 0.2 * 0.001
        variance = sum(w * (members[k] - mean) ** 2 for w, k in zip(weights, best, strict=True)) / 5 + extra
        mean = sum(w * members[k] for w, k in zip(weights, best, strict=True))
        np.testing.assert_allclose(state.memory["mean"], mean, rtol=1e-12)
        np.testing.assert_allclose(state.memory["variance"], variance, rtol=1e-12)
        assert metrics["return_best"] == returns.max() and metrics["return_mean"] == pytest.approx(returns.mean())
    assert np.array_equal(algorithm.policy(state).theta, state.memory["mean"])


def test_the_spread_of_a_generation_is_that_of_the_distribution() -> None:
    algorithm = cem(population=4001, elites=2000, start_variance=0.09)  # odd: not antithetic
    members = algorithm.draw(algorithm.start(0), 4001)
    assert len(members) == 4001
    assert members.std(axis=0) == pytest.approx(0.3, rel=0.05) and abs(members.mean()) < 0.02


def test_equal_returns_take_the_first_members() -> None:
    assert cem().elites(np.zeros(10)).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("policy", ["linear", "skip:3"])
def test_cem_improves_a_small_task(policy: str) -> None:
    _, log = iterate(cem(policy, start_variance=0.05, extra_variance=0.02), 40)
    first, last = (np.mean([entry["return_mean"] for entry in some]) for some in (log[:5], log[-5:]))
    assert last > 0.8 * first  # both negative: a fifth nearer to 0


# --- critics and actors


def lesson(thetas: FloatArray, policy: str = "skip:3", space: Space | None = None, **settings: Any) -> TD3Lesson:
    """One over some random transitions, whose reward is larger the nearer the action is to (0.5, -0.5)."""
    kind, draws = make_policy(policy, N_OBS, N_ACT), np.random.default_rng(0)
    how = CEMRLSettings(
        **(SMALL | {"hidden": 32, "batch": 32, "critic_rate": 3e-3, "actor_rate": 1e-2, "discount": 0.0} | settings)
    )
    rows = []
    for _ in range(20):
        seen = draws.normal(size=(31, N_OBS))
        row = replay.rows(Trajectory(seen[:-1], np.zeros(30), False, seen[-1]), kind, kind.start(0),
                          Whitening.identity(N_OBS), 0.0, 1, how.discount)  # fmt: skip
        row["action"][:] = draws.uniform(-1, 1, size=row["action"].shape)
        row["gain"][:] = -np.square(row["action"] - [0.5, -0.5]).sum(axis=1)
        rows.append(row)
    space = space or Space(N_OBS, N_ACT, HORIZON)
    return TD3Lesson(
        how, space, kind, Whitening.identity(N_OBS), td3.new_critics(how, kind, 0),
        replay.extend(replay.empty(kind), rows, 10_000), thetas, 3000, 500, seed=0, iteration=1,
    )  # fmt: skip


def test_actors_go_where_the_critics_value_actions_most() -> None:
    kind = make_policy("skip:3", N_OBS, N_ACT)
    start = np.stack([kind.start(0), kind.start(1)])
    outcome = lesson(start).carry_out()
    z = np.random.default_rng(5).normal(size=(200, N_OBS))
    for theta in outcome["thetas"]:
        actions = kind.act(theta, z).mean(axis=0)
        np.testing.assert_allclose(actions, [0.5, -0.5], atol=0.15)
    assert int(outcome["step"]) == 3000


def test_targets_are_the_smaller_of_the_slow_copies_and_end_with_the_episode() -> None:
    made = lesson(np.zeros((1, 41)), discount=0.5, target_noise=0.0)
    boot = made.replay["boot"]
    boot[:40] = 0.0  # as if the task had ended there
    q, slow, first, second = networks.unpack(made.critics)
    rng = np.random.default_rng(3)
    slow = {name: value + 0.1 * rng.normal(size=value.shape).astype(np.float32) for name, value in slow.items()}
    at = np.array([3, 100, 200, 301])
    theta = made.thetas[0].astype(np.float32)
    later = made.replay["state"][at + 1]
    values = networks.forward(slow, np.concatenate([later, made.policy.act_together(theta, later)], axis=1))[2]
    expected = made.replay["gain"][at, None] + boot[at, None] * values.min(axis=0)
    seen: list[Any] = []
    gradient = networks.squared_error_gradient

    def spy(nets: Any, x: Any, y: Any) -> Any:
        seen.append((x, y))
        return gradient(nets, x, y)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "squared_error_gradient", spy)
        made._update_critics(q, slow, first, second, theta, at, np.zeros((4, N_ACT), dtype=np.float32), 1)
    ((x, y),) = seen
    np.testing.assert_allclose(y[0], expected, rtol=1e-5)
    assert y[0][0, 0] == made.replay["gain"][3] and np.array_equal(y[0], y[1])
    assert np.array_equal(x[:, :N_OBS], made.replay["state"][at])


@pytest.mark.parametrize(("updates", "shares"), [(9, [3, 3, 3]), (11, [4, 4, 3]), (2, [1, 1, 0])])
def test_the_critics_updates_are_shared_by_the_actors(updates: int, shares: list[int]) -> None:
    made = lesson(np.stack([make_policy("skip:3", N_OBS, N_ACT).start(seed) for seed in range(3)]))
    assert replace(made, critic_updates=updates).shares == shares


def test_noise_on_the_target_is_normal_and_clipped_on_both_sides() -> None:
    made = lesson(make_policy("skip:3", N_OBS, N_ACT).start(0)[None], target_noise=0.2, target_noise_clip=0.3)
    drawn = list(made._draws(np.random.default_rng(0), np.arange(50), 450, noisy=True))
    assert [rows.shape for rows, _ in drawn] == [(200, 32), (200, 32), (50, 32)]
    noise = np.concatenate([some.ravel() for _, some in drawn])
    assert noise.min() == pytest.approx(-0.3) and noise.max() == pytest.approx(0.3) and abs(noise.mean()) < 0.01
    inside = np.abs(noise) < 0.2999
    assert inside.mean() == pytest.approx(0.8664, abs=0.02)  # 1.5 deviations


def test_a_distribution_that_becomes_non_finite_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, on = cem(), engine()
    state = algorithm.start(0)
    state = replace(state, memory=state.memory | {"extra": np.array(np.inf)})
    members = np.random.default_rng(0).normal(size=(10, N_ACT * N_OBS))
    monkeypatch.setattr(CEM, "draw", lambda self, state, count: members)
    with pytest.raises(OffrankError, match="the distribution became non-finite in iteration 0"):
        answered(algorithm.iteration(state), on.run)


def test_an_actor_at_the_edge_of_the_box_stays_inside() -> None:
    """The critics would like more; beyond the box an action changes nothing, so the gradient ends there."""
    low, high = np.array([-0.2, -0.2]), np.array([0.2, 0.2])
    box = Space(N_OBS, N_ACT, HORIZON, low=low, high=high)
    kind = make_policy("affine", N_OBS, N_ACT)
    theta = lesson(kind.start(0)[None], "affine", box).carry_out()["thetas"][0]
    assert np.abs(kind.act(theta, np.zeros((1, N_OBS)))).max() < 0.4


# --- CEM-RL


def test_updates_begin_after_the_warmup_and_are_as_many_as_the_last_generation_had_steps() -> None:
    algorithm, on, state = cem_rl(gradient_members=3), engine(), cem_rl(gradient_members=3).start(0)
    lessons: list[TD3Lesson] = []
    for generation in range(3):
        iteration = algorithm.iteration(state)
        work: Any = next(iteration)
        while True:
            if isinstance(work, Lesson):
                assert isinstance(work, TD3Lesson)
                lessons.append(work)
                outcome: Any = work.carry_out()
                changed = np.abs(outcome["thetas"] - work.thetas).max(axis=1)
                assert (changed > 0).all()
            else:
                assert isinstance(work, Request)
                if lessons:
                    ran = np.stack([work.theta(i) for i in range(10)])
                    assert np.array_equal(ran[:3], outcome["thetas"])  # those that learned are run
                    assert not np.isin(ran[3:], outcome["thetas"]).any()
                outcome = on.run(work)
            try:
                work = iteration.send(outcome)
            except StopIteration as done:
                state = done.value[0].counted(10 * HORIZON, 10)
                break
        assert len(lessons) == generation  # 120 steps are more than 100
    assert [(made.critic_updates, made.actor_updates) for made in lessons] == [(120, 120), (120, 120)]
    assert int(state.memory["critic.step"]) == 240
    assert len(state.memory["replay.gain"]) == 3 * 10 * (HORIZON + 1)


def test_the_replay_holds_actions_as_the_environment_took_them() -> None:
    low, high = np.full(N_ACT, -0.01), np.full(N_ACT, 0.01)
    box = Space(N_OBS, N_ACT, HORIZON, low=low, high=high)
    state, _ = iterate(cem_rl(space=box, start_variance=0.1), 2)
    assert np.abs(state.memory["replay.action"]).max() == pytest.approx(0.01)


def test_what_is_logged_says_how_the_gradient_fared() -> None:
    _, log = iterate(cem_rl(), 3)
    assert "gradient_elites" not in log[0]
    assert all(0 <= entry["gradient_elites"] <= 1 for entry in log[1:])
    assert all(np.isfinite([entry["q_start"], entry["return_discounted"]]).all() for entry in log[1:])


@pytest.mark.parametrize("algorithm", [offrank.CEM, offrank.CEMRL, offrank.OPCEMRL])
def test_runs_resume_to_the_same_bits(tmp_path: Path, algorithm: type) -> None:
    small = {"workers": 0, "population": 4, "elites": 2}
    small |= SMALL | {"gradient_members": 2, "warmup_steps": 20} if algorithm is not offrank.CEM else {}
    brief = {"eval_every": 2, "eval_episodes": 2}
    task = "toy_envs:Point-v0"
    algorithm(task, **small).learn(iterations=3, out=tmp_path / "run", **brief)
    parts = algorithm(task, **small).learn(iterations=6, out=tmp_path / "run", resume=True, **brief)
    whole, other = (algorithm(task, seed=s, **small).learn(iterations=6, **brief) for s in (0, 1))
    assert parts.policy.sha256 == whole.policy.sha256 != other.policy.sha256
    assert whole.result["policy"] == "skip:32" and whole.result["parameters"] == 2 * 2 + 2 * 32 + 32 * 2 + 32


def test_on_a_robot_it_learns_what_it_learns_in_simulation() -> None:
    small = SMALL | {"population": 4, "elites": 2, "gradient_members": 2, "warmup_steps": 20, "policy": "linear"}
    learner = offrank.CEMRL("toy_envs:Point-v0", workers=0, horizon=8, **small).learn(iterations=3, eval_every=0)
    run = AskTell(offrank.CEMRL, 2, 2, low=-2.0, high=2.0, horizon=8, iterations=3, **small)
    while not run.done:
        for episode in run.ask():
            assert episode.role == "member"
            run.tell(episode, **perform(episode))
    assert run.policy.sha256 == learner.policy.sha256


def test_a_fleet_of_different_algorithms_gives_each_its_own_bits(tmp_path: Path) -> None:
    words = ["train", "LQR", "--seeds", "0-1", "--iterations", "3", "--eval-every", "0", "--quiet", "--horizon", "20"]
    assert main([*words, "--algo", "cem,ars,op-ars", "--out", str(tmp_path / "fleet")]) == 0
    alone = offrank.CEM("LQR", seed=1, horizon=20).learn(iterations=3, eval_every=0)
    result = (tmp_path / "fleet" / "LQR-cem-1" / "result.json").read_text()
    assert alone.policy.sha256 in result


@pytest.mark.parametrize(
    ("algorithm", "given", "says"),
    [
        (offrank.CEM, {"population": 1}, "population = 1: must be at least 2"),
        (offrank.CEM, {"elites": 11}, "elites = 11: must be from 1 to the population, 10"),
        (offrank.CEMRL, {"gradient_members": 11}, "gradient_members = 11: must be from 1 to the members drawn, 10"),
        (offrank.OPCEMRL, {"gradient_members": 21}, "gradient_members = 21: must be from 1 to the members drawn, 20"),
        (offrank.CEMRL, {"gradient_members": 0}, "the algorithm cem has none"),
        (offrank.CEMRL, {"batch": 0}, "batch = 0: must be at least 1"),
        (offrank.CEMRL, {"ranker": "kernel"}, "unknown ranker 'kernel' of cem-rl: one of on-policy"),
        (offrank.OPCEMRL, {"candidates": 4}, "candidates = 4: must be at least the population that is run, 5"),
        (offrank.OPCEMRL, {"ranker": "rase"}, "did you mean 'race'"),
        (offrank.OPCEMRL, {"race_steps": 0}, "race_steps = 0: must be at least 1"),
        (offrank.OPCEMRL, {"ranker": "value", "race_steps": 5}, "unknown hyperparameter 'race_steps' of op-cem-rl"),
        (offrank.CEM, {"probe_share": 0.1}, "probe_share = 0.1: cem does not search for the length of its episodes"),
        (offrank.CEMRL, {"probe_share": 0.1}, "probe_share = 0.1: cem-rl does not search"),
        (offrank.CEM, {"hidden": 3}, "unknown hyperparameter 'hidden' of cem"),
    ],
)
def test_what_cannot_be_is_one_clear_line(algorithm: type, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        algorithm("LQR", **given)


@pytest.mark.parametrize("algorithm", [offrank.CEM, offrank.CEMRL, offrank.OPCEMRL])
def test_discrete_actions_are_learned_by_their_outputs(algorithm: type) -> None:
    learner = algorithm("toy_envs:Choice-v0", workers=0).learn(iterations=2, eval_every=0)
    assert learner.result["iterations"] == 2
    if algorithm is not offrank.CEM:
        assert np.abs(learner._run.state.memory["replay.action"]).max() <= 1


def test_rewards_are_taken_as_paid() -> None:
    """Hopper's preset takes the survival bonus off for ARS; CEM-RL is published without that."""
    from offrank.runs.recipe import resolve

    assert resolve("Hopper-v3", "ars").episodes["reward_shift"] == 1
    assert resolve("Hopper-v3", "cem-rl").episodes["reward_shift"] == 0


def test_actions_are_clipped_on_our_tasks_too_unless_said_otherwise(tmp_path: Path, capsys: Any) -> None:
    clipped, raw = offrank.CEMRL("Swimmer-v3", horizon=20), offrank.CEMRL("Swimmer-v3", horizon=20, clip_actions=False)
    assert clipped.engine.space.low is not None and raw.engine.space.low is None
    assert np.abs(clipped.predict(1e6 * np.ones(8))[0]).max() <= 1.0
    assert offrank.CEM("Swimmer-v3", horizon=20).engine.space.low is not None  # the control is in the same world
    words = ["train", "Swimmer-v3", "--algo", "cem-rl,ars", "--iterations", "1", "--horizon", "20", "--quiet"]
    words += ["--eval-every", "0", "--out", str(tmp_path)]
    assert main(words) == 2
    assert "cem-rl clips actions and ars does not: train them in two commands" in capsys.readouterr().err
    assert main([*words, "--no-clip-actions"]) == 0
    with pytest.raises(UsageError, match="clips actions"):
        offrank.Fleet("Swimmer-v3", ["cem-rl", "ars"], seeds=[0])
