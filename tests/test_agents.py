from __future__ import annotations

import copy
import json
import pickle
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import offrank
import toy_envs
from offrank import EpisodeError, FileFormatError, UsageError
from offrank.policies.trained import TrainedPolicy

POINT = "toy_envs:Point-v0"
SMALL: dict[str, Any] = {"n_directions": 4, "n_top": 2, "horizon": 10, "workers": 0}
BRIEF: dict[str, Any] = {"eval_every": 2, "eval_episodes": 3}


def agent(env: Any = POINT, algorithm: type = offrank.OPARS, **options: Any):
    return algorithm(env, **(SMALL | options))


def records(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "wall_s"} for line in lines]


class Log(list):
    """A callback that keeps the records, and stops the run after some of them."""

    def __init__(self, stop_after: int | None = None):
        super().__init__()
        self.stop_after = stop_after

    def __call__(self, run: Any, record: dict[str, Any]) -> bool | None:
        self.append(record)
        return False if len(self) == self.stop_after else None


# --- learning


@pytest.mark.parametrize("algorithm", [offrank.OPARS, offrank.ARS])
def test_an_agent_improves(algorithm) -> None:
    learner = algorithm(POINT, seed=0, workers=0, step_size=0.2, noise_std=0.1)
    before = learner.evaluate(20)["mean"]
    learner.learn(iterations=25, eval_every=0)
    after = learner.evaluate(20)["mean"]
    assert after > 0.5 * before  # returns are negative: at least half way to 0


@pytest.mark.parametrize("algorithm", [offrank.OPARS, offrank.ARS])
def test_the_seed_determines_the_policy(algorithm) -> None:
    shas = [agent(algorithm=algorithm, seed=s).learn(iterations=3, **BRIEF).policy.sha256 for s in (0, 0, 1)]
    assert shas[0] == shas[1] != shas[2]


def test_the_algorithms_differ() -> None:
    on, off = (agent(algorithm=a).learn(iterations=3, eval_every=0) for a in (offrank.ARS, offrank.OPARS))
    assert on.policy.sha256 != off.policy.sha256
    random = agent(algorithm=offrank.OPARS, ranker="random").learn(iterations=3, eval_every=0)
    few = agent(algorithm=offrank.ARS, n_directions=2).learn(iterations=3, eval_every=0)
    assert random.policy.sha256 == few.policy.sha256


def test_evaluation_does_not_change_what_is_learned() -> None:
    often, never = (agent().learn(iterations=4, eval_every=k, eval_episodes=2) for k in (1, 0))
    assert often.policy.sha256 == never.policy.sha256
    assert often.result["steps"] == never.result["steps"]
    assert often.result["evaluation_steps"] == 4 * 2 * 10
    assert never.result["evaluation_steps"] == 0


def test_an_id_an_environment_and_a_factory_learn_the_same() -> None:
    by_id = agent(POINT)
    by_object = agent(gym.make(POINT))
    by_class = agent(toy_envs.Point)
    by_lambda = agent(lambda: gym.make(POINT))
    agents = (by_id, by_object, by_class, by_lambda)
    assert len({a.learn(iterations=3, eval_every=0).policy.sha256 for a in agents}) == 1


def test_workers_do_not_change_the_bits() -> None:
    shas = set()
    for env in (POINT, partial(toy_envs.Point, target=0.0)):
        for workers in (0, 2):
            learner = agent(env, workers=workers)
            shas.add(learner.learn(iterations=2, **BRIEF).policy.sha256)
            learner.close()
    assert len(shas) == 1


def test_env_args_reach_the_environment() -> None:
    there = agent(env_args={"target": 5.0}).learn(iterations=2, eval_every=0)
    here = agent().learn(iterations=2, eval_every=0)
    by_factory = agent(lambda: toy_envs.Point(target=5.0)).learn(iterations=2, eval_every=0)
    assert there.policy.sha256 == by_factory.policy.sha256 != here.policy.sha256


def test_a_dict_observation_is_flattened() -> None:
    nested, plain = (agent(env).learn(iterations=2, eval_every=0) for env in ("toy_envs:DictPoint-v0", POINT))
    assert nested.policy.sha256 == plain.policy.sha256


def test_discrete_actions_learn_on_policy() -> None:
    learner = offrank.ARS("toy_envs:Choice-v0", workers=0, step_size=0.2, noise_std=0.3)
    before = learner.evaluate(30)["mean"]
    learner.learn(iterations=20, eval_every=0)
    assert learner.evaluate(30)["mean"] > before
    action, _ = learner.predict(np.array([1.0, 0.0]))
    assert action in (0, 1, 2)
    actions, _ = learner.predict(np.zeros((5, 2)))
    assert actions.shape == (5,)


