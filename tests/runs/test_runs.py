from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offrank
from helpers import FunctionEngine, constant_reward, linear_system
from offrank.algorithms import ALGORITHMS
from offrank.core.errors import EpisodeError, FileFormatError, FleetError, Interrupted, OffrankError, UsageError
from offrank.core.files import load_arrays, save_arrays
from offrank.core.noise import Role, episode_seeds
from offrank.core.rollouts import Trajectory
from offrank.display.plots import Curve
from offrank.engines.base import Engine
from offrank.runs.config import EVAL_EVERY, RunConfig
from offrank.runs.drive import catching_signals, drive
from offrank.runs.evaluation import evaluate_policy
from offrank.runs.metrics import read_metrics
from offrank.runs.opening import open_run, open_runs
from offrank.runs.recipe import resolve
from offrank.runs.run import Run
from offrank.runs.saved import Saved

N_OBS, N_ACT = 4, 2


def engine() -> FunctionEngine:
    return FunctionEngine(linear_system(N_OBS, N_ACT), N_OBS, N_ACT)


def config(algo: str = "op-ars", ranker: str | None = None, **settings: Any) -> RunConfig:
    given = {"n_directions": 6, "n_top": 2, "step_size": 0.05, "noise_std": 0.1}
    recipe = resolve(None, algo, ranker, given | settings.pop("set", {}))
    defaults = {"seed": 0, "engine": "function", "horizon": 10, "eval_every": 2, "eval_episodes": 3}
    return RunConfig(
        "toy", recipe.algo, recipe.ranker.name, recipe.hyperparameters, recipe.sources, **(defaults | settings)
    )


def go(
    cfg: RunConfig, folder: Path | None = None, on: Engine | None = None, resume: bool = False, **options: Any
) -> Run:
    on = on or engine()
    run = open_run(cfg, on.space, folder, resume, **options)
    drive([run], on)
    return run


def without_time(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "wall_s"} for record in read_metrics(folder / "metrics.jsonl")]


# --- the evaluation protocol


def test_evaluations_come_after_every_tenth_iteration_and_none_before() -> None:
    run = go(config(eval_every=10, iterations=25))
    assert [e.iteration for e in run.evaluations] == [10, 20]


def test_evaluations_come_at_the_first_iteration_at_or_after_every_multiple_of_eval_steps() -> None:
    for every, expected in ((120, [3, 5, 8, 10]), (100, [2, 4, 6, 8, 10]), (20, list(range(1, 11))), (501, [])):
        run = go(config(eval_every=EVAL_EVERY, eval_steps=every, iterations=10))  # 50 steps per iteration
        assert [e.iteration for e in run.evaluations] == expected
        assert (run.final is None) == (10 in expected)


def test_eval_steps_is_part_of_a_run_and_files_from_before_mean_none() -> None:
    cfg = config()
    assert {"eval_steps", "confirm_episodes"} <= set(cfg.identity)
    old = {name: value for name, value in cfg.to_json().items() if name not in ("eval_steps", "confirm_episodes")}
    assert RunConfig.from_json(old) == cfg and cfg.eval_steps is None


def test_a_checkpoint_from_before_evaluations_had_a_number_of_episodes_is_continued(tmp_path: Path) -> None:
    go(config(iterations=4), tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.npz"
    _, arrays, meta = load_arrays(path, "run")
    save_arrays(path, "run", arrays | {"evaluations": arrays["evaluations"][:, :4]}, meta)
    resumed = go(config(iterations=8), tmp_path / "run", resume=True)
    assert [(e.iteration, e.episodes) for e in resumed.evaluations] == [(2, 0), (4, 0), (6, 3), (8, 3)]


def test_eval_every_and_eval_steps_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="give eval_every or eval_steps, not both"):
        config(eval_every=5, eval_steps=100)
    with pytest.raises(UsageError, match="eval_steps = 0: must be at least 1"):
        config(eval_every=EVAL_EVERY, eval_steps=0)
    with pytest.raises(UsageError, match="confirm_episodes = 3: must be more than eval_episodes = 3"):
        config(confirm_episodes=3)


