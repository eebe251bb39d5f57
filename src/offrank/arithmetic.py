"""Arithmetic whose bits must not depend on the machine's load or size."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from offrank.arrays import FloatArray

T = TypeVar("T")


@lru_cache(maxsize=1)
def _controller() -> Any:
    return ThreadpoolController()


class _Limit:
    """The limit on BLAS threads, which is the whole process's, and how many contexts hold it."""

    lock = threading.Lock()
    holders = 0
    context: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """One BLAS thread inside this context: a large product's bits change with the number of threads. It may be entered
    in several threads at once; the last to leave lifts the limit."""
    with _Limit.lock:
        if _Limit.holders == 0:
            _Limit.context = _controller().limit(limits=1, user_api="blas")
            _Limit.context.__enter__()
        _Limit.holders += 1
    try:
        yield
    finally:
        with _Limit.lock:
            _Limit.holders -= 1
            if _Limit.holders == 0:
                _Limit.context.__exit__(None, None, None)


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


@lru_cache(maxsize=1)
def _side_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="offrank-aside")


def aside(work: Callable[..., T], *args: Any) -> Future[T]:
    """work(*args), begun in another thread: for array work that can go on while episodes are run."""
    return _side_threads().submit(work, *args)