def test_predict_gives_actions_of_a_discrete_space_that_starts_elsewhere() -> None:
    learner = agent("toy_envs:Choice-v0", offrank.ARS, env_args={"start": 7}).learn(iterations=2, eval_every=0)
    observations = np.random.default_rng(0).normal(size=(20, 2))
    actions, _ = learner.predict(observations)
    assert set(actions.tolist()) <= {7, 8, 9}


@pytest.mark.parametrize("algorithm", [offrank.ARS, offrank.OPARS, offrank.Guided])
def test_actions_with_several_discrete_parts(algorithm: type, tmp_path: Path) -> None:
    small = {"warmup_steps": 40, "hidden": 16, "batch": 16} if algorithm is offrank.Guided else {"step_size": 0.2}
    learner = algorithm("toy_envs:Choices-v0", workers=0, **small)
    before = learner.evaluate(30)["mean"]
    learner.learn(iterations=20, eval_every=0)
    assert learner.evaluate(30)["mean"] > before
    observations = np.random.default_rng(0).normal(size=(40, 2))
    actions, _ = learner.predict(observations)
    outputs = learner.policy.raw(observations)
    assert actions.shape == (40, 2) and np.array_equal(actions[:, 1], outputs[:, 3:].argmax(axis=1))
    assert np.array_equal(learner.predict(observations[0])[0], actions[0])
    learner.save(tmp_path / "a.offrank")
    assert np.array_equal(offrank.load(tmp_path / "a.offrank").predict(observations)[0], actions)
    offrank.export(learner, "json", tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["choices"] == [3, 2]


def test_choices_of_a_file_are_checked_and_must_be_those_of_the_environment() -> None:
    policy = offrank.ARS("toy_envs:Choices-v0", workers=0).policy
    for wrong in ((3, 3), (5, 0), (6, -1)):
        with pytest.raises(FileFormatError, match="the policy has 5 outputs"):
            TrainedPolicy.from_arrays(policy.arrays() | {"policy.choices": np.array(wrong)})
    other = replace(offrank.ARS("toy_envs:Choice-v0", workers=0).policy, choices=(2, 1))
    with pytest.raises(UsageError, match="have the choices 2, 1: this environment's one part"):
        offrank.ARS("toy_envs:Choice-v0", workers=0, init=other)
    with pytest.raises(UsageError, match="have the choices one part: this environment's 3, 2"):
        offrank.ARS("toy_envs:Choices-v0", workers=0, init=replace(policy, choices=()))


@pytest.mark.parametrize("algorithm", [offrank.OPARS, offrank.QARS, offrank.OPTRES, offrank.OPES])
def test_rankers_compare_the_outputs_of_discrete_actions(algorithm: type) -> None:
    learner = algorithm("toy_envs:Choice-v0", workers=0).learn(iterations=3, eval_every=0)
    assert learner.result["iterations"] == 3 and np.abs(learner.policy.theta).max() > 0


@pytest.mark.parametrize("task", ["HalfCheetah-v3", "Hopper-v3"])
def test_an_action_of_guided_is_in_the_space_of_our_environment(task: str) -> None:
    learner, space = offrank.Guided(task, seed=0), gym.make(f"offrank/{task}").action_space
    observations = np.random.default_rng(0).normal(size=(5, learner.engine.space.obs_dim))
    far = replace(learner.policy, theta=np.full_like(learner.policy.theta, 10.0))
    assert all(space.contains(policy.predict(one)) for policy in (learner.policy, far) for one in observations)


# --- repeated calls and resume


def test_learn_called_twice_equals_once(tmp_path) -> None:
    once = agent().learn(iterations=6, out=tmp_path / "once", **BRIEF)
    twice = agent()
    twice.learn(iterations=3, out=tmp_path / "twice", **BRIEF)
    twice.learn(iterations=6, out=tmp_path / "twice", **BRIEF)
    assert once.policy.sha256 == twice.policy.sha256
    assert once.best_policy.sha256 == twice.best_policy.sha256
    assert records(tmp_path / "once") == records(tmp_path / "twice")


def test_learn_called_twice_in_memory_equals_once() -> None:
    once, twice = agent().learn(iterations=5, **BRIEF), agent()
    for iterations in (1, 3, 5):
        twice.learn(iterations=iterations, **BRIEF)
    assert once.policy.sha256 == twice.policy.sha256
    assert once.result["best_return"] == twice.result["best_return"]


def test_total_steps_counts_from_the_beginning() -> None:
    learner = agent()
    a_round = 10 * (1 + 2 * 2)
    learner.learn(total_steps=a_round + 1, eval_every=0)
    assert learner.result["steps"] == 2 * a_round
    assert learner.result["stop_reason"] == "steps"
    learner.learn(total_steps=a_round, eval_every=0)
    assert learner.result["steps"] == 2 * a_round
    learner.learn(total_steps=3 * a_round, eval_every=0)
    assert learner.result["steps"] == 3 * a_round


def test_out_and_resume_equal_uninterrupted(tmp_path) -> None:
    agent().learn(iterations=3, out=tmp_path / "run", **BRIEF)
    resumed = agent().learn(iterations=6, out=str(tmp_path / "run"), resume=True, **BRIEF)
    whole = agent().learn(iterations=6, out=tmp_path / "whole", **BRIEF)
    assert resumed.policy.sha256 == whole.policy.sha256
    assert records(tmp_path / "run") == records(tmp_path / "whole")


def test_the_command_line_can_continue_a_run_of_an_agent(tmp_path, capsys) -> None:
    from offrank.cli import main

    learner = agent().learn(iterations=3, out=tmp_path / "run", **BRIEF)
    assert main(["evaluate", str(tmp_path / "run"), "--which", "final", "--workers", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy_sha256"] == learner.policy.sha256
    words = ["--iterations", "5", "--workers", "0", "--out", str(tmp_path / "run"), "--resume", "--json"]
    assert main(["train", POINT, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["policy_sha256"] == learner.learn(iterations=5, **BRIEF).policy.sha256


def test_out_that_holds_a_run_is_refused_without_resume(tmp_path) -> None:
    agent().learn(iterations=1, out=tmp_path / "run", **BRIEF)
    before = (tmp_path / "run" / "checkpoint.npz").read_bytes()
    other = agent(seed=1)
    for _ in range(2):
        with pytest.raises(UsageError, match="already holds a run: pass resume=True"):
            other.learn(iterations=1, out=tmp_path / "run", **BRIEF)
        with pytest.raises(UsageError, match="its seed is 0, not 1"):
            other.learn(iterations=1, out=tmp_path / "run", resume=True, **BRIEF)
    assert (tmp_path / "run" / "checkpoint.npz").read_bytes() == before
    assert other.learn(iterations=1, out=tmp_path / "own", **BRIEF).result["iterations"] == 1


def test_a_second_folder_gets_the_rest_of_the_run(tmp_path) -> None:
    learner = agent().learn(iterations=2, out=tmp_path / "first", **BRIEF)
    learner.learn(iterations=4, out=tmp_path / "second", **BRIEF)
    assert [r["iteration"] for r in records(tmp_path / "second") if r["kind"] == "iteration"] == [3, 4]
    assert learner.policy.sha256 == agent().learn(iterations=4, eval_every=0).policy.sha256


def test_resume_takes_up_the_folder_not_what_the_agent_learned(tmp_path) -> None:
    agent().learn(iterations=1, out=tmp_path / "run", eval_every=5, eval_episodes=2)
    learner = agent().learn(iterations=5, eval_every=5, eval_episodes=2)
    learner.learn(iterations=2, out=tmp_path / "run", resume=True, eval_every=5, eval_episodes=2)
    assert learner.result["iterations"] == 2
    assert learner.policy.sha256 == agent().learn(iterations=2, eval_every=0).policy.sha256


def test_an_out_that_cannot_be_a_folder_is_refused(tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UsageError, match="file"):
            agent().learn(iterations=1, out=out, **BRIEF)


# --- callbacks


def test_a_callback_sees_every_record(tmp_path) -> None:
    log = Log()
    agent().learn(iterations=3, callback=log, out=tmp_path, **BRIEF)
    assert [(r["kind"], r["iteration"]) for r in log] == [
        ("iteration", 1),
        ("iteration", 2),
        ("evaluation", 2),
        ("iteration", 3),
        ("evaluation", 3),
    ]
    assert records(tmp_path) == [{k: v for k, v in r.items() if k != "wall_s"} for r in log]


def test_a_callback_that_returns_false_stops_and_learning_can_continue() -> None:
    learner = agent()
    learner.learn(iterations=6, callback=Log(stop_after=2), eval_every=0)
    assert (learner.result["stop_reason"], learner.result["iterations"]) == ("stopped", 2)
    learner.learn(iterations=6, eval_every=0)
    assert learner.result["stop_reason"] == "iterations"
    assert learner.policy.sha256 == agent().learn(iterations=6, eval_every=0).policy.sha256


def test_a_callback_gets_the_run() -> None:
    seen = []
    agent().learn(iterations=2, eval_every=0, callback=lambda run, record: seen.append(run.policy.sha256))
    shorter = agent().learn(iterations=1, eval_every=0)
    assert len(seen) == 2
    assert seen[0] == shorter.policy.sha256


def test_the_threshold_stops() -> None:
    learner = agent().learn(threshold=-1e9, **BRIEF)
    assert learner.result["stop_reason"] == "threshold"
    assert learner.result["reached"] is True
    assert learner.result["iterations"] == 2


def test_a_failing_episode_leaves_a_good_agent(tmp_path) -> None:
    class Fragile(toy_envs.Point):
        broken = False

        def step(self, action):
            if self.broken:
                raise RuntimeError("arm stuck")
            return super().step(action)

    env = Fragile()
    learner = agent(env).learn(iterations=2, eval_every=0, out=tmp_path / "run")
    env.broken = True
    with pytest.raises(EpisodeError, match="arm stuck"):
        learner.learn(iterations=4, eval_every=0)
    env.broken = False
    learner.learn(iterations=4, eval_every=0)
    assert learner.policy.sha256 == agent(env).learn(iterations=4, eval_every=0).policy.sha256


def test_progress_is_shown_only_when_asked_for(capsys) -> None:
    agent().learn(iterations=2, **BRIEF)
    assert capsys.readouterr().err == ""
    agent().learn(iterations=2, progress=True, **BRIEF)
    assert "iteration 2" in capsys.readouterr().err


# --- saving


def test_training_continues_after_load_to_the_same_bits(tmp_path) -> None:
    agent().learn(iterations=3, **BRIEF).save(tmp_path / "a.offrank")
    loaded = offrank.load(tmp_path / "a.offrank", workers=0)
    assert isinstance(loaded, offrank.OPARS)
    loaded.learn(iterations=6, **BRIEF)
    whole = agent().learn(iterations=6, **BRIEF)
    assert loaded.policy.sha256 == whole.policy.sha256
    assert loaded.best_policy.sha256 == whole.best_policy.sha256
    assert loaded.result["steps"] == whole.result["steps"]
    assert loaded.hyperparameters == whole.hyperparameters


def test_the_best_policy_may_be_that_of_the_evaluation_at_the_end(tmp_path) -> None:
    each = {"eval_every": 2, "eval_episodes": 3}
    ended = [agent(seed=seed).learn(iterations=3, **each) for seed in range(4)]  # evaluated after 2 and at the end
    last_is_best = [one.result["best_return"] == one.result["final_return"] for one in ended]
    assert len(set(last_is_best)) == 2
    for one, best in zip(ended, last_is_best, strict=True):
        one.save(tmp_path / "a.offrank")
        loaded = offrank.load(tmp_path / "a.offrank", workers=0)
        assert (one.best_policy.sha256 == one.policy.sha256) == best
        assert loaded.best_policy.sha256 == one.best_policy.sha256
        assert loaded.result["best_return"] == one.result["best_return"]
    loaded.learn(iterations=6, **each)  # goes on as if there had been no end
    whole = agent(seed=3).learn(iterations=6, **each)
    assert loaded.best_policy.sha256 == whole.best_policy.sha256


def test_load_of_a_fresh_agent_starts_at_the_beginning(tmp_path) -> None:
    agent().save(tmp_path / "a.offrank")
    loaded = offrank.load(tmp_path / "a.offrank", workers=0).learn(iterations=2, eval_every=0)
    assert loaded.policy.sha256 == agent().learn(iterations=2, eval_every=0).policy.sha256


def test_load_of_a_run_folder_continues_the_run(tmp_path) -> None:
    agent(algorithm=offrank.ARS).learn(iterations=3, out=tmp_path / "run", **BRIEF)
    loaded = offrank.load(str(tmp_path / "run"), workers=0)
    assert isinstance(loaded, offrank.ARS)
    loaded.learn(iterations=5, out=tmp_path / "rest", **BRIEF)
    assert loaded.policy.sha256 == agent(algorithm=offrank.ARS).learn(iterations=5, **BRIEF).policy.sha256


def test_a_saved_agent_predicts_and_evaluates_the_same(tmp_path) -> None:
    learner = agent().learn(iterations=3, out=tmp_path / "run", **BRIEF)
    learner.save(tmp_path / "a.offrank")
    observations = np.random.default_rng(0).normal(size=(4, 2))
    for path in (tmp_path / "a.offrank", tmp_path / "run" / "final.offrank"):
        loaded = offrank.load(path, workers=0)
        assert np.array_equal(loaded.predict(observations)[0], learner.predict(observations)[0])
        assert loaded.evaluate(3) == learner.evaluate(3)


def test_a_policy_file_cannot_learn(tmp_path) -> None:
    agent().learn(iterations=1, out=tmp_path / "run", **BRIEF)
    loaded = offrank.load(tmp_path / "run" / "best.offrank", workers=0)
    with pytest.raises(UsageError, match="loaded from a policy file: load the run folder or checkpoint"):
        loaded.learn(iterations=2)
    with pytest.raises(UsageError, match="loaded from a policy file: it has no run"):
        _ = loaded.result
    loaded.save(tmp_path / "again.offrank")
    assert offrank.load(tmp_path / "again.offrank").policy.sha256 == loaded.policy.sha256


@pytest.mark.parametrize("env", [toy_envs.Point, lambda: toy_envs.Point(), toy_envs.Point()], ids=["class", "λ", "env"])
def test_an_environment_of_ones_own_is_given_again_on_load(tmp_path, env) -> None:
    learner = agent(env).learn(iterations=2, eval_every=0)
    learner.save(tmp_path / "a.offrank")
    with pytest.raises(UsageError, match=r"pass that to offrank\.load as env"):
        offrank.load(tmp_path / "a.offrank")
    whole = agent(env).learn(iterations=4, eval_every=0)
    for again in (env, POINT):
        loaded = offrank.load(tmp_path / "a.offrank", env=again, workers=0).learn(iterations=4, eval_every=0)
        assert loaded.policy.sha256 == whole.policy.sha256


def test_an_environment_of_another_size_is_refused_on_load(tmp_path) -> None:
    agent().save(tmp_path / "a.offrank")
    with pytest.raises(UsageError, match="maps 2 observations to 2 actions, the environment has 3 and 1"):
        offrank.load(tmp_path / "a.offrank", env="Pendulum-v1", workers=0)


@pytest.mark.parametrize("task", ["offrank/Swimmer-v3", "Pendulum-v1"])
def test_an_environment_object_of_a_known_id_loads_without_it(tmp_path, task) -> None:
    """Actions of an environment object are always clipped; that must not change when only its id is known."""
    options: dict[str, Any] = {"step_size": 20.0, "noise_std": 5.0, "n_directions": 2, "n_top": 1, "horizon": 5}
    learner = offrank.OPARS(gym.make(task), **options).learn(iterations=2, eval_every=0)
    learner.save(tmp_path / "a.offrank")
    learner.learn(iterations=3, eval_every=0)
    loaded = offrank.load(tmp_path / "a.offrank", workers=0).learn(iterations=3, eval_every=0)
    assert loaded.policy.sha256 == learner.policy.sha256


def test_env_args_survive_saving(tmp_path) -> None:
    options: dict[str, Any] = {"env_args": {"target": 2.0, "shape": (2,)}}
    agent(**options).learn(iterations=1, out=tmp_path / "run", **BRIEF)
    agent(**options).learn(iterations=2, out=tmp_path / "run", resume=True, **BRIEF)
    loaded = offrank.load(tmp_path / "run", workers=0).learn(iterations=3, eval_every=0)
    assert loaded.policy.sha256 == agent(**options).learn(iterations=3, eval_every=0).policy.sha256


def test_load_says_what_is_wrong_with_a_file(tmp_path) -> None:
    with pytest.raises(UsageError, match="there is no"):
        offrank.load(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="not a run folder"):
        offrank.load(tmp_path)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(FileFormatError, match="not an offrank file"):
        offrank.load(tmp_path / "text")


# --- predict and evaluate


def test_predict_takes_one_observation_or_many() -> None:
    learner = agent().learn(iterations=2, eval_every=0)
    one, state = learner.predict([0.5, -0.5])
    many, _ = learner.predict(np.array([[0.5, -0.5], [1.0, 1.0]]))
    assert state is None
    assert one.shape == (2,)
    assert many.shape == (2, 2)
    assert np.array_equal(one, many[0])
    assert np.array_equal(one, learner.predict([0.5, -0.5], deterministic=True)[0])


def test_predicted_actions_stay_in_the_box() -> None:
    learner = agent(step_size=50.0).learn(iterations=2, eval_every=0)
    actions, _ = learner.predict(1e3 * np.random.default_rng(0).normal(size=(50, 2)))
    assert np.abs(actions).max() == 2.0
    free = agent(step_size=50.0, clip_actions=False).learn(iterations=2, eval_every=0)
    actions, _ = free.predict(1e3 * np.random.default_rng(0).normal(size=(50, 2)))
    assert np.abs(actions).max() > 2.0


def test_an_episode_by_predict_is_an_episode_of_evaluate() -> None:
    from offrank.core.noise import Role, episode_seeds

    learner = agent().learn(iterations=2, eval_every=0)
    env = toy_envs.Point()
    seed = int(episode_seeds(5, 0, Role.EVALUATION, np.array([0]))[0])
    observation, _ = env.reset(seed=seed)
    total = 0.0
    for _ in range(10):
        action, _ = learner.predict(observation)
        observation, reward, *_ = env.step(action)
        total += reward
    assert learner.evaluate(1, seed=5)["returns"] == [pytest.approx(total, rel=1e-12)]


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ([1.0, 2.0, 3.0], r"shape \(3,\): this policy takes \(2,\) or \(E, 2\)"),
        (1.0, r"shape \(\)"),
        (np.zeros((2, 2, 2)), r"shape \(2, 2, 2\)"),
        ([np.nan, 0.0], "not finite"),
        ({"x": [0.0], "y": [0.0]}, "type dict.*flatten"),
        ("up", "type str"),
        ([[0.0, 1.0], [0.0]], "type list"),
    ],
    ids=["too long", "number", "cube", "nan", "dict", "text", "ragged"],
)
def test_predict_refuses_what_is_no_observation(observation, message) -> None:
    with pytest.raises(UsageError, match=message):
        agent().predict(observation)


def test_evaluate_counts_its_episodes_and_nothing_else() -> None:
    learner = agent().learn(iterations=1, eval_every=0)
    found = learner.evaluate(episodes=4, seed=3)
    assert len(found["returns"]) == len(found["lengths"]) == 4
    assert found["lengths"] == [10] * 4
    assert found["mean"] == pytest.approx(np.mean(found["returns"]))
    assert found == learner.evaluate(episodes=4, seed=3)
    assert found["returns"] != learner.evaluate(episodes=4, seed=4)["returns"]
    assert learner.result["steps"] == 10 * (1 + 2 * 2)
    with pytest.raises(UsageError, match="episodes = 0"):
        learner.evaluate(episodes=0)


# --- bad input


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ("Swimer-v3", {}, "did you mean 'Swimmer-v3'"),
        (POINT, {"N": 3}, "'n_directions'"),
        (POINT, {"n_top": 9}, "b <= N"),
        (POINT, {"step_size": float("nan")}, "step_size = nan"),
        (POINT, {"seed": -1}, "seed = -1"),
        (POINT, {"horizon": 0}, "horizon = 0"),
        (POINT, {"workers": -1}, "workers = -1"),
        (POINT, {"ranker": "kernal"}, "did you mean 'kernel'"),
        (POINT, {"engine": "mujoco"}, "mujoco engine runs"),
        (POINT, {"env_args": {"traget": 1.0}}, "traget"),
        (POINT, {"env_args": {"target": np.ones(2)}}, "only numbers, text, lists and dicts"),
        (toy_envs.Point, {"env_args": {"target": 1.0}}, "by its name"),
        (3, {}, "env is a int"),
        (toy_envs.SequenceObservation, {}, "must flatten to a Box"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, (str, dict)) else None,
)
def test_bad_arguments_get_a_clear_error(env, options, message) -> None:
    with pytest.raises(UsageError, match=message):
        agent(env, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "say when to stop"),
        ({"threshold": 1.0, "eval_every": 0}, "say when to stop"),
        ({"total_steps": 0}, "steps = 0"),
        ({"iterations": -1}, "iterations = -1"),
        ({"iterations": 1, "eval_every": -1}, "eval_every = -1"),
        ({"iterations": 1, "eval_episodes": 0}, "eval_episodes = 0"),
        ({"iterations": 1, "eval_every": 10, "eval_steps": 100}, "give eval_every or eval_steps, not both"),
        ({"iterations": 1, "eval_steps": 0}, "eval_steps = 0"),
        ({"iterations": 1, "confirm_episodes": 5}, "confirm_episodes = 5: must be more than eval_episodes = 100"),
        ({"iterations": 1, "threshold": float("nan")}, "threshold = nan"),
    ],
    ids=str,
)
def test_learn_refuses_limits_that_make_no_sense(options, message) -> None:
    with pytest.raises(UsageError, match=message):
        agent().learn(**options)


