"""Arithmetic whose bits must not depend on the machine's load or size."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import lru_cache
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


def act(weights: FloatArray, states: FloatArray) -> FloatArray:
    """Actions (E, p) of E linear policies (E, p, n) at their normalised states (E, n).

    One product a policy: a shared product would change bits with the number of policies in it.
    """
    actions: FloatArray = np.matmul(weights, states[:, :, None])[:, :, 0]
    return actions


def concordance(a: FloatArray, b: FloatArray) -> float:
    """Kendall's tau-a of two scores of the same items: +1 same order, -1 reversed. NaN for fewer than two items."""
    if len(a) < 2:
        return float("nan")
    upper = np.triu_indices(len(a), k=1)
    agree: FloatArray = np.sign(np.subtract.outer(a, a))[upper] * np.sign(np.subtract.outer(b, b))[upper]
    return float(agree.mean())


def in_threads(work: Callable[[int], T], pieces: Sequence[int]) -> list[T]:
    """work(piece) of every piece, in their order, on all CPUs: for array work that releases the interpreter, cut the
    same way whatever the number of CPUs, so that the bits do not depend on it."""
    if len(pieces) < 4:  # not worth a thread
        return [work(piece) for piece in pieces]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, pieces))
