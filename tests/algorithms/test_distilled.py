"""Distillation: the teacher learns as `guided` does, the student copies it and is searched around, and runs resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offrank
from helpers import FunctionEngine, linear_system, perform
from offrank.algorithms.base import Episodes
from offrank.algorithms.distilled import RIDGE, Distilled, DistilledSettings
from offrank.algorithms.guided import Guided
from offrank.algorithms.rankers import OnPolicy
from offrank.core.arrays import FloatArray, part
from offrank.core.errors import UsageError
from offrank.core.noise import Role
from offrank.core.rollouts import Request
from offrank.core.space import Space
from offrank.core.state import State
from offrank.core.work import Lesson
from offrank.policies import make_policy
from offrank.policies.trained import TrainedPolicy
from offrank.runs.recipe import resolve

TASK = "toy_envs:Point-v0"  # two observations, two actions, episodes of 20 steps
N_OBS, N_ACT, HORIZON = 4, 2, 12
BOX = Space(N_OBS, N_ACT, HORIZON, low=-np.ones(N_ACT), high=np.ones(N_ACT))
SMALL: dict[str, Any] = {
    "hidden": 8,
    "batch": 4,
    "warmup_steps": 10,
    "teacher": "skip:4",
    "teacher_steps": 50,
    "copy_rounds": 2,
    "copy_episodes": 3,
    "n_directions": 3,
    "n_top": 2,
}


def distilled(policy: str = "linear", **settings: Any) -> Distilled:
    how = DistilledSettings(**(SMALL | settings))
    return Distilled(BOX, make_policy(policy, N_OBS, N_ACT), Episodes(HORIZON, train_horizon=8), how, OnPolicy())


def iterate(algorithm: Distilled, state: State, iterations: int) -> tuple[list[State], list[list[Any]], list[Any]]:
    """The states after each iteration, the work of each, and the log."""
    engine = FunctionEngine(linear_system(N_OBS, N_ACT), N_OBS, N_ACT, HORIZON)
    engine.space = algorithm.space
    states, asked, log = [], [], []
    for _ in range(iterations):
        work: list[Any] = []

        def carry_out(one: Any, work: list[Any] = work) -> Any:
            work.append(one)
            return one.carry_out() if isinstance(one, Lesson) else engine.run(one)

        iteration = algorithm.iteration(state)
        try:
            outcome = carry_out(next(iteration))
            while True:
                outcome = carry_out(iteration.send(outcome))
        except StopIteration as done:
            state, metrics = done.value
        requests = [one for one in work if isinstance(one, Request)]
        state = state.counted(sum(len(one) * one.horizon for one in requests), sum(map(len, requests)))
        states.append(state)
        asked.append(work)
        log.append(metrics)
    return states, asked, log


def test_it_teaches_then_copies_then_searches() -> None:
    algorithm = distilled()
    _, asked, log = iterate(algorithm, algorithm.start(0), 9)
    kinds = [work[0].policy.name for work in asked]
    assert kinds == ["skip:4"] * 5 + ["linear"] * 4  # four of the teacher's lessons, its round, two of the student's
    roles = [set(work[0].roles.tolist()) for work in asked]
    assert roles == [{Role.MEMBER}] * 4 + [{Role.BEHAVIOUR}] * 3 + [{Role.PLUS, Role.MINUS}] * 2
    assert [work[0].horizon for work in asked] == [8] * 4 + [HORIZON] + [8] * 2 + [HORIZON] * 2
    assert ["copy_error" in metrics for metrics in log] == [False] * 4 + [True] * 3 + [False] * 2
    assert ["sigma_R" in metrics for metrics in log] == [False] * 7 + [True] * 2
    assert any(isinstance(one, Lesson) for one in asked[1]) and not any(isinstance(one, Lesson) for one in asked[5])


def test_the_teacher_learns_as_guided_does() -> None:
    algorithm = distilled()
    states, _, _ = iterate(algorithm, algorithm.start(3), 4)
    alone = Guided(BOX, make_policy("skip:4", N_OBS, N_ACT), algorithm.episodes, algorithm.settings, OnPolicy())  # type: ignore[arg-type]
    others, _, _ = iterate(alone, alone.start(3), 4)  # type: ignore[arg-type]
    own = part(states[-1].memory, "teacher.")
    assert set(own) == set(others[-1].memory)
    assert all(np.array_equal(own[name], array) for name, array in others[-1].memory.items())


@pytest.mark.parametrize("policy", ["linear", "affine"])
def test_the_student_is_the_least_squares_fit_to_the_teachers_actions_at_all_states_seen(policy: str) -> None:
    algorithm = distilled(policy)
    engine = FunctionEngine(linear_system(N_OBS, N_ACT), N_OBS, N_ACT, HORIZON)
    before, asked, log = iterate(algorithm, algorithm.start(0), 7)
    seen: list[FloatArray] = []
    teacher, theta = algorithm.teacher.kind, before[3].memory["teacher.actor.theta"].astype(float)
    whitening = before[3].normalizer.freeze()
    for k, (work,) in enumerate(asked[4:7]):
        rollouts = engine.run(work)
        z = whitening(np.concatenate([trajectory.observations for trajectory in rollouts.trajectories]))
        wanted = np.clip(teacher.act(theta, z), -1, 1)
        if k:  # how far the policy that ran was from the teacher, at the states it came to
            latest = np.clip(algorithm.kind.act(before[3 + k].memory["copy.latest"], z), -1, 1)
            assert log[4 + k]["copy_error"] == pytest.approx(np.mean((latest - wanted) ** 2))
        seen.append(z)
        z = np.concatenate(seen)
        x = np.c_[z, np.ones(len(z))] if policy == "affine" else z
        x = np.r_[x, np.sqrt(RIDGE * len(x)) * np.eye(x.shape[1])]
        y = np.r_[np.clip(teacher.act(theta, z), -1, 1), np.zeros((x.shape[1], N_ACT))]
        fitted = np.linalg.lstsq(x, y, rcond=None)[0]
        here = algorithm.kind.layers(before[4 + k].memory["copy.latest"])[0]
        np.testing.assert_allclose(here.weights, fitted[:N_OBS].T, atol=1e-9)
        if policy == "affine":
            np.testing.assert_allclose(here.bias, fitted[N_OBS], atol=1e-9)
    assert before[6].normalizer == before[3].normalizer  # fits are of the same normalised states


def test_the_search_starts_from_the_best_copy() -> None:
    algorithm = distilled(copy_rounds=5)
    states, asked, log = iterate(algorithm, algorithm.start(1), 11)
    assert [work[0].policy.name for work in asked[5:11]] == ["linear"] * 6
    returns = [metrics["return_mean"] for metrics in log[5:10]]
    best = int(np.argmax(returns))
    assert 0 <= best < 4 and len(set(returns)) == 5, "the last copy is the best: another seed would tell more"
    ran = asked[5 + best][0].theta(0)
    np.testing.assert_array_equal(states[9].memory["theta"], ran)
    np.testing.assert_array_equal(asked[10][0].candidates.center, ran)
    assert states[9].memory["copy.best"] == returns[best]


def test_what_the_teacher_learned_from_is_dropped_when_it_is_copied() -> None:
    algorithm = distilled()
    states, _, _ = iterate(algorithm, algorithm.start(0), 9)
    rows = [len(state.memory["teacher.replay.gain"]) for state in states]
    assert rows[:4] == [18, 36, 54, 72] and rows[4:] == [0] * 5
    for state in states:
        state.check(algorithm.start(0))  # as a checkpoint is checked: the same arrays all along


def test_before_there_is_a_copy_the_policy_acts_as_zero() -> None:
    algorithm = distilled()
    states, _, _ = iterate(algorithm, algorithm.start(0), 6)
    acts = [algorithm.policy(state).raw(np.ones(N_OBS)).any() for state in states]
    assert acts == [False] * 5 + [True] and algorithm.policy(states[-1]).kind.name == "linear"


def test_a_policy_to_start_from_is_the_teachers() -> None:
    kind = make_policy("skip:4", N_OBS, N_ACT)
    wise = 0.3 * np.random.default_rng(0).normal(size=kind.size)
    start = distilled().start(0)
    init = TrainedPolicy.for_space(BOX, kind, wise, start.normalizer.freeze())
    algorithm = distilled(teacher_steps=0)
    _, asked, _ = iterate(algorithm, algorithm.start(0, init), 2)
    np.testing.assert_allclose(asked[0][0].theta(0), wise, rtol=1e-6)
    assert asked[1][0].policy.name == "linear"
    with pytest.raises(UsageError, match="the initial policy is skip:4, not skip:5"):
        distilled(teacher="skip:5").start(0, init)


def agent(seed: int = 0, **how: Any) -> offrank.Distilled:
    return offrank.Distilled(TASK, seed=seed, workers=0, train_horizon=8, **(SMALL | {"step_noise": 0.1} | how))


def test_init_does_not_change_the_kind_that_is_trained(tmp_path: Path) -> None:
    first = offrank.Guided(TASK, policy="skip:4", workers=0, hidden=8, batch=4, warmup_steps=10, train_horizon=8)
    first.learn(iterations=3, eval_every=0).save(tmp_path / "first.offrank")
    second = agent(init=tmp_path / "first.offrank", teacher_steps=0).learn(iterations=4, eval_every=0)
    assert second.policy.kind.name == "linear" and second.policy.theta.any()


@pytest.mark.parametrize("at", [2, 4, 5, 7, 8])
def test_resume_equals_uninterrupted(at: int, tmp_path: Path) -> None:
    """In the middle of teaching, of copying and of the search, and where one becomes the other."""
    whole = agent().learn(iterations=9, eval_every=0)
    agent().learn(iterations=at, eval_every=0, out=tmp_path, checkpoint_seconds=0.0)
    resumed = agent().learn(iterations=9, eval_every=0, out=tmp_path, resume=True)
    assert resumed.policy.sha256 == whole.policy.sha256
    assert resumed.result["steps"] == whole.result["steps"]


def test_it_learns_to_reach_the_point() -> None:
    """From nothing to a linear policy that is better than standing still."""
    how: dict[str, Any] = {"teacher_steps": 1500, "hidden": 32, "batch": 64, "warmup_steps": 200, "copy_episodes": 8}
    learner = agent(**how, n_directions=8, n_top=4, actor_rate=3e-3)
    standing = learner.evaluate(20)["mean"]
    iterations = -(-1500 // 16) + 3
    copied = learner.learn(iterations=iterations, eval_every=0).evaluate(20)["mean"]
    assert copied > 0.5 * standing  # returns are negative: the copy halves what standing still costs


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"teacher_steps": -1}, "teacher_steps = -1: must be at least 0"),
        ({"copy_rounds": 0}, "copy_rounds = 0: must be at least 1"),
        ({"copy_episodes": 0}, "copy_episodes = 0: must be at least 1"),
        ({"n_top": 4}, "n_top = 4 is more than n_directions = 3"),
        ({"step_size": 0.0}, "step_size"),
        ({"teacher": "skipp:4"}, "unknown policy 'skipp:4'"),
        ({"policy": "skip:8"}, "distilled fits linear and affine policies, not skip:8: guided trains those"),
    ],
)
def test_bad_settings_get_a_clear_error(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        agent(**wrong)


def test_the_teacher_has_the_presets_of_guided() -> None:
    guided, here = resolve("Hopper-v3", "guided"), resolve("Hopper-v3", "distilled")
    assert here.hyperparameters["ratio"] == guided.hyperparameters["ratio"] == 2
    assert here.sources["ratio"] == guided.sources["ratio"]
    assert here.episodes == guided.episodes | {"probe_share": 0.2} and here.policy == "linear"


def test_where_you_run_the_episodes_it_comes_to_the_same_policy() -> None:
    """Episodes of both kinds of policy go through ask and tell."""
    limits: dict[str, Any] = {"low": -2.0, "high": 2.0, "horizon": 20, "iterations": 9, "eval_every": 0}
    run = offrank.AskTell(offrank.Distilled, 2, 2, **SMALL, train_horizon=8, **limits)
    while not run.done:
        for episode in run.ask():
            run.tell(episode, **perform(episode))
    assert run.policy.sha256 == agent(step_noise=0.0).learn(iterations=9, eval_every=0).policy.sha256