def test_an_evaluation_that_reaches_the_threshold_is_confirmed_by_fresh_episodes(tmp_path: Path) -> None:
    plain = go(config(iterations=20))
    threshold = sorted(e.mean for e in plain.evaluations)[5]
    on = engine()
    run = go(config(iterations=20, threshold=threshold, confirm_episodes=7), tmp_path / "run", on)
    records = [r for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if r["kind"] == "evaluation"]
    for first, second in pairwise(records):
        if first.get("unconfirmed"):
            assert (first["eval_episodes"], second["eval_episodes"]) == (3, 7)
            assert first["iteration"] == second["iteration"] and first["return_mean"] >= threshold
    unconfirmed = [r for r in records if r.get("unconfirmed")]
    assert unconfirmed and len([e for e in run.evaluations if e.episodes == 7]) == len(unconfirmed)
    assert len({e.iteration for e in run.evaluations}) == len(run.evaluations)
    assert run.reached is not None and run.reached.episodes == 7 and run.reached is run.evaluations[-1]
    seeds = [s for r in on.requests if r.roles[0] == Role.EVALUATION for s in r.seeds]
    assert len(set(seeds)) == len(seeds)
    curve = Curve.read(tmp_path / "run")
    crossing = curve.crossing(threshold)
    assert crossing is not None and crossing["steps"] == run.reached.steps
    assert [r["return_mean"] for r in curve.evaluations()] == [e.mean for e in run.evaluations]


def test_an_evaluation_that_was_not_confirmed_does_not_count_for_a_later_threshold(tmp_path: Path) -> None:
    go(config(iterations=4, confirm_episodes=5), tmp_path / "run")
    run = go(config(iterations=8, confirm_episodes=5, threshold=-1e9), tmp_path / "run", resume=True)
    assert run.reached is not None and run.reached.iteration == 6


def test_evaluation_is_of_the_current_policy_and_is_not_counted(tmp_path: Path) -> None:
    on = engine()
    run = go(config(iterations=2, eval_every=2), tmp_path / "run", on)
    evaluation = on.requests[-1]
    assert np.array_equal(evaluation.theta(0), run.policy.theta)
    assert np.array_equal(evaluation.whitening.scale, run.state.normalizer.freeze().scale)
    assert set(evaluation.roles) == {Role.EVALUATION} and len(evaluation) == 3
    assert run.state.steps == 2 * (2 * 2 + 1) * 10  # two iterations of 2b + n_b episodes
    assert run.state.episodes == 10 and run.evaluation_steps == 30


def test_every_evaluation_has_fresh_starts() -> None:
    on = engine()
    go(config(iterations=6), on=on)
    seeds = [tuple(r.seeds) for r in on.requests if r.roles[0] == Role.EVALUATION]
    assert len(seeds) == 3 and len({s for group in seeds for s in group}) == 9


def test_evaluation_includes_the_survival_bonus() -> None:
    """The reward shift is for training only."""
    plain, shifted = (go(config("ars", iterations=2, set={"reward_shift": s})) for s in (0.0, 5.0))
    # with equal lengths a constant shift does not change the updates, so only the evaluation could differ
    assert [e.mean for e in shifted.evaluations] == pytest.approx([e.mean for e in plain.evaluations])


@pytest.mark.parametrize("confirm", [0, 5])
def test_a_mean_equal_to_the_threshold_reaches_it(confirm: int) -> None:
    on = FunctionEngine(constant_reward(N_OBS), N_OBS, N_ACT)  # every return is 10
    run = go(config(iterations=9, threshold=10.0, confirm_episodes=confirm), on=on)
    assert (run.stop_reason, run.state.iteration, run.reached) == ("threshold", 2, run.evaluations[0])
    assert run.evaluations[0].episodes == (confirm or 3)
    above = go(config(iterations=3, threshold=np.nextafter(10.0, 11.0), confirm_episodes=confirm), on=on)
    assert (above.stop_reason, above.reached) == ("iterations", None)


