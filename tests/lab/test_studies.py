"""Studies: plans of runs that resume, grow and are shared; rows, tables and figures made from them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import another_process
from offrank.algorithms.rankers import RANKERS
from offrank.cli import main, processes
from offrank.core.errors import FileFormatError, UsageError
from offrank.core.files import read_json
from offrank.display.progress import NoDisplay
from offrank.lab.studies.catalogue import STUDIES, StudyOptions
from offrank.lab.studies.execution import ExecutionSettings, carry_out, estimate, evaluation_share, missing
from offrank.lab.studies.figures import curves_over_steps
from offrank.lab.studies.outcomes import gather, groups, read_rows, write_rows
from offrank.lab.studies.paper import about
from offrank.lab.studies.plan import Planned, Variant, plan_runs
from offrank.lab.studies.tables import interactions_markdown, seconds_table, sensitivity_tables, summarise
from offrank.runs.config import REMOVED
from offrank.runs.lock import lock_folder
from offrank.runs.recipe import resolve
from offrank.tasks import TASKS

THRESHOLD = -1e5  # of LQR, which has none: every controller that is not far off reaches it


def small_plan(seeds: range = range(2), steps: int = 12_000, threshold: float | None = None) -> list[Planned]:
    variants = {"LQR": [Variant("ars"), Variant("ars", "random"), Variant("op-ars")]}
    return plan_runs(["LQR"], variants, seeds, {"LQR": steps}, {"LQR": threshold}, eval_every=1)


def work(pool: Path, plan: list[Planned]) -> list[str]:
    return sorted(run.name for run in carry_out(plan, ExecutionSettings(pool), NoDisplay()).done)


def results(pool: Path) -> dict[str, Any]:
    return {folder.name: read_json(folder / "result.json")["policy_sha256"] for folder in pool.iterdir()}


def row(seed: int, steps: int | None, algo: str = "ars", ranker: str | None = None, **other: Any) -> dict[str, Any]:
    """The row of a run on Swimmer-v3, as `gather` would return it."""
    recipe = resolve("Swimmer-v3", algo, ranker)
    evaluations = [[10 * k, 40_000 * k, 30.0 * k, 1.0] for k in range(1, 12)]
    return {
        "task": "Swimmer-v3",
        "algo": algo,
        "ranker": recipe.ranker.name,
        "seed": seed,
        "engine": "mujoco",
        "hyperparameters": recipe.hyperparameters | other,
        "threshold": 325,
        "steps_to_threshold": steps,
        "reached": steps is not None,
        "steps": steps or 440_000,
        "budget": 440_000,
        "episodes": 440,
        "iterations": 110,
        "wall_s": 20.0,
        "seconds_to_threshold": steps and 9.0,
        "training_seconds_to_threshold": steps and 5.0,
        "training_seconds": 8.0,
        "evaluations": evaluations,
    }


# --- plans


def test_table1_runs_what_the_paper_has_with_both_baselines_and_eight_seeds() -> None:
    plan = STUDIES["table1"].plan(StudyOptions())
    for task in TASKS:
        labels = {run.variant.label for run in plan if run.task == task}
        assert labels == set(about(task, "interactions"))
        assert {run.seed for run in plan if run.task == task} == set(range(8))
    assert len({run.name for run in plan}) == len(plan)


def test_budgets_leave_room_for_every_median_of_the_paper() -> None:
    for task in TASKS:
        slowest = max(entry["steps"] for entry in about(task, "interactions").values())
        assert about(task, "budget") >= 1.5 * 1000 * slowest


def test_the_presets_of_the_plan_are_those_of_the_paper() -> None:
    sizes = {(run.task, run.variant.label): run for run in STUDIES["table1"].plan(StudyOptions(seeds=(0,)))}
    h = resolve("HalfCheetah-v3", sizes["HalfCheetah-v3", "op-ars"].variant.algo).hyperparameters
    assert (h["n_directions"], h["n_top"], h["n_behaviour"], h["bandwidth"]) == (32, 4, 2, 1.0)


def test_box_plots_and_curves_share_the_runs_of_the_table() -> None:
    names = [[run.name for run in STUDIES[name].plan(StudyOptions())] for name in ("table1", "boxplots", "curves")]
    assert names[0] == names[1] == names[2]


def test_the_grid_names_only_what_differs_from_the_preset() -> None:
    plan = STUDIES["sensitivity"].plan(StudyOptions(tasks=("HalfCheetah-v3",), seeds=(0,)))
    labels = [run.variant.label for run in plan]
    assert len(set(labels)) == 8 and "op-ars" in labels and "op-ars-h0.25-n_b1" in labels
    assert all(run.threshold is None for run in plan)


def test_algos_may_name_a_ranker() -> None:
    plan = STUDIES["table1"].plan(
        StudyOptions(("Hopper-v3",), ("op-ars/smallest-change", "op-ars/kernel", "tres"), (0,))
    )
    assert [run.variant.label for run in plan] == ["op-ars-smallest-change", "op-ars", "tres", "tres-random"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tabel1"], "did you mean 'table1'?"),
        (["table1", "--tasks", "Swimer-v3"], "did you mean 'Swimmer-v3'"),
        (["table1", "--algos", "op-arse"], "did you mean 'op-ars'"),
        (["table1", "--algos", "ars/kernal"], "did you mean 'kernel'?"),
        (["table1", "--tasks", "LQR"], "has no threshold"),
        (["table1", "--from", "nowhere.json"], "cannot read nowhere.json"),
        (["table1", "--from", "x.json", "--dry-run"], "--from runs nothing"),
        (["table1", "--from", "x.json", "--processes", "2"], "cannot be combined with --processes"),
        (["walltime", "--processes", "2"], "does not go with walltime, which times runs one at a time"),
        (["walltime", "--side-by-side", "4"], "does not go with walltime, which times runs one at a time"),
        (["lqr", "--engine", "mujoco"], "the mujoco engine runs"),
        (["hybrids", "--lessons", "tpu"], "lessons = 'tpu': must be cpu, cuda, or a GPU"),
    ],
)
def test_a_usage_error_is_one_line(words, said, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *words]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


# --- execution


def test_only_what_is_missing_is_run(tmp_path: Path) -> None:
    first = small_plan(range(1))
    assert work(tmp_path, first) == sorted(run.name for run in first)
    assert work(tmp_path, first) == []
    more = small_plan(range(2))
    assert work(tmp_path, more) == sorted(run.name for run in more if run.seed == 1)
    assert missing(more, tmp_path) == []


def test_a_raised_budget_continues_to_the_bits_of_an_uninterrupted_run(tmp_path: Path) -> None:
    work(tmp_path / "grown", small_plan(range(1), steps=6_000))
    longer = small_plan(range(1), steps=20_000)
    assert work(tmp_path / "grown", longer) == sorted(run.name for run in longer)
    work(tmp_path / "whole", longer)
    assert results(tmp_path / "grown") == results(tmp_path / "whole")


def test_a_run_that_reached_the_threshold_is_done_whatever_the_budget(tmp_path: Path) -> None:
    plan = small_plan(range(1), steps=200_000, threshold=THRESHOLD)
    work(tmp_path, plan)
    assert work(tmp_path, small_plan(range(1), steps=400_000, threshold=THRESHOLD)) == []
    rows = [gather(tmp_path / run.name) for run in plan]
    assert all(r["reached"] and r["steps_to_threshold"] == r["steps"] < 200_000 for r in rows)
    assert all(r["seconds_to_threshold"] is not None and r["training_seconds_to_threshold"] is None for r in rows)


def test_training_is_timed_without_the_evaluations_which_it_does_not_overlap_then(tmp_path: Path) -> None:
    plan = small_plan(range(1), steps=4_000)
    carry_out(plan, ExecutionSettings(tmp_path, timed=True), NoDisplay())
    work(tmp_path / "overlapping", plan)
    for run in plan:
        timed, usual = gather(tmp_path / run.name), gather(tmp_path / "overlapping" / run.name)
        assert timed["policy_sha256"] == usual["policy_sha256"] and usual["training_seconds"] is None
        lines = [json.loads(line) for line in (tmp_path / run.name / "metrics.jsonl").read_text().splitlines()]
        before = [0.0] + [line["wall_s"] for line in lines]
        training = sum(
            line["wall_s"] - t for line, t in zip(lines, before, strict=False) if line["kind"] == "iteration"
        )
        assert timed["training_seconds"] == pytest.approx(training, abs=0.06)
        assert all(line["alone"] for line in lines if line["kind"] == "evaluation")


def test_two_processes_share_a_study_without_doing_a_run_twice(tmp_path: Path) -> None:
    code = (
        "import json, sys; sys.path[:0] = sys.argv[2:]; from pathlib import Path;"
        "from test_studies import small_plan, work; print(json.dumps(work(Path(sys.argv[1]), small_plan(range(4)))))"
    )
    here = Path(__file__).parent
    words = [sys.executable, "-c", code, str(tmp_path), str(here), str(here.parent)]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    done = [json.loads(process.communicate()[0]) for process in both]
    assert sorted(done[0] + done[1]) == sorted(run.name for run in small_plan(range(4)))
    assert missing(small_plan(range(4)), tmp_path) == []


def test_a_run_of_another_process_is_left_to_it(tmp_path: Path) -> None:
    plan = small_plan(range(1))
    taken = tmp_path / plan[0].name
    taken.mkdir()
    with another_process(taken):
        progress = carry_out(plan, ExecutionSettings(tmp_path), NoDisplay())
        assert progress.skipped == plan[:1] and len(progress.done) == len(plan) - 1
    assert work(tmp_path, plan) == [plan[0].name]


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    work(tmp_path, small_plan(range(1), steps=6_000))
    path = tmp_path / "LQR-ars-0" / "config.json"
    config = read_json(path)
    config["hyperparameters"]["step_size"] = 0.5
    path.write_text(json.dumps(config))
    with pytest.raises(UsageError, match="holds a run with step_size"):
        work(tmp_path, small_plan(range(1), steps=60_000))
    lock_folder(tmp_path / "LQR-ars-0").release(force=True)  # nothing stays locked


def test_the_estimate_is_the_steps_left_at_the_measured_pace(tmp_path: Path) -> None:
    work(tmp_path, small_plan(range(1), steps=6_000))
    rows = estimate(small_plan(range(2), steps=60_000), ExecutionSettings(tmp_path), calibrate=lambda engine: 1e-3)
    for run, done, finished, seconds in rows:
        assert not finished and (done > 0) == (run.seed == 0)
        assert seconds == pytest.approx((60_000 - done) * (1 + evaluation_share(run)) * 1e-3)
    assert estimate(small_plan(range(1), steps=6_000), ExecutionSettings(tmp_path))[0][2:] == (True, 0.0)


def test_evaluation_costs_what_its_episodes_cost() -> None:
    share = {run.variant.label: evaluation_share(run) for run in STUDIES["table1"].plan(StudyOptions(("Swimmer-v3",)))}
    assert share["ars"] == 100 / 40 and share["ars-random"] == 100 / 20 and share["op-ars"] == 100 / 40


# --- rows, tables and figures


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [row(0, 240_000), row(1, None)]
    write_rows(tmp_path / "rows.json", rows)
    assert read_rows([tmp_path / "rows.json"]) == rows
    assert len((tmp_path / "rows.json").read_text().splitlines()) == len(rows) + 2
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(FileFormatError, match="does not hold results of runs"):
        read_rows([tmp_path / "other.json"])


def test_runs_that_differ_are_not_grouped() -> None:
    rows = [row(1, 3), row(0, 2), row(0, 4, ranker="random"), row(2, 5, step_size=0.5), row(3, 1) | {"engine": "warp"}]
    found = groups(rows)
    assert [(g.variant.label, g.engine, g.seeds) for g in found] == [
        ("ars", "mujoco", [0, 1]),
        ("ars", "warp", [3]),
        ("ars-step_size0.5", "mujoco", [2]),
        ("ars-random", "mujoco", [0]),
    ]
    assert [g.size for g in found] == ["2/1", "2/1", "2/1", "1/1"]


def stored(seed: int, ranker: str, algo: str = "ars", **settings: Any) -> dict[str, Any]:
    """A row of an earlier version, whose ranker, algorithm or settings may not exist any more."""
    return row(seed, 100_000) | {"algo": algo, "ranker": ranker, "hyperparameters": settings}


def test_settings_that_no_longer_exist_are_named_only_where_they_had_an_effect() -> None:
    rows = [row(0, 1), row(1, 1, **REMOVED), row(2, 1, orthogonal=True), row(3, 1, starts=4, start_steps=100_000)]
    labels = ["ars", "ars-orthogonalTrue", "ars-start_steps100000-starts4"]
    assert [g.variant.label for g in groups(rows)] == labels
    assert groups(rows)[0].seeds == [0, 1]


def test_rows_of_rankers_and_algorithms_that_no_longer_exist_are_shown(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.delitem(RANKERS, "memory", raising=False)
    rows = [row(0, 200_000), stored(0, "memory", orthogonal=True), stored(1, "no-such-ranker", "q-none")]
    write_rows(tmp_path / "rows.json", rows)
    for study in ("table1", "boxplots", "curves", "walltime"):
        assert main(["reproduce", study, "--from", str(tmp_path / "rows.json"), "--out", str(tmp_path / "out")]) == 0
        text = capsys.readouterr().out
        assert "| ars-memory-orthogonalTrue |" in text and "| q-none-no-such-ranker |" in text
    words = ["--algos", "ars/memory", "--out", str(tmp_path / "one")]
    assert main(["reproduce", "table1", "--from", str(tmp_path / "rows.json"), *words]) == 0
    assert [r["ranker"] for r in read_rows([tmp_path / "one" / "table1.json"])] == ["memory"]


def test_tasks_and_variants_are_in_their_usual_order() -> None:
    algos = [("op-tres", None), ("q-ars", None), ("op-ars", None), ("tres", "random"), ("ars", "random"), ("ars", None)]
    rows = [row(0, 1, algo, ranker) for algo, ranker in algos]
    elsewhere = [rows[-1] | {"task": task} for task in ("Another-v0", "Ant-v3", "Hopper-v3")]
    found = groups([*elsewhere, *rows])
    assert list(dict.fromkeys(g.task for g in found)) == ["Swimmer-v3", "Hopper-v3", "Ant-v3", "Another-v0"]
    order = ["ars", "ars-random", "op-ars", "q-ars", "tres-random", "op-tres"]
    assert [g.variant.label for g in found if g.task == "Swimmer-v3"] == order


def test_the_table_shows_both_baselines_and_the_paper() -> None:
    rows = [row(seed, 200_000 + seed) for seed in range(4)]
    rows += [row(seed, None if seed else 400_000, ranker="random") for seed in range(4)]
    rows += [row(seed, 100_000 + seed, "op-ars") for seed in range(4)]
    summaries = {s["variant"]: s for s in summarise(rows)}
    ours = summaries["op-ars"]
    assert set(ours["against"]) == {"ars", "ars-random"}
    assert ours["against"]["ars"]["share_of_steps"] == pytest.approx(100_001 / 200_001)
    assert ours["against"]["ars-random"]["share_of_steps"] is None  # beyond its budget: no number to divide by
    assert ours["against"]["ars-random"]["probability_of_winning"] == 1.0
    assert ours["against"]["ars"]["paired"] == {"wins": 4, "losses": 0, "ties": 0, "p": 0.125}
    assert summaries["ars-random"]["median"] is None and summaries["ars-random"]["median_of_successes"] == 400_000
    lines = interactions_markdown(list(summaries.values())).splitlines()
    assert "| > 440 (400 to > 440) | 400 | 580, 5 of 8 |" in lines[3]
    assert "| 100 (100 to 100) | 100 | 440, 5 of 8 | 50% | - | 1.00 (1.00-1.00), 4:0 by seed |" in lines[4]


def test_what_nobody_reached_is_not_decided() -> None:
    rows = [row(seed, None, algo) for algo in ("ars", "op-ars") for seed in range(3)]
    ours = summarise(rows)[1]
    against = ours["against"]["ars"]
    assert ours["median_interval"] is against["probability_of_winning"] is against["interval"] is None
    assert against["paired"] == {"wins": 0, "losses": 0, "ties": 3, "p": None}
    line = interactions_markdown([ours]).splitlines()[-1]
    assert "| 0 of 3 (0%-56%) | > 440 | - |" in line and line.endswith("| not decided | - |")


def test_times_are_censored_like_steps_and_the_papers_are_quoted() -> None:
    text = seconds_table(groups([row(0, 100), row(1, None), row(2, None)])).markdown()
    assert "| Swimmer-v3 | ars | > 20 | > 8 | 1 of 3 | 40 |" in text
    unknown = [row(seed, 100) | {"training_seconds_to_threshold": None, "training_seconds": None} for seed in range(3)]
    assert "| Swimmer-v3 | ars | 9 | - | 3 of 3 | 40 |" in seconds_table(groups(unknown)).markdown()
    old = [
        {k: v for k, v in row(seed, steps).items() if k != "training_seconds"}
        for seed, steps in enumerate([1, 1, None])
    ]
    assert "| Swimmer-v3 | ars | 9 | - | 2 of 3 | 40 |" in seconds_table(groups(old)).markdown()
    known = [one | {"training_seconds": 8.0} for one in old]
    assert "| Swimmer-v3 | ars | 9 | 5 | 2 of 3 | 40 |" in seconds_table(groups(known)).markdown()
    hopper = [r | {"task": "Hopper-v3"} for r in [row(0, 100)]]
    assert "CEM-RL (the paper's) | - | - | - | 5703 |" in seconds_table(groups(hopper)).markdown()


def test_the_grid_is_a_table_of_n_b_and_h() -> None:
    rows = [row(0, 100_000, "op-ars"), row(0, None, "op-ars", bandwidth=0.5), row(0, 200_000, "op-ars", n_behaviour=1)]
    assert sensitivity_tables(rows)[0].markdown().splitlines() == [
        "| Swimmer-v3 | h 0.1 | h 0.5 |",
        "|---|---|---|",
        "| n_b 1 | 200 (1 of 1) | - |",
        "| n_b 2 | 100 (1 of 1) | > 440 (0 of 1) |",
    ]


@pytest.mark.parametrize("name", ["table1", "boxplots", "curves", "seeds", "sensitivity", "walltime"])
def test_tables_and_figures_are_rebuilt_from_the_rows_alone_to_the_same_bytes(name: str, tmp_path: Path) -> None:
    rows = [row(seed, 400_000 + seed if seed % 3 else None) for seed in range(4)]
    rows += [row(seed, 300_000, "op-ars", bandwidth=h) for seed in range(3) for h in (0.1, 0.5)]
    if name in ("seeds", "sensitivity"):
        rows = [r for r in rows if r["algo"] == "op-ars"]
    write_rows(tmp_path / "rows.json", rows)
    for out in ("a", "b"):
        words = ["reproduce", name, "--from", str(tmp_path / "rows.json"), "--out", str(tmp_path / out)]
        assert main(words) == 0
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    drawn = [] if name in ("table1", "walltime") else [f"{name}.png"]
    assert files == sorted([f"{name}-summary.json", f"{name}.json", f"{name}.md", *drawn])
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize("name", ["table1", "boxplots", "curves", "seeds", "sensitivity", "walltime", "hybrids"])
def test_a_run_that_was_never_evaluated_is_left_out(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(seed, None if seed else 400_000, "op-ars") for seed in range(4)]
    early = {"steps": 20_000, "budget": 20_000, "evaluations": []}
    rows = [r | early if r["seed"] > 1 else r for r in [*rows, *(row(seed, None, "tres") for seed in (2, 3))]]
    if name == "sensitivity":
        rows = rows[:4]
    write_rows(tmp_path / "rows.json", rows)
    assert main(["reproduce", name, "--from", str(tmp_path / "rows.json"), "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "1 of 2" in told and "of 4" not in told and "| tres |" not in told
    variants = "op-ars (2)" if name == "sensitivity" else "op-ars (2), Swimmer-v3 tres (2)"
    assert f"Runs left out because they ended before an evaluation was due: Swimmer-v3 {variants}." in told
    [summary] = json.loads((tmp_path / f"{name}-summary.json").read_text())
    assert (summary["runs"], summary["left_out"], summary["seeds"]) == (2, 2, [0, 1])
    assert read_rows([tmp_path / f"{name}.json"]) == rows


def test_runs_that_were_never_evaluated_show_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / "rows.json", [row(7, None, "op-ars") | {"evaluations": []}])
    assert main(["reproduce", "seeds", "--from", str(tmp_path / "rows.json"), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "offrank: none of the 1 runs was evaluated: there is nothing to show\n"
    assert not (tmp_path / "seeds.json").exists()  # nothing half-written


def test_an_unfinished_run_that_was_never_evaluated_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "Swimmer-v3", "--algo", "ars", "--horizon", "20", "--eval-every", "4", "--eval-episodes", "2"]
    for seed, iterations in ((0, 5), (1, 3)):
        words = ["--seed", str(seed), "--iterations", str(iterations), "--out", str(tmp_path / "runs" / str(seed))]
        assert main([*command, *words, "--quiet"]) == 0
        (tmp_path / "runs" / str(seed) / "result.json").unlink()
    assert again("hybrids", tmp_path / "out", tmp_path / "runs", "--unfinished") == 0
    told = capsys.readouterr().out
    assert "| 0 of 1 |" in told and "was due: Swimmer-v3 ars (1)." in told
    assert (tmp_path / "out" / "hybrids.png").is_file()


def test_the_committed_rows_can_be_read() -> None:
    results = Path(__file__).parents[2] / "results"
    rows = read_rows([results / "table1.json"])
    assert len(summarise(rows)) == 26 and len(rows) == 26 * 8  # eight seeds of everything
    assert len(read_rows([results / "lqr.json"])) == 500


def test_an_unfinished_run_is_censored_at_its_last_evaluation(tmp_path: Path) -> None:
    command = ["train", "Swimmer-v3", "--algo", "ars", "--horizon", "20", "--eval-every", "2", "--eval-episodes", "2"]
    main([*command, "--iterations", "5", "--out", str(tmp_path / "runs" / "one"), "--quiet"])
    (tmp_path / "runs" / "one" / "result.json").unlink()
    assert read_rows([tmp_path / "runs"]) == []
    (row,) = read_rows([tmp_path / "runs"], unfinished=True)
    assert row["steps"] == row["budget"] == row["evaluations"][-1][1] and row["steps_to_threshold"] is None
    assert row["iterations"] == row["evaluations"][-1][0] == 4 and row["episodes"] == 4 * 2 * 2  # pairs of two
    write_rows(tmp_path / "rows.json", [row])
    assert read_rows([tmp_path / "rows.json"]) == [row]


def test_a_smaller_budget_cuts_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = Path(__file__).parents[2] / "results"
    whole = read_rows([results / "table1.json"])
    shown = ["reproduce", "table1", "--from", str(results / "table1.json"), "--tasks", "Swimmer-v3", "--algos", "tres"]
    assert main([*shown, "--budget", "150k", "--out", str(tmp_path)]) == 0
    rows = read_rows([tmp_path / "table1.json"])
    before = [row for row in whole if row["task"] == "Swimmer-v3" and row["algo"] == "tres"]
    assert len(rows) == len(before) == 16
    for row, was in zip(rows, before, strict=True):
        there = was["steps_to_threshold"] is not None and was["steps_to_threshold"] <= 150_000
        assert row["reached"] == there and row["steps_to_threshold"] == (was["steps_to_threshold"] if there else None)
        assert row["evaluations"] == [e for e in was["evaluations"] if e[1] <= 150_000]
        assert row["steps"] <= 150_000 and row["episodes"] * was["iterations"] == was["episodes"] * row["iterations"]
    assert {row["reached"] for row in rows} == {True, False}
    capsys.readouterr()
    assert main(["reproduce", "lqr", "--from", str(results / "lqr.json"), "--budget", "1k"]) == 2
    assert "--budget does not work with lqr" in capsys.readouterr().err


def test_committed_rows_differ_from_the_presets_only_where_a_study_varies_them() -> None:
    results = Path(__file__).parents[2] / "results"
    labels = {g.variant.label for g in groups(read_rows([results / "table1.json"]))}
    assert labels == {"ars", "ars-random", "op-ars", "tres", "tres-random", "op-tres"}
    assert {g.variant.label for g in groups(read_rows([results / "guided.json"]))} == {"guided", "guided-linear"}
    grid = {g.variant.label for g in groups(read_rows([results / "sensitivity.json"]))}
    assert grid == {"op-ars" + h + n for h in ("", "-h0.1", "-h0.25", "-h0.5", "-h1.0") for n in ("", "-n_b1")}


def test_many_seeds_are_drawn_of_any_algorithm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = Path(__file__).parents[2] / "results" / "table1.json"
    chosen = ["--tasks", "Swimmer-v3", "--algos", "tres", "--budget", "400k"]
    assert main(["reproduce", "seeds", "--from", str(table), *chosen, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "seeds.png").is_file()


def test_the_lqr_study_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "lqr", "--seeds", "0-1", "--budget", "12k", "--out", str(tmp_path), "--quiet"]
    assert main([*words, "--dry-run"]) == 0
    assert "6 of 6 runs to do" in capsys.readouterr().out
    assert main(words) == 0
    assert "| nominal | 2 |" in capsys.readouterr().out
    rows = read_rows([tmp_path / "lqr.json"])
    assert sorted({r["algo"] for r in rows}) == ["ars", "lspi", "nominal", "op-ars"] and len(rows) == 10
    assert all(r["curve"][-1][1] <= r["steps"] for r in rows)
    summary = read_json(tmp_path / "lqr-summary.json")
    assert set(summary["methods"]) == {"nominal", "lspi", "ars", "ars-random", "op-ars"}
    before = (tmp_path / "lqr.md").read_bytes()
    again = ["reproduce", "lqr", "--from", str(tmp_path / "lqr.json"), "--out", str(tmp_path / "again")]
    assert main(again) == 0 and (tmp_path / "again" / "lqr.md").read_bytes() == before


def test_processes_share_a_study(offrank) -> None:
    words = ["reproduce", "lqr", "--seeds", "0-1", "--budget", "12k"]
    assert offrank(*words, "--out", "one", "--quiet").status == 0
    shared = offrank(*words, "--out", "two", "--processes", "2")
    assert shared.status == 0 and results(Path("one/runs")) == results(Path("two/runs"))
    assert shared.out == Path("one/lqr.md").read_text() == Path("two/lqr.md").read_text()
    assert "another process" not in shared.err  # the other is one of this command's
    assert offrank(*words, "--out", "two", "--processes", "9").out == shared.out  # nothing is left to run


def test_a_study_whose_processes_fail_shows_what_there_is(offrank, monkeypatch) -> None:
    words = ["reproduce", "lqr", "--seeds", "0", "--budget", "8k", "--out", "study", "--processes", "2", "--quiet"]
    commands: list[list[str]] = []

    def run_offrank(shares: list[list[str]], tick: Any, again: str) -> tuple[int, list[str]]:
        commands.extend(shares)
        assert main([*words[:-3], "--algos", "ars", "--quiet"]) == 0  # the one did its share, the other failed
        return 1, []

    monkeypatch.setattr(processes, "run_offrank", lambda *given: (143, []))  # ended by a signal
    interrupted = offrank(*words)
    assert interrupted.status == 143 and interrupted.out == ""
    monkeypatch.setattr(processes, "run_offrank", run_offrank)
    ran = offrank(*words)
    assert ran.status == 1 and "1 of 5 runs: LQR-op-ars-0\n" in ran.out  # with nominal and LSPI
    assert len(commands) == 2 and commands[0][-2:] == ["--side-by-side", "2"]  # three runs for two processes


def test_many_seeds_are_shown_at_equal_steps_however_many_episodes_those_were() -> None:
    falls = row(0, None) | {"episodes": 4400, "evaluations": [[k, 1000 * k, 10.0, 1.0] for k in range(1, 101)]}
    stands = row(1, None) | {"episodes": 44, "evaluations": [[k, 20_000 * k, 100.0 * k, 1.0] for k in range(1, 6)]}
    steps, returns = curves_over_steps([falls, stands])
    assert steps[-1] == 100_000  # as far as both go
    assert returns[:, -1].tolist() == [10.0, 500.0]
    assert returns[1, steps == 50_000] == pytest.approx(250.0)  # between two evaluations


# --- from stored rows


def again(study: str, out: Path, *words: object) -> int:
    return main(["reproduce", study, "--out", str(out), "--from", *map(str, words)])


def test_a_run_that_is_read_twice_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / "a.json", [row(seed, None if seed else 80_000) for seed in range(4)])
    write_rows(tmp_path / "b.json", [row(seed, None) for seed in (3, 4)])
    assert again("table1", tmp_path / "out", tmp_path / "a.json", tmp_path / "b.json", tmp_path / "a.json") == 0
    told = capsys.readouterr()
    assert "1 of 5" in told.out and "5 rows repeat a run of another row" in told.err


def test_a_file_is_not_overwritten_by_a_part_of_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "table1.json"
    write_rows(source, [row(seed, None) for seed in range(4)])
    before = source.read_bytes()
    assert again("table1", tmp_path, source, "--seeds", "0-1") == 2
    assert again("table1", tmp_path, source, "--budget", "100k") == 2
    assert "would be overwritten by a part of itself" in capsys.readouterr().err
    assert source.read_bytes() == before
    assert again("table1", tmp_path, source) == 0 and source.read_bytes() == before


def test_rows_are_selected_by_task_algorithm_and_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "rows.json", tmp_path / "out"
    write_rows(source, [row(0, None), row(0, None, "ars", "random"), row(0, None, "op-ars")])
    assert again("table1", out, source, "--algos", "ars/random") == 0
    assert [r["ranker"] for r in read_rows([out / "table1.json"])] == ["random"]
    for words, line in {
        ("--algos", "tres"): "--algos tres: no row has it; there are ars, op-ars",
        ("--tasks", "Hopper-v3"): "--tasks Hopper-v3: no row has it; there are Swimmer-v3",
        ("--seeds", "5"): "no row has any of these seeds",
    }.items():
        capsys.readouterr()
        assert again("table1", out, source, *words) == 2
        assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("study", "line"),
    [
        ("lqr", "lqr needs curve in every row, and the row of Swimmer-v3 ars seed 0 has none"),
        ("sensitivity", "sensitivity needs n_behaviour in every row"),
        ("walltime", "walltime needs wall_s in every row"),
    ],
)
def test_rows_of_another_study_are_refused(
    study: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{name: value for name, value in row(0, None).items() if name != "wall_s"}]
    write_rows(tmp_path / "rows.json", rows)
    assert again(study, tmp_path / "out", tmp_path / "rows.json") == 2
    assert line in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("wrong", "line"),
    [({"hyperparameters": None}, "hyperparameters"), ({"steps": None}, "steps"), ({"seed": "x"}, "seed")],
)
def test_a_damaged_row_is_named(
    wrong: dict[str, Any], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "rows.json", [row(0, None), row(1, None) | wrong])
    assert again("table1", tmp_path / "out", tmp_path / "rows.json") == 2
    assert f"or an invalid, {line}" in capsys.readouterr().err


def test_lqr_is_shown_again_from_folders_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(
        [
            "train",
            "LQR",
            "--algo",
            "ars",
            "--steps",
            "12k",
            "--eval-every",
            "0",
            "--out",
            str(tmp_path / "a"),
            "--quiet",
        ]
    )
    assert again("lqr", tmp_path / "out", tmp_path / "a") == 0
    assert "| ars" in capsys.readouterr().out
    assert main(["reproduce", "lqr", "--tasks", "Swimmer-v3"]) == 2
    assert "lqr runs on LQR only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "kept", "said"),
    [
        ("Swimmer-v3", slice(0, 3), "(2 of 5 iterations)"),
        ("Swimmer-v3", slice(1, None), "(4 of 5 iterations)"),
        ("Swimmer-v3", slice(0, 7), "(80 of 120 evaluation steps)"),  # without the final evaluation
        ("LQR", slice(0, 0), "(0 of 5 iterations)"),
    ],
)
def test_metrics_shorter_than_their_result_are_refused(
    task: str, kept: slice, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", task, "--algo", "ars", "--iterations", "5", "--eval-every", "2", "--eval-episodes", "2"]
    assert main([*words, "--horizon", "20", "--out", str(tmp_path / "a"), "--quiet"]) == 0
    study = "lqr" if task == "LQR" else "table1"
    assert again(study, tmp_path / "out", tmp_path / "a") == 0
    log = tmp_path / "a" / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    assert len(lines) == 5 + 2 + 1
    log.write_text("".join(lines[kept]))
    capsys.readouterr()
    for command in (["reproduce", study, "--from", str(tmp_path / "a")], ["report", str(tmp_path)]):
        assert main([*command, "--out", str(tmp_path / "page.html")]) == 2
        line = f"offrank: {log} is shorter than result.json says {said}: lines are missing\n"
        assert capsys.readouterr().err == line
        shutil.rmtree(tmp_path / "out", ignore_errors=True)  # its rows would be reported instead


def test_a_run_that_goes_on_beyond_its_limit_is_still_read(tmp_path: Path) -> None:
    words = ["train", "Swimmer-v3", "--algo", "ars", "--horizon", "20", "--eval-every", "2", "--eval-episodes", "2"]
    assert main([*words, "--iterations", "5", "--out", str(tmp_path / "a"), "--quiet"]) == 0
    whole = read_rows([tmp_path])
    config = read_json(tmp_path / "a" / "config.json")
    (tmp_path / "a" / "config.json").write_text(json.dumps(config | {"iterations": 50}))
    log = tmp_path / "a" / "metrics.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))  # the final evaluation goes first
    assert read_rows([tmp_path]) == whole


def test_the_threshold_is_that_of_the_task(tmp_path: Path) -> None:
    command = ["train", "Swimmer-v3", "--algo", "ars", "--horizon", "20", "--eval-every", "2", "--eval-episodes", "2"]
    main([*command, "--iterations", "4", "--threshold", "-100", "--out", str(tmp_path / "one"), "--quiet"])
    (found,) = read_rows([tmp_path])
    assert found["threshold"] == 325 and found["steps_to_threshold"] is None


def test_a_median_is_unknown_beyond_the_observation_of_half_of_the_runs() -> None:
    lengths = [20_000, 20_000, 100_000, 400_000, 15_000_000]
    (group,) = groups(row(seed, None) | {"steps": n, "budget": n} for seed, n in enumerate(lengths))
    assert group.watched == 100_000 and group.budget == 15_000_000
    (group,) = groups([row(0, 40_000), row(1, None), row(2, None)])
    assert group.watched == 440_000
    assert "> 440" in interactions_markdown(summarise([row(0, 40_000), row(1, None), row(2, None)]))


def test_unfinished_runs_are_mentioned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "LQR", "--algo", "ars", "--iterations", "2", "--out", str(tmp_path / "a"), "--quiet"])
    (tmp_path / "a" / "result.json").unlink()
    assert again("table1", tmp_path / "out", tmp_path) == 2
    assert "1 are unfinished, add --unfinished" in capsys.readouterr().err


def test_finished_runs_are_cut_at_the_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "table1", "--tasks", "Swimmer-v3", "--algos", "op-ars", "--seeds", "0", "--quiet"]
    words += ["--out", str(tmp_path), "--budget"]
    assert main([*words, "80k"]) == 0 and "> 80 |" in capsys.readouterr().out
    assert main([*words, "40k"]) == 0 and "> 40 |" in capsys.readouterr().out
    assert main([*words, "4k"]) == 2 and "none of the 1 runs was evaluated" in capsys.readouterr().err
    assert main([*words, "80k", "--engine", "gymnasium"]) == 2
    assert "was run on mujoco, not gymnasium: give another --out" in capsys.readouterr().err
