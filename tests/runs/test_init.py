"""Starting from a saved policy: what is taken over, what is recorded, and what does not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offrank
from helpers import perform
from offrank.algorithms.base import INIT_STATES
from offrank.algorithms.guided import Guided
from offrank.asktell import AskTell
from offrank.cli import main
from offrank.core.errors import UsageError
from offrank.core.normalizer import Normalizer, Whitening
from offrank.policies import make_policy
from offrank.policies.trained import TrainedPolicy

TASK = "toy_envs:Point-v0"
SMALL = {"hidden": 16, "batch": 8, "warmup_steps": 30, "train_horizon": 8, "step_noise": 0.1}
OWN: dict[str, dict[str, Any]] = {  # small settings
    "ARS": {"n_directions": 4, "n_top": 2},
    "OPARS": {"n_directions": 4, "n_top": 2, "n_behaviour": 1},
    "QARS": {"n_directions": 4, "n_top": 2},
    "TRES": {"n_directions": 4, "n_top": 2},
    "ES": {"n_directions": 4, "n_top": 2},
    "CEM": {"population": 4, "elites": 2},
    "CEMRL": {"population": 4, "elites": 2, "gradient_members": 2, "hidden": 16, "batch": 8},
    "OPCEMRL": {"population": 4, "elites": 2, "gradient_members": 2, "hidden": 16, "batch": 8, "candidates": 6},
    "Guided": SMALL,
}


def policy(kind: str = "skip:4", n: int = 2, p: int = 2, discrete: bool = False) -> TrainedPolicy:
    made, random = make_policy(kind, n, p), np.random.default_rng(8)
    whitening = Whitening(random.normal(size=n), random.uniform(0.5, 2.0, size=n))
    return TrainedPolicy(made, 0.3 * random.normal(size=made.size), whitening, discrete)


def agent(name: str = "Guided", init: Any = None, **settings: Any) -> Any:
    return getattr(offrank, name)(TASK, workers=0, init=init, **(OWN[name] | settings))


def same_actions(a: TrainedPolicy, b: TrainedPolicy) -> bool:
    states = np.random.default_rng(1).normal(size=(50, 2))
    return np.allclose(a.raw(states), b.raw(states), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OWN)
def test_every_algorithm_starts_where_the_policy_stands(name: str) -> None:
    init = policy()
    learner = agent(name, init)
    assert learner.policy.kind == init.kind and same_actions(learner.policy, init)
    assert learner._run.config.init == init.sha256
    learner.learn(iterations=2, eval_every=0)
    assert not same_actions(learner.policy, init)
    assert agent(name, init).learn(iterations=2, eval_every=0).policy.sha256 == learner.policy.sha256


@pytest.mark.parametrize("name", ["ARS", "Guided"])
def test_a_file_a_folder_a_checkpoint_and_an_object_are_the_same(tmp_path: Path, name: str) -> None:
    first = agent(name).learn(iterations=3, eval_every=3, eval_episodes=2, out=tmp_path / "run")
    best = first.best_policy
    best.save(tmp_path / "policy", {"config": first._config.to_json(), "evaluation": None})
    sources = [best, tmp_path / "policy", str(tmp_path / "run" / "best.offrank"), tmp_path / "run"]
    sources.append(tmp_path / "run" / "checkpoint.npz")  # whose policy is the best one here
    ends = {agent(name, init, seed=5).learn(iterations=2, eval_every=0).policy.sha256 for init in sources}
    assert len(ends) == 1
    assert ends != {agent(name, seed=5).learn(iterations=2, eval_every=0).policy.sha256}


def test_the_normaliser_weighs_as_many_states_as_it_says() -> None:
    init = policy()
    normalizer = agent("ARS", init)._run.state.normalizer
    assert normalizer.count == INIT_STATES
    frozen = normalizer.freeze()
    np.testing.assert_allclose(frozen.mean, init.whitening.mean)
    np.testing.assert_allclose(frozen.scale, init.whitening.scale)


def test_features_that_were_switched_off_stay_so() -> None:
    whitening = Whitening(np.array([1.0, 2.0]), np.array([0.0, 4.0]))
    frozen = Normalizer.like(whitening, 100).freeze()
    np.testing.assert_allclose(frozen.scale, whitening.scale)
    np.testing.assert_allclose(frozen.mean, whitening.mean)


@pytest.mark.parametrize("name", ["ARS", "CEM", "Guided"])
def test_a_run_resumes_to_the_same_bits_without_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "policy"
    policy().save(path, {"config": agent(name)._config.to_json(), "evaluation": None})
    whole = agent(name, path).learn(iterations=6, eval_every=0)
    agent(name, path).learn(iterations=3, eval_every=0, out=tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["init"] == policy().sha256 and config["policy"] == "skip:4"
    path.unlink()
    loaded = offrank.load(tmp_path / "run", workers=0).learn(iterations=6, eval_every=0)
    assert loaded.policy.sha256 == whole.policy.sha256


def test_the_first_checkpoint_has_it_all(tmp_path: Path) -> None:
    """A run whose process is killed in its first iteration."""
    run = offrank.ARS(TASK, workers=0, init=policy())._run
    assert run is not None
    run.config = replace(run.config, eval_every=0)
    run.move_to(tmp_path)
    run.start()
    run.close()  # which saves nothing
    words = ["train", TASK, "--workers", "0", "--quiet", "--out", str(tmp_path), "--algo", "ars"]
    assert main([*words, "--iterations", "2", "--resume"]) == 0
    expected = offrank.ARS(TASK, workers=0, init=policy()).learn(iterations=2, eval_every=0).policy.sha256
    assert json.loads((tmp_path / "result.json").read_text())["policy_sha256"] == expected


def test_the_command_line(tmp_path: Path, capsys: Any) -> None:
    first = agent("CEM").learn(iterations=2, eval_every=2, eval_episodes=2, out=tmp_path / "first")
    folder = tmp_path / "second"
    words = ["train", TASK, "--algo", "cem", "--workers", "0", "--quiet", "--eval-every", "0", "--out", str(folder)]
    words += ["--set", "population=4", "--set", "elites=2", "--init", str(tmp_path / "first")]
    assert main([*words, "--iterations", "2"]) == 0
    expected = agent("CEM", first.best_policy).learn(iterations=2, eval_every=0)
    assert json.loads((folder / "result.json").read_text())["policy_sha256"] == expected.policy.sha256
    assert main([*words, "--iterations", "3", "--resume"]) == 0  # the same policy may be named again
    policy("skip:32").save(tmp_path / "other", {"config": first._config.to_json(), "evaluation": None})
    capsys.readouterr()
    assert main([*words[:-1], str(tmp_path / "other"), "--iterations", "4", "--resume"]) == 2
    assert f"holds a run with init = {first.best_policy.sha256}" in capsys.readouterr().err
    assert main([*words[:-1], str(tmp_path / "none"), "--iterations", "4"]) == 2
    assert "there is no" in capsys.readouterr().err


def test_a_folder_without_a_checkpoint_asks_for_the_policy_again(tmp_path: Path, capsys: Any) -> None:
    agent("CEM", policy()).learn(iterations=1, eval_every=0, out=tmp_path / "run")
    (tmp_path / "run" / "checkpoint.npz").unlink()
    words = ["train", TASK, "--workers", "0", "--quiet", "--out", str(tmp_path / "run"), "--resume", "--algo", "cem"]
    assert main([*words, "--iterations", "1"]) == 2
    assert "has no checkpoint yet: give the initial policy again (--init)" in capsys.readouterr().err


def test_it_is_part_of_the_identity(tmp_path: Path) -> None:
    agent("CEM", policy()).learn(iterations=1, eval_every=0, out=tmp_path / "run")
    for other in (None, replace(policy(), theta=policy().theta + 1)):
        with pytest.raises(UsageError, match="is of another run: its init is"):
            agent("CEM", other, policy="skip:4").learn(iterations=2, eval_every=0, out=tmp_path / "run", resume=True)


def test_a_fleet_starts_every_run_there(tmp_path: Path) -> None:
    fleet = offrank.Fleet(TASK, ["cem", "guided"], seeds=[0, 1], workers=0, init=policy())
    fleet.learn(iterations=1, eval_every=0, out=tmp_path)
    for run in fleet.runs:
        alone = {"cem": offrank.CEM, "guided": offrank.Guided}[run.config.algo]
        made = alone(TASK, seed=run.config.seed, workers=0, init=policy()).learn(iterations=1, eval_every=0)
        assert run.policy.sha256 == made.policy.sha256 and run.config.init == policy().sha256
    fleet.learn(iterations=2, eval_every=0, out=tmp_path, resume=True)


def _tell_all(run: AskTell) -> None:
    for episode in run.ask():
        run.tell(episode, **perform(episode))


def test_on_a_robot_it_is_fine_tuned_as_in_simulation_and_the_journal_needs_no_file(tmp_path: Path) -> None:
    path = tmp_path / "policy"
    policy().save(path, {"config": agent()._config.to_json(), "evaluation": None})
    how: dict[str, Any] = SMALL | {"low": -2.0, "high": 2.0, "horizon": 20, "iterations": 4, "journal": tmp_path / "j"}
    run = AskTell(offrank.Guided, 2, 2, init=path, **how)
    _tell_all(run)
    run.close()
    path.unlink()
    sources = run._run.config.sources
    run = AskTell(offrank.Guided, 2, 2, **how)
    assert run._run.config.sources == sources
    while not run.done:
        _tell_all(run)
    assert run.policy.sha256 == agent("Guided", policy()).learn(iterations=4, eval_every=0).policy.sha256
    with pytest.raises(UsageError, match="policy = skip:4, not linear"):
        AskTell(offrank.Guided, 2, 2, policy="linear", **how)
    with pytest.raises(UsageError, match="holds a run with init = "):
        AskTell(offrank.Guided, 2, 2, init=replace(policy(), theta=policy().theta + 1), **how)


@pytest.mark.parametrize("kind", ["linear", "skip:4", "mlp:8,8"])
def test_the_warm_up_of_guided_stays_near_the_policy(kind: str) -> None:
    """Its perturbations change actions by `action_change` from the first episode on, and adapt before any lesson."""
    init, asked = policy(kind), []

    def note(run: Any, record: Any) -> None:
        asked.append((record["noise"], run.state))

    learner = agent("Guided", init, action_change=0.1, warmup_steps=10_000, population=8, candidates=8)
    algorithm, state = learner._run.algorithm, learner._run.state
    assert isinstance(algorithm, Guided)
    learner.learn(iterations=6, eval_every=0, callback=note)
    assert int(learner._run.state.memory["critic.step"]) == 0
    assert len({noise for noise, _ in asked}) == 6  # it adapts
    for before in (state, *(later for _, later in asked)):
        generation = algorithm.propose(before)
        np.testing.assert_allclose(generation.mean, init.theta, rtol=1e-6)
        z = np.random.default_rng(0).normal(size=(200, 2))
        z = z if before is state else generation.whitening(before.memory["replay.state"][-72:].astype(float))
        clip = algorithm.space.clip
        now = clip(init.kind.act(generation.mean, z))
        changes = [((clip(init.kind.act(theta, z)) - now) / 2.0) ** 2 for theta in generation.thetas]
        assert np.sqrt(np.mean(changes)) == pytest.approx(0.1, rel=0.25 if before is state else 0.9)


def test_what_does_not_fit_is_one_clear_line(tmp_path: Path) -> None:
    cases: list[tuple[str, Any, dict[str, Any], str]] = [
        ("ARS", policy("skip:4"), {"policy": "linear"}, "the initial policy is skip:4, not linear: its kind cannot"),
        ("CEM", policy(n=3), {}, r"is for observations \(3,\) and actions \(2,\): here they are \(2,\) and \(2,\)"),
        ("Guided", policy(p=1), {}, r"is for observations \(2,\) and actions \(1,\)"),
        ("CEM", policy(discrete=True), {}, "has discrete actions: this environment's are continuous"),
        ("ARS", policy(), {"form": "V1-t"}, "acts on normalised states, and these settings do not normalise them"),
        ("CEM", policy(), {"normalise_states": False}, "these settings do not normalise them"),
        ("CEM", tmp_path / "nothing", {}, "there is no"),
        ("CEM", tmp_path, {}, "is not a run folder"),
        ("CEM", 3, {}, "init = 3: give a policy, or the path of a file or run folder"),
    ]
    for name, init, settings, says in cases:
        with pytest.raises(UsageError, match=says) as caught:
            agent(name, init, **settings)
        assert "\n" not in str(caught.value)


def test_a_policy_on_plain_states_fits_settings_that_do_not_normalise() -> None:
    init = replace(policy("linear"), whitening=Whitening.identity(2))
    learner = agent("ARS", init, form="V1-t")
    assert same_actions(learner.policy, init)


def test_in_guided_a_better_start_is_a_better_policy_soon() -> None:
    """A policy that solves the task stays one while critics learn from nothing."""
    kind = make_policy("linear", 2, 2)
    good = TrainedPolicy(kind, -2.0 * np.eye(2).ravel(), Whitening(np.zeros(2), np.full(2, 1.0)))
    settings = {"hidden": 32, "batch": 32, "warmup_steps": 200, "discount": 0.9, "action_change": 0.1}
    learner = agent("Guided", good, **settings)
    start = learner.evaluate(20)["mean"]
    end = learner.learn(total_steps=1200, eval_every=0).evaluate(20)["mean"]
    nothing = agent("Guided", None, policy="linear").evaluate(20)["mean"]
    assert end > nothing + 0.7 * (start - nothing), (nothing, start, end)


def test_the_policy_to_start_from_is_evaluated_first_and_is_the_best_until_beaten(tmp_path: Path) -> None:
    good = TrainedPolicy(make_policy("linear", 2, 2), -2.0 * np.eye(2).ravel(), Whitening.identity(2))
    how: dict[str, Any] = {"iterations": 3, "eval_every": 2, "eval_episodes": 5}
    learner = agent("ARS", good, step_size=5.0)  # which makes it worse
    start = learner.evaluate(5)["mean"]
    learner.learn(**how, threshold=start - 1, out=tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = [(r["iteration"], r["steps"]) for r in records if r["kind"] == "evaluation"]
    assert found[0] == (0, 0) and found[1][0] == 2
    first = next(r["return_mean"] for r in records if r["kind"] == "evaluation")
    assert learner.result["best_return"] == first > learner.result["final_return"]
    assert not learner.result["reached"]  # by training; a policy to start from reaches nothing
    assert same_actions(offrank.load(tmp_path / "run" / "best.offrank", workers=0).policy, good)
    half = agent("ARS", good, step_size=5.0).learn(**how | {"iterations": 1}, out=tmp_path / "half")
    assert half.result["best_return"] == first
    agent("ARS", good, step_size=5.0).learn(**how, threshold=start - 1, out=tmp_path / "half", resume=True)
    for name in ("best.offrank", "final.offrank"):
        assert (tmp_path / "half" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


def test_without_evaluations_the_policy_to_start_from_is_not_evaluated_either() -> None:
    assert agent("ARS", policy()).learn(iterations=1, eval_every=0).result["evaluation_steps"] == 0


def test_the_first_evaluation_ends_nothing_and_is_not_confirmed() -> None:
    good, kinds = TrainedPolicy(make_policy("linear", 2, 2), -2.0 * np.eye(2).ravel(), Whitening.identity(2)), []

    def note(run: Any, record: Any) -> None:
        kinds.append((record["kind"], record["steps"] > 0))

    learner, low = agent("ARS", good), -1e6  # which every policy reaches
    how: dict[str, Any] = {"iterations": 6, "eval_every": 3, "eval_episodes": 5, "confirm_episodes": 6}
    learner.learn(**how, threshold=low, callback=note)
    assert sorted(kinds) == [("evaluation", False), *[("evaluation", True)] * 2, *[("iteration", True)] * 3]
    assert learner.result["steps_to_threshold"] == learner.result["steps"] > 0
    stopped = agent("ARS", good)
    stopped.learn(**how, threshold=None, callback=offrank.callbacks.StopOnReward(low))
    assert stopped.result["iterations"] == 3


def test_guided_follows_young_critics_slowly_from_a_policy_unless_told_otherwise() -> None:
    start, plain = agent("Guided", policy()), agent("Guided")
    assert start.hyperparameters["actor_rate"] == plain.hyperparameters["actor_rate"] / 10
    assert start._config.sources["actor_rate"].startswith("ours: to start from a policy")
    assert agent("Guided", policy(), actor_rate=3e-4).hyperparameters["actor_rate"] == 3e-4
    faded = offrank.Faded(TASK, workers=0, init=policy(), begins_as="skip:4", **SMALL)
    assert faded.hyperparameters["actor_rate"] == plain.hyperparameters["actor_rate"]
