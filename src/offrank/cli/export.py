"""offrank export"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from offrank.cli.saved import add_path
from offrank.policies.export import FORMATS, export_policy
from offrank.runs.saved import Saved


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "export",
        help="write a policy for use without offrank",
        description="Write a saved policy, with its normaliser and the bounds of its actions, for use without offrank.",
        epilog="example:\n  offrank export runs/HalfCheetah-v3-guided-0 --format c --out policy.h",
    )
    add_path(parser)
    parser.add_argument("--format", choices=list(FORMATS), required=True, help="see docs/guides/export.md")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.set_defaults(run=export)


def export(args: argparse.Namespace) -> int:
    saved = Saved.find(args.path, args.which)
    export_policy(saved.policy, args.format, args.out)
    kind = saved.policy.kind
    print(f"{args.out}: the policy {kind.name} of {saved.path}, {kind.n} observations, {kind.p} outputs")
    return 0
