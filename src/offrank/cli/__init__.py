"""The command line: one verb a job.

Exit status: 0 for any planned end, 1 when something failed at run time, 2 for a usage error, 128 + signal after a
signal and a saved checkpoint.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from offrank.cli.options import Parser, unknown_flag
from offrank.errors import Interrupted, OffrankError, UsageError, did_you_mean

DESCRIPTION = """\
Train simple policies with evolution strategies on as few environment interactions as possible.

  offrank train HalfCheetah-v3 --seed 0        train OP-ARS, watch it, get runs/HalfCheetah-v3-op-ars-0
  offrank evaluate runs/HalfCheetah-v3-op-ars-0
  offrank plot runs/* --out curves.png
"""


def build_parser() -> tuple[Parser, dict[str, Parser]]:
    from offrank.cli import bench, inspect, rank_quality, report, reproduce, show, train

    parser = Parser(prog="offrank", description=DESCRIPTION)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser, required=True)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    for module in (train, inspect, show, reproduce, report, rank_quality, bench):
        module.add_parser(verbs)
    return parser, verbs.choices


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    parser, verbs = build_parser()
    if words == ["--version"]:
        from importlib.metadata import version

        print(f"offrank {version('offrank')}")
        return 0
    if words and not words[0].startswith("-") and words[0] not in verbs:
        parser.error(f"unknown verb {words[0]!r}: one of {', '.join(verbs)}{did_you_mean(words[0], verbs)}")
    if words and words[0].startswith("-") and words[0] not in parser.known_flags():
        unknown_flag(parser, words[0])
    args, rest = parser.parse_known_args(words)
    if rest:
        unknown_flag(verbs[args.verb], rest[0])
    try:
        status: int = args.run(args)
        return status
    except UsageError as error:
        return _complain(error, 2)
    except Interrupted as error:
        print(f"offrank: {error}; saved, add --resume to go on", file=sys.stderr)
        return 128 + error.signum
    except OffrankError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _complain(error, 1)


def _complain(error: Exception, status: int) -> int:
    print(f"offrank: {error}", file=sys.stderr)
    return status
