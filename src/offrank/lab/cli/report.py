"""offrank report"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from offrank.core.errors import UsageError
from offrank.core.files import write_atomically

EPILOG = """\
examples:
  offrank report runs/reproduce --out report.html
  offrank report runs/reproduce --videos                 with videos of the best policies
  offrank report results --out report.html               from stored rows alone
  offrank report runs --without 'drafts/*' '*-old.json'  leave some files out

The page is one file that needs no network: open it from disk, send it, print it.
"""


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "report",
        help="one page of tables and interactive figures",
        description="Show the contents of a folder (rows of studies, run folders, rank quality) on one page.",
        epilog=EPILOG,
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="a study folder, or one with rows or run folders")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a .html (default: DIR/report.html)")
    parser.add_argument(
        "--rank-quality",
        type=Path,
        nargs="+",
        default=[],
        metavar="PATH",
        help="records of rank quality elsewhere",
    )
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="PATTERN", help="files and folders inside DIR to leave out"
    )
    parser.add_argument("--videos", action="store_true", help="add videos of the best policies in DIR's run folders")
    parser.set_defaults(run=report)


def report(args: argparse.Namespace) -> int:
    from offrank.lab.report.page import build
    from offrank.lab.report.sources import find

    out = args.out or args.directory / "report.html"
    if out.suffix not in (".html", ".htm"):
        raise UsageError(f"{out}: the name of a page must end in .html")
    found = find(args.directory, args.rank_quality, args.without)
    command = ["report", args.directory.as_posix(), "--out", out.as_posix()]
    command += ["--rank-quality", *(path.as_posix() for path in args.rank_quality)] if args.rank_quality else []
    command += ["--without", *args.without] if args.without else []
    command += ["--videos"] if args.videos else []
    content = build(found, args.directory, command, args.videos).encode()
    write_atomically(out, content)
    size = f"{len(content) / 1000:,.0f} kB"
    print(f"{out}: {len(found.every_row)} runs, {len(found.records)} records of rank quality, {size}")
    return 0
