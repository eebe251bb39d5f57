"""The numbers of the page's figures, as plain data for its script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from offrank.lab.rank_quality.figure import TITLES
from offrank.lab.statistics import censored_median, survival
from offrank.lab.studies import lqr
from offrank.lab.studies.figures import BANDS, band_panels, curves_over_steps
from offrank.lab.studies.outcomes import Group, Row, engines_differ, groups, name_of, names
from offrank.lab.studies.paper import about

Data = dict[str, Any]


def steps(rows: Iterable[Row]) -> Data:
    """Learning curves, boxes and survival curves of every variant of every task."""
    found = groups(rows)
    several = engines_differ(found)
    tasks: dict[str, Data] = {}
    for group in found:
        task = tasks.setdefault(group.task, {"threshold": group.rows[0].get("threshold"), "variants": []})
        task["variants"].append(_variant(group, name_of(group, several)))
    return {"names": names(found), "tasks": [{"task": name} | task for name, task in tasks.items()]}


def _variant(group: Group, name: str) -> Data:
    runs = [
        {
            "seed": row["seed"],
            "points": [[e[1], e[2], e[3]] for e in row.get("evaluations") or ()],
            "reached": row["steps_to_threshold"],
            "spent": row["steps"],
        }
        for row in group.rows
    ]
    out: Data = {"name": name, "runs": runs, "budget": group.budget}
    if group.rows[0].get("threshold") is None:
        return out
    x, y = survival(group.reached, group.spent)
    paper = about(group.task, "interactions").get(group.variant.label)
    return out | {
        "median": censored_median(group.reached, group.spent),
        "survival": [[0.0, 1.0], *map(list, zip(x.tolist(), y.tolist(), strict=True))],
        "box": _box([r for r in group.reached if r is not None]),
        "paper": None if paper is None else paper["steps"] * 1000,
    }


def _box(values: Sequence[int]) -> Data | None:
    """Quartiles and whiskers as in the printed figures."""
    from matplotlib.cbook import boxplot_stats

    if not values:
        return None
    [found] = boxplot_stats(list(values))
    keys = {"low": "whislo", "q1": "q1", "median": "med", "q3": "q3", "high": "whishi"}
    return {key: float(found[name]) for key, name in keys.items()}


def bands(rows: Iterable[Row], combinations: bool = False) -> Data:
    """Median and percentile bands against training steps, for every task and variant; with `combinations` for every
    task over all settings, with the median of each setting."""
    found = groups(row for row in rows if row.get("evaluations"))
    tasks: list[Data] = []
    series = ["all runs"]
    for title, members in band_panels(found, combinations).items():
        every = [row for g in members for row in g.rows]
        x, y = curves_over_steps(every)
        lines: list[Data] = [{"name": "all runs", "points": _pairs(x, np.median(y, axis=0)), "runs": len(every)}]
        for group in members if combinations else ():
            n_b, h = group.kernel
            at, values = curves_over_steps(group.rows)
            name = f"n_b {n_b}, h {h:g}"
            lines.append({"name": name, "points": _pairs(at, np.median(values, axis=0)), "runs": len(group.rows)})
        series += [line["name"] for line in lines if line["name"] not in series]
        areas = [
            {"label": f"{low} to {high} percentile", "points": _pairs(x, *np.percentile(y, [low, high], axis=0))}
            for low, high, _ in BANDS
        ]
        tasks.append({"task": title, "threshold": every[0]["threshold"], "lines": lines, "areas": areas})
    return {"names": sorted(series, key=lambda name: (name != "all runs", name)), "tasks": tasks}


def _pairs(*columns: Any) -> list[list[float]]:
    points: list[list[float]] = np.stack(columns, axis=1).round(3).tolist()
    return points


def regulators(rows: Sequence[Row]) -> Data:
    """The three panels of the LQR study."""
    by_steps, by_iterations = lqr.summarise(rows)["methods"], lqr.summarise_iterations(rows)
    cost = "relative suboptimality"
    return {
        "names": list(by_steps),
        "panels": [
            {"title": "Cost against timesteps", "x": "timesteps", "y": cost, "lines": _cost_lines(by_steps, "steps")},
            {
                "title": "Cost against iterations",
                "x": "iterations",
                "y": cost,
                "lines": _cost_lines(by_iterations, "iterations"),
            },
            {
                "title": "Fraction stable",
                "x": "timesteps",
                "y": "share of trials",
                "lines": [{"name": name, "points": _columns(s["steps"], s["stable"])} for name, s in by_steps.items()],
            },
        ],
    }


def _cost_lines(methods: Data, over: str) -> list[Data]:
    return [
        {
            "name": name,
            "points": _columns(s[over], s["median"]),
            "area": _columns(s[over], s["p2"], s["p98"]),
            "trials": s["trials"],
        }
        for name, s in methods.items()
    ]


def _columns(*columns: Sequence[Any]) -> list[list[Any]]:
    return [list(point) for point in zip(*columns, strict=True)]


def rank_quality(records: Sequence[Data]) -> Data:
    """Spearman with its interval by task, target, checkpoint and ranking."""
    rankings = dict.fromkeys(name for r in records for c in r["checkpoints"] for name in c["rankers"])
    tasks = []
    for task in dict.fromkeys(r["task"] for r in records):
        checkpoints = [c for r in records if r["task"] == task for c in r["checkpoints"]]
        targets = [
            {
                "target": target,
                "title": TITLES[target],
                "checkpoints": [_checkpoint(c, target) for c in checkpoints if target in c["noise"]],
            }
            for target in dict.fromkeys(target for c in checkpoints for target in c["noise"])
        ]
        tasks.append({"task": task, "targets": targets})
    return {"names": list(rankings), "tasks": tasks}


def _checkpoint(checkpoint: Data, target: str) -> Data:
    return {
        "label": f"{checkpoint['algo']} {checkpoint['seed']}",
        "iteration": checkpoint["iteration"],
        "ceiling": checkpoint["noise"][target]["ceiling"],
        "points": {name: by[target]["spearman"] for name, by in checkpoint["rankers"].items()},
    }