def test_eval_steps_and_eval_every_replace_each_other(tmp_path) -> None:
    cem = offrank.CEM(POINT, workers=0)
    assert cem._config.eval_steps == 10_000 and agent()._config.eval_steps is None
    cem.learn(iterations=2, eval_every=1, eval_episodes=2, out=tmp_path)
    assert cem._run.config.eval_steps is None and len(cem._run.evaluations) == 2
    again = offrank.CEM(POINT, workers=0).learn(iterations=3, out=tmp_path, resume=True)  # evaluated as before
    assert [e.iteration for e in again._run.evaluations] == [1, 2, 3]
    again.learn(iterations=4, eval_steps=1)
    assert (again._run.config.eval_every, len(again._run.evaluations)) == (10, 4)


def test_predict_gives_an_action_of_the_environments_own_space() -> None:
    import gymnasium as gym

    class Grid(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (3,))
        action_space = gym.spaces.Box(-1, 1, (2, 3))

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.np_random.uniform(-1, 1, 3).astype("float32"), {}

        def step(self, action):
            assert self.action_space.contains(action)
            return self.np_random.uniform(-1, 1, 3).astype("float32"), float(-(action**2).sum()), False, True, {}

    env = Grid()
    agent = offrank.OPARS(env, n_directions=3, n_top=2).learn(iterations=2, eval_every=0)
    observation, _ = env.reset(seed=0)
    assert env.action_space.contains(agent.predict(observation)[0])
    assert agent.predict([observation, observation])[0].shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (partial(gym.make, "Pendulum-v1"), np.ndarray),
        (partial(gym.make, "CartPole-v1"), np.integer),
        (partial(toy_envs.Point, shape=()), np.ndarray),
    ],
    ids=["float32", "discrete", "one number"],
)
def test_a_predicted_action_is_one_of_the_action_space(make, kind: type) -> None:
    env = make()
    learner = agent(make, offrank.ARS, step_size=10.0).learn(iterations=2, eval_every=0)
    observation, _ = env.reset(seed=0)
    for scale in (0.0, 1.0, 1e6):
        action, _ = learner.predict(scale * observation)
        assert isinstance(action, kind) and env.action_space.contains(action)
        actions, _ = learner.predict(np.stack([scale * observation] * 3))
        assert actions.shape == (3, *env.action_space.shape) and actions.dtype == env.action_space.dtype