def test_sample_complexity_is_the_step_count_at_the_first_crossing() -> None:
    full = go(config(iterations=20))
    means = [e.mean for e in full.evaluations]
    threshold = sorted(means)[len(means) // 2]
    expected = next(e for e in full.evaluations if e.mean >= threshold)
    run = go(config(iterations=20, threshold=threshold))
    assert run.stop_reason == "threshold" and run.result["reached"]
    assert run.result["steps_to_threshold"] == expected.steps == run.state.steps


def test_an_extra_evaluation_at_the_end_is_final_and_never_a_crossing(tmp_path: Path) -> None:
    run = go(config(iterations=3, eval_every=2, threshold=None), tmp_path / "a")
    records = [r for r in read_metrics(tmp_path / "a" / "metrics.jsonl") if r["kind"] == "evaluation"]
    assert [(r["iteration"], r.get("final", False)) for r in records] == [(2, False), (3, True)]
    lenient = go(config(iterations=1, eval_every=2, threshold=-1e9), tmp_path / "b")
    assert lenient.result["steps_to_threshold"] is None and not lenient.result["reached"]
    assert json.loads((tmp_path / "b" / "result.json").read_text())["final_return"] is not None
    assert run.stop_reason == "iterations"


def test_a_step_budget_finishes_the_iteration_it_runs_out_in() -> None:
    run = go(config(steps=101))
    assert (run.state.iteration, run.state.steps, run.stop_reason) == (3, 150, "steps")


def test_an_evaluation_is_of_100_episodes_of_seed_0_unless_asked_otherwise() -> None:
    on = engine()
    policy = open_run(config(iterations=1), on.space, None).policy
    found = evaluate_policy(policy, on)
    assert found == evaluate_policy(policy, on, 100, 0) and len(found["returns"]) == 100
    assert found["returns"] != evaluate_policy(policy, on, 100, 1)["returns"]


@pytest.mark.parametrize(
    ("count", "error", "says"), [(1, FileFormatError, "damaged"), (2, FleetError, "2 of the runs failed")]
)
def test_if_all_folders_are_damaged_nothing_is_run(count: int, error: type[Exception], says: str) -> None:
    def damaged() -> Run:
        raise FileFormatError("damaged")

    with pytest.raises(error, match=says):
        open_runs({str(i): damaged for i in range(count)})


def test_the_best_policy_is_there_while_the_run_goes_on(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []

    def look(run: Run, record: dict[str, Any]) -> None:
        seen.append((record["iteration"], (tmp_path / "best.offrank").is_file()))

    go(config(iterations=4), tmp_path, callbacks=(look,))
    assert [found for iteration, found in seen if iteration in (1, 3)] == [False, True]


def test_the_final_return_is_that_of_the_last_evaluation(tmp_path: Path) -> None:
    run = go(config(iterations=6), tmp_path / "new" / "folder")
    assert len(run.evaluations) == 3 and run.final is None
    assert run.result["final_return"] == run.evaluations[-1].mean != run.evaluations[0].mean


def test_evaluations_can_be_left_out() -> None:
    on = engine()
    run = go(config(eval_every=0, iterations=3), on=on)
    assert run.evaluations == [] and all(Role.EVALUATION not in r.roles for r in on.requests)


def test_the_best_policy_is_kept(tmp_path: Path) -> None:
    run = go(config(iterations=20), tmp_path / "run")
    best = max(run.evaluations, key=lambda e: e.mean)
    assert run.best is not None and run.best[0] == best
    saved = Saved.find(tmp_path / "run")
    assert saved.meta["evaluation"]["mean"] == best.mean and saved.policy.sha256 == run.best[1].sha256
    short = go(config(iterations=best.iteration))  # the policy of that iteration
    assert saved.policy.sha256 == short.policy.sha256 != run.policy.sha256
    assert Saved.find(tmp_path / "run", "final").policy.sha256 == run.policy.sha256


@pytest.mark.parametrize(
    ("algo", "ranker", "episodes"),
    [("ars", None, 12), ("op-ars", None, 5), ("ars", "random", 4), ("op-ars", "largest-change", 5)],
)
def test_every_training_step_is_counted(algo: str, ranker: str | None, episodes: int) -> None:
    on = engine()
    run = go(config(algo, ranker, iterations=3), on=on)
    training = [r for r in on.requests if Role.EVALUATION not in r.roles]
    assert run.state.episodes == 3 * episodes == sum(len(r) for r in training)
    assert run.state.steps == 10 * run.state.episodes


# --- resume


@pytest.mark.parametrize("ranker", ["on-policy", "kernel", "interleaved", "adaptive", "random", "smallest-change"])
def test_resume_equals_uninterrupted(tmp_path: Path, ranker: str) -> None:
    whole = go(config(ranker=ranker, iterations=11), tmp_path / "whole")
    for stop in (1, 4, 7):
        go(config(ranker=ranker, iterations=stop), tmp_path / "parts", resume=True)
    parts = go(config(ranker=ranker, iterations=11), tmp_path / "parts", resume=True)
    assert parts.policy.sha256 == whole.policy.sha256
    assert parts.evaluations == whole.evaluations
    assert without_time(tmp_path / "parts") == without_time(tmp_path / "whole")
    assert Saved.find(tmp_path / "parts").policy.sha256 == Saved.find(tmp_path / "whole").policy.sha256
    assert {k: v.tobytes() for k, v in parts.state.arrays().items()} == {
        k: v.tobytes() for k, v in whole.state.arrays().items()
    }


def test_a_run_dropped_at_any_request_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """As after a power cut: only earlier checkpoints are saved."""
    cfg = config(iterations=5)
    whole = go(cfg)
    on = engine()
    total = 5 * 2 + 2 + 1  # behaviour and pairs, two evaluations and a final one
    for cut in range(total):
        folder = tmp_path / str(cut)
        run = open_run(cfg, on.space, folder, checkpoint_seconds=0.0)
        run.start()
        wanted = run.take()
        for _ in range(cut):
            request = wanted.pop(0)
            run.receive(request, on.run(request))
            wanted += run.take()
        resumed = go(cfg, folder, resume=True)
        assert resumed.policy.sha256 == whole.policy.sha256 and resumed.evaluations == whole.evaluations
        assert [r["iteration"] for r in without_time(folder) if r["kind"] == "iteration"] == [1, 2, 3, 4, 5]


def test_pausing_during_an_evaluation_does_not_lose_it(tmp_path: Path) -> None:
    cfg = config(iterations=4)
    on = engine()
    run = open_run(cfg, on.space, tmp_path / "run")
    run.start()
    wanted = run.take()
    while Role.EVALUATION not in wanted[0].roles:
        run.receive(wanted[0], on.run(wanted[0]))
        wanted = run.take()
    run.pause()
    assert go(cfg, tmp_path / "run", resume=True).evaluations == go(cfg).evaluations


def test_a_fleet_gives_every_run_the_bits_it_has_alone() -> None:
    configs = [config(algo, seed=seed, iterations=4) for algo in ("ars", "op-ars") for seed in (0, 1)]
    on = engine()
    runs = [Run(cfg, on.space) for cfg in configs]
    drive(runs, on)
    assert [run.policy.sha256 for run in runs] == [go(cfg).policy.sha256 for cfg in configs]
    assert len({run.policy.sha256 for run in runs}) == 4


def test_metrics_can_be_read_while_a_line_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    record = {"kind": "iteration", "iteration": 1, "steps": 20, "return_mean": None, "wall_s": 0.1}
    line = json.dumps(record).encode() + b"\n"
    path.write_bytes(line + b'{"kind": "iter')
    assert read_metrics(path) == [record]
    for damaged in (b"5", b"{}", line.strip().replace(b"20", b'"20"'), line.strip().replace(b"wall_s", b"wall_t")):
        path.write_bytes(line + damaged + b"\n")
        with pytest.raises(FileFormatError, match="line 2 is not a record of a run"):
            read_metrics(path)
    path.write_bytes(line + b'{"kind": "iter\n')
    with pytest.raises(FileFormatError, match="a line is not JSON"):
        read_metrics(path)


@pytest.mark.parametrize("kind", ["iteration", "evaluation"])
def test_a_record_is_whole_and_has_numbers_only(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "metrics.jsonl"
    good = {
        "kind": kind,
        "iteration": 1,
        "steps": 20,
        "return_mean": 1e110,
        "return_std": 0.0,
        "wall_s": 0.1,
        "q": None,
    }
    path.write_text(json.dumps(good) + "\n")
    assert read_metrics(path) == [good]
    needed = ["kind", "steps"] + ["return_mean", "return_std"] * (kind == "evaluation")
    lacking = [{name: value for name, value in good.items() if name != gone} for gone in needed]
    for damaged in (*lacking, good | {"q": "1"}, good | {"q": [1]}, good | {"steps": None}, good | {"q": 1e160}):
        path.write_text(json.dumps(damaged) + "\n")
        with pytest.raises(FileFormatError, match="line 1 is not a record of a run"):
            read_metrics(path)


def test_metrics_carry_the_pinned_keys_and_the_rankers_own(tmp_path: Path) -> None:
    go(config(iterations=2), tmp_path / "run")
    pinned = {"kind", "iteration", "steps", "episodes", "return_mean", "return_std", "wall_s"}
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert all(pinned <= set(r) for r in records)
    assert {"q_mean", "q_negative", "sigma_R"} <= set(records[0])


def test_metrics_shorter_than_the_checkpoint_are_refused(tmp_path: Path) -> None:
    go(config(iterations=2), tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b"")
    with pytest.raises(FileFormatError, match="lines are missing"):
        go(config(iterations=4), tmp_path / "run", resume=True)


# --- failures


def test_a_failing_episode_leaves_a_good_checkpoint(tmp_path: Path) -> None:
    cfg = config(iterations=6)
    broken = engine()
    simulate = broken.simulate
    calls = 0

    def fail_later(*args: Any) -> Trajectory:
        nonlocal calls
        calls += 1
        if calls > 22:
            raise EpisodeError("non-finite reward (nan)", 7, 3)
        return simulate(*args)

    broken.simulate = fail_later
    with pytest.raises(EpisodeError, match="episode seed 7, step 3"):
        go(cfg, tmp_path / "run", broken)
    assert go(cfg, tmp_path / "run", resume=True).policy.sha256 == go(cfg).policy.sha256


def engine_that_fails_seed_one() -> Any:
    """An engine that fails in the fourth iteration of seed 1."""
    on = engine()
    simulate = on.simulate
    bad = set(episode_seeds(1, 3, Role.PLUS, np.arange(6)).tolist())

    def fail_for_seed_one(weights: Any, whitening: Any, seed: int, horizon: int) -> Trajectory:
        if seed in bad:
            raise EpisodeError("non-finite reward (nan)", seed, 3)
        return simulate(weights, whitening, seed, horizon)

    on.simulate = fail_for_seed_one
    return on


def test_one_failing_run_does_not_stop_the_fleet(tmp_path: Path) -> None:
    on = engine_that_fails_seed_one()
    runs = [open_run(config("ars", seed=s, iterations=6), on.space, tmp_path / str(s)) for s in (0, 1, 2)]
    with pytest.raises(FleetError) as caught:
        drive(runs, on)
    assert [(failure.name, type(failure.__cause__)) for failure in caught.value.exceptions] == [
        ("toy-ars-1", EpisodeError)
    ]
    assert [run.state.iteration for run in runs] == [6, 3, 6]
    assert [run.stop_reason for run in runs] == ["iterations", None, "iterations"]
    cfg = config("ars", seed=1, iterations=6)
    assert go(cfg, tmp_path / "1", resume=True).policy.sha256 == go(cfg).policy.sha256


def test_an_interrupted_fleet_tells_which_of_its_runs_had_failed() -> None:
    on = engine_that_fails_seed_one()

    def interrupt(run: Run, record: dict[str, Any]) -> None:
        if record["iteration"] == 5:
            signal.raise_signal(signal.SIGINT)

    callbacks: dict[int, tuple[Any, ...]] = {0: (interrupt,), 1: ()}
    runs = [open_run(config("ars", seed=s, iterations=50), on.space, None, callbacks=callbacks[s]) for s in (0, 1)]
    with pytest.raises(Interrupted, match=r"SIGINT; 1 of the runs had failed") as caught:
        drive(runs, on)
    assert [(failure.name, type(failure.__cause__)) for failure in caught.value.failures] == [
        ("toy-ars-1", EpisodeError)
    ]


def test_every_run_that_fails_is_reported_by_name() -> None:
    on = engine()
    simulate = on.simulate
    bad = {int(episode_seeds(s, 2, Role.PLUS, np.array([1]))[0]) for s in range(5)}

    def fail(weights: Any, whitening: Any, seed: int, horizon: int) -> Trajectory:
        if seed in bad:
            raise EpisodeError("diverged", seed, 3)
        return simulate(weights, whitening, seed, horizon)

    on.simulate = fail
    runs = [open_run(config("ars", seed=s, iterations=6), on.space, None) for s in range(7)]
    with pytest.raises(FleetError, match="5 of the runs failed") as caught:
        drive(runs, on)
    assert [str(failure).split(":")[0] for failure in caught.value.exceptions] == [f"toy-ars-{s}" for s in range(5)]
    assert [run.state.iteration for run in runs] == [2] * 5 + [6] * 2


@pytest.mark.parametrize("error", [RuntimeError("a callback's own"), MemoryError("no memory"), KeyboardInterrupt()])
def test_any_other_error_saves_the_runs_cancels_requests_and_unlocks_the_folders(
    tmp_path: Path, error: BaseException
) -> None:
    on = engine()

    def fail(run: Run, record: dict[str, Any]) -> None:
        if record["iteration"] == 4:
            raise error

    runs = [open_run(config("ars", seed=s, iterations=8), on.space, tmp_path / str(s)) for s in range(3)]
    runs[1].callbacks = (fail,)
    with pytest.raises(type(error)):
        drive(runs, on, side_by_side=2)  # the third has not started
    assert not on._open and not on._queue
    assert all(run._lock is None for run in runs)
    for seed in range(3):
        cfg = config("ars", seed=seed, iterations=8)
        resumed = open_run(cfg, on.space, tmp_path / str(seed), resume=True)
        assert resumed.state.iteration >= (3, 3, 0)[seed]
        drive([resumed], on)
        assert resumed.policy.sha256 == go(cfg).policy.sha256


def test_a_run_that_cannot_be_saved_at_an_interrupt_is_reported_and_unlocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = engine()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def interrupt(run: Run, record: dict[str, Any]) -> None:
        if record["iteration"] == 5:
            monkeypatch.setattr("offrank.core.files.os.fsync", full)
            signal.raise_signal(signal.SIGINT)

    go(config("ars", iterations=3), tmp_path / "run", on)
    run = open_run(config("ars", iterations=50), on.space, tmp_path / "run", resume=True, callbacks=(interrupt,))
    with pytest.raises(Interrupted) as caught:
        drive([run], on)
    assert ["No space left" in str(failure) for failure in caught.value.unsaved] == [True]
    assert run._lock is None
    monkeypatch.undo()
    cfg = config("ars", iterations=9)
    assert go(cfg, tmp_path / "run", resume=True).policy.sha256 == go(cfg).policy.sha256


def test_one_damaged_folder_does_not_stop_the_others(tmp_path: Path) -> None:
    on = engine()
    configs = {str(s): config("ars", seed=s, iterations=3) for s in range(4)}
    for name, cfg in configs.items():
        go(cfg, tmp_path / name, on)
    (tmp_path / "1" / "checkpoint.npz").write_bytes(b"damaged")
    log = (tmp_path / "2" / "metrics.jsonl").read_bytes()
    (tmp_path / "2" / "metrics.jsonl").write_bytes(log[:20])

    def opening(name: str) -> Run:
        return open_run(replace(configs[name], iterations=6), on.space, tmp_path / name, resume=True)

    runs, failures = open_runs({name: partial(opening, name) for name in configs})
    with pytest.raises(FleetError) as caught:
        drive(runs, on, failures=failures)
    said = [str(failure) for failure in caught.value.exceptions]
    assert len(said) == 2 and "1: " in said[0] and "truncated, damaged" in said[0]
    assert said[1].startswith("toy-ars-2: ") and "shorter than its checkpoint says" in said[1]
    assert [run.state.iteration for run in runs] == [6, 3, 6] and all(run._lock is None for run in runs)
    checkpoint = (tmp_path / "2" / "checkpoint.npz").read_bytes()
    (tmp_path / "2" / "metrics.jsonl").write_bytes(log)  # the damaged folder is not changed, and can be repaired
    assert open_run(configs["2"], on.space, tmp_path / "2", resume=True).state.iteration == 3
    assert checkpoint == (tmp_path / "2" / "checkpoint.npz").read_bytes()


def test_a_folder_that_is_refused_leaves_none_locked(tmp_path: Path) -> None:
    on = engine()
    go(config("ars", seed=1, iterations=3), tmp_path / "1", on)
    opened: list[Run] = []

    def opening(seed: int) -> Run:
        opened.append(open_run(config("ars", seed=seed), on.space, tmp_path / str(seed)))
        return opened[-1]

    with pytest.raises(UsageError, match="already holds a run"):
        open_runs({str(seed): partial(opening, seed) for seed in range(3)})
    assert len(opened) == 1 and opened[0]._lock is None


def test_a_signal_handler_that_was_not_set_from_python_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be restored from Python: `signal.getsignal` returns None, which `signal.signal` refuses."""
    was = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    touched = []

    def set_handler(number: int, handler: Any) -> Any:
        touched.append(number)
        return was[number]

    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGTERM else was[number])
    monkeypatch.setattr(signal, "signal", set_handler)
    with catching_signals():
        assert touched == [signal.SIGINT]
    assert touched == [signal.SIGINT] * 2


def test_a_full_disk_leaves_the_last_checkpoint_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = config(iterations=8)
    go(config(iterations=3), tmp_path / "run")
    before = (tmp_path / "run" / "checkpoint.npz").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("offrank.core.files.os.fsync", full)
        with pytest.raises(OffrankError, match="No space left on device"):
            go(cfg, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "checkpoint.npz").read_bytes() == before
    assert not list((tmp_path / "run").glob(".*.part"))
    assert go(cfg, tmp_path / "run", resume=True).policy.sha256 == go(cfg).policy.sha256


def test_a_callback_can_stop_a_run() -> None:
    run = go(config(iterations=50), callbacks=(lambda run, record: record["iteration"] < 3,))
    assert (run.stop_reason, run.state.iteration) == ("stopped", 3)


# --- files


def stored(tmp_path: Path) -> Path:
    go(config(iterations=2), tmp_path / "run")
    return tmp_path / "run" / "checkpoint.npz"


def test_a_truncated_checkpoint_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path)
    content = path.read_bytes()
    for size in (0, 10, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(FileFormatError, match="truncated"):
            load_arrays(path, "run")


def test_any_changed_array_is_noticed(tmp_path: Path) -> None:
    path = stored(tmp_path)
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["state.memory.theta"] = arrays["state.memory.theta"] + 1e-9
    np.savez(path, **arrays)
    with pytest.raises(FileFormatError, match="checksum"):
        load_arrays(path, "run")


def test_foreign_and_executable_files_are_refused(tmp_path: Path) -> None:
    foreign, pickled = tmp_path / "foreign.npz", tmp_path / "pickled.npz"
    np.savez(foreign, a=np.zeros(3))
    np.savez(pickled, meta=np.array([{"a": 1}], dtype=object), sha256=np.zeros(32, np.uint8))
    with pytest.raises(FileFormatError, match="not an offrank file"):
        load_arrays(foreign, "run")
    with pytest.raises(FileFormatError):
        load_arrays(pickled, "run")
    with pytest.raises(UsageError, match="cannot read"):
        load_arrays(tmp_path / "missing", "run")


def test_a_policy_is_not_a_checkpoint(tmp_path: Path) -> None:
    stored(tmp_path)
    with pytest.raises(FileFormatError, match="holds a policy, not a run"):
        load_arrays(tmp_path / "run" / "best.offrank", "run")


def test_arrays_of_every_kind_come_back_as_they_were(tmp_path: Path) -> None:
    arrays = {
        "scalar": np.array(3.5),
        "empty": np.zeros((0, 4)),
        "ints": np.arange(6).reshape(2, 3),
        "yes": np.array(True),
    }
    arrays["strided"] = np.arange(12.0).reshape(3, 4)[:, ::2]
    save_arrays(tmp_path / "file", "policy", arrays, {"note": "ü"})
    kind, back, meta = load_arrays(tmp_path / "file", "policy")
    assert kind == "policy" and meta["note"] == "ü"
    for name, value in arrays.items():
        assert back[name].dtype == value.dtype and np.array_equal(back[name], value)


@pytest.mark.parametrize("change", [{"seed": 1}, {"horizon": 9}, {"set": {"n_top": 3}}, {"ranker": "random"}])
def test_another_runs_checkpoint_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    stored(tmp_path)
    with pytest.raises(UsageError, match="is of another run"):
        go(config(**change, iterations=4), tmp_path / "run", resume=True)


def test_limits_may_change_on_resume(tmp_path: Path) -> None:
    stored(tmp_path)
    run = go(config(iterations=None, steps=200, threshold=1e9), tmp_path / "run", resume=True)
    assert run.stop_reason == "steps"


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    stored(tmp_path)
    with pytest.raises(UsageError, match="already holds a run"):
        go(config(iterations=4), tmp_path / "run")


def test_policies_survive_their_file_bit_for_bit(tmp_path: Path) -> None:
    run = go(config(iterations=3), tmp_path / "run")
    policy = Saved.find(tmp_path / "run", "final").policy
    states = np.random.default_rng(0).normal(size=(20, N_OBS))
    assert np.array_equal(policy.predict(states), run.policy.predict(states))
    assert np.array_equal(policy.predict(states[3]), policy.predict(states)[3])


def test_predictions_are_clipped_or_chosen_as_the_environment_needs() -> None:
    run = go(config(iterations=3))
    policy = run.policy
    clipped = replace(policy, theta=100 * policy.theta, low=np.array([-1.0, -2.0]), high=np.array([1.0, 2.0]))
    states = np.random.default_rng(0).normal(size=(50, N_OBS))
    assert np.abs(clipped.predict(states)).max(axis=0).tolist() == [1.0, 2.0]
    chosen = replace(policy, discrete=True).predict(states)
    assert np.array_equal(chosen, policy.raw(states).argmax(axis=1))


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((2, 2, 4)), np.full(4, np.nan)])
def test_bad_observations_are_named(bad: np.ndarray) -> None:
    with pytest.raises(UsageError, match="observation"):
        go(config(iterations=1)).policy.predict(bad)


@pytest.mark.parametrize(
    "bad",
    [{"seed": -1}, {"seed": 2**63}, {"horizon": 0}, {"eval_episodes": 0}, {"steps": 0}, {"threshold": float("nan")}],
)
def test_impossible_settings_are_named(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(bad))):
        config(**bad)


def test_cut_training_episodes_are_evaluated_in_full() -> None:
    agent = offrank.ARS("Swimmer-v3", n_directions=2, n_top=2, ranker="random", train_horizon=20)
    agent.learn(iterations=2, eval_every=2, eval_episodes=1)
    assert agent.result["steps"] == 2 * 4 * 20
    assert agent.result["evaluation_steps"] == 1000


def test_a_run_of_before_there_was_a_setting_has_its_default() -> None:
    config = offrank.ARS("Swimmer-v3", train_horizon=20)._config
    data = config.to_json()
    assert RunConfig.from_json(data) == config
    del data["hyperparameters"]["train_horizon"]
    assert RunConfig.from_json(data).hyperparameters == {**config.hyperparameters, "train_horizon": 0}


def test_one_signal_stops_a_run_whose_environment_hangs_in_this_process(tmp_path: Path) -> None:
    marker = tmp_path / "hangs"
    command = ["train", "toy_envs:Hang-v0", "--algo", "ars", "--workers", "0", "--iterations", "3", "--quiet"]
    command += ["--env-arg", f"marker={marker}", "--env-arg", "times=1", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-m", "offrank", *command], stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    )
    while not marker.exists() and process.poll() is None:
        time.sleep(0.1)
    time.sleep(0.5)  # it has written that it hangs, and then does
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert err.count("\n") == 1 and "interrupted by SIGTERM; saved" in err
    assert (tmp_path / "run" / "checkpoint.npz").is_file()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for the process in /proc")
def test_a_worker_in_an_environment_that_hangs_ends_when_its_run_was_killed(tmp_path: Path) -> None:
    marker = tmp_path / "hangs"  # its lines are the numbers of the workers that hang
    command = ["train", "toy_envs:Hang-v0", "--algo", "ars", "--workers", "1", "--iterations", "3", "--quiet"]
    command += ["--env-arg", f"marker={marker}", "--env-arg", "times=9", "--out", str(tmp_path / "run")]
    process = subprocess.Popen([sys.executable, "-m", "offrank", *command], cwd=Path(__file__).parents[1])
    while not (marker.exists() and marker.read_text().endswith("\n")) and process.poll() is None:
        time.sleep(0.1)
    process.kill()
    process.wait(60)
    state = Path("/proc") / marker.read_text().split()[0] / "stat"
    until = time.monotonic() + 60
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < until:
        time.sleep(0.1)
    assert time.monotonic() < until, "the worker is still there"


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("normalizer_mean", lambda a: a + 1e200, "normalizer_mean is not finite, or too large"),
        ("memory.actor.theta", lambda a: a[:-1], r"actor.theta of shape"),
        ("memory.critic.q.w1", lambda a: a.astype(np.float64), "critic.q.w1 of shape .* and type float64"),
        ("memory.critic.step", lambda a: a[None], "critic.step of shape"),
        ("memory.critic.slow.w2", lambda a: np.full_like(a, np.nan), "critic.slow.w2 is not finite, or too large"),
        ("memory.replay.action", lambda a: a[:-3], "replay.action of shape"),
        ("memory.replay.state", lambda a: a[:, :-1], "replay.state of shape"),
        ("memory.replay.ahead", lambda a: a + 1, "a transition of memory.replay ends beyond its last row"),
        ("memory.replay.ahead", lambda a: a - 1, "a transition of memory.replay ends beyond its last row"),
        ("normalizer_mean", lambda a: a[:-1], "normalizer_mean of shape"),
        ("normalizer_m2", lambda a: -1 - a, "normalizer_m2 is negative"),
        ("memory.owed", lambda a: None, "it has no memory.owed"),
        ("memory.replay.written", lambda a: a // 2, "memory.replay has more rows than were written"),
        ("counters", lambda a: a.astype(float), "counters of type float64"),
        ("counters", lambda a: a + np.array([1, 0, 0, 0, 0], dtype=np.uint64), "counters are not those of the run"),
        ("counters", lambda a: a + np.array([0, 0, 2**60, 0, 0], dtype=np.uint64), "counters are not those of the run"),
    ],
)
def test_a_checkpoint_whose_arrays_are_of_another_size_is_refused(
    tmp_path: Path, name: str, change: Any, says: str
) -> None:
    """Its checksum is right: it was written so."""
    small: dict[str, Any] = {"workers": 0, "warmup_steps": 20, "hidden": 8, "batch": 4}
    path = tmp_path / "agent.offrank"
    offrank.Guided("toy_envs:Point-v0", **small).learn(iterations=3, eval_every=0).save(path)
    _, arrays, meta = load_arrays(path, "run")
    changed = change(arrays.pop(f"state.{name}"))
    if changed is not None:
        arrays[f"state.{name}"] = changed
    save_arrays(path, "run", arrays, meta)
    with pytest.raises(FileFormatError, match=rf"agent.offrank is not a whole checkpoint: .*{says}"):
        offrank.load(path, workers=0)


@pytest.mark.parametrize("table", [np.ones((1, 5), dtype=np.float32), np.ones(5), np.full((1, 5), 1e300)])
def test_a_checkpoint_with_other_evaluations_is_refused(tmp_path: Path, table: Any) -> None:
    path = tmp_path / "agent.offrank"
    offrank.ARS("toy_envs:Point-v0", workers=0).learn(iterations=1, eval_every=0).save(path)
    _, arrays, meta = load_arrays(path, "run")
    save_arrays(path, "run", arrays | {"evaluations": table}, meta)
    with pytest.raises(FileFormatError, match="its evaluations are not a table of numbers"):
        offrank.load(path, workers=0)


@pytest.mark.parametrize("name", ["wall_s", "metrics_size", "evaluation_steps", "best_at"])
@pytest.mark.parametrize("value", ["5", None, [], -7, True, 1e308, float("nan")])
def test_a_checkpoint_with_a_wrong_number_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    path = tmp_path / "agent.offrank"
    offrank.ARS("toy_envs:Point-v0", workers=0).learn(iterations=1, eval_every=0).save(path)
    _, arrays, meta = load_arrays(path, "run")
    save_arrays(path, "run", arrays, meta | {name: value})
    with pytest.raises(FileFormatError, match=f"agent.offrank is not a whole checkpoint: its {name} is"):
        offrank.load(path, workers=0)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_run_that_has_done_nothing_yet_can_be_read_again(algo: str) -> None:
    for ranker in ALGORITHMS[algo].rankers:
        recipe = resolve(None, algo, ranker, {})
        made = RunConfig(
            "toy", algo, ranker, recipe.hyperparameters, recipe.sources, seed=0, engine="function", horizon=10
        )
        state = Run(made, engine().space).state
        state.check(state)
