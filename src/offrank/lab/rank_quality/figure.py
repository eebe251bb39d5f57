"""The figure of rank quality: one column per target, one row per algorithm, one colour and marker per ranking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offrank.display.plots import COLOURS
from offrank.lab.figures import save_figure
from offrank.lab.rank_quality.analysis import ONE_EPISODE

MARKERS = "osv^DPX*"
TITLES = {
    "max": "with max(r⁺, r⁻), which on-policy ranking orders by",
    "gap": "with |r⁺ - r⁻|, which carries the gradient",
    "return": "with the mean return",
    "mean": "with (r⁺ + r⁻) / 2, what being perturbed costs",
}


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw a record to a PNG file.

    A single seed is drawn with its interval over candidates; several as a small point each, and their mean.
    """
    from matplotlib.figure import Figure

    rows = list(dict.fromkeys((group["algo"], group["ranker"]) for group in record["summary"]))
    targets = list(dict.fromkeys(target for group in record["summary"] for target in group["noise_ceiling"]))
    figure = Figure(figsize=(max(4.4 * len(targets), 6.4), 0.9 + 3.1 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), len(targets), sharey=True, squeeze=False)
    for line, (algo, ranker) in zip(grid, rows, strict=True):
        for axes, target in zip(line, targets, strict=True):
            _panel(axes, record, algo, ranker, target)
        line[0].set_ylabel(f"policies of {algo} ({ranker})\nSpearman correlation")
    for axes, target in zip(grid[0], targets, strict=True):
        axes.set_title(TITLES[target], fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("iteration")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle(f"{record['task']}: how well scores agree with true scores", fontsize=11)
    save_figure(figure, path, dpi=150)


def _panel(axes: Any, record: dict[str, Any], algo: str, ranker: str, target: str) -> None:
    groups = [
        g for g in record["summary"] if (g["algo"], g["ranker"]) == (algo, ranker) and target in g["noise_ceiling"]
    ]
    if not groups:
        axes.set_visible(False)
        return
    names = list(dict.fromkeys(name for group in groups for name in group["rankers"]))
    width = 0.8 / len(names)
    axes.axhline(0, color="0.6", lw=0.8)
    for at, group in enumerate(groups):
        ceiling = group["noise_ceiling"][target]
        label = "a perfect ranking, about" if at == 0 else None
        axes.plot([at - 0.45, at + 0.45], [ceiling, ceiling], color="0.4", ls="--", lw=1, label=label)
        if at:
            axes.axvline(at - 0.5, color="0.9", lw=0.8)
    for place, name in enumerate(names):
        one_episode = name in ONE_EPISODE.values()
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        for at, group in enumerate(groups):
            if name not in group["rankers"]:
                continue
            x = at - 0.4 + (place + 0.5) * width
            seeds = _found(record, group, name, target)
            mean = group["rankers"][name][target]["mean"]
            if len(seeds) > 1:
                axes.plot([x] * len(seeds), [s["value"] for s in seeds], "_", color=colour, ms=5, alpha=0.8)
            low, high = (
                (min(s["low"] for s in seeds), max(s["high"] for s in seeds)) if len(seeds) == 1 else (mean,) * 2
            )
            axes.errorbar(
                [x],
                [mean],
                yerr=[[mean - low], [high - mean]],
                fmt=marker,
                color=colour,
                mfc="white" if one_episode else colour,
                ms=5.5,
                lw=1.2,
                label=name if at == 0 else None,
            )
    axes.set_xticks(range(len(groups)), [str(group["iteration"]) for group in groups])
    axes.set_ylim(min(_least(record), -0.25) - 0.05, 1.02)
    axes.grid(axis="y", alpha=0.25)


def _least(record: dict[str, Any]) -> float:
    """The lowest end of an interval."""
    rankers = (ranker for checkpoint in record["checkpoints"] for ranker in checkpoint["rankers"].values())
    return min(float(found["spearman"]["low"]) for ranker in rankers for found in ranker.values())


def _found(record: dict[str, Any], group: dict[str, Any], name: str, target: str) -> list[dict[str, float]]:
    """Spearman with its interval, for every seed of the group."""
    keys = ("task", "algo", "ranker", "iteration")
    return [
        checkpoint["rankers"][name][target]["spearman"]
        for checkpoint in record["checkpoints"]
        if all(checkpoint[key] == group[key] for key in keys)
    ]
