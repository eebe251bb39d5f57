"""The study of CEM-RL and its relatives."""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from offrank.cli import main
from offrank.lab.statistics import Interval, bootstrap, higher_table, probability_of_winning
from offrank.lab.studies.catalogue import STUDIES, StudyOptions
from offrank.lab.studies.hybrids import return_at, summarise, tables
from offrank.lab.studies.outcomes import read_rows
from offrank.runs.recipe import resolve


def row(algo: str, seed: int, level: float, reached: int | None = None, steps: int = 500_000) -> dict[str, Any]:
    recipe = resolve("Hopper-v3", algo)
    return {
        "task": "Hopper-v3",
        "algo": algo,
        "ranker": recipe.ranker.name,
        "policy": recipe.policy,
        "seed": seed,
        "engine": "mujoco",
        "hyperparameters": recipe.hyperparameters,
        "threshold": 3120,
        "steps_to_threshold": reached,
        "steps": steps,
        "budget": 500_000,
        "evaluations": [[k, k * 10_000, level + k, 1.0] for k in range(1, steps // 10_000 + 1)],
    }


def test_the_plan_is_by_steps_and_stops_at_no_threshold() -> None:
    plan = STUDIES["hybrids"].plan(StudyOptions(("Hopper-v3",), ("cem-rl", "cem", "ars")))
    assert [run.name for run in plan[:4]] == [
        *(f"Hopper-v3-{algo}-0" for algo in ("cem-rl", "cem", "ars")),
        "Hopper-v3-cem-rl-1",
    ]
    assert {(run.steps, run.threshold) for run in plan} == {(500_000, None)} and len(plan) == 24
    assert plan[0].evaluation == {"eval_steps": 10_000, "eval_episodes": 10}
    assert [run.clip_actions("mujoco") for run in plan[:3]] == [True, True, None]


def test_a_return_is_that_of_the_last_evaluation_at_or_before() -> None:
    assert return_at(row("cem", 0, 0.0), 250_000) == 25 and return_at(row("cem", 0, 0.0), 255_000) == 25
    assert (
        return_at(row("cem", 0, 0.0, steps=300_000), 500_000) is None and return_at(row("cem", 0, 0.0), 9_999) is None
    )


def test_intervals_and_comparisons() -> None:
    rows = [row("cem-rl", seed, 100.0 * seed, 200_000 if seed else None) for seed in range(8)]
    rows += [row("cem", seed, -500.0) for seed in range(8)] + [row("ars", seed, 100.0 * seed) for seed in range(8)]
    found = {s["variant"]: s for s in summarise(rows)}
    ours = found["cem-rl"]
    values = [100.0 * seed + 50 for seed in range(8)]
    assert ours["returns"]["500000"]["values"] == values and ours["returns"]["250000"]["values"][1] == 125
    for name, statistic in (("median", median), ("mean", mean)):
        known = ours["returns"]["500000"][name]
        assert known["value"] == statistic(values) and known["low"] < known["value"] < known["high"]
    assert ours["against"]["cem"]["higher_at_500000"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert ours["against"]["ars"]["higher_at_500000"]["value"] == 0.5
    assert ours["against"]["cem"]["first_at_threshold"]["value"] == pytest.approx(0.5 + 0.5 * 7 / 8)
    assert (ours["reached"], ours["median"]) == (7, 200_000)


def test_what_nobody_reached_is_not_decided() -> None:
    rows = [row(algo, seed, 1.0 * seed) for algo in ("cem-rl", "cem") for seed in range(3)]
    text = "\n".join(table.markdown() for table in tables(summarise(rows)))
    assert "| Hopper-v3 | cem-rl and cem | 0.50 (" in text and "| not decided |" in text
    assert "0 of 3 | > 500 |" in text


def test_statistics_of_returns() -> None:
    assert higher_table([1.0, 2.0], [1.0, 0.0]).tolist() == [[0.5, 1.0], [1.0, 1.0]]
    assert probability_of_winning(higher_table([2.0], [1.0])) == (1.0, Interval(1.0, 1.0))
    assert vars(bootstrap([3.0, 3.0, 3.0], mean)) == {"low": 3.0, "high": 3.0}


def test_it_runs_and_is_rebuilt_from_folders_gathered_elsewhere(tmp_path: Path) -> None:
    words = ["--tasks", "Swimmer-v3", "--algos", "cem-rl,ars", "--seeds", "0", "--budget", "10000"]
    words += ["--quiet", "--threads", "1"]
    assert main(["reproduce", "hybrids", *words, "--out", str(tmp_path / "here")]) == 0
    shutil.move(tmp_path / "here" / "hybrids", tmp_path / "gathered")
    there = tmp_path / "there"
    assert main(["reproduce", "hybrids", "--from", str(tmp_path / "gathered"), "--out", str(there)]) == 0
    rows = read_rows([there / "hybrids.json"])
    assert {r["algo"]: r["setup"]["clip_actions"] for r in rows} == {"ars": None, "cem-rl": True}
    assert all(r["evaluations"][0][1] >= 10_000 for r in rows)
    assert {r["setup"]["eval_steps"] for r in rows} == {10_000} and {r["setup"]["eval_episodes"] for r in rows} == {10}
    assert (there / "hybrids.png").is_file() and (there / "hybrids.md").is_file()
    assert main(["reproduce", "hybrids", "--from", str(there / "hybrids.json"), "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "hybrids.md").read_text() == (there / "hybrids.md").read_text()
