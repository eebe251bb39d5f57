"""The study of CEM-RL and its relatives at a fixed budget: returns on the way and at the end, and the threshold."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from typing import Any

from offrank.core.files import write_atomically
from offrank.display.figures import save, short
from offrank.lab.statistics import (
    Interval,
    bootstrap,
    censored_median,
    higher_table,
    median_interval,
    probability_of_winning,
    win_table,
)
from offrank.lab.studies.figures import quartile_curves
from offrank.lab.studies.outcomes import Group, Row, engines_differ, groups, left_out, name_of
from offrank.lab.studies.plan import Variant
from offrank.lab.studies.tables import Summary, Table, middle, probability_text
from offrank.runs.recipe import resolve

TASKS = ("HalfCheetah-v3", "Hopper-v3", "Walker2d-v3", "Ant-v3", "Swimmer-v3")
ALGOS = ("cem-rl", "op-cem-rl", "cem", "ars")
STEPS = 500_000
MARKS = (100_000, 250_000, STEPS)  # steps at which returns are compared
PAIRS = (("op-cem-rl", "cem-rl"), ("op-cem-rl", "op-cem-rl-random"), ("cem-rl", "cem"), ("cem-rl", "ars"))


def variants(task: str, algos: Sequence[str], asked: bool) -> list[Variant]:
    """The algorithms themselves, without the baselines that an on-policy name stands for in other studies."""
    for algo in algos:
        resolve(task, algo)  # raises UsageError for an unknown name
    return [Variant(algo) for algo in algos]


def return_at(row: Row, steps: int) -> float | None:
    """The mean return of the last evaluation at or before `steps`; None if the run had none, or took fewer steps."""
    found = [evaluation[2] for evaluation in row["evaluations"] if evaluation[1] <= steps]
    return float(found[-1]) if found and row["steps"] >= steps else None


def returns_at(group: Group, steps: int) -> list[float]:
    return [value for row in group.rows if (value := return_at(row, steps)) is not None]


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """One entry per algorithm on a task, with its comparisons."""
    return summarise_at(rows, MARKS, lambda group: [other for label, other in PAIRS if label == group.variant.label])


def summarise_at(
    rows: Sequence[Row], marks: Sequence[int], compared_with: Callable[[Group], Sequence[str]]
) -> list[Summary]:
    """One entry per variant on a task: returns at some numbers of steps, the threshold, and comparisons with the
    variants of some labels."""
    found = groups(rows)
    return [_summary(group, found, marks, compared_with(group)) for group in found]


def _summary(group: Group, everyone: Sequence[Group], marks: Sequence[int], others: Sequence[str]) -> Summary:
    reached, spent = group.reached, group.spent
    interval = median_interval(reached, spent)
    out: Summary = {
        "task": group.task,
        "variant": group.variant.label,
        "name": name_of(group, engines_differ(everyone)),
        "engine": group.engine,
        "threshold": group.rows[0]["threshold"],
        "seeds": group.seeds,
        "returns": {str(mark): _returns(returns_at(group, mark)) for mark in marks},
        "reached": sum(r is not None for r in reached),
        "runs": len(reached),
        "left_out": group.left_out,
        "watched": group.watched,
        "median": censored_median(reached, spent),
        "median_interval": interval and asdict(interval),
        "against": {},
    }
    for label in others:
        other = next((g for g in everyone if (g.task, g.variant.label) == (group.task, label)), group)
        if other is not group:
            out["against"][label] = _comparison(group, other, marks)
    return out


def _returns(values: Sequence[float]) -> Summary:
    """Median and mean with their intervals, None without any value."""
    out: Summary = {"values": list(values)}
    statistics: dict[str, Callable[[Sequence[float]], float]] = {"median": median, "mean": mean}
    for name, statistic in statistics.items():
        known = {"value": statistic(values), **asdict(bootstrap(values, statistic))} if values else None
        out[name] = known
    return out


def _comparison(group: Group, other: Group, marks: Sequence[int]) -> Summary:
    """The probability of a higher return at each mark, and of being first at the threshold; None where no run tells."""
    out: Summary = {}
    for mark in marks:
        returns = [returns_at(g, mark) for g in (group, other)]
        out[f"higher_at_{mark}"] = _chance(probability_of_winning(higher_table(*returns))) if all(returns) else None
    table = win_table(group.reached, group.spent, other.reached, other.spent)
    out["first_at_threshold"] = _chance(probability_of_winning(table))
    return out


def _chance(found: tuple[float, Interval] | None) -> Summary | None:
    return found and {"value": found[0], **asdict(found[1])}


def tables(summaries: Sequence[Summary]) -> list[Table]:
    """Returns at the marks and steps to the threshold, and the comparisons."""
    rows = []
    for s in summaries:
        returns = [return_text(s["returns"][str(mark)], s["runs"]) for mark in MARKS]
        rows.append([s["task"], s["name"], *returns, f"{s['reached']} of {s['runs']}", middle(s)])
    head = ["task", "algorithm", *(f"at {short(mark)}" for mark in MARKS), "reached", "thousands of steps (95%)"]
    note = (
        "Median over the seeds (95%) of the last evaluation at or before a number of steps; runs at the threshold, and "
        "the censored median of the steps to it."
    )
    returns_table = Table(head, rows, note)
    rows = [
        [s["task"], f"{s['name']} and {other}", *map(probability_text, against.values())]
        for s in summaries
        for other, against in s["against"].items()
    ]
    head = ["task", "pair", *(f"higher at {short(mark)}" for mark in MARKS), "first at the threshold"]
    return [returns_table, Table(head, rows, "Probability that a run of the first beats one of the second (95%).")]


def return_text(part: Summary, runs: int) -> str:
    known: dict[str, Any] | None = part["median"]
    if known is None:
        return "-"
    some = "" if len(part["values"]) == runs else f", {len(part['values'])} runs"
    return f"{known['value']:,.0f} ({known['low']:,.0f} to {known['high']:,.0f}{some})"


def present(rows: list[Row], stem: Path) -> str:
    summaries = summarise(rows)
    write_atomically(stem.with_name(f"{stem.name}-summary.json"), (json.dumps(summaries, indent=1) + "\n").encode())
    save(quartile_curves(rows), stem.with_name(f"{stem.name}.png"))
    parts = [left_out(rows), *(table.markdown() for table in tables(summaries) if table.rows)]
    return "\n\n".join(filter(None, parts))