@pytest.mark.parametrize("name", [POINT, "Pendulum-v1", "toy_envs:Choice-v0", "offrank/Swimmer-v3"])
def test_stable_baselines3_evaluates_an_agent(name: str) -> None:
    reason = "Stable-Baselines3 is not installed"
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation", reason=reason)
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env", reason=reason)
    learner = agent(name.removeprefix("offrank/"), offrank.ARS).learn(iterations=2, eval_every=0)
    vectors = vec_env.DummyVecEnv([lambda: gym.make(name, max_episode_steps=30)] * 3)
    vectors.seed(5)
    returns, lengths = evaluation.evaluate_policy(learner, vectors, 3, return_episode_rewards=True, warn=False)
    expected = []
    for seed in (5, 6, 7):
        env = gym.make(name, max_episode_steps=30)
        observation, _ = env.reset(seed=seed)
        total = 0.0
        for _ in range(30):
            observation, reward, *_ = env.step(learner.predict(observation)[0])
            total += float(np.float32(reward))
        expected.append(total)
    assert lengths == [30] * 3 and returns == pytest.approx(expected, rel=1e-6)
    assert len(evaluation.evaluate_policy(learner, gym.make(name, max_episode_steps=5), 2, warn=False)) == 2


@pytest.mark.parametrize("algorithm", [offrank.ARS, offrank.OPARS, offrank.QTRES])
@pytest.mark.parametrize("policy", ["affine", "skip:3", "mlp:4,3"])
def test_any_policy_is_trained_saved_loaded_and_continued(tmp_path, policy: str, algorithm: type) -> None:
    small = {"n_directions": 4, "n_top": 2, "workers": 0, "policy": policy}
    parts = algorithm(POINT, **small).learn(iterations=3, out=tmp_path / "run", **BRIEF)
    assert parts.result["policy"] == policy and parts.result["parameters"] == parts.policy.kind.size
    assert json.loads((tmp_path / "run" / "config.json").read_text())["policy"] == policy
    parts.save(tmp_path / "a.offrank")
    loaded = offrank.load(tmp_path / "a.offrank", workers=0).learn(iterations=6, **BRIEF)
    whole = algorithm(POINT, **small).learn(iterations=6, **BRIEF)
    assert loaded.policy.sha256 == whole.policy.sha256 != parts.policy.sha256
    observation = np.array([0.3, -1.0])
    action, _ = whole.predict(observation)
    assert np.array_equal(action, np.clip(whole.policy.raw(observation), -2, 2).astype(action.dtype))
    best = offrank.load(tmp_path / "run" / "best.offrank", workers=0)
    assert best.policy.sha256 == parts._run.best_of_all[1].sha256 and best.policy.kind.name == policy


