"""The studies of guided: their runs, and the tables made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offrank.cli import main
from offrank.lab.studies.catalogue import STUDIES, StudyOptions
from offrank.lab.studies.guided import BUDGETS, present, present_parts
from offrank.lab.studies.outcomes import Row, groups
from offrank.runs.recipe import resolve


def row(task: str, seed: int, steps: int | None, policy: str = "skip:32", **settings: Any) -> Row:
    """A run that reaches the threshold after `steps`, and another return every 5,000 steps."""
    recipe = resolve(task, "guided", None, settings, policy)
    curve = [[k, 5000 * (k + 1), 100.0 * k + seed, 1.0] for k in range(20)]
    spent = steps or 100_000
    return {
        "task": task, "algo": "guided", "ranker": "random", "policy": policy, "seed": seed, "engine": "mujoco",
        "hyperparameters": recipe.hyperparameters, "threshold": 3430, "reached": steps is not None,
        "steps_to_threshold": steps, "steps": spent, "budget": spent, "evaluations": curve, "setup": {},
        "episodes": 1, "iterations": 1, "stop_reason": "threshold" if steps else "steps",
    }  # fmt: skip


def test_fresh_seeds_both_policies_and_budgets_of_each_task() -> None:
    plan = STUDIES["guided"].plan(StudyOptions(None, None))
    assert {run.seed for run in plan} == set(range(200, 216))
    assert {run.task: run.steps for run in plan} == BUDGETS
    assert len(plan) == 16 * (6 * 4 - 2)
    assert {run.task for run in plan if run.variant.algo == "faded"} == set(BUDGETS) - {"Swimmer-v3", "HalfCheetah-v3"}
    assert {run.variant.label for run in plan} == {"guided", "guided-linear", "faded", "distilled"}
    assert all(run.evaluation["confirm_episodes"] == 100 and run.threshold is not None for run in plan)


def test_one_part_is_changed_at_a_time_and_never_to_what_it_is() -> None:
    plan = STUDIES["guided-parts"].plan(StudyOptions(("HalfCheetah-v3", "Hopper-v3"), None))
    for task, pessimism, count in (("HalfCheetah-v3", {0.0}, 10), ("Hopper-v3", {1.0}, 11)):
        variants = {run.variant for run in plan if run.task == task}
        assert len(variants) == count
        assert sum(not variant.settings for variant in variants) == 1
        assert all(len(variant.settings) <= 1 for variant in variants)
        assert {dict(v.settings)["pessimism"] for v in variants if "pessimism" in dict(v.settings)} == pessimism


def test_the_table_shows_every_seed_and_the_median(tmp_path: Path) -> None:
    rows = [row("HalfCheetah-v3", 100 + k, steps) for k, steps in enumerate((25_000, 30_000, 20_000, None))]
    rows += [row("HalfCheetah-v3", 100, None, "linear")]
    text = present(rows, tmp_path / "guided")
    assert "| HalfCheetah-v3 | guided | 3 of 4 |" in text and "| 20, 25, 30 |" in text
    assert "| HalfCheetah-v3 | guided-linear | 0 of 1 |" in text
    assert (tmp_path / "guided.png").is_file() and (tmp_path / "guided-summary.json").is_file()


def test_a_changed_part_is_compared_with_the_whole(tmp_path: Path) -> None:
    rows = [row("HalfCheetah-v3", 1000 + k, None) for k in range(4)]
    rows += [row("HalfCheetah-v3", 900 + k, None, slow=0.005) for k in range(4)]
    whole, changed = present_parts(rows, tmp_path / "parts").splitlines()[-2:]
    assert "| guided |" in whole and whole.endswith("|  |")
    assert "guided-slow0.005" in changed and changed.endswith("| 0.00 (0.00-0.00) |")


def test_the_command_runs_it(tmp_path: Path) -> None:
    words = ["reproduce", "guided", "--tasks", "Swimmer-v3", "--seeds", "100", "--budget", "5000", "--quiet"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    text = (tmp_path / "guided.md").read_text()
    assert "| Swimmer-v3 | guided-linear | 0 of 1 |" in text and "| Swimmer-v3 | distilled | 0 of 1 |" in text


def test_an_algorithm_without_directions_has_no_number_of_them() -> None:
    (group,) = groups([row("HalfCheetah-v3", 100, 25_000)])
    assert group.size == "-"
