"""The paper's figures from rows of results.

Colours are distinct for colour-blind readers; dashes, markers and hatches tell the same apart in black and white.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from offrank.core.arrays import FloatArray
from offrank.display.plots import COLOURS, DASHES, short
from offrank.lab.statistics import arrivals, censored_median
from offrank.lab.studies.outcomes import Group, Row, engines_differ, groups, name_of, names
from offrank.lab.studies.paper import about

HATCHES = ("", "///", "...", "xx", "\\\\\\", "ooo")
MARKERS = ("o", "s", "^", "D", "v", "P")
BANDS = ((5, 95, 0.15), (25, 75, 0.3))  # percentiles and how dark


def style(number: int) -> dict[str, Any]:
    """Line style of the number-th variant of a figure."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "ls": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }


def panels(names: Sequence[str], draw: Callable[[Any, str], None], width: float = 5.2, height: float = 4.2) -> Any:
    """A figure with one panel per name, at most three in a row."""
    from matplotlib.figure import Figure

    columns = min(len(names), 3)
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    for number, name in enumerate(names):
        draw(figure.add_subplot(rows, columns, number + 1), name)
    return figure


def box_plots(rows: Iterable[Row]) -> Any:
    """Steps to the threshold: a box of the seeds that reached it, as in the paper, and every seed that did not."""
    found = groups(rows)
    numbers, several = _numbers(found), engines_differ(found)

    def draw(axes: Any, task: str) -> None:
        members = [g for g in found if g.task == task]
        reached = [[r for r in g.reached if r is not None] for g in members]
        names = [f"{name_of(g, several)}\n{len(r)} of {len(g.rows)}" for g, r in zip(members, reached, strict=True)]
        drawn = axes.boxplot(reached, tick_labels=names, patch_artist=True, widths=0.55, medianprops={"color": "black"})
        for at, (group, box) in enumerate(zip(members, drawn["boxes"], strict=True), start=1):
            number = numbers[name_of(group, several)]
            box.set(facecolor=COLOURS[number % len(COLOURS)], alpha=0.6, hatch=HATCHES[number % len(HATCHES)])
            jitter = np.linspace(-0.15, 0.15, len(group.rows))
            for offset, r, s in zip(jitter, group.reached, group.spent, strict=True):
                look = {"color": "black", "ms": 4} if r is not None else {"color": "black", "ms": 6, "mfc": "white"}
                axes.plot(at + offset, s if r is None else r, "o" if r is not None else "^", **look)
            paper = about(task, "interactions").get(group.variant.label)
            if paper is not None:
                axes.plot(at, paper["steps"] * 1000, "*", color="white", mec="black", ms=13, zorder=5)
        axes.set_title(task)
        axes.set_ylabel("environment steps to the threshold")
        axes.yaxis.set_major_formatter(lambda value, _: short(value))
        axes.set_ylim(bottom=0)
        axes.tick_params(axis="x", labelsize=7)
        axes.grid(alpha=0.25, axis="y")
        for marker, fill, label in (
            ("o", "black", "reached"), ("^", "white", "not reached: steps run"), ("*", "white", "the paper's median")
        ):  # fmt: skip
            axes.plot([], [], marker, color="black", mfc=fill, label=label)
        axes.legend(fontsize=7, framealpha=0.6)

    return panels(_tasks(found), draw)


def seed_curves(rows: Iterable[Row]) -> Any:
    """The evaluations of every seed, one panel per task and strategy, with a dot where the threshold is first reached,
    a star at the censored median of the dots."""
    found = groups(rows)
    names = list(dict.fromkeys(f"{g.task}, {_family(g)}" for g in found))
    numbers, several = _numbers(found), engines_differ(found)

    def draw(axes: Any, panel: str) -> None:
        members = [g for g in found if f"{g.task}, {_family(g)}" == panel]
        threshold = members[0].rows[0]["threshold"]
        for group in members:
            name = name_of(group, several)
            look = style(numbers[name])
            for row in group.rows:
                evaluations = np.array(row["evaluations"]).reshape(-1, 4)
                axes.plot(evaluations[:, 1], evaluations[:, 2], color=look["color"], ls=look["ls"], lw=0.8, alpha=0.6)
                crossing = evaluations[evaluations[:, 1] == row["steps_to_threshold"]]
                axes.plot(crossing[:1, 1], crossing[:1, 2], look["marker"], color=look["color"], mec="black", ms=6)
            middle = censored_median(group.reached, group.spent)
            count = sum(r is not None for r in group.reached)
            label = f"{name}, {count} of {len(group.rows)}"
            axes.plot([], [], **look, label=label)
            if middle is not None:
                axes.plot(middle, threshold, "*", color=look["color"], mec="black", ms=15, zorder=5)
        _threshold_line(axes, threshold)
        axes.plot([], [], "*", color="white", mec="black", ms=12, label="censored median")
        _finish(axes, panel, "environment steps of training")

    return panels(names, draw)


