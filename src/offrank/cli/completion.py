"""offrank completion"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import shtab

from offrank import cli
from offrank.algorithms import ALGORITHMS
from offrank.cli.listing import LISTS
from offrank.display.loggers import LOGGERS
from offrank.engines import ENGINES
from offrank.tasks import NATIVE

SHELLS = ("bash", "zsh", "fish")
RANKERS = dict.fromkeys(chain.from_iterable(entry.rankers for entry in ALGORITHMS.values()))
NAMES: dict[str, Iterable[str]] = {  # what an argument may be, where its parser does not check that itself
    "what": LISTS,
    "task": NATIVE,
    "tasks": NATIVE,
    "algo": ALGORITHMS,
    "algos": ALGORITHMS,
    "ranker": RANKERS,
    "rankers": RANKERS,
    "engine": ENGINES,
    "log": LOGGERS,
}

EPILOG = """\
examples:
  offrank completion bash > ~/.local/share/bash-completion/completions/offrank
  offrank completion zsh > ~/.zfunc/_offrank            with fpath+=~/.zfunc before compinit in ~/.zshrc
  offrank completion fish > ~/.config/fish/completions/offrank.fish

It completes commands, flags, files, and the names of tasks, algorithms, rankers and engines.
"""


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "completion",
        help="a script that completes commands in a shell",
        description="Print a script by which a shell completes commands.",
        epilog=EPILOG,
    )
    parser.add_argument("shell", choices=SHELLS, metavar="|".join(SHELLS))
    parser.set_defaults(run=completion)


def completion(args: argparse.Namespace) -> int:
    parser, verbs = cli.build_parser(*cli.VERBS)
    for action in chain.from_iterable(verbs[verb]._actions for verb in verbs):
        if action.choices is None and action.dest in NAMES:
            action.choices = list(NAMES[action.dest])
        if action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, args.shell))
    return 0
