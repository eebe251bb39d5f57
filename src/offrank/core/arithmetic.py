"""Arithmetic whose bits must not depend on the machine's load or size."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from offrank.core.arrays import FloatArray

T = TypeVar("T")


@lru_cache(maxsize=1)
def _controller() -> Any:
    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[None]:
    """One BLAS thread inside this context: a large product's bits change with the number of threads."""
    limit: AbstractContextManager[None] = _controller().limit(limits=1, user_api="blas")
    return limit


def concordance(a: FloatArray, b: FloatArray) -> float:
    """Kendall's tau-a of two scores of the same items: +1 same order, -1 reversed. NaN for fewer than two items."""
    if len(a) < 2:
        return float("nan")
    upper = np.triu_indices(len(a), k=1)
    agree: FloatArray = np.sign(np.subtract.outer(a, a))[upper] * np.sign(np.subtract.outer(b, b))[upper]
    return float(agree.mean())


def usable_cpus() -> int:
    """CPUs that this process may use: fewer than the machine has under an affinity mask or a container's limit."""
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        count = os.process_cpu_count() or 1
    elif hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return min(count, _container_cpus() or count)


def _container_cpus(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """CPUs that Linux's control group allows, rounded up; None where it sets no limit."""
    try:
        if (root / "cpu.max").is_file():  # version 2
            quota, period = (root / "cpu.max").read_text().split()
        else:
            quota, period = ((root / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return math.ceil(int(quota) / int(period)) if int(quota) > 0 else None
    except (OSError, ValueError):  # no such file, or "max"
        return None


def in_threads(work: Callable[[int], T], pieces: Sequence[int]) -> list[T]:
    """work(piece) of every piece, in their order, on all CPUs: for array work that releases the interpreter, cut the
    same way whatever the number of CPUs, so that the bits do not depend on it."""
    if len(pieces) < 4:  # not worth a thread
        return [work(piece) for piece in pieces]
    with ThreadPoolExecutor(usable_cpus()) as pool:
        return list(pool.map(work, pieces))
