from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import offrank
import toy_envs
from offrank.callbacks import Callback, CheckpointCallback, EvalCallback, StopOnReward
from offrank.core.errors import UsageError
from offrank.engines import own_engine
from offrank.runs.evaluation import evaluate_policy
from offrank.runs.saved import Saved

STEPS = 80  # of an iteration: 4 directions, both signs, 10 steps
QUIET: dict[str, Any] = {"eval_every": 0}


def agent(**options: Any) -> offrank.ARS:
    settings: dict[str, Any] = {"n_directions": 4, "n_top": 2, "horizon": 10, "workers": 0}
    return offrank.ARS("toy_envs:Point-v0", **settings | options)


def far(target: float = 1.0) -> gym.Env[Any, Any]:
    """Another environment than that of training."""
    return gym.wrappers.TimeLimit(toy_envs.Point(target), 5)


def records(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "wall_s"} for line in lines if kind in (None, line["kind"])]


def policies(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): Saved.read(path).policy.sha256 for path in folder.rglob("*.offrank")}


class Told(Callback):
    """Keeps what it is told. `at` is what it answers False to, or raises an error at."""

    def __init__(self, at: str | None = None, error: type[BaseException] | None = None):
        self.told: list[str] = []
        self._at, self._error = at, error

    def _tell(self, what: str) -> bool | None:
        self.told.append(what)
        if what == self._at and self._error is not None:
            raise self._error(what)
        return what != self._at

    def on_start(self, run: Any) -> bool | None:
        return self._tell(f"start {run.state.iteration}")

    def on_iteration(self, run: Any, record: dict[str, Any]) -> bool | None:
        return self._tell(f"iteration {record['iteration']}")

    def on_evaluation(self, run: Any, record: dict[str, Any]) -> bool | None:
        return self._tell(f"{record['kind']} {record['iteration']}")

    def on_end(self, run: Any) -> None:
        assert run.folder is None or (run.folder / "result.json").is_file()
        self._tell(f"end {run.stop_reason}")

    def close(self) -> None:
        self._tell("close")


# --- the base class


def test_a_callback_is_told_of_start_iterations_evaluations_and_end(tmp_path: Path) -> None:
    told = Told()
    learner = agent().learn(iterations=3, eval_every=2, eval_episodes=2, callback=told, out=tmp_path)
    first = ["start 0", "iteration 1", "iteration 2", "evaluation 2", "iteration 3", "evaluation 3"]
    assert told.told == [*first, "end iterations", "close"]
    learner.learn(iterations=4, eval_every=2, eval_episodes=2, callback=told)
    assert told.told[8:] == ["start 3", "iteration 4", "evaluation 4", "end iterations", "close"]


@pytest.mark.parametrize("at", ["start 0", "iteration 2", "evaluation 2"])
def test_any_of_several_callbacks_stops_the_run(at: str) -> None:
    seen: list[int] = []
    several = [Told(at), Told(), lambda run, record: seen.append(record["iteration"])]
    learner = agent().learn(iterations=9, eval_every=2, eval_episodes=2, callback=several)
    assert (learner.result["stop_reason"], learner.result["iterations"]) == ("stopped", int(at[-1]))
    assert several[0].told == several[1].told and len(seen) == len(several[0].told) - 3  # all but start, end and close


@pytest.mark.parametrize("error", [RuntimeError, offrank.OffrankError, KeyboardInterrupt])
def test_a_callback_that_raises_leaves_a_saved_run_that_goes_on_to_the_same_bits(tmp_path: Path, error: Any) -> None:
    failing, other = Told("iteration 3", error), Told()
    with pytest.raises(error):
        agent().learn(iterations=5, callback=[failing, other], out=tmp_path, **QUIET)
    assert failing.told[:5] == ["start 0", "iteration 1", "iteration 2", "iteration 3", "close"]
    assert other.told[:4] == ["start 0", "iteration 1", "iteration 2", "close"] and "end" not in str(other.told)
    resumed = agent().learn(iterations=5, out=tmp_path, resume=True, callback=other, **QUIET)
    assert "start 3" in other.told and resumed.policy.sha256 == agent().learn(iterations=5, **QUIET).policy.sha256


