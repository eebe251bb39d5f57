"""Print records of rank quality, over tasks, as the tables of docs/paper/rank-quality.md.

    python -m offrank.lab.experiments.rank_quality_table results/rank_quality/*/rank-quality.json

The records of results/rank_quality/TASK were made by these commands (and the last one for each of the three tasks):

    measure="offrank rank-quality --candidates 150 --episodes 6"
    $measure HalfCheetah-v3 --algo op-ars --iterations 30,100,250 --out results/rank_quality/HalfCheetah-v3
    $measure Hopper-v3 --algo op-ars,ars --iterations 30,100 --out results/rank_quality/Hopper-v3
    $measure Swimmer-v3 --algo op-ars --iterations 30,100 --out results/rank_quality/Swimmer-v3
    $measure Swimmer-v3 --algo ars --iterations 100 --out results/rank_quality/Swimmer-v3
    $measure TASK --run results/rank_quality/TASK/*.state.npz --out results/rank_quality/TASK

A column of a ranking that a record does not hold shows "-".
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from offrank.core.files import read_json
from offrank.lab.rank_quality.agreement import TARGETS
from offrank.lab.script import make_parser, run_script
from offrank.lab.studies.tables import Table

Record = dict[str, Any]
HEAD = ["task", "policy of", "seed", "iteration", "mean return"]
MEANING = {"max": "max(r+, r-)", "gap": "abs(r+ - r-)", "mean": "(r+ + r-)/2"}
ONE_EPISODE = ("one-episode max", "one-episode gap")
FIRST = ("kernel", "random")  # columns; the other rankings follow in the order of the records
CONTROLS = ("smallest-change", "signed-change")
MIRRORED = "largest-change"  # its correlations are those of smallest-change with the other sign


def table(head: Sequence[str], checkpoints: Iterable[Record], cells: Callable[[Record], list[str]]) -> str:
    keys = ("task", "algo", "seed", "iteration")
    rows = [[str(c[key]) for key in keys] + [f"{c['return_mean']:.0f}"] + cells(c) for c in checkpoints]
    return Table([*HEAD, *head], rows).markdown()


def estimate(found: dict[str, float] | None) -> str:
    """A number, in bold where its interval does not contain 0; "-" where there is none."""
    if found is None:
        return "-"
    text = f"{found['value']:+.2f}"
    return f"**{text}**" if found["low"] > 0 or found["high"] < 0 else text


def spearman(checkpoint: Record, ranking: str, target: str) -> str:
    found = checkpoint["rankers"].get(ranking)
    return estimate(found and found[target]["spearman"])


def overlap(checkpoint: Record, ranking: str, target: str) -> str:
    found = checkpoint["rankers"].get(ranking)
    return f"{found[target]['overlap']:.2f}" if found else "-"


def ahead(checkpoint: Record, ranking: str, target: str, control: str) -> str:
    return estimate(checkpoint["rankers"][ranking][target]["ahead_of"].get(control))


def print_tables(args: argparse.Namespace) -> None:
    found = [c for path in args.paths for c in read_json(path)["checkpoints"]]
    checkpoints, members = ([c for c in found if ("return" in c["noise"]) == other] for other in (False, True))
    if members:
        _print_members(members)
    if not checkpoints:
        return
    every = dict.fromkeys([*FIRST, *(name for c in checkpoints for name in c["rankers"])])
    rankings = [name for name in every if name not in (*ONE_EPISODE, MIRRORED)]
    for target in TARGETS:
        print(f"\nSpearman with {MEANING[target]}\n")

        def cells(c: Record, target: str = target) -> list[str]:
            found = [spearman(c, name, target) for name in (*rankings, *ONE_EPISODE)]
            return [*found, f"{c['noise'][target]['ceiling']:.2f}"]

        print(table([*rankings, *ONE_EPISODE, "perfect, about"], checkpoints, cells))
    _print_kernel([c for c in checkpoints if "kernel" in c["rankers"]])
    _print_learned([c for c in checkpoints if c["ranker"] in c["rankers"] and c["ranker"] not in (*FIRST, *CONTROLS)])
    print("\nShare of the true top found\n")
    columns = [(target, name) for target in ("max", "gap") for name in (*rankings, ONE_EPISODE[0])]
    head = ["by chance", *(f"{target}: {name}" for target, name in columns)]
    print(
        table(
            head,
            checkpoints,
            lambda c: [f"{c['overlap_by_chance']:.2f}", *(overlap(c, name, target) for target, name in columns)],
        )
    )


def _print_members(checkpoints: list[Record]) -> None:
    """Members of a generation, which have no signs."""
    rankings = list(dict.fromkeys(name for c in checkpoints for name in c["rankers"]))
    print("\nMembers of a generation: Spearman with the mean return\n")
    print(table(rankings, checkpoints, lambda c: [spearman(c, name, "return") for name in rankings]))


def _print_kernel(checkpoints: list[Record]) -> None:
    """The kernel compared with the controls that the records hold."""
    controls = [name for name in CONTROLS if any(name in c["rankers"] for c in checkpoints)]
    columns = [(target, control) for target in ("max", "gap") for control in controls]
    head = ["mean Q", *(f"alike {name}" for name in controls)]
    head += [f"{target}: ahead of {control}" for target, control in columns]

    def cells(c: Record) -> list[str]:
        alike = [c["alike"]["kernel"].get(name) for name in controls]
        return [
            f"{c['metrics']['kernel']['q_mean']:+.1f}",
            *("-" if value is None else f"{value:+.2f}" for value in alike),
            *(ahead(c, "kernel", target, control) for target, control in columns),
        ]

    print("\nThe kernel and its controls\n")
    print(table(head, checkpoints, cells))


def _print_learned(checkpoints: list[Record]) -> None:
    """Rankers that learn, at policies of runs that they ranked."""
    if not checkpoints:
        return

    def cells(c: Record) -> list[str]:
        own = c["ranker"]
        gap = [spearman(c, name, "gap") for name in (own, "kernel", "one-episode gap")]
        return [own, *gap, f"{c['noise']['gap']['ceiling']:.2f}", *(spearman(c, own, t) for t in ("max", "mean"))]

    print("\nRankers that learn\n")
    gap = [f"gap: {what}" for what in ("its own", "kernel", "one episode", "perfect, about")]
    print(table(["ranker", *gap, "max: its own", "mean: its own"], checkpoints, cells))


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("rank_quality_table", __doc__)
    parser.add_argument("paths", type=Path, nargs="+", metavar="FILE", help="rank-quality.json files")
    return run_script(parser, print_tables, argv)


if __name__ == "__main__":
    sys.exit(main())
