"""Arithmetic whose result, to the last bit, must not depend on the number of CPUs or threads."""

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
    """Limit BLAS to one thread inside this context: the bits of a large product depend on the number of threads."""
    limit: AbstractContextManager[None] = _controller().limit(limits=1, user_api="blas")
    return limit


def concordance(a: FloatArray, b: FloatArray) -> float:
    """Kendall's tau-a of two scores (m,) of the same items: 1 for the same order, -1 for the reverse, NaN if m < 2."""
    if len(a) < 2:
        return float("nan")
    upper = np.triu_indices(len(a), k=1)
    agree: FloatArray = np.sign(np.subtract.outer(a, a))[upper] * np.sign(np.subtract.outer(b, b))[upper]
    return float(agree.mean())


def usable_cpus() -> int:
    """Number of CPUs that this process may use, given its affinity mask and its container's limit."""
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        count = os.process_cpu_count() or 1
    elif hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return min(count, _container_cpus() or count)


def _container_cpus(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """CPU limit of the Linux control group, rounded up; None if there is none."""
    try:
        if (root / "cpu.max").is_file():  # version 2
            quota, period = (root / "cpu.max").read_text().split()
        else:
            quota, period = ((root / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return math.ceil(int(quota) / int(period)) if int(quota) > 0 else None
    except (OSError, ValueError):  # no such file, or "max"
        return None


def in_threads(work: Callable[[int], T], pieces: Sequence[int]) -> list[T]:
    """[work(piece) for piece in pieces], computed in one thread per CPU. For array code that releases the GIL. The
    pieces are the same for any number of CPUs, so the bits do not depend on it."""
    if len(pieces) < 4:  # starting threads would cost more
        return [work(piece) for piece in pieces]
    with ThreadPoolExecutor(usable_cpus()) as pool:
        return list(pool.map(work, pieces))
