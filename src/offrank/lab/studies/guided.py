"""The studies of `guided`, `faded` and `distilled`: steps to the thresholds on fresh seeds, and what each part of
`guided` contributes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offrank.core.files import write_atomically
from offrank.display.figures import Figure, save, short
from offrank.lab.studies.figures import arrival_curves, quartile_curves
from offrank.lab.studies.hybrids import return_text, summarise_at
from offrank.lab.studies.outcomes import Row, left_out
from offrank.lab.studies.plan import Variant
from offrank.lab.studies.tables import Summary, Table, middle, probability_text, summarise
from offrank.runs.recipe import resolve

ALGO = "guided"
POLICIES: dict[str, tuple[str | None, ...]] = {  # that are trained to the thresholds
    ALGO: ("skip:32", "linear"),
    "faded": ("linear",),
    "distilled": ("linear",),
}
BUDGETS = {  # steps of a run, two to four times the goal of `skip:32`
    "Swimmer-v3": 200_000,
    "Hopper-v3": 500_000,
    "HalfCheetah-v3": 150_000,
    "Walker2d-v3": 750_000,
    "Ant-v3": 500_000,
    "Humanoid-v3": 1_000_000,
}
EVALUATION = {"eval_steps": 5_000, "eval_episodes": 10, "confirm_episodes": 100}

PARTS: tuple[dict[str, Any], ...] = (  # each one removed, or replaced by what is usual
    {"step_noise": 0.0},
    {"action_change": 1e-6},
    {"train_horizon": 0},
    {"slow": 0.005},
    {"actor_rate": 3e-4},
    {"pessimism": 0.0},
    {"pessimism": 1.0},
    {"ratio": 1.0},
    {"warmup_steps": 1_000},
)
RANKED: dict[str, dict[str, Any]] = {"race": {"candidates": 8}, "value": {"candidates": 8}}  # 2 of 8 are run
PARTS_STEPS = {  # of a run, where variants are compared
    "HalfCheetah-v3": 30_000,
    "Hopper-v3": 100_000,
    "Walker2d-v3": 100_000,
}
MARKS = (20_000, 30_000, 60_000, 100_000)


def kinds(task: str, algos: Sequence[str], asked: bool) -> list[Variant]:
    """Each algorithm with its kinds of policy, without those whose policy does not change within the budget."""
    learning = [algo for algo in algos if resolve(task, algo).unchanged[1] < BUDGETS.get(task, math.inf)]
    return [Variant.of(task, algo, policy=policy) for algo in learning for policy in POLICIES.get(algo, (None,))]


def parts(task: str, algos: Sequence[str], asked: bool) -> list[Variant]:
    """The recipe, and the recipe with one part changed; without those that change nothing on this task."""
    changed = [Variant.of(task, algo, None, settings) for algo in algos for settings in ({}, *PARTS)]
    ranked = [Variant.of(task, algo, ranker, settings) for algo in algos for ranker, settings in RANKED.items()]
    return list(dict.fromkeys([*changed, *ranked]))


def _write(summaries: list[Summary], figure: Figure, stem: Path) -> None:
    write_atomically(stem.with_name(f"{stem.name}-summary.json"), (json.dumps(summaries, indent=1) + "\n").encode())
    save(figure, stem.with_name(f"{stem.name}.png"))


def present(rows: list[Row], stem: Path) -> str:
    """Steps to the threshold: every seed, and the median."""
    summaries = summarise(rows)
    _write(summaries, arrival_curves(rows), stem)
    lines = [
        [s["task"], s["variant"], f"{s['reached']} of {s['runs']}", middle(s), _seeds(s["steps_to_threshold"])]
        for s in summaries
    ]
    note = "Thousands of environment steps to the threshold; the median counts runs that did not reach it."
    table = Table(["task", "variant", "reached", "median (95%)", "every seed that reached it"], lines, note)
    return "\n\n".join(filter(None, [left_out(rows), table.markdown()]))


def _seeds(reached: Sequence[int | None]) -> str:
    return ", ".join(f"{steps / 1000:.0f}" for steps in sorted(r for r in reached if r is not None)) or "-"


def present_parts(rows: list[Row], stem: Path) -> str:
    """Returns on the way of each variant, and its comparison with the whole recipe."""
    labels = {row["task"]: Variant.of(row["task"], ALGO).label for row in rows}
    summaries = summarise_at(rows, MARKS, lambda group: [labels[group.task]])
    _write(summaries, quartile_curves(rows), stem)
    lines = []
    for s in summaries:
        against = s["against"].get(labels[s["task"]], {})
        returns = [return_text(s["returns"][str(mark)], s["runs"]) for mark in MARKS]
        higher = probability_text(against[f"higher_at_{PARTS_STEPS[s['task']]}"]) if against else ""
        lines.append([s["task"], s["name"], *returns, f"{s['reached']} of {s['runs']}", middle(s), higher])
    head = ["task", "variant", *(f"at {short(mark)}" for mark in MARKS), "reached", "thousands of steps (95%)"]
    head.append(f"higher than {ALGO} at the end")
    note = (
        "Median over the seeds (95%) of the last evaluation at or before a number of steps, and the probability (95%) "
        "that a run with one part changed ends higher than one of the whole recipe."
    )
    return "\n\n".join(filter(None, [left_out(rows), Table(head, lines, note).markdown()]))
