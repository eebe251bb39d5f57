"""Print what rank quality came to, over tasks, as the tables of docs/rank-quality.md.

python studies/rank_quality_table.py results/rank_quality/*/rank-quality.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from offrank.core.files import read_json

RANKINGS = ("kernel", "random", "smallest-change", "signed-change", "one-episode max", "one-episode gap")

LEARNED = ("memory", "critic")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rows(checkpoints: Iterable[dict[str, Any]], cells: Callable[[dict[str, Any]], list[str]]) -> list[list[str]]:
    keys = ("task", "algo", "seed", "iteration")
    return [[str(c[key]) for key in keys] + [f"{c['return_mean']:.0f}"] + cells(c) for c in checkpoints]


def estimate(found: dict[str, float]) -> str:
    """A number, in bold where its interval leaves out 0."""
    text = f"{found['value']:+.2f}"
    return f"**{text}**" if found["low"] > 0 or found["high"] < 0 else text


def by_target(target: str) -> Callable[[dict[str, Any]], list[str]]:
    def cells(checkpoint: dict[str, Any]) -> list[str]:
        rankers = checkpoint["rankers"]
        return [
            *(estimate(rankers[name][target]["spearman"]) for name in RANKINGS),
            f"{checkpoint['noise'][target]['ceiling']:.2f}",
        ]

    return cells


def kernel_cells(checkpoint: dict[str, Any]) -> list[str]:
    kernel, metrics = checkpoint["rankers"]["kernel"], checkpoint["metrics"]["kernel"]
    alike = checkpoint["alike"]["kernel"]
    ahead = [
        kernel[target]["ahead_of"][control]
        for target in ("max", "gap")
        for control in ("smallest-change", "signed-change")
    ]
    return [
        f"{metrics['q_mean']:+.1f}",
        f"{alike['smallest-change']:+.2f}",
        f"{alike['signed-change']:+.2f}",
        *map(estimate, ahead),
    ]


def overlap_cells(checkpoint: dict[str, Any]) -> list[str]:
    rankers = checkpoint["rankers"]
    chosen = [f"{rankers[name][target]['overlap']:.2f}" for target in ("max", "gap") for name in RANKINGS[:5]]
    return [f"{checkpoint['overlap_by_chance']:.2f}", *chosen]


def learned_cells(checkpoint: dict[str, Any]) -> list[str]:
    """What a ranker that learns is worth in a run that it ranked."""
    rankers, own = checkpoint["rankers"], checkpoint["ranker"]
    gap = [estimate(rankers[name]["gap"]["spearman"]) for name in (own, "kernel", "one-episode gap")]
    others = [estimate(rankers[own][target]["spearman"]) for target in ("max", "mean")]
    return [own, *gap, f"{checkpoint['noise']['gap']['ceiling']:.2f}", *others]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+")
    checkpoints = [c for path in parser.parse_args().paths for c in read_json(path)["checkpoints"]]
    head = ["task", "policy of", "seed", "iteration", "mean return"]
    for target, meaning in (("max", "max(r+, r-)"), ("gap", "abs(r+ - r-)"), ("mean", "(r+ + r-)/2")):
        print(f"\nSpearman with {meaning}\n")
        print(table([*head, *RANKINGS, "perfect, about"], rows(checkpoints, by_target(target))))
    print("\nThe kernel beside its controls\n")
    ahead = [f"{t}: ahead of {c}" for t in ("max", "gap") for c in ("smallest", "signed")]
    print(table([*head, "mean Q", "alike smallest", "alike signed", *ahead], rows(checkpoints, kernel_cells)))
    learned = [c for c in checkpoints if c["ranker"] in LEARNED]
    if learned:
        print("\nRankers that learn\n")
        gap = [f"gap: {what}" for what in ("its own", "kernel", "one episode", "perfect, about")]
        print(table([*head, "ranker", *gap, "max: its own", "mean: its own"], rows(learned, learned_cells)))
    print("\nShare of the true top found\n")
    names = [f"{t}: {name}" for t in ("max", "gap") for name in RANKINGS[:5]]
    print(table([*head, "by chance", *names], rows(checkpoints, overlap_cells)))


if __name__ == "__main__":
    main()
