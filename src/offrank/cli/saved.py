"""The arguments of commands that read or run a saved policy."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from offrank.runs.saved import WHICH, Saved


def add_path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help="a run folder or a policy file")
    parser.add_argument("--which", choices=list(WHICH), default="best", help="policy of a run folder (default: best)")


def add_saved(parser: argparse.ArgumentParser) -> None:
    add_path(parser)
    parser.add_argument("--allow-import", action="store_true", help="import the module that the file's task names")


def saved_of(args: argparse.Namespace) -> Saved:
    return replace(Saved.find(args.path, args.which), trusted=args.allow_import)
