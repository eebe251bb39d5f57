"""offrank list"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from offrank.agents import AGENTS
from offrank.algorithms import ALGORITHMS
from offrank.algorithms.base import Episodes
from offrank.cli.options import Parser
from offrank.core.errors import UsageError, did_you_mean
from offrank.core.fields import meanings
from offrank.engines import native_name
from offrank.policies import POLICIES, make_policy
from offrank.runs.config import task_default
from offrank.runs.recipe import resolve
from offrank.tasks import LQR, NATIVE, TASKS

Row = dict[str, Any]

EXAMPLE_TASK = "HalfCheetah-v3"  # whose parameters are counted in the list of policies
WIDE = 1000  # columns where there is no terminal: nothing is wrapped

EPILOG = f"""\
examples:
  offrank list tasks
  offrank list algorithms --json
  offrank list settings guided --task HalfCheetah-v3    values and sources for a task
  offrank list settings ars --ranker critic             with another ranker than the algorithm's default

Settings are those of the algorithm, of its ranker, and of training episodes. `list policies` counts the parameters of
the example on {EXAMPLE_TASK}.
"""


def add_parser(verbs: Any) -> None:
    parser: Parser = verbs.add_parser(
        "list",
        help="tasks, algorithms, rankers, policies, settings",
        description="List what there is by name, with defaults and meanings.",
        epilog=EPILOG,
    )
    parser.add_argument("what", metavar="WHAT", help=f"one of {', '.join(LISTS)}")
    parser.add_argument("algo", nargs="?", metavar="ALGO", help="whose settings to list")
    parser.add_argument("--task", metavar="NAME", help="settings as they are on one of our tasks")
    parser.add_argument("--ranker", metavar="NAME", help="settings with this ranker instead of the default")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.set_defaults(run=list_names)


def list_names(args: argparse.Namespace) -> int:
    if args.what not in LISTS:
        raise UsageError(f"unknown list {args.what!r}: one of {', '.join(LISTS)}{did_you_mean(args.what, LISTS)}")
    if args.what != "settings" and (args.algo or args.task or args.ranker):
        raise UsageError(f"list {args.what} takes nothing but --json: ALGO, --task and --ranker are of list settings")
    rows = LISTS[args.what](args)
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        _print_table(rows)
    return 0


def tasks(args: argparse.Namespace) -> list[Row]:
    """Threshold and budget are those of a run that gives none."""
    sizes = {name: (task.obs_dim, task.act_dim, task.horizon) for name, task in TASKS.items()}
    sizes[LQR.name] = (*LQR().B.shape, LQR.horizon)
    return [
        {"name": name, "observations": n, "actions": p, "horizon": horizon}
        | {key: task_default(name, key) for key in ("threshold", "budget")}
        for name, (n, p, horizon) in sizes.items()
    ]


def algorithms(args: argparse.Namespace) -> list[Row]:
    return [
        {"name": algo, "class": AGENTS[algo].__name__, "ranker": entry.ranker, "policy": entry.policy}
        | {"what": _first_sentence(AGENTS[algo])}
        for algo, entry in ALGORITHMS.items()
    ]


def rankers(args: argparse.Namespace) -> list[Row]:
    """One row per class: some names are of a ranker of pairs, and of another one of the members of a population."""
    works_with: dict[type[Any], list[str]] = {}
    for algo, entry in ALGORITHMS.items():
        for ranker in entry.rankers.values():
            works_with.setdefault(ranker, []).append(algo)
    return [
        {"name": ranker.name, "what": _first_sentence(ranker), "algorithms": algos}
        for ranker, algos in works_with.items()
    ]


def policies(args: argparse.Namespace) -> list[Row]:
    task = TASKS[EXAMPLE_TASK]
    return [
        {"name": name, "action": formula, "example": example}
        | {"parameters": make_policy(example, task.obs_dim, task.act_dim).size}
        for name, (_, _, formula, example) in POLICIES.items()
    ]


def settings(args: argparse.Namespace) -> list[Row]:
    """The value of every setting of an algorithm, its source and its meaning.

    Raises:
        UsageError: the algorithm, ranker or task is unknown, or no algorithm is given.
    """
    if args.algo is None:
        raise UsageError(f"list settings needs an algorithm: one of {', '.join(ALGORITHMS)}")
    recipe = resolve(args.task and our_task(args.task), args.algo, args.ranker)
    meaning = {**meanings(type(recipe.settings)), **meanings(type(recipe.ranker)), **meanings(Episodes)}
    return [
        {"name": name, "default": value, "meaning": meaning[name], "source": recipe.sources[name]}
        for name, value in recipe.hyperparameters.items()
    ]


LISTS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "tasks": tasks,
    "algorithms": algorithms,
    "rankers": rankers,
    "policies": policies,
    "settings": settings,
}


def our_task(word: str) -> str:
    """The name of one of our tasks.

    Raises:
        UsageError: it is none.
    """
    name = native_name(word)
    if name is None:
        raise UsageError(f"unknown task {word!r}: one of {', '.join(NATIVE)}{did_you_mean(word, NATIVE)}")
    return name


def _first_sentence(cls: type[Any]) -> str:
    text = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".")


def _print_table(rows: list[Row]) -> None:
    table = Table(box=None, pad_edge=False, header_style="")
    for i, name in enumerate(rows[0]):
        table.add_column(name, no_wrap=i == 0)
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    console = Console(width=None if sys.stdout.isatty() else WIDE, markup=False, highlight=False, emoji=False)
    with console.capture() as text:
        console.print(table)
    print("\n".join(line.rstrip() for line in text.get().splitlines()))


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
