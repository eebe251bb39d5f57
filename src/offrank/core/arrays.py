"""Types of arrays, and of dictionaries of arrays, used throughout the package."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Memory = dict[str, NDArray[Any]]  # an algorithm's own part of the state: arrays by name
Metrics = dict[str, Any]  # numbers for the log

WRITTEN = "written"  # name of the number of rows ever appended to a table, see `tables`


def prefixed(prefix: str, arrays: Memory) -> Memory:
    """The arrays with a prefix added to their names."""
    return {prefix + name: value for name, value in arrays.items()}


def part(arrays: Memory, prefix: str) -> Memory:
    """The arrays whose names begin with a prefix, with the prefix removed."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def tables(arrays: Memory) -> list[str]:
    """The prefixes of the tables among arrays by name.

    Where there is a scalar `<prefix>.written`, the other arrays `<prefix>.*` are a table: rows are only ever appended
    to it, `written` of them so far, and it holds the last L, as arrays (L, ...). So rows that were saved once need not
    be saved again.
    """
    return [name.removesuffix(WRITTEN) for name in arrays if name.endswith(f".{WRITTEN}")]
