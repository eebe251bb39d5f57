"""Checks of what a caller gives: each raises a UsageError that says what was given and what is accepted."""

from __future__ import annotations

import os
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offrank.core.errors import OffrankError, UsageError

# of a scale; the largest is also that of rewards, observations and actions, whose single precision ends at 3e38
SMALLEST, LARGEST = 1e-30, 1e30
MOST_COUNT = 1_000_000_000  # of a setting that is a whole number
MOST_NAME = 255  # bytes of the name of a file or folder


def is_number(value: Any) -> bool:
    """Whether it is a real number, of Python or NumPy; True is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def usable(*arrays: NDArray[Any]) -> bool:
    """Whether all numbers are finite and none is too large: what is saved can be read again."""
    return all(float(np.abs(values).max(initial=0)) <= LARGEST for values in arrays)


def check_learned(what: str, iteration: int, *arrays: NDArray[Any], hint: str = "") -> None:
    """What an iteration has learned, which must be usable; the only check that raises an OffrankError."""
    if not usable(*arrays):
        raise OffrankError(f"{what} became non-finite in iteration {iteration}, or larger than {LARGEST:g}{hint}")


def check_whole(name: str, value: Any, least: int = 0, most: int = 2**63 - 1) -> int:
    """A whole number from `least` to `most`, as an int; 3.0 is one, too."""
    if not is_number(value) or value != value // 1:
        raise UsageError(f"{name} = {value!r}: must be a whole number")
    if value < least:
        raise UsageError(f"{name} = {value}: must " + (f"be at least {least}" if least else "not be negative"))
    if value > most:
        raise UsageError(f"{name} = {value}: must be at most {most:,}")
    return int(value)


def check_seconds(name: str, value: Any) -> None:
    """A number of seconds, from 0 on."""
    if not (is_number(value) and value >= 0):
        raise UsageError(f"{name} = {value!r}: must be a number of seconds, from 0 on")


def check_path(name: str, value: Any) -> Path:
    """A path, given as such or as text."""
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"{name} = {value!r}: must be a path, such as 'runs/mine'")
    path = Path(value)
    if "\0" in str(path) or any(len(os.fsencode(part)) > MOST_NAME for part in path.parts):
        raise UsageError(f"{name} = {str(path)!r:.80}: no file can have this name")
    return path


def check_flag(name: str, value: Any, optional: bool = False) -> None:
    """True or False, of Python or NumPy; or, if optional, None."""
    if not isinstance(value, bool | np.bool_) and not (optional and value is None):
        raise UsageError(f"{name} = {value!r}: must be True or False" + (", or None" if optional else ""))


def check_kind(name: str, value: Any, kind: type[Any], example: str) -> None:
    """An object of one of our classes, or None."""
    if value is not None and not isinstance(value, kind):
        raise UsageError(f"{name} = {value!r}: must be an offrank.{kind.__name__}, such as {example}")


def check_scale(name: str, value: float) -> None:
    """A positive number whose square neither overflows nor vanishes."""
    if not SMALLEST <= value <= LARGEST:
        raise UsageError(f"{name} = {value}: must be positive, from {SMALLEST} to {LARGEST}")
