"""The command line. Only the module of the given verb is imported.

Exit status: 0 for any planned stop, 1 if something failed at run time, 2 for a usage error, 128 + signal after a signal
and a saved checkpoint.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from offrank.cli.options import Parser, unknown_flag
from offrank.core.errors import FleetError, Interrupted, OffrankError, UsageError, did_you_mean

DESCRIPTION = """\
Train small policies on as few environment interactions as possible.

  offrank train HalfCheetah-v3 --algo guided --steps 100k    one run, in runs/HalfCheetah-v3-guided-0
  offrank evaluate runs/HalfCheetah-v3-guided-0
  offrank plot runs/* --out curves.png
"""

VERBS = {  # verb: the module that adds its parser, and its help text
    "train": ("offrank.cli.train", "train a policy"),
    "list": ("offrank.cli.listing", "tasks, algorithms, rankers, policies, settings"),
    "evaluate": ("offrank.cli.inspect", "measure a saved policy"),
    "export": ("offrank.cli.export", "write a policy for use without offrank"),
    "plot": ("offrank.cli.inspect", "draw learning curves"),
    "record": ("offrank.cli.show", "write a video of a policy"),
    "play": ("offrank.cli.show", "watch a policy in a window"),
    "reproduce": ("offrank.lab.cli.reproduce", "the paper's tables and figures"),
    "report": ("offrank.lab.cli.report", "one page of tables and interactive figures"),
    "rank-quality": ("offrank.lab.cli.rank_quality", "measure how good rankings are"),
    "bench": ("offrank.lab.cli.bench", "measure speed"),
    "completion": ("offrank.cli.completion", "a script that completes commands in a shell"),
}


def build_parser(*wanted: str) -> tuple[Parser, dict[str, Parser]]:
    """The parser, and those of all verbs by name. Only the wanted verbs' are complete: others have a help text only."""
    parser = Parser(prog="offrank", description=DESCRIPTION)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser, required=True)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    modules = dict.fromkeys(VERBS[verb][0] for verb in wanted if verb in VERBS)
    for module in modules:
        import_module(module).add_parser(verbs)
    for name, (module, help) in VERBS.items():
        if module not in modules:
            verbs.add_parser(name, help=help)
    return parser, verbs.choices


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # the command, not a call of this function
        warnings.formatwarning = _warning_line
    if words == ["--version"]:
        from offrank.core.version import VERSION

        print(f"offrank {VERSION}")
        return 0
    parser, verbs = build_parser(*words[:1])
    if words and not words[0].startswith("-") and words[0] not in verbs:
        parser.error(f"unknown verb {words[0]!r}: one of {', '.join(VERBS)}{did_you_mean(words[0], VERBS)}")
    if words and words[0].startswith("-") and words[0] not in parser.known_flags():
        unknown_flag(parser, words[0])
    args, rest = parser.parse_known_args(words)
    if rest:
        unknown_flag(verbs[args.verb], rest[0])
    args.words = words
    try:
        status: int = args.run(args)
        return status
    except UsageError as error:
        return _print_error(error, 2)
    except Interrupted as error:
        for failure in error.failures:
            _print_error(failure, 1)
        for failure in error.unsaved:
            print(f"offrank: not saved, an earlier checkpoint is intact: {failure}", file=sys.stderr)
        saved = f"{len(error.unsaved)} not saved" if error.unsaved else "saved"
        print(f"offrank: {error}; {saved}, add --resume to continue", file=sys.stderr)
        return 128 + error.signum
    except FleetError as error:
        for failed in error.exceptions:
            _print_error(failed, 1)
        return 1
    except OffrankError as error:
        return _print_error(error, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _print_error(error, 1)
    except MemoryError as error:
        return _print_error(OffrankError(f"out of memory: {str(error) or 'the settings ask for too much'}"), 1)


def _warning_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    return f"offrank: {message}\n"


def _print_error(error: Exception, status: int) -> int:
    print(f"offrank: {error}", file=sys.stderr)
    return status