def test_an_error_in_close_does_not_keep_the_others_open(tmp_path: Path) -> None:
    other = Told()
    with pytest.raises(RuntimeError):
        agent().learn(iterations=1, callback=[Told("close", RuntimeError), other], out=tmp_path, **QUIET)
    assert "close" in other.told
    resumed = agent().learn(iterations=2, out=tmp_path, resume=True, **QUIET)  # the folder is free
    assert resumed.policy.sha256 == agent().learn(iterations=2, **QUIET).policy.sha256


@pytest.mark.parametrize("given", [3, [print, 3], CheckpointCallback])
def test_what_is_not_a_callback_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="must be a function of"):
        agent().learn(iterations=1, callback=given)


# --- evaluation elsewhere, copies


def test_an_evaluation_elsewhere_is_logged_and_its_best_policy_saved(tmp_path: Path) -> None:
    told = Told()
    several = [EvalCallback(far(), 100, 3, name="far"), CheckpointCallback(100), told]
    learner = agent().learn(iterations=8, callback=several, out=tmp_path, **QUIET)
    assert learner.policy.sha256 == agent().learn(iterations=8, **QUIET).policy.sha256
    found = records(tmp_path, "far")
    at = [2 * STEPS, 3 * STEPS, 4 * STEPS, 5 * STEPS, 7 * STEPS, 8 * STEPS]  # at or after 100, 200, ..., 600
    assert [record["steps"] for record in found] == at and sum(line.startswith("far") for line in told.told) == 6
    kept = {record["steps"]: Saved.read(tmp_path / f"policies/policy-{record['steps']}.offrank") for record in found}
    assert len(list((tmp_path / "policies").iterdir())) == 6
    for record in found:
        same = evaluate_policy(kept[record["steps"]].policy, own_engine(far()), 3, seed=record["iteration"])
        assert (record["return_mean"], record["return_std"]) == (same["mean"], same["std"])
        assert record["length_mean"] == 5
    best = max(found, key=lambda record: record["return_mean"])
    assert Saved.read(tmp_path / "far-best.offrank").policy.sha256 == kept[best["steps"]].policy.sha256
    assert Saved.read(tmp_path / "far-best.offrank").meta["evaluation"]["mean"] == best["return_mean"]


@pytest.mark.parametrize("last", [False, True], ids=["raises first", "raises last"])
def test_a_resumed_run_goes_on_with_its_evaluations_copies_and_best_policy(tmp_path: Path, last: bool) -> None:
    """The run is interrupted after an iteration in which both callbacks are to act, before they did or after."""

    def several() -> list[Any]:
        return [EvalCallback(far(), 100, 3), CheckpointCallback(100)]

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    agent().learn(iterations=8, callback=several(), out=whole, **QUIET)
    failing = [Told("iteration 4", RuntimeError)]
    with pytest.raises(RuntimeError):
        agent().learn(iterations=8, callback=several() + failing if last else failing + several(), out=parts, **QUIET)
    assert len(policies(parts / "policies")) == (3 if last else 2)
    agent().learn(iterations=8, callback=several(), out=parts, resume=True, **QUIET)
    assert records(parts) == records(whole) and policies(parts) == policies(whole)


def test_after_a_kill_what_was_written_since_the_checkpoint_is_written_again(tmp_path: Path) -> None:
    def learn(folder: Path, iterations: int, resume: bool = False) -> None:
        several = [EvalCallback(far(), 100, 3), CheckpointCallback(100)]
        brief = {"eval_every": 2, "eval_episodes": 2}
        agent().learn(iterations=iterations, callback=several, out=folder, resume=resume, **brief)

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    learn(whole, 9)
    learn(parts, 4)
    old = (parts / "checkpoint.npz").read_bytes()
    learn(parts, 8, resume=True)
    (parts / "checkpoint.npz").write_bytes(old)
    learn(parts, 9, resume=True)
    assert records(parts) == records(whole) and policies(parts) == policies(whole)


def test_copies_without_a_run_folder_go_on_in_another_call_of_learn(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="CheckpointCallback needs a folder"):
        agent().learn(iterations=1, callback=CheckpointCallback(100), **QUIET)
    keep = [CheckpointCallback(2 * STEPS, tmp_path / "kept"), EvalCallback(far(), 2 * STEPS, path=tmp_path / "best")]
    told = Told()
    learner = agent().learn(iterations=3, callback=[*keep, told], **QUIET).learn(iterations=5, callback=keep, **QUIET)
    assert sorted(policies(tmp_path / "kept")) == ["policy-160.offrank", "policy-320.offrank"]
    assert "eval 2" in told.told and (tmp_path / "best").is_file()
    learner.close()


