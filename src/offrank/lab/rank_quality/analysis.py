"""Agreement of every ranker's scores with true scores, compared with null controls, one-episode rankings and noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from offrank.core.arrays import FloatArray
from offrank.lab.rank_quality.agreement import Agreement, Order, Resamples, split_halves, targets
from offrank.lab.rank_quality.measure import Measurements

CONTROLS = ("random", "smallest-change", "largest-change")
# rankings by a single episode per sign, or by a single episode of a candidate without signs
ONE_EPISODE = {"max": "one-episode max", "gap": "one-episode gap", "return": "one episode"}


def analyse(measured: Measurements, resamples: int = 1000, seed: int = 0) -> dict[str, Any]:
    """The agreement of each ranker with the true scores, as numbers for a file.

    Returns:
        rankers: by name, then by target: spearman and kendall with intervals, overlap of the top b, and `ahead_of`, the
        difference in spearman to each control. The rankings by one episode per sign are among them.
        alike: by ranker and control, the spearman correlation of their scores with each other.
        noise: split halves and their ceiling, by target.
    """
    returns, b = measured.returns, measured.b
    N, E = returns.shape[1:]
    drawn = Resamples(N, resamples, seed)
    truth = {target: Order(values, drawn) for target, values in targets(*returns.mean(axis=2)).items()}
    orders = {ranker: Order(scores, drawn) for ranker, scores in measured.scores.items()}
    found = {
        ranker: {target: order.agreement(true, b) for target, true in truth.items()} for ranker, order in orders.items()
    }
    found |= {label: _one_episode(returns, by, b, drawn) for by, label in ONE_EPISODE.items() if by in truth}
    controls = [name for name in CONTROLS if name in orders]
    return {
        "candidates": N,
        "episodes": E,
        "top": b,
        "overlap_by_chance": round(b / N, 4),
        "return_mean": round(float(returns.mean()), 2),
        "return_std_of_candidates": round(float(returns.mean(axis=2).std()), 2),
        "return_std_of_episodes": round(float(returns.std(axis=2, ddof=1).mean()), 2),
        "metrics": measured.metrics,
        "rankers": {
            ranker: {
                target: agreement.to_json()
                | {"ahead_of": _ahead(agreement, {c: found[c][target] for c in controls if c != ranker})}
                for target, agreement in by_target.items()
            }
            for ranker, by_target in found.items()
        },
        "alike": {
            ranker: {c: round(order.agreement(orders[c], b).spearman.value, 4) for c in controls if c != ranker}
            for ranker, order in orders.items()
        },
        "noise": split_halves(returns, seed=seed),
    }


def _one_episode(returns: FloatArray, by: str, b: int, drawn: Resamples) -> dict[str, Agreement]:
    """Agreement of the order by one episode per sign with that by the other episodes, by target: mean over episodes."""
    found: dict[str, list[Agreement]] = {target: [] for target in targets(*returns.mean(axis=2))}
    for episode in range(returns.shape[2]):
        seen = Order(targets(*returns[:, :, episode])[by], drawn)
        others = targets(*np.delete(returns, episode, axis=2).mean(axis=2))
        for target, values in others.items():
            found[target].append(seen.agreement(Order(values, drawn), b))
    return {target: Agreement.average(agreements) for target, agreements in found.items()}


def _ahead(agreement: Agreement, controls: dict[str, Agreement]) -> dict[str, dict[str, float]]:
    """Difference in Spearman correlation to each control."""
    return {name: (agreement.spearman - control.spearman).to_json() for name, control in controls.items()}


def summary(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean, smallest and largest Spearman correlation over seeds of each ranker at each iteration of an algorithm."""
    groups: dict[tuple[str, str, str, int], list[dict[str, Any]]] = {}
    for record in records:
        key = (record["task"], record["algo"], record["ranker"], record["iteration"])
        groups.setdefault(key, []).append(record)
    out = []
    for (task, algo, ranker, iteration), group in groups.items():
        goals = list(group[0]["noise"])
        names = [name for name in group[0]["rankers"] if all(name in record["rankers"] for record in group)]
        rows = {
            name: {
                target: _spread([record["rankers"][name][target]["spearman"]["value"] for record in group])
                | {"overlap": _mean([record["rankers"][name][target]["overlap"] for record in group])}
                for target in goals
            }
            for name in names
        }
        noise = {target: _mean([record["noise"][target]["ceiling"] for record in group]) for target in goals}
        head = {"task": task, "algo": algo, "ranker": ranker, "iteration": iteration}
        out.append(head | {"seeds": [record["seed"] for record in group], "rankers": rows, "noise_ceiling": noise})
    return out


def _mean(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 4)


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": _mean(values), "low": min(values), "high": max(values)}
