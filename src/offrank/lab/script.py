"""What every script of the laboratory shares: its parser, and errors as one line with an exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from offrank.cli.options import Parser
from offrank.core.errors import Interrupted, OffrankError, UsageError
from offrank.runs.config import task_default


def make_parser(name: str, doc: str | None) -> Parser:
    """A parser whose help is the script's docstring."""
    return Parser(prog=name, description=doc)


def run_script(parser: Parser, body: Callable[[argparse.Namespace], None], argv: Sequence[str] | None = None) -> int:
    """Parse the arguments and run the script.

    Returns:
        the exit status: 0, 2 for a usage error, 1 for another failure, 128 + signal after a signal.
    """
    args = parser.parse_args(argv)
    try:
        body(args)
    except UsageError as error:
        return _fail(parser, error, 2)
    except Interrupted as error:
        return _fail(parser, error, 128 + error.signum)
    except (OffrankError, OSError) as error:
        return _fail(parser, error, 1)
    except KeyboardInterrupt:
        return 130
    return 0


def _fail(parser: Parser, error: Exception, status: int) -> int:
    print(f"{parser.prog}: {error}", file=sys.stderr)
    return status


def threshold_of(task: str) -> float:
    """The threshold of a task's preset.

    Raises:
        UsageError: it has none.
    """
    found: Any = task_default(task, "threshold")
    if found is None:
        raise UsageError(f"{task} has no preset threshold, and this script measures progress towards one")
    return float(found)