def test_a_task_by_name_and_a_function_are_evaluated_too(tmp_path: Path) -> None:
    learner = offrank.ARS("Swimmer-v3", horizon=20)
    several = [EvalCallback("Swimmer-v3", 1, 2, name="same"), EvalCallback(far, 1, 2)]
    with pytest.raises(UsageError, match="the policy maps 8 observations to 2 actions, the environment has 2 and 2"):
        learner.learn(iterations=1, callback=several, out=tmp_path, **QUIET)
    learner.learn(iterations=1, callback=several[:1], **QUIET)
    assert records(tmp_path, "same")[0]["length_mean"] == 1000


def test_arguments_of_callbacks_are_checked() -> None:
    for wrong in (
        lambda: EvalCallback(far(), 0),
        lambda: EvalCallback(far(), 10, 0),
        lambda: EvalCallback(far(), 10, name="evaluation"),
        lambda: EvalCallback(far(), 10, name="a/b"),
        lambda: CheckpointCallback(1.5),  # type: ignore[arg-type]
        lambda: StopOnReward("high"),  # type: ignore[arg-type]
        lambda: StopOnReward(1.0, episodes=0),
    ):
        with pytest.raises(UsageError, match="must"):
            wrong()


# --- stopping


def test_a_mean_return_of_an_evaluation_stops_the_run() -> None:
    brief: dict[str, Any] = {"eval_every": 2, "eval_episodes": 2}
    assert agent().learn(iterations=9, callback=StopOnReward(-1e9), **brief).result["iterations"] == 2
    assert agent().learn(iterations=5, callback=StopOnReward(1e9), **brief).result["iterations"] == 5
    elsewhere = [EvalCallback(far(), 3 * STEPS, 2), StopOnReward(-1e9, name="eval")]
    assert agent().learn(iterations=9, callback=elsewhere, **brief).result["iterations"] == 3


def test_the_mean_of_the_last_training_episodes_stops_the_run_also_if_it_is_resumed(tmp_path: Path) -> None:
    means: list[float] = []
    quick = {"step_size": 0.2, "noise_std": 0.1}
    agent(**quick).learn(iterations=12, callback=lambda run, record: means.append(record["return_mean"]), **QUIET)
    over_three = [sum(means[i - 3 : i]) / 3 for i in range(3, 13)]  # of iterations of 8 episodes
    value = sorted(over_three)[-1] - 1e-9
    expected = 3 + next(i for i, mean in enumerate(over_three) if mean >= value)
    assert expected > 4
    stop = {"iterations": 12, "callback": StopOnReward(value, episodes=20), **QUIET}
    assert agent(**quick).learn(**stop).result["iterations"] == expected
    agent(**quick).learn(iterations=expected - 1, out=tmp_path, **QUIET)
    stop["callback"] = StopOnReward(value, episodes=20)
    assert agent(**quick).learn(out=tmp_path, resume=True, **stop).result["iterations"] == expected


# --- fleets, progress


def test_every_run_of_a_fleet_has_its_own_callbacks(tmp_path: Path) -> None:
    made: list[Told] = []

    def make() -> list[Callback]:
        made.append(Told("iteration 1" if len(made) == 1 else None))
        return [made[-1], CheckpointCallback(1)]

    fleet = offrank.Fleet("Swimmer-v3", "ars", [0, 1], horizon=20)
    results = fleet.learn(iterations=2, eval_every=0, out=tmp_path, callback=make)
    assert [result["stop_reason"] for result in results] == ["iterations", "stopped"]
    assert [one.told[-2] for one in made] == ["end iterations", "end stopped"]
    assert [len(policies(tmp_path / f"Swimmer-v3-ars-{seed}/policies")) for seed in (0, 1)] == [2, 1]
    fleet.learn(iterations=1, eval_every=0, callback=Told)  # a class makes one, too
    for wrong in (Told(), [Told]):
        with pytest.raises(UsageError, match="a class or function that makes those of one run"):
            fleet.learn(iterations=1, callback=wrong)  # type: ignore[arg-type]
    fleet.close()


def test_progress_names_an_evaluation_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    agent().learn(iterations=1, progress=True, callback=EvalCallback(far(), 1, 2, name="far"), **QUIET)
    assert "80 steps, far -" in capsys.readouterr().err