def seed_bands(rows: Iterable[Row], combinations: bool = False) -> Any:
    """Median and percentile bands of the mean return, one panel per task and variant; with `combinations` one panel per
    task, over all settings, with the median of each setting.

    The paper has episodes on the x axis. Steps are used here: a policy that falls has more episodes than one that
    walks, so the common range of episodes would end with the best run.
    """
    found = groups(rows)
    kernels = [g.kernel for g in found] if combinations else []
    counts, bandwidths = sorted({n_b for n_b, _ in kernels}), sorted({h for _, h in kernels})

    members_of = band_panels(found, combinations)

    def draw(axes: Any, panel: str) -> None:
        members = members_of[panel]
        every = [row for g in members for row in g.rows]
        steps, returns = curves_over_steps(every)
        for low, high, alpha in BANDS:
            band = np.percentile(returns, [low, high], axis=0)
            axes.fill_between(steps, *band, color=COLOURS[0], alpha=alpha, lw=0, label=f"{low}-{high} percentile")
        axes.plot(steps, np.median(returns, axis=0), color=COLOURS[0], lw=2.4, label=f"median of {len(every)} runs")
        for group in sorted(members, key=lambda g: g.kernel) if combinations else ():
            x, y = curves_over_steps(group.rows)
            n_b, h = group.kernel
            number, marker = bandwidths.index(h) % len(DASHES), MARKERS[counts.index(n_b) % len(MARKERS)]
            look = {"color": COLOURS[1:][number], "ls": DASHES[number], "marker": marker, "ms": 3.5, "markevery": 3}
            axes.plot(x, np.median(y, axis=0), **look, lw=1.1, label=f"n_b {n_b}, h {h:g}")
        _threshold_line(axes, every[0]["threshold"])
        _finish(axes, panel, "environment steps of training")

    return panels(list(members_of), draw)


def quartile_curves(rows: Iterable[Row]) -> Any:
    """Median of the mean return and the band between its quartiles, one panel per task with all of its variants."""

    def draw(axes: Any, group: Group, name: str, colour: str, dashes: Any) -> None:
        steps, returns = curves_over_steps(group.rows)
        low, middle, high = np.percentile(returns, [25, 50, 75], axis=0)
        axes.fill_between(steps, low, high, color=colour, alpha=0.2, lw=0)
        axes.plot(steps, middle, color=colour, ls=dashes, lw=1.8, label=f"{name}, {len(group.rows)} runs")

    def finish(axes: Any, task: str, threshold: float | None) -> None:
        _threshold_line(axes, threshold)
        _finish(axes, task, "environment steps of training")

    return _task_panels(rows, draw, finish)


def arrival_curves(rows: Iterable[Row]) -> Any:
    """The share of runs that reached the threshold (Kaplan-Meier) with its 95 % band, one panel per task with its
    variants. Ticks are runs that ended before."""

    def draw(axes: Any, group: Group, name: str, colour: str, dashes: Any) -> None:
        steps, share, low, high = (np.concatenate([[0.0], side]) for side in arrivals(group.reached, group.spent))
        label = f"{name}, {sum(r is not None for r in group.reached)} of {len(group.rows)}"
        axes.fill_between(steps, low, high, step="post", color=colour, alpha=0.2, lw=0)
        axes.step(steps, share, where="post", color=colour, ls=dashes, lw=1.8, label=label)
        ended = np.array([s for r, s in zip(group.reached, group.spent, strict=True) if r is None])
        axes.plot(ended, share[np.searchsorted(steps, ended, side="right") - 1], "|", color=colour, ms=9)

    def finish(axes: Any, task: str, threshold: float | None) -> None:
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlim(left=0)
        _finish(axes, f"{task}, return {threshold:g}", "environment steps of training", "share of runs that arrived")

    return _task_panels(rows, draw, finish)


def _task_panels(rows: Iterable[Row], draw: Callable[..., None], finish: Callable[..., None]) -> Any:
    """One panel per task: `draw(axes, group, name, colour, dashes)` of each variant, then `finish(axes, task,
    threshold)`."""
    found = groups(rows)
    numbers, several = _numbers(found), engines_differ(found)

    def draw_panel(axes: Any, task: str) -> None:
        members = [g for g in found if g.task == task]
        for group in members:
            name = name_of(group, several)
            look = style(numbers[name])
            draw(axes, group, name, look["color"], look["ls"])
        finish(axes, task, members[0].rows[0]["threshold"])

    return panels(_tasks(found), draw_panel)


def band_panels(found: Sequence[Group], combinations: bool) -> dict[str, list[Group]]:
    """The groups of each panel of `seed_bands`, by its title."""
    several = engines_differ(found)
    out: dict[str, list[Group]] = {}
    for group in found:
        title = group.task if combinations else f"{group.task}, {name_of(group, several)}"
        out.setdefault(title, []).append(group)
    return out


def curves_over_steps(rows: Sequence[Row]) -> tuple[FloatArray, FloatArray]:
    """Mean returns (runs, points) on a common grid of training steps (points,), up to the end of the shortest run."""
    tables = [np.array(row["evaluations"]) for row in rows]
    curves = [(evaluations[:, 1], evaluations[:, 2]) for evaluations in tables]
    end = min(x[-1] for x, _ in curves)
    grid = max((x[x <= end] for x, _ in curves), key=len)
    return grid, np.stack([np.interp(grid, x, y) for x, y in curves])


def _numbers(found: Sequence[Group]) -> dict[str, int]:
    """The number of every variant by name, the same in every panel."""
    return {name: number for number, name in enumerate(names(found))}


def _tasks(found: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(g.task for g in found))


def _family(group: Group) -> str:
    return group.variant.algo.removeprefix("op-").upper()


def _threshold_line(axes: Any, threshold: float | None) -> None:
    if threshold is not None:
        axes.axhline(threshold, color="black", lw=1, ls=(0, (4, 3)), label=f"threshold {threshold:g}")


def _finish(axes: Any, title: str, x: str, y: str = "mean return of an episode") -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.grid(alpha=0.25)
    axes.legend(loc="best", fontsize=7, framealpha=0.6)
