"""The LQR study: cost against timesteps and iterations, and how often the controller stabilises the system.

ARS and OP-ARS are ordinary runs whose log holds the exact cost of every iteration's policy. A row's `curve` is a list
of [iteration, steps, suboptimality], the last None where the controller does not stabilise: its cost is infinite.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import FloatArray
from offrank.core.files import write_atomically
from offrank.core.version import versions
from offrank.display.figures import Axis, Band, Figure, Item, Line, Panel, save, short
from offrank.display.plots import Curve
from offrank.lab.statistics import success_interval
from offrank.lab.studies.outcomes import Row, given, result_with, setup
from offrank.lab.studies.plan import Variant
from offrank.lab.studies.regulators import best_gain, lspi, nominal
from offrank.lab.studies.tables import Table
from offrank.tasks.lqr import LQR

POINTS = 40  # of a curve, evenly in the logarithm
PERCENTILES = (2, 50, 98)
FLOOR, CEILING = 1e-5, 1e9  # of what is drawn: below the figure, above it
METHODS = {"nominal": nominal, "lspi": lspi}


@lru_cache(maxsize=1)
def best_cost() -> float:
    return LQR().cost(best_gain(LQR()))


def gather(folder: Path) -> Row:
    """The row of a finished run."""
    log = Curve.read(folder)
    result = result_with(folder, log)
    iterations = [r for r in log.records if r["kind"] == "iteration"]
    kept = np.unique(np.geomspace(1, len(iterations), POINTS).astype(int)) - 1
    curve = [[r["iteration"], r["steps"], _suboptimality(r["cost"])] for r in (iterations[k] for k in kept)]
    return result | {"curve": curve, "setup": setup(log.config)}


def other_methods(seeds: Sequence[int], budget: int) -> list[Row]:
    """Rows of nominal control and LSPI, which are not runs: they compute controllers from a batch of random steps."""
    task, rows = LQR(), []
    points = np.unique(np.geomspace(20, budget, POINTS).astype(int)).tolist()
    for name, method in METHODS.items():
        for seed in seeds:
            with one_blas_thread():
                gains = list(method(task, seed, points))
            curve = [
                [None, steps, _suboptimality(None if gain is None else task.cost(gain))]
                for steps, gain in zip(points, gains, strict=True)
            ]
            rows.append(
                {
                    "task": task.name,
                    "algo": name,
                    "ranker": None,
                    "seed": seed,
                    "steps": budget,
                    "engine": "numpy",
                    "hyperparameters": {},
                    "versions": versions(),
                    "curve": curve,
                }
            )
    return rows


def _suboptimality(cost: float | None) -> float | None:
    """Relative excess of a controller's cost over the best one."""
    if cost is None or not isfinite(cost):
        return None
    return float(f"{max(cost / best_cost() - 1, 0.0):.4g}")


def present(rows: list[Row], stem: Path) -> str:
    """Write the summary and the three panels of the paper's figure; return the table."""
    save(figure(rows), stem.with_name(f"{stem.name}.png"))
    document = json.dumps(summarise(rows), indent=1) + "\n"
    write_atomically(stem.with_name(f"{stem.name}-summary.json"), document.encode())
    return table(rows).markdown()


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """Percentiles and share stable of every method against steps."""
    by_steps, grid = _by_steps(rows)
    methods = {name: _summary(values, grid) for name, values in by_steps.items()}
    return {"best_cost": best_cost(), "methods": methods}


def summarise_iterations(rows: Sequence[Row]) -> dict[str, Any]:
    """Percentiles and share stable against iterations, for the methods that have iterations."""
    found = {name: _by_iterations(members) for name, members in _methods(rows).items()}
    return {name: _summary(*both) | {"iterations": both[1].tolist()} for name, both in found.items() if both}


def _by_steps(rows: Sequence[Row]) -> tuple[dict[str, FloatArray], Any]:
    """Suboptimality (trials, points) of every method on a common grid of steps (points,)."""
    budget = max(given(row) for row in rows)
    grid = np.unique(np.geomspace(100, budget, 80).astype(int))
    return {name: _at(members, 1, grid) for name, members in _methods(rows).items()}, grid


def _by_iterations(rows: Sequence[Row]) -> tuple[FloatArray, Any] | None:
    """Suboptimality (trials, points) and iterations (points,) of one method; None if the method has no iterations."""
    if rows[0]["curve"][0][0] is None:
        return None
    grid = np.unique([point[0] for row in rows for point in row["curve"]])
    return _at(rows, 0, grid), grid


