"""Many runs from Python."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import offrank
import toy_envs
from offrank.core.errors import UsageError

SHORT: dict[str, Any] = {"iterations": 2, "eval_every": 1, "eval_episodes": 2}


def fleet(algos: Any = ("op-ars", "ars"), **settings: Any) -> offrank.Fleet:
    return offrank.Fleet("Swimmer-v3", algos, **({"seeds": [0, 1], "horizon": 20} | settings))


def test_a_run_of_a_fleet_has_the_bits_it_has_alone() -> None:
    results = fleet().learn(**SHORT)
    assert [(r["algo"], r["seed"]) for r in results] == [("op-ars", 0), ("op-ars", 1), ("ars", 0), ("ars", 1)]
    alone = offrank.OPARS("Swimmer-v3", seed=1, horizon=20).learn(**SHORT)
    assert alone.policy.sha256 == results[1]["policy_sha256"]
    assert len({r["policy_sha256"] for r in results}) == 4


def test_a_grid_is_every_combination_for_every_seed(tmp_path: Path) -> None:
    many = fleet("op-ars", grid={"bandwidth": [0.5, 1.0], "n_behaviour": [1, 2]})
    results = many.learn(**SHORT, out=tmp_path)
    assert len(results) == 8 == len(many.best_policies)
    found = [(r["hyperparameters"]["bandwidth"], r["hyperparameters"]["n_behaviour"], r["seed"]) for r in results]
    assert found == [(h, n, s) for h in (0.5, 1.0) for n in (1, 2) for s in (0, 1)]
    assert (tmp_path / "Swimmer-v3-op-ars-bandwidth0.5-n_behaviour1-0" / "result.json").is_file()


def test_a_fleet_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole = fleet().learn(**SHORT)
    fleet().learn(**(SHORT | {"iterations": 1}), out=tmp_path)
    with pytest.raises(offrank.UsageError, match="already holds a run"):
        fleet().learn(**SHORT, out=tmp_path)
    parts = fleet().learn(**SHORT, out=tmp_path, resume=True)
    assert [r["policy_sha256"] for r in parts] == [r["policy_sha256"] for r in whole]
    with pytest.raises(offrank.UsageError, match="eval_episodes"):
        fleet().learn(**(SHORT | {"eval_episodes": 3}), out=tmp_path, resume=True)


def test_a_fleet_is_evaluated_as_its_algorithms_suggest_and_resumed_as_it_was(tmp_path: Path) -> None:
    many = fleet(["ars", "cem"], seeds=[0], clip_actions=True)
    many.learn(iterations=1, eval_episodes=2, out=tmp_path)
    assert [run.config.eval_steps for run in many.runs] == [None, 10_000]
    many.learn(iterations=2, out=tmp_path, resume=True)
    assert [run.config.eval_episodes for run in many.runs] == [2, 2]
    with pytest.raises(UsageError, match="eval_steps = None, not 100"):
        many.learn(iterations=2, eval_steps=100, out=tmp_path, resume=True)


def test_the_threshold_is_the_tasks_own_unless_given() -> None:
    (result,) = fleet("ars", seeds=[0]).learn(**SHORT)
    assert result["threshold"] == 325
    (result,) = fleet("ars", seeds=[0]).learn(**SHORT, threshold=-1e9)
    assert result["stop_reason"] == "threshold" and result["iterations"] == 1


def test_what_a_fleet_cannot_be() -> None:
    with pytest.raises(offrank.UsageError, match="bandwidth is given both in the grid and for every run"):
        fleet("op-ars", grid={"bandwidth": [1.0]}, bandwidth=0.5)
    for nothing in ({"algos": []}, {"seeds": []}, {"grid": {"bandwidth": []}}):
        with pytest.raises(offrank.UsageError, match="at least one algorithm, one seed and one value"):
            fleet(**nothing)
    with pytest.raises(offrank.UsageError, match="say when to stop"):
        fleet("ars").learn()
    with pytest.raises(offrank.UsageError, match="bandwith"):
        fleet("op-ars", grid={"bandwith": [1.0]})
    with pytest.raises(offrank.UsageError, match="only numbers, text, lists and dicts can be saved"):
        offrank.Fleet("Pendulum-v1", "ars", [0], env_args={"g": object()})


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"seeds": 8}, "seeds = 8: must be a list of numbers"),
        ({"seeds": [0, 0]}, "twice: name every algorithm, seed and value once"),
        ({"seeds": [1.5]}, "seed = 1.5: must be a whole number"),
        ({"seeds": [0], "grid": {"step_size": 0.01}}, "step_size = 0.01 must be a list of values to try"),
        ({"seeds": [0], "grid": {"form": "V1"}}, "form = 'V1' must be a list of values to try"),
    ],
)
def test_a_fleet_says_what_is_wrong_with_its_runs(given: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=re.escape(line)):
        offrank.Fleet("LQR", "ars", **given)


def test_a_fleet_takes_a_name_not_an_environment() -> None:
    with pytest.raises(UsageError, match="a fleet takes a task's name or a Gymnasium id"):
        offrank.Fleet(toy_envs.Point)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"iterations": 1, "out": 5}, "out = 5: must be a path"),
        ({"iterations": 1, "threshold": "high"}, "threshold = 'high': must be none or a number"),
        ({"iterations": 2, "side_by_side": 0}, "side_by_side = 0: must be at least 1"),
        ({"iterations": 1.5}, "iterations = 1.5: must be a whole number"),
        ({"total_steps": "3M"}, "steps = '3M': must be a whole number"),
        ({"total_steps": float("nan")}, "steps = nan: must be a whole number"),
    ],
)
def test_a_fleet_says_what_is_wrong_with_its_limits(given: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=re.escape(line)):
        offrank.Fleet("LQR", "ars", [0]).learn(**given)


@pytest.mark.parametrize(
    ("algos", "line"),
    [(5, "algos = 5: must be the name"), (None, "algos = None: must be"), ([5], "unknown algorithm 5")],
)
def test_algorithms_of_a_fleet_are_names(algos: Any, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        offrank.Fleet("LQR", algos, [0])


def test_a_fleet_says_that_it_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="a fleet holds threads and files, so it cannot be pickled or copied"):
        pickle.dumps(offrank.Fleet("LQR", "ars", [0]))


def test_policies_are_compared_in_a_grid(tmp_path: Path) -> None:
    many = fleet("op-ars", seeds=[0], grid={"policy": ["linear", "skip:3"]})
    results = many.learn(**SHORT, out=tmp_path)
    assert [r["policy"] for r in results] == ["linear", "skip:3"]
    assert {path.name for path in tmp_path.iterdir()} == {
        "Swimmer-v3-op-ars-policylinear-0",
        "Swimmer-v3-op-ars-policyskip_3-0",
    }
    alone = offrank.OPARS("Swimmer-v3", policy="skip:3", horizon=20).learn(**SHORT)
    assert alone.policy.sha256 == results[1]["policy_sha256"]
    with pytest.raises(UsageError, match="policy is given both"):
        fleet("op-ars", policy="affine", grid={"policy": ["linear"]})
    with pytest.raises(UsageError, match="unknown policy"):
        fleet("op-ars", policy="lienar")
