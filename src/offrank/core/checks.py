"""Checks of what a caller gives: each raises a UsageError that says what was given and what is accepted."""

from __future__ import annotations

import os
from numbers import Real
from pathlib import Path
from typing import Any

from offrank.core.errors import UsageError

SMALLEST, LARGEST = 1e-100, 1e100  # of a scale; the largest is also that of rewards and observations


def is_number(value: Any) -> bool:
    """Whether it is a real number, of Python or NumPy; True is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_whole(name: str, value: Any, least: int = 0, most: int = 2**63 - 1) -> int:
    """A whole number from `least` to `most`, as an int; 3.0 is one, too."""
    if not is_number(value) or value != value // 1:
        raise UsageError(f"{name} = {value!r}: must be a whole number")
    if value < least:
        raise UsageError(f"{name} = {value}: must " + (f"be at least {least}" if least else "not be negative"))
    if value > most:
        raise UsageError(f"{name} = {value}: must be at most {most:,}")
    return int(value)


def check_path(name: str, value: Any) -> Path:
    """A path, given as such or as text."""
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"{name} = {value!r}: must be a path, such as 'runs/mine'")
    return Path(value)


def check_kind(name: str, value: Any, kind: type[Any], example: str) -> None:
    """An object of one of our classes, or None."""
    if value is not None and not isinstance(value, kind):
        raise UsageError(f"{name} = {value!r}: must be an offrank.{kind.__name__}, such as {example}")


def check_scale(name: str, value: float) -> None:
    """A positive number whose square neither overflows nor vanishes."""
    if not SMALLEST <= value <= LARGEST:
        raise UsageError(f"{name} = {value}: must be positive, from {SMALLEST} to {LARGEST}")