def _methods(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by method, nominal control and LSPI first."""
    found: dict[str, list[Row]] = {name: [] for name in METHODS}
    for row in rows:
        found.setdefault(Variant.of_row(row).label, []).append(row)
    return {name: members for name, members in found.items() if members}


def _at(rows: Sequence[Row], column: int, grid: Any) -> FloatArray:
    """Suboptimality (trials, points) of the controller a trial has at each iteration (column 0) or step count (1) of a
    grid: the last one learned by then; infinite where there is none or it does not stabilise."""
    out = np.full((len(rows), len(grid)), np.inf)
    for row, values in zip(rows, out, strict=True):
        at = np.array([point[column] for point in row["curve"]])
        gaps = np.array([np.inf if point[2] is None else point[2] for point in row["curve"]])
        last = np.searchsorted(at, grid, side="right") - 1
        values[last >= 0] = gaps[last[last >= 0]]
    return out


def _percentiles(values: FloatArray) -> FloatArray:
    return np.percentile(values, PERCENTILES, axis=0, method="inverted_cdf")


def _summary(values: FloatArray, grid: Any) -> dict[str, Any]:
    low, middle, high = ([x if isfinite(x) else None for x in line.tolist()] for line in _percentiles(values))
    stable = np.isfinite(values).mean(axis=0).round(4).tolist()
    return {"steps": grid.tolist(), "p2": low, "median": middle, "p98": high, "stable": stable, "trials": len(values)}


def table(rows: Sequence[Row]) -> Table:
    """Every method after several numbers of steps."""
    by_steps, grid = _by_steps(rows)
    marks = [mark for mark in (1_000, 10_000, 50_000, 100_000, 200_000, 500_000, 1_000_000) if mark < grid[-1]]
    columns = [*marks, int(grid[-1])]
    lines = []
    for name, values in by_steps.items():
        cells = []
        for column in columns:
            last = np.searchsorted(grid, column, side="right") - 1
            low, median, high = (_number(x) for x in _percentiles(values[:, last]))
            cells.append(f"{median} ({low} to {high}), {np.isfinite(values[:, last]).mean():.0%}")
        stable = int(np.isfinite(values[:, -1]).sum())
        interval = success_interval(stable, len(values))
        cells.append(f"{stable} of {len(values)} ({interval.low:.0%}-{interval.high:.0%})")
        lines.append([name, str(len(values)), *cells])
    head = ["method", "trials", *(f"{short(c)} steps" for c in columns), "stable at the end (95%)"]
    note = f"Relative suboptimality of the infinite-horizon cost (best cost {best_cost():.6f}), median over the trials "
    note += "(2 to 98 percentile), and the share of trials whose controller stabilises the system."
    return Table(head, lines, note)


def _number(x: float) -> str:
    return f"{x:.2g}" if isfinite(x) else "∞"


def figure(rows: Sequence[Row]) -> Figure:
    """Cost against timesteps, cost against iterations, and how many trials are stable."""
    by_steps, by_iterations = summarise(rows)["methods"], summarise_iterations(rows)
    cost = Axis("relative suboptimality", FLOOR, 1e3, log=True)
    panels = [
        Panel("Cost against timesteps", Axis("timesteps", log=True), cost, _costs(by_steps, "steps")),
        Panel("Cost against iterations", Axis("iterations", log=True), cost, _costs(by_iterations, "iterations")),
        Panel(
            "Fraction stable",
            Axis("timesteps", log=True),
            Axis("share of trials with spectral radius < 1", -0.03, 1.03),
            [Line(name, s["steps"], s["stable"], marked=True) for name, s in by_steps.items()],
        ),
    ]
    return Figure(list(by_steps), panels, {"band": "2 to 98 percentile, around the median"})


def _costs(methods: dict[str, Any], over: str) -> list[Item]:
    """Medians and bands, which are cut off where the upper end is infinite, and end where the lower one is."""
    items: list[Item] = []
    for name, s in methods.items():
        known = [k for k, low in enumerate(s["p2"]) if low is not None]
        x, low, high = ([s[key][k] for k in known] for key in (over, "p2", "p98"))
        top = [CEILING if value is None else value for value in high]
        items.append(Band(name, x, _shown(low), _shown(top), "2 to 98 percentile"))
        items.append(Line(name, s[over], _shown(s["median"]), marked=True))
    return items


def _shown(values: Sequence[float | None]) -> list[float | None]:
    """Values that a logarithmic axis has."""
    return [None if value is None else max(value, FLOOR) for value in values]