def test_another_policy_is_another_run(tmp_path) -> None:
    agent().learn(iterations=1, out=tmp_path / "run", **BRIEF)
    with pytest.raises(UsageError, match="its policy is 'linear', not 'skip:3'"):
        agent(policy="skip:3").learn(iterations=2, out=tmp_path / "run", resume=True, **BRIEF)


# --- what is not accepted is one line


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"seed": None}, "seed = None: must be a whole number"),
        ({"seed": -1}, "seed = -1: must not be negative"),
        ({"workers": "two"}, "workers = 'two': must be a whole number"),
        ({"workers": 1.5}, "workers = 1.5: must be a whole number"),
        ({"threads": -1}, "threads = -1: must not be negative"),
        ({"gpu": 3}, "gpu = 3: must be an offrank.Gpu"),
        ({"cluster": 3}, "cluster = 3: must be an offrank.Cluster"),
        ({"horizon": 10**20}, "must be at most 100,000,000"),
        ({"ranker": ""}, "unknown ranker ''"),
        ({"ranker": 5}, "unknown ranker 5"),
        ({"bandwidth": 1e-300}, "bandwidth = 1e-300: must be positive, from 1e-30"),
        ({"step_size": 1e99}, "step_size = 1e+99: must be positive"),
        ({"n_directions": 1e99}, "n_directions = 1e+99: must be at most 1,000,000,000"),
        ({"clip_actions": "yes"}, "clip_actions = 'yes': must be True or False, or None"),
    ],
    ids=str,
)
@pytest.mark.parametrize("env", [POINT, toy_envs.Point], ids=["name", "class"])
def test_an_agent_says_what_is_wrong_with_its_arguments(env: Any, given: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=re.escape(line)):
        agent(env, **given)


