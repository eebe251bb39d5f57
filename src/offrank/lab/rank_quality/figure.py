"""The figure of rank quality: a panel per algorithm and target, a series per ranking, a place per iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offrank.display.figures import Axis, Figure, Item, Marks, Panel, Rule
from offrank.lab.rank_quality.analysis import ONE_EPISODE

TITLES = {
    "max": "with max(r⁺, r⁻), which on-policy ranking orders by",
    "gap": "with |r⁺ - r⁻|, which carries the gradient",
    "return": "with the mean return",
    "mean": "with (r⁺ + r⁻) / 2, what being perturbed costs",
}
Checkpoint = dict[str, Any]


def rank_quality(checkpoints: Sequence[Checkpoint]) -> Figure:
    """Spearman correlation of each ranking's scores with true scores, and its 95 % interval over candidates."""
    rankings = list(dict.fromkeys(name for c in checkpoints for name in c["rankers"]))
    targets = list(dict.fromkeys(target for c in checkpoints for target in c["noise"]))
    ends = [by[target]["spearman"]["low"] for c in checkpoints for by in c["rankers"].values() for target in by]
    y = Axis("Spearman correlation", min(*ends, -0.25) - 0.05, 1.02)
    panels = []
    for key in dict.fromkeys(map(_policy, checkpoints)):
        for target in targets:
            some = [c for c in checkpoints if _policy(c) == key and target in c["noise"]]
            panels += [_panel(some, target, y)] if some else []
    return Figure(rankings, panels, {"rule": "a perfect ranking, about"}, columns=len(targets))


def _policy(checkpoint: Checkpoint) -> tuple[str, str, str]:
    return checkpoint["task"], checkpoint["algo"], checkpoint["ranker"]


def _panel(checkpoints: Sequence[Checkpoint], target: str, y: Axis) -> Panel:
    """Every seed of a place beside the others of its ranking."""
    task, algo, ranker = _policy(checkpoints[0])
    iterations = sorted({c["iteration"] for c in checkpoints})
    names = list(dict.fromkeys(name for c in checkpoints for name in c["rankers"]))
    items: list[Item] = []
    for at, iteration in enumerate(iterations):
        here = [c for c in checkpoints if c["iteration"] == iteration]
        ceiling = sum(c["noise"][target]["ceiling"] for c in here) / len(here)
        items.append(Rule(ceiling, at - 0.45, at + 0.45))
        width = 0.8 / len(names)
        for place, name in enumerate(names):
            known = [c for c in here if name in c["rankers"]]
            if known:
                first = at - 0.4 + place * width
                x = [first + width * (k + 1) / (len(known) + 1) for k in range(len(known))]
                items.append(_marks(name, x, known, target))
    title = f"{task}, policies of {algo} ({ranker})\n{TITLES[target]}"
    places = Axis("iteration", -0.5, len(iterations) - 0.5, places=[str(i) for i in iterations])
    return Panel(title, places, y, items, task)


def _marks(name: str, x: Sequence[float], known: Sequence[Checkpoint], target: str) -> Marks:
    found = [c["rankers"][name][target]["spearman"] for c in known]
    y, low, high = ([rho[key] for rho in found] for key in ("value", "low", "high"))
    labels = [f"{name}, seed {c['seed']}, iteration {c['iteration']}" for c in known]
    return Marks(name, x, y, labels, open=name in ONE_EPISODE.values(), low=low, high=high)
