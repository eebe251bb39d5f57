"""The replay buffer of a critic: its most recent transitions, as arrays of single precision.

A row is a state; the rows of an episode are in order. Each row except the last of an episode is the start of a k-step
transition that ends `ahead` rows later, so no state is stored twice, and removing the oldest rows never breaks a
transition. States are stored unnormalised, because the normaliser changes during the run.

The arrays are a table (`offrank.core.arrays.tables`): a run's checkpoints write every row once.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offrank.core.arrays import WRITTEN, FloatArray, Memory
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy
from offrank.core.rollouts import Trajectory


def empty(policy: Policy) -> Memory:
    """No rows yet: state (L, n), action (L, p), gain (L,), boot (L,), ahead (L,); and the number ever appended."""
    return {
        "state": np.zeros((0, policy.n), dtype=np.float32),
        "action": np.zeros((0, policy.p), dtype=np.float32),
        "gain": np.zeros(0, dtype=np.float32),  # sum of the discounted rewards of the k steps
        "boot": np.zeros(0, dtype=np.float32),  # weight of the value of the state after the k steps; 0 if terminal
        "ahead": np.zeros(0, dtype=np.int64),  # rows to that state; 0 if no transition starts here
        WRITTEN: np.zeros((), dtype=np.int64),
    }


def rows(
    trajectory: Trajectory,
    policy: Policy,
    theta: FloatArray,
    whitening: Whitening,
    shift: float,
    k: int,
    discount: float,
) -> Memory:
    """The T + 1 rows of an episode: its k-step transitions, which have fewer than k steps at the end.

    The value after an episode that the task ended is 0; after one that the horizon cut, it is bootstrapped.
    """
    rewards = trajectory.rewards - shift
    T = len(rewards)
    seen = np.concatenate([trajectory.observations, trajectory.last[None]])
    gain, steps = np.zeros(T), np.minimum(k, T - np.arange(T))
    for j in range(min(k, T)):
        gain[: T - j] += discount**j * rewards[j:]
    boot = discount ** steps.astype(float)
    if trajectory.terminated:
        boot[np.arange(T) + steps == T] = 0.0
    values = {
        "state": seen,
        "action": policy.act_together(theta, whitening(seen)),
        "gain": gain,
        "boot": boot,
        "ahead": steps,
    }
    out: Memory = {}
    like = empty(policy)
    for name, value in values.items():
        out[name] = np.zeros((T + 1, *like[name].shape[1:]), dtype=like[name].dtype)
        out[name][: len(value)] = value
    if trajectory.actions is not None:
        out["action"][:T] = trajectory.actions
    return out


def extend(replay: Memory, new: Sequence[Memory], limit: int) -> Memory:
    """The replay buffer with the rows of new episodes appended, at most the last `limit` rows. `replay` itself is not
    modified."""
    held = {name: rows for name, rows in replay.items() if name != WRITTEN}
    before = replay.get(WRITTEN, len(held["gain"]))  # checkpoints of before there was the number do not have it
    written = np.array(before + sum(len(r["gain"]) for r in new), dtype=np.int64)
    return {name: _extended(rows, [r[name] for r in new], limit) for name, rows in held.items()} | {WRITTEN: written}


@dataclass
class _Buffer:
    """An array with free rows at its end."""

    array: NDArray[Any]
    taken: int  # number of rows in use


# by id of the view that ends at the last row in use
_buffers: dict[int, tuple[weakref.ref[NDArray[Any]], _Buffer]] = {}


def _extended(rows: NDArray[Any], new: Sequence[NDArray[Any]], limit: int) -> NDArray[Any]:
    """Append rows and return the last `limit` of them. They are written into the free rows of the buffer behind `rows`,
    if there are enough, so that a long replay is not copied in every iteration. `rows` itself does not change."""
    count = sum(len(r) for r in new)
    held, buffer = _buffers.pop(id(rows), (None, None))
    if buffer is None or held is None or held() is not rows or buffer.taken + count > len(buffer.array):
        kept = rows[max(0, len(rows) + count - limit) :]
        buffer = _Buffer(np.empty((len(kept) + count + limit // 2, *rows.shape[1:]), dtype=rows.dtype), len(kept))
        buffer.array[: len(kept)] = kept
    if count:
        np.concatenate(new, out=buffer.array[buffer.taken : buffer.taken + count])
    buffer.taken += count
    longer = buffer.array[max(0, buffer.taken - limit) : buffer.taken]
    key = id(longer)
    _buffers[key] = weakref.ref(longer, lambda _: _buffers.pop(key, None)), buffer
    return longer