def test_names_are_text_and_arguments_of_an_environment_a_dict() -> None:
    with pytest.raises(UsageError, match="unknown engine 5: one of auto"):
        agent(engine=5)
    with pytest.raises(UsageError, match="env_args = 3: must be a dict"):
        agent(env_args=3)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"threshold": "high"}, "threshold = 'high': must be none or a number of at most 1e+30"),
        ({"threshold": True}, "threshold = True: must be none or a number"),
        ({"threshold": float("nan")}, "threshold = nan: must be none or a number"),
        ({"threshold": -1e300}, "threshold = -1e+300: must be none or a number"),
        ({"out": 5}, "out = 5: must be a path"),
        ({"out": "a\0b"}, "no file can have this name"),
        ({"out": 300 * "a"}, "no file can have this name"),
        ({"checkpoint_seconds": "soon"}, "checkpoint_seconds = 'soon': must be a number of seconds"),
        ({"checkpoint_seconds": float("nan")}, "checkpoint_seconds = nan: must be a number of seconds"),
        ({"callback": 3}, "callback = 3: must be a function"),
    ],
    ids=str,
)
def test_learn_says_what_is_wrong_with_its_arguments(given: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=re.escape(line)):
        agent().learn(iterations=1, **given)


def test_other_methods_say_what_is_wrong_with_their_arguments() -> None:
    learner: Any = agent()
    for given, line in (
        ((1.5,), "episodes = 1.5: must be a whole number"),
        ((0,), "episodes = 0: must be at least 1"),
        ((1, -1), "seed = -1: must not be negative"),
        ((1, None), "seed = None: must be a whole number"),
        ((10**12,), "episodes = 1000000000000: must be at most 10,000,000"),
    ):
        with pytest.raises(UsageError, match=re.escape(line)):
            learner.evaluate(*given)
    for call in (learner.save, offrank.load):
        with pytest.raises(UsageError, match="path = 5: must be a path"):
            call(5)


