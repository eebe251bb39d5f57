"""The argument parser, and conversions of command-line arguments."""

from __future__ import annotations

import argparse
import math
import re
from typing import Any, NoReturn

from offrank.core.errors import did_you_mean


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with a suggestion where possible."""

    def __init__(self, *args: Any, **kwargs: Any):
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)
        self._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$", re.I)  # -1e5 is a value too

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog.split()[0]}: {message} (see {self.prog} --help)\n")

    def known_flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings]


def unknown_flag(parser: Parser, flag: str) -> NoReturn:
    parser.error(f"unrecognised {flag!r}{did_you_mean(flag.split('=')[0], parser.known_flags())}")


def count(text: str) -> int:
    """A positive whole number: 3000000, 3_000_000, 3e6 or 3M."""
    units = {"k": 10**3, "m": 10**6}
    body, unit = (text[:-1], units[text[-1].lower()]) if text[-1:].lower() in units else (text, 1)
    try:
        value = float(body) * unit
        if value == int(value) and value >= 1:
            return int(value)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number (3000000, 3e6 and 3M are)")


def natural(text: str) -> int:
    """A whole number in [0, 2^63)."""
    if text.isdecimal() and int(text) < 2**63:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0, below 2^63")


def seconds(text: str) -> float:
    """A non-negative number of seconds."""
    try:
        value = float(text)
        if 0 <= value < math.inf:
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")


def threshold(text: str) -> float | str:
    """A number, or none."""
    if text.lower() == "none":
        return "none"
    try:
        value = float(text)
        if math.isfinite(value):
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor none")


MAX_SEEDS = 100_000


def seeds(text: str) -> list[int]:
    """0-7, 3 or 0-3,8 as a list without duplicates."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of seeds such as 0-7 or 0,3,5")
        if int(last or first) - int(first) >= MAX_SEEDS:
            raise argparse.ArgumentTypeError(f"{text!r} are more than {MAX_SEEDS:,} seeds")
        found += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(found))


def setting(text: str) -> tuple[str, str]:
    """name=value, as (name, value)."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form name=value")
    return name.strip(), value.strip()


def literal(text: str) -> Any:
    """An environment argument: the value if it is a Python literal, else the text."""
    import ast

    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
