"""Two-level factorial designs of an algorithm's settings, whole or in part, and the main effect of each setting.

    python -m offrank.lab.experiments.design Humanoid-v3 --factor hidden=256,512 --factor critic_rate=3e-4,1e-3 \\
        --factor actor_rate=1e-3,2e-4 --factor pessimism=1,0:hidden*critic_rate*actor_rate --steps 250k \\
        --lessons cuda --share 1/4 --out runs/design
    python -m offrank.lab.experiments.design --gather runs/design --out results/tuning/design.json
    python -m offrank.lab.experiments.design --table results/tuning/design.json --between 60k-100k 150k-200k

Settings are crossed, but for those after a colon: they have their second value where an odd number of the settings
named there have theirs. With that a setting costs no runs, and its effect is mixed with an interaction of the others.
Every run has a tuning seed of its own (1000, 1001, ...) and goes on to the end of its steps. `--share K/P` runs the
K-th of P shares, for as many processes; `--gather` collects what the run folders have so far.

The table has the mean return over the evaluations between two numbers of steps, averaged over all runs with a value,
± its standard error, whatever their other settings are; then how many of them were at the task's threshold.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from offrank.cli.options import count, natural
from offrank.core.errors import UsageError
from offrank.core.files import parse_json, write_atomically
from offrank.engines import make_engine
from offrank.lab.experiments.tuning import FIRST_SEED, standard_error
from offrank.lab.script import make_parser, run_script, threshold_of
from offrank.lab.studies.tables import Table
from offrank.runs.config import configure
from offrank.runs.drive import drive
from offrank.runs.folder import CONFIG, METRICS
from offrank.runs.metrics import read_metrics
from offrank.runs.opening import open_run, read_config
from offrank.runs.recipe import clipping, resolve

Row = dict[str, Any]


@dataclass(frozen=True)
class Factor:
    """A setting with two values, and the settings whose product it follows; none if it is crossed with the others."""

    name: str
    values: tuple[str, str]
    follows: tuple[str, ...] = ()

    @staticmethod
    def of(text: str) -> Factor:
        """Of `name=first,second` or `name=first,second:other*another`."""
        name, _, rest = text.partition("=")
        values, _, product_of = rest.partition(":")
        first, _, second = values.partition(",")
        if not (name and first and second) or "," in second:
            raise argparse.ArgumentTypeError(f"{text!r}: must be NAME=FIRST,SECOND, or NAME=FIRST,SECOND:OTHER*ANOTHER")
        return Factor(name, (first, second), tuple(product_of.split("*")) if product_of else ())


def design(factors: Sequence[Factor]) -> list[dict[str, str]]:
    """The settings of each run.

    Raises:
        UsageError: a factor is named twice, or follows one that is not crossed.
    """
    crossed = [factor.name for factor in factors if not factor.follows]
    if len({factor.name for factor in factors}) < len(factors):
        raise UsageError("a setting is given twice")
    for factor in factors:
        if unknown := [name for name in factor.follows if name not in crossed]:
            raise UsageError(f"{factor.name} follows {unknown[0]}, which is none of {', '.join(crossed)}")
    runs = []
    for levels in product((0, 1), repeat=len(crossed)):
        second = dict(zip(crossed, levels, strict=True))
        for factor in factors:
            if factor.follows:
                second[factor.name] = sum(second[name] for name in factor.follows) % 2
        runs.append({factor.name: factor.values[second[factor.name]] for factor in factors})
    return runs


def share_of(text: str) -> tuple[int, int]:
    """K and P of `K/P`."""
    which, _, of = text.partition("/")
    if not (which.isdecimal() and of.isdecimal() and 1 <= int(which) <= int(of)):
        raise argparse.ArgumentTypeError(f"{text!r}: must be K/P, such as 1/4 for the first of four shares")
    return int(which), int(of)


def between(text: str) -> tuple[int, int]:
    """Two numbers of steps, of `A-B`."""
    low, _, high = text.partition("-")
    return count(low), count(high)


def train(args: argparse.Namespace) -> None:
    """Run a share of the design, in folders named after the number of the run."""
    everyone = list(enumerate(design(args.factor)))
    which, of = args.share
    recipes = {number: resolve(args.task, args.algo, None, settings) for number, settings in everyone[which - 1 :: of]}
    clip = clipping(args.task, "auto", recipes.values(), None)
    engine = make_engine(args.task, "auto", threads=args.threads, clip_actions=clip)
    when = {"eval_steps": args.eval_steps, "eval_episodes": args.eval_episodes, "steps": args.steps, "threshold": None}
    runs = []
    for number, recipe in recipes.items():
        config = configure(args.task, recipe, engine.space, seed=FIRST_SEED + number, clip_actions=clip)
        folder = args.out / f"{args.task}-{args.algo}-{number}"
        runs.append(open_run(replace(config, **when), engine.space, folder, resume=True))
    drive(runs, engine, lessons=args.lessons)


def gathered(folder: Path) -> Iterator[Row]:
    """A row for every run, as far as it has come. `settings` are those that differ between runs of its task."""
    found = [(read_config(path.parent), read_metrics(path)) for path in sorted(folder.glob(f"*/{METRICS}"))]
    for config, records in found:
        others = [other.hyperparameters for other, _ in found if other.task == config.task]
        varied = [name for name, own in config.hyperparameters.items() if any(own != other[name] for other in others)]
        yield {
            "task": config.task,
            "seed": config.seed,
            "settings": {name: config.hyperparameters[name] for name in varied},
            "steps": records[-1]["steps"] if records else 0,
            "evaluations": [
                [r["steps"], round(r["return_mean"], 1)]
                for r in records
                if r["kind"] == "evaluation" and not r.get("final")
            ],
        }


def effects(rows: Sequence[Row], windows: Sequence[tuple[int, int]]) -> Table:
    """A line for every value of every setting that differs between the runs of a task."""
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        own, threshold = [row for row in rows if row["task"] == task], threshold_of(task)
        names = dict.fromkeys(name for row in own for name in row["settings"])
        for name in names:
            values = {str(row["settings"].get(name, "-")): None for row in own}
            for value in values if len(values) > 1 else ():
                group = [row["evaluations"] for row in own if str(row["settings"].get(name, "-")) == value]
                reached = sum(any(mean >= threshold for _, mean in evaluations) for evaluations in group)
                cells = [_cell(group, *window) for window in windows]
                lines.append([task, name, value, *cells, f"{reached} of {len(group)}"])
    return Table(["task", "setting", "value", *(f"{a:,} to {b:,}" for a, b in windows), "reached"], lines)


def _cell(runs: Sequence[Sequence[Sequence[float]]], low: int, high: int) -> str:
    inside = [[mean for steps, mean in evaluations if low <= steps <= high] for evaluations in runs]
    means = [fmean(found) for found in inside if found]
    if not means:
        return "-"
    return f"{fmean(means):,.0f}" + (f" ± {standard_error(means):,.0f}" if len(means) > 1 else "")


def _do(args: argparse.Namespace) -> None:
    if args.table:
        rows: list[Row] = [row for path in args.table for row in parse_json(path)]
        print(effects(rows, args.between).markdown())
    elif args.out is None:
        raise UsageError("say with --out where the runs, or what is gathered of them, shall go")
    elif args.gather:
        if not (rows := list(gathered(args.gather))):
            raise UsageError(f"{args.gather} holds no runs: no folder in it has {CONFIG} and {METRICS}")
        write_atomically(args.out, ("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n").encode())
    elif args.task is None or not args.factor or args.steps is None:
        raise UsageError("give a task, --factor and --steps; or --gather or --table")
    else:
        train(args)


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("design", __doc__)
    parser.add_argument("task", nargs="?", metavar="TASK")
    parser.add_argument("--algo", default="guided")
    parser.add_argument("--factor", type=Factor.of, action="append", default=[], metavar="NAME=A,B[:C*D]")
    parser.add_argument("--steps", type=count, help="of each run")
    parser.add_argument("--eval-steps", type=count, default=10_000)
    parser.add_argument("--eval-episodes", type=count, default=5)
    parser.add_argument("--threads", type=natural, default=0)
    parser.add_argument("--lessons", metavar="cpu|cuda")
    parser.add_argument("--share", type=share_of, default=(1, 1), metavar="K/P")
    parser.add_argument("--gather", type=Path, metavar="FOLDER")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--between", type=between, nargs="+", default=[(0, sys.maxsize)], metavar="A-B")
    parser.add_argument("--out", type=Path)
    return run_script(parser, _do, argv)


if __name__ == "__main__":
    sys.exit(main())