@pytest.mark.parametrize("env", [toy_envs.NoObservationSpace, toy_envs.NoObservationSpace()], ids=["class", "env"])
def test_an_environment_without_an_observation_space_is_refused(env: Any) -> None:
    with pytest.raises(UsageError, match="NoObservationSpace has no observation_space: set it to a gymnasium"):
        agent(env)


def test_a_complex_reward_is_named() -> None:
    with pytest.raises(EpisodeError, match=r"a reward of type complex.*: it must be a number \(episode.*step 0\)"):
        agent(toy_envs.ComplexReward()).learn(iterations=1, eval_every=0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [1e160, -1e308])
@pytest.mark.parametrize(("what", "step"), [("reward", 5), ("observation", 6)])
def test_a_glitch_of_the_environment_is_one_line_with_its_step(value: float, what: str, step: int) -> None:
    env = partial(toy_envs.Glitch, 5, value, what == "observation")
    learner = agent(env, offrank.ARS).learn
    line = rf"{what} of {value:g}, too large to learn from \(at most 1e\+30\) \(episode seed \d+, step {step}\)"
    with pytest.raises(EpisodeError, match=line.replace("e+", r"e\+")):
        learner(iterations=1, eval_every=0)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("env", "line"),
    [
        (toy_envs.WrongShape, "an observation of shape (3,): the observation space has the shape (2,)"),
        (partial(toy_envs.WrongShape, 1, 4), "an observation of shape (1,): the observation space has the shape (2,)"),
        (toy_envs.OldReset, "the environment's reset returned one value (ndarray): it must return (observation, info)"),
        (
            toy_envs.OldStep,
            "the environment's step returned 4 values: it must return (observation, reward,",
        ),
        (toy_envs.Raise, "the environment raised ZeroDivisionError: the toy broke on purpose"),
    ],
)
def test_what_an_environment_returns_is_checked(env: Any, line: str, workers: int) -> None:
    learner = agent(env, offrank.ARS, workers=workers)
    with pytest.raises(EpisodeError, match=re.escape(line) + r".*\(episode seed \d+, step \d\)"):
        learner.learn(iterations=1, eval_every=0)
    learner.close()


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_agents_say_that_they_cannot_be_copied(way: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot be pickled or copied: use agent.save and offrank.load"):
        way(offrank.ARS("Swimmer-v3"))
