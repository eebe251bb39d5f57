"""The figures of studies, from rows of results: for `offrank reproduce` and for the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from textwrap import fill

import numpy as np

from offrank.core.arrays import FloatArray
from offrank.display.figures import Axis, Band, Box, Figure, Item, Line, Marks, Panel, Rule
from offrank.display.plots import RETURN, STEPS
from offrank.lab.statistics import arrivals, censored_median
from offrank.lab.studies.outcomes import Group, Row, engines_differ, groups, name_of, names
from offrank.lab.studies.paper import about

BANDS = ((5, 95), (25, 75))  # percentiles
EVERY = "median of all runs"
CROWD = 20  # seeds above which lines are fainter


def seed_curves(rows: Iterable[Row], by_strategy: bool = False) -> Figure:
    """The evaluations of every seed, one panel per task, or per task and strategy, with a mark where the threshold is
    first reached and a star at the censored median of the marks."""
    found = [g for g in groups(rows) if any(row.get("evaluations") for row in g.rows)]

    def title(group: Group) -> str:
        return f"{group.task}, {group.variant.algo.removeprefix('op-').upper()}" if by_strategy else group.task

    def items(group: Group, name: str) -> list[Item]:
        out: list[Item] = []
        crossings: list[tuple[float, float, str]] = []
        for row in group.rows:
            steps, returns = curve(row)
            seed = f"{name}, seed {row['seed']}"
            out.append(Line(name, steps, returns, seed, "thin" if len(group.rows) <= CROWD else "faint"))
            reached = [k for k, at in enumerate(steps) if at == row["steps_to_threshold"]][:1]
            crossings += [(steps[k], returns[k], f"{seed}, threshold first reached") for k in reached]
        if crossings:
            x, y, labels = map(list, zip(*crossings, strict=True))
            out.append(Marks(name, x, y, labels))
        threshold = group.rows[0].get("threshold")
        middle = None if threshold is None else censored_median(group.reached, group.spent)
        if middle is not None:
            out.append(Marks(name, [middle], [threshold], [f"{name}, censored median"], shape="star"))
        return out

    keys = {"rule": "threshold", "star": "censored median"}
    return _panels(found, items, Axis(STEPS, low=0), Axis(RETURN), keys, title=title, count=_reached)


def box_plots(rows: Iterable[Row]) -> Figure:
    """Steps to the threshold: a box of the seeds that reached it, as in the paper, and every seed that did not."""
    found = _with_threshold(rows)
    several = engines_differ(found)
    panels = []
    for task in dict.fromkeys(g.task for g in found):
        members = [g for g in found if g.task == task]
        items = [item for at, group in enumerate(members) for item in _box(group, name_of(group, several), at)]
        places = [f"{fill(name_of(g, several), 12)}\n{_reached(g)}" for g in members]
        x = Axis("", -0.6, len(members) - 0.4, places=places, series=[name_of(g, several) for g in members])
        panels.append(Panel(task, x, Axis("environment steps to the threshold", low=0), items, task))
    return Figure(names(found), panels, {"open": "not reached: steps run", "star": "the paper's median"})


def _box(group: Group, name: str, at: int) -> list[Item]:
    reached = [r for r in group.reached if r is not None]
    items: list[Item] = [box(name, at, reached)] if reached else []
    across = np.linspace(at - 0.15, at + 0.15, len(group.rows)).tolist() if len(group.rows) > 1 else [float(at)]
    seeds = list(zip(across, group.rows, strict=True))
    for arrived, shape in ((True, "circle"), (False, "triangle")):
        some = [(x, row) for x, row in seeds if (row["steps_to_threshold"] is not None) == arrived]
        steps = [row["steps_to_threshold"] if arrived else row["steps"] for _, row in some]
        said = "" if arrived else ", not reached"
        labels = [f"{name}, seed {row['seed']}{said}" for _, row in some]
        items += [Marks(name, [x for x, _ in some], steps, labels, shape, open=not arrived)] if some else []
    paper = about(group.task, "interactions").get(group.variant.label)
    if paper is not None:
        items.append(Marks(name, [at], [paper["steps"] * 1000], [f"{name}, the paper's median"], "star", open=True))
    return items


def box(series: str, at: float, values: Sequence[float]) -> Box:
    q1, median, q3 = (float(q) for q in np.percentile(values, [25, 50, 75]))
    inside = [v for v in values if q1 - 1.5 * (q3 - q1) <= v <= q3 + 1.5 * (q3 - q1)]
    return Box(series, at, min(*inside, q1), q1, median, q3, max(*inside, q3))


def arrival_curves(rows: Iterable[Row]) -> Figure:
    """The share of runs that reached the threshold (Kaplan-Meier) with its 95 % band, one panel per task with its
    variants. Ticks are runs that ended before."""

    def items(group: Group, name: str) -> list[Item]:
        steps, share, low, high = (np.concatenate([[0.0], side]) for side in arrivals(group.reached, group.spent))
        x = steps.tolist()
        band = Band(name, x, _round(low), _round(high), "95 % interval", step=True)
        short = [row for row in group.rows if row["steps_to_threshold"] is None]
        ended = np.array([row["steps"] for row in short])
        ticks = _round(share[np.searchsorted(steps, ended, side="right") - 1])
        labels = [f"{name}, seed {row['seed']}, ended" for row in short]
        marks = [Marks(name, ended.tolist(), ticks, labels, shape="tick")] if short else []
        return [band, Line(name, x, _round(share), step=True), *marks]

    y = Axis("share of runs that arrived", -0.03, 1.03)
    keys = {"tick": "ended before", "band": "95 % interval"}
    return _panels(_with_threshold(rows), items, Axis(STEPS, low=0), y, keys, count=_reached, rules=False)


def quartile_curves(rows: Iterable[Row]) -> Figure:
    """Median of the mean return and the band between its quartiles, one panel per task with all of its variants."""

    def items(group: Group, name: str) -> list[Item]:
        steps, returns = curves_over_steps(group.rows)
        low, middle, high = (_round(q) for q in np.percentile(returns, [25, 50, 75], axis=0))
        x = steps.tolist()
        return [Band(name, x, low, high, "quartiles"), Line(name, x, middle)]

    keys = {"rule": "threshold", "band": "between the quartiles"}
    return _panels(groups(rows), items, Axis(STEPS), Axis(RETURN), keys, count=lambda g: f"{len(g.rows)} runs")


def seed_bands(rows: Iterable[Row], combinations: bool = False) -> Figure:
    """Median and percentile bands of the mean return, one panel per task and variant; with `combinations` one panel per
    task, over all settings, with the median of each setting.

    The paper has episodes on the x axis. Steps are used here: a policy that falls has more episodes than one that
    walks, so the common range of episodes would end with the best run.
    """
    found = groups(row for row in rows if row.get("evaluations"))
    several = engines_differ(found)
    titled: dict[str, list[Group]] = {}
    for group in found:
        titled.setdefault(group.task if combinations else f"{group.task}, {name_of(group, several)}", []).append(group)
    panels, series = [], [EVERY]
    for title, members in titled.items():
        every = [row for g in members for row in g.rows]
        steps, returns = curves_over_steps(every)
        x = steps.tolist()
        items = _rule(every[0]["threshold"])
        for low, high in BANDS:
            under, over = (_round(side) for side in np.percentile(returns, [low, high], axis=0))
            items.append(Band(EVERY, x, under, over, f"{low} to {high} percentile"))
        items.append(Line(EVERY, x, _round(np.median(returns, axis=0))))
        for group in sorted(members, key=lambda g: g.kernel) if combinations else ():
            at, values = curves_over_steps(group.rows)
            name = "n_b {}, h {:g}".format(*group.kernel)
            series += [] if name in series else [name]
            items.append(Line(name, at.tolist(), _round(np.median(values, axis=0)), look="thin", marked=True))
        task = members[0].task
        title = f"{_titled(title, every[0]['threshold'])}: {len(every)} runs"
        panels.append(Panel(title, Axis(STEPS), Axis(RETURN), items, task))
    keys = {"rule": "threshold", "band": " and ".join(f"{low} to {high}" for low, high in BANDS) + " percentile"}
    return Figure(series, panels, keys)


def curves_over_steps(rows: Sequence[Row]) -> tuple[FloatArray, FloatArray]:
    """Mean returns (runs, points) on a common grid of training steps (points,), up to the end of the shortest run."""
    tables = [np.array(row["evaluations"]) for row in rows]
    curves = [(evaluations[:, 1], evaluations[:, 2]) for evaluations in tables]
    end = min(x[-1] for x, _ in curves)
    grid = max((x[x <= end] for x, _ in curves), key=len)
    return grid, np.stack([np.interp(grid, x, y) for x, y in curves])


def curve(row: Row) -> tuple[list[float], list[float]]:
    """Steps and mean returns of the evaluations of a run."""
    evaluations = row.get("evaluations") or []
    return [e[1] for e in evaluations], [e[2] for e in evaluations]


def _panels(
    found: Sequence[Group],
    items: Callable[[Group, str], list[Item]],
    x: Axis,
    y: Axis,
    keys: dict[str, str],
    title: Callable[[Group], str] = lambda group: group.task,
    count: Callable[[Group], str] | None = None,
    rules: bool = True,
) -> Figure:
    """One panel per title, with the items of each variant, and a rule at the task's threshold."""
    several = engines_differ(found)
    panels = []
    for name in dict.fromkeys(map(title, found)):
        members = [(g, name_of(g, several)) for g in found if title(g) == name]
        first = members[0][0]
        threshold = first.rows[0].get("threshold")
        drawn = _rule(threshold) if rules else []
        drawn += [item for g, variant in members for item in items(g, variant)]
        counts = {variant: count(g) for g, variant in members} if count else {}
        panels.append(Panel(_titled(name, threshold), x, y, drawn, first.task, counts))
    return Figure(names(found), panels, keys)


def _with_threshold(rows: Iterable[Row]) -> list[Group]:
    return [g for g in groups(rows) if g.rows[0].get("threshold") is not None]


def _reached(group: Group) -> str:
    return f"{sum(r is not None for r in group.reached)} of {len(group.rows)}"


def _titled(name: str, threshold: float | None) -> str:
    return name if threshold is None else f"{name}, threshold {threshold:g}"


def _rule(threshold: float | None) -> list[Item]:
    return [] if threshold is None else [Rule(threshold)]


def _round(values: FloatArray) -> list[float]:
    out: list[float] = values.round(3).tolist()
    return out
