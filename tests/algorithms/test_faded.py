"""Fading: the actor learns as `guided` does, its hidden layer goes as the settings say, and what is left is linear."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offrank
from helpers import FunctionEngine, linear_system, perform
from offrank.algorithms.base import Episodes
from offrank.algorithms.faded import Faded, FadedSettings
from offrank.algorithms.guided import Guided
from offrank.algorithms.learning.actor_critic import ActorCriticLesson
from offrank.algorithms.rankers import MEMBER_RANKERS
from offrank.core.arrays import FloatArray
from offrank.core.errors import UsageError
from offrank.core.rollouts import Request
from offrank.core.space import Space
from offrank.core.state import State
from offrank.policies import make_policy
from offrank.policies.trained import TrainedPolicy
from offrank.runs.recipe import resolve

TASK = "toy_envs:Point-v0"  # two observations, two actions, episodes of 20 steps
N_OBS, N_ACT, HORIZON = 4, 2, 12
BOX = Space(N_OBS, N_ACT, HORIZON, low=-np.ones(N_ACT), high=np.ones(N_ACT))
SMALL: dict[str, Any] = {"hidden": 8, "batch": 4, "warmup_steps": 10, "actor_rate": 1e-2, "begins_as": "skip:4"}
FADES: dict[str, Any] = {"fade_from": 96, "fade_to": 192}  # after 4 and 8 iterations of two episodes of 12 steps
RANDOM = MEMBER_RANKERS["random"]()


def faded(policy: str = "linear", **settings: Any) -> Faded:
    how = FadedSettings(**(SMALL | FADES | settings))
    return Faded(BOX, make_policy(policy, N_OBS, N_ACT), Episodes(HORIZON), how, RANDOM)


def iterate(algorithm: Guided, iterations: int, state: State | None = None) -> tuple[list[State], list[list[Any]]]:
    """The states, the first one included, and the work of each iteration."""
    engine, states, asked = FunctionEngine(linear_system(N_OBS, N_ACT), N_OBS, N_ACT, HORIZON), [], []
    engine.space, state = BOX, state or algorithm.start(0)
    for _ in range(iterations):
        states.append(state)
        asked.append([])
        iteration, outcome = algorithm.iteration(state), None
        while True:
            try:
                work = next(iteration) if outcome is None else iteration.send(outcome)
            except StopIteration as done:
                state = done.value[0].counted(2 * HORIZON, 2)
                break
            asked[-1].append(work)
            outcome = engine.run(work) if isinstance(work, Request) else work.carry_out()
    return [*states, state], asked


def hidden(algorithm: Faded, theta: FloatArray) -> float:
    """The norm of V."""
    return float(np.linalg.norm(algorithm.actor.layers(theta)[-1].weights))


def test_until_it_fades_it_is_guided_bit_by_bit() -> None:
    algorithm = faded()
    alone = Guided(BOX, algorithm.actor, algorithm.episodes, algorithm.settings, RANDOM)
    ours, theirs = iterate(algorithm, 3)[0][-1], iterate(alone, 3)[0][-1]
    assert hidden(algorithm, ours.memory["actor.theta"]) > 0.1
    assert set(ours.memory) == {*theirs.memory, "begun"}
    assert all(np.array_equal(array, ours.memory[name]) for name, array in theirs.memory.items())


def test_the_hidden_layer_fades_as_the_steps_go_and_what_is_left_is_linear() -> None:
    algorithm = faded()
    states, asked = iterate(algorithm, 11)
    norms = [hidden(algorithm, state.memory["actor.theta"]) for state in states]
    assert norms[2] < norms[3] < norms[4]  # it grows while it may
    for k in range(4, 8):
        assert 0 < norms[k] <= norms[4] * ((8 - k) / 4) ** 3 * 1.0001
    assert norms[7] > 0 and norms[8:] == [0.0] * 4
    z = np.random.default_rng(0).normal(size=(50, N_OBS))
    for state, linear in ((states[6], False), (states[8], True), (states[11], True)):
        actions = algorithm.actor.act(state.memory["actor.theta"].astype(float), z)
        ours = algorithm.policy(state)
        assert ours.kind.name == "linear"
        assert np.allclose(ours.kind.act(ours.theta, z), actions, rtol=0, atol=1e-12) == linear
    assert not np.array_equal(states[8].memory["actor.theta"], states[11].memory["actor.theta"])  # it learns on
    ran = [hidden(algorithm, work[0].theta(0)) for work in asked]
    assert ran[4] > 0 and ran[8:] == [0.0] * 3  # the policies that are run become linear, too


def test_before_it_fades_critics_and_replay_begin_anew_and_the_actor_does_not() -> None:
    algorithm = faded(warmup_steps=30)  # so 60 steps before it fades, after the second iteration
    states, asked = iterate(algorithm, 6)
    before, after = states[2].memory, states[3].memory
    assert int(before["critic.step"]) > 0 == int(after["critic.step"])  # a warm-up, without lessons
    assert asked[1][-1].updates > 0 and all(isinstance(work, Request) for work in asked[2])
    start = algorithm.start(0).memory
    assert all(np.array_equal(after[name], start[name]) for name in start if name.startswith("critic."))
    assert np.array_equal(after["actor.theta"], before["actor.theta"]) and before["actor.first"].any()
    assert not after["actor.first"].any() and after["near"]
    rows = [len(state.memory["replay.gain"]) for state in states[:5]]
    assert rows == [0, 26, 52, 26, 52]  # two episodes of 12 steps and their last states
    assert [int(state.memory["replay.written"]) for state in states[:5]] == [0, 26, 52, 78, 104]
    lesson = asked[3][-1]
    assert isinstance(lesson, ActorCriticLesson) and lesson.alone == 24  # for the steps of the warm-up
    assert int(states[6].memory["begun"]) == 48  # once


def test_a_run_that_begins_where_it_fades_begins_no_second_time() -> None:
    states, _ = iterate(faded(warmup_steps=48), 4)
    assert [len(state.memory["replay.gain"]) for state in states] == [0, 26, 52, 78, 104]


def test_a_limit_on_the_norm_holds_after_every_update_and_changes_nothing_else() -> None:
    algorithm = faded()
    states, asked = iterate(algorithm, 6)
    lesson = next(work for work in asked[5] if isinstance(work, ActorCriticLesson))
    assert lesson.limit == pytest.approx(hidden(algorithm, states[5].memory["actor.theta"]) * (2 / 3) ** 3, rel=1e-6)
    out = lesson.carry_out()
    assert hidden(algorithm, out["actor.theta"]) <= lesson.limit * 1.0001
    free, loose = (replace(lesson, limit=limit).carry_out() for limit in (None, np.inf))
    assert hidden(algorithm, free["actor.theta"]) > lesson.limit * 1.1
    assert all(np.array_equal(array, loose[name]) for name, array in free.items())


def test_a_policy_to_start_from_is_the_actors() -> None:
    kind, start = make_policy("skip:4", N_OBS, N_ACT), faded().start(0)
    wise = 0.3 * np.random.default_rng(0).normal(size=kind.size)
    init = TrainedPolicy.for_space(BOX, kind, wise, start.normalizer.freeze())
    algorithm = faded(fade_from=0, fade_to=48)
    states, _ = iterate(algorithm, 2, algorithm.start(0, init))
    np.testing.assert_allclose(states[0].memory["actor.theta"], wise, rtol=1e-6)
    assert hidden(algorithm, states[2].memory["actor.theta"]) == 0
    with pytest.raises(UsageError, match="the initial policy is skip:4, not skip:5"):
        faded(begins_as="skip:5").start(0, init)


def agent(seed: int = 0, **how: Any) -> offrank.Faded:
    small = SMALL | {"step_noise": 0.1, "fade_from": 64, "fade_to": 128, "train_horizon": 8}
    return offrank.Faded(TASK, seed=seed, workers=0, **(small | how))


def test_init_does_not_change_the_kind_that_is_trained(tmp_path: Path) -> None:
    first = offrank.Guided(TASK, policy="skip:4", workers=0, hidden=8, batch=4, warmup_steps=10, train_horizon=8)
    first.learn(iterations=3, eval_every=0).save(tmp_path / "first.offrank")
    second = agent(init=tmp_path / "first.offrank", fade_from=0, fade_to=32).learn(iterations=4, eval_every=0)
    assert second.policy.kind.name == "linear" and second.policy.theta.any()


@pytest.mark.parametrize("at", [3, 5, 9])
def test_resume_equals_uninterrupted(at: int, tmp_path: Path) -> None:
    """Before it fades, while it does, and after."""
    whole = agent().learn(iterations=11, eval_every=0)
    agent().learn(iterations=at, eval_every=0, out=tmp_path, checkpoint_seconds=0.0)
    resumed = agent().learn(iterations=11, eval_every=0, out=tmp_path, resume=True)
    assert resumed.policy.sha256 == whole.policy.sha256
    assert resumed.result["steps"] == whole.result["steps"]


def test_it_learns_to_reach_the_point() -> None:
    """From nothing to a linear policy that is far better than standing still."""
    how: dict[str, Any] = {"hidden": 32, "batch": 64, "warmup_steps": 200, "fade_from": 800, "fade_to": 1600}
    learner = agent(**how, actor_rate=3e-3)
    standing = learner.evaluate(20)["mean"]
    assert learner.learn(total_steps=2000, eval_every=0).evaluate(20)["mean"] > 0.5 * standing  # returns are negative


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"fade_from": -1}, "fade_from = -1, fade_to = 128: the first must be less than the second"),
        ({"fade_to": 64}, "fade_from = 64, fade_to = 64: the first must be less than the second"),
        ({"begins_as": "skipp:4"}, "unknown policy 'skipp:4'"),
        ({"begins_as": "mlp:4"}, "begins_as = mlp:4: must be skip:W, which is linear without its hidden layer"),
        ({"policy": "affine"}, "faded ends with a linear policy, not affine: guided trains those"),
    ],
)
def test_bad_settings_get_a_clear_error(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        agent(**wrong)


def test_it_has_the_presets_of_guided() -> None:
    guided, here = resolve("Hopper-v3", "guided"), resolve("Hopper-v3", "faded")
    assert here.hyperparameters["ratio"] == guided.hyperparameters["ratio"] == 2
    assert here.sources["ratio"] == guided.sources["ratio"]
    assert here.episodes == guided.episodes and here.policy == "linear"


def test_where_you_run_the_episodes_it_comes_to_the_same_policy() -> None:
    limits: dict[str, Any] = {"low": -2.0, "high": 2.0, "horizon": 20, "iterations": 9, "eval_every": 0}
    settings = SMALL | {"fade_from": 64, "fade_to": 128, "train_horizon": 8}
    run = offrank.AskTell(offrank.Faded, 2, 2, **settings, **limits)
    while not run.done:
        for episode in run.ask():
            run.tell(episode, **perform(episode))
    assert run.policy.sha256 == agent(step_noise=0.0).learn(iterations=9, eval_every=0).policy.sha256
