"""Training the critics of many runs in one batched computation, on the device where their episodes run.

A single run trains its critic with NumPy, which always gives the same bits. In a fleet on a GPU, the lessons of several
runs are carried out in one batch with PyTorch: the same batches and updates, with one more axis for the runs, but sums
in another order. The states and actions of each run stay on the device between lessons; only new rows are copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from offrank.algorithms.learning import networks
from offrank.algorithms.learning.device import Record, append_to_ring, has_torch, recorder
from offrank.algorithms.learning.networks import NETWORKS
from offrank.algorithms.rankers.critic import BATCH, CHUNK, OUTLIER, SLOW, CriticLesson
from offrank.core.arrays import Memory, part

Array = Any  # a NumPy array or a PyTorch tensor


@dataclass
class ReplayBuffer:
    """The states and actions of a run on the device, as a ring buffer."""

    rows: Array  # (capacity, n + p)
    end: int = 0  # total number of rows written
    last: Any = None  # (n,) the state in the last row written


class BatchedTrainer:
    """Carries out the lessons of several critics in one batch.

    Args:
        library: `numpy` or `torch`.
        up: copies a NumPy array to the device, as an array of the library.
        down: copies an array of the library to NumPy.
        record: takes a function and returns one that repeats its work on the same arrays, such as a CUDA graph.
    """

    def __init__(
        self, library: Any, up: Callable[[Any], Array], down: Callable[[Array], Any], record: Record = lambda work: work
    ):
        self._library, self._up, self._down, self._record = library, up, down, record
        self._batches: dict[Any, _NetworkBatch] = {}
        self._buffers: WeakKeyDictionary[Any, ReplayBuffer] = WeakKeyDictionary()

    def train(self, lessons: Sequence[CriticLesson], owners: Sequence[object]) -> list[Memory]:
        """Carry out lessons with equal batch keys. Returns the changed entries of each run's memory.

        The axes of the arrays are (run, network, row of a batch, value).

        Args:
            lessons: one per run.
            owners: the run of each lesson; its replay buffer on the device is identified by it.
        """
        join = self._library.concatenate
        jobs = [_Job.of(lesson, self._buffer(owner, lesson)) for owner, lesson in zip(owners, lessons, strict=True)]
        policy, runs, most = lessons[0].proposal.policy, len(jobs), max(job.updates for job in jobs)
        now, ahead, gain, boot = (
            self._stacked([_padded(getattr(job, name), most) for job in jobs]) for name in _Job.BATCHES
        )
        sizes = self._stacked([_padded(job.sizes, most) for job in jobs])  # 0 for runs with fewer updates
        mean, scale, theta = (
            self._stacked([getattr(job, name) for job in jobs]) for name in ("mean", "scale", "theta")
        )
        batch = self._batch(jobs[0].lesson, runs)
        for which in NETWORKS:
            rows = np.stack([_flat(part(job.lesson.memory, f"{which}.")) for job in jobs])
            batch.vectors[which][:runs] = self._up(rows)
        outcomes: list[Memory] = [{}] * runs
        n, at = mean.shape[-1], (slice(0, runs), None, None)
        for begin in range(0, most, CHUNK):
            chunk = slice(begin, begin + CHUNK)
            seen = self._library.stack([job.buffer.rows[now[r, chunk]] for r, job in enumerate(jobs)])
            later = self._library.stack([job.buffer.rows[ahead[r, chunk]][..., :n] for r, job in enumerate(jobs)])
            done = join([self._normalised(seen[..., :n], mean[at], scale[at]), seen[..., n:]], axis=-1)
            later = self._normalised(later, mean[at], scale[at])
            later = join([later, policy.act_together(theta[:, None], later)], axis=-1)
            for i in range(done.shape[1]):
                update = begin + i
                batch.update(done[:, i], later[:, i], gain[:, update], boot[:, update], sizes[:, update, None])
                for r in (r for r, job in enumerate(jobs) if job.updates == update + 1):
                    outcomes[r] = self._outcome(jobs[r], batch, r)
        return outcomes

    def _outcome(self, job: _Job, batch: _NetworkBatch, row: int) -> Memory:
        """The result of a job, after all of its updates."""
        vectors = [np.array(self._down(batch.vectors[which][row : row + 1])) for which in NETWORKS]
        nets = [{name: value[0] for name, value in _views(vector, batch.shapes).items()} for vector in vectors]
        lesson = job.lesson
        return lesson.critic.outcome(nets, int(lesson.memory["step"]) + job.updates, job.unit, lesson.proposal)

    def _batch(self, lesson: CriticLesson, runs: int) -> _NetworkBatch:
        """The arrays for the networks of several runs. They are kept and reused, one set per power of two of runs."""
        room = 1 << (runs - 1).bit_length()
        shapes = {name: value.shape for name, value in part(lesson.memory, f"{NETWORKS[0]}.").items()}
        key = (room, *sorted(shapes.items()))
        if key not in self._batches:
            zeros = lambda *shape: self._up(np.zeros(shape, dtype=np.float32))  # noqa: E731
            self._batches[key] = _NetworkBatch(zeros, self._library.concatenate, self._record, shapes, room)
        batch = self._batches[key]
        batch.clear()
        return batch

    def _buffer(self, owner: object, lesson: CriticLesson) -> ReplayBuffer:
        """The device's copy of a run's replay buffer, with the new rows added."""
        memory = lesson.memory
        state, action = memory["replay.state"], memory["replay.action"]
        fresh = min(int(memory["fresh"]), len(state))
        buffer = self._buffers.get(owner)
        if buffer is None or fresh == len(state) or not np.array_equal(state[-fresh - 1], buffer.last):
            width, fresh = state.shape[1] + action.shape[1], len(state)
            buffer = ReplayBuffer(self._up(np.zeros((lesson.critic.replay, width), dtype=np.float32)))
            self._buffers[owner] = buffer
        new = self._up(np.concatenate([state[len(state) - fresh :], action[len(action) - fresh :]], axis=1))
        append_to_ring(buffer.rows, buffer.end % len(buffer.rows), new)
        buffer.end, buffer.last = buffer.end + fresh, state[-1].copy()
        return buffer

    def _normalised(self, states: Array, mean: Array, scale: Array) -> Array:
        return self._library.clip((states - mean) * scale, -OUTLIER, OUTLIER)

    def _stacked(self, arrays: Sequence[Any]) -> Array:
        return self._up(np.stack(arrays))


class _NetworkBatch:
    """The networks of several runs and a batch for each, in arrays at fixed addresses, and the update of them all."""

    def __init__(
        self,
        zeros: Callable[..., Array],
        join: Callable[..., Array],
        record: Record,
        shapes: Mapping[str, tuple[int, ...]],
        runs: int,
    ):
        self.shapes, self._join, self._runs = shapes, join, runs
        self.vectors = {which: zeros(runs, sum(map(math.prod, shapes.values()))) for which in NETWORKS}
        rows = (runs, BATCH, shapes["w1"][1])
        self._done, self._later, self._gain, self._boot = zeros(*rows), zeros(*rows), zeros(*rows[:2]), zeros(*rows[:2])
        self._sizes = zeros(runs, 1)
        self._batch = self._done, self._later, self._gain, self._boot, self._sizes
        self._recorded_update = record(self._update)

    def clear(self) -> None:
        """Set all arrays to 0. Rows that no run uses remain 0, because their updates have size 0."""
        for array in (*self.vectors.values(), *self._batch):
            array[:] = 0

    def update(self, *batch: Array) -> None:
        """One update of the networks of the first runs, in place. The arrays of a batch are the inputs, the inputs k
        steps later, k-step rewards, weights of the bootstrapped values, and step sizes of Adam."""
        for place, values in zip(self._batch, batch, strict=True):
            place[: len(values)] = values
        self._recorded_update()

    def _update(self) -> None:
        q, slow, first, second = (self.vectors[which] for which in NETWORKS)
        learning, following = (_views(vector, self.shapes) for vector in (q, slow))
        beyond = networks.forward(following, self._later[:, None])[2]
        y = self._gain[:, None, :, None] + self._boot[:, None, :, None] * beyond
        error = networks.squared_error_gradient(learning, self._done[:, None], y)
        gradient = _flat(error, self._join, self._runs)
        networks.adam({"": q}, {"": gradient}, {"": first}, {"": second}, self._sizes)
        networks.follow({"": slow}, {"": q}, SLOW)


@dataclass
class _Job:
    """A lesson prepared for the device: the rows of the batch of each update, and their targets."""

    BATCHES: ClassVar[tuple[str, ...]] = ("now", "ahead", "gain", "boot")

    lesson: CriticLesson
    buffer: ReplayBuffer
    now: Any  # (updates, BATCH) row of the state in the ring buffer
    ahead: Any  # (updates, BATCH) row of the state k steps later
    gain: Any  # (updates, BATCH) k-step rewards
    boot: Any  # (updates, BATCH) weights of the bootstrapped values
    unit: float

    @staticmethod
    def of(lesson: CriticLesson, buffer: ReplayBuffer) -> _Job:
        memory = lesson.memory
        rows, (gain, unit) = lesson.critic.draws(memory, lesson.proposal), lesson.critic.in_units(memory)
        first, capacity = buffer.end - len(memory["replay.state"]), len(buffer.rows)
        now, ahead = ((first + at) % capacity for at in (rows, rows + memory["replay.ahead"][rows]))
        return _Job(lesson, buffer, now, ahead, gain[rows], memory["replay.boot"][rows], unit)

    @property
    def updates(self) -> int:
        return len(self.now)

    @property
    def mean(self) -> Any:
        return self.lesson.proposal.whitening.mean.astype(np.float32)

    @property
    def scale(self) -> Any:
        return self.lesson.proposal.whitening.scale.astype(np.float32)

    @property
    def theta(self) -> Any:
        return self.lesson.proposal.theta.astype(np.float32)

    @property
    def sizes(self) -> Any:
        """Adam's step size of each update, (updates,)."""
        rate, step = self.lesson.critic.critic_rate, int(self.lesson.memory["step"])
        return np.array([networks.step_size(rate, step + 1 + i) for i in range(self.updates)], dtype=np.float32)


def _padded(array: Any, length: int) -> Any:
    """The array with zeros appended, up to a length."""
    out = np.zeros((length, *array.shape[1:]), dtype=array.dtype)
    out[: len(array)] = array
    return out


def _flat(nets: Memory, join: Callable[..., Any] = np.concatenate, runs: int | None = None) -> Array:
    """The parameters of the networks as a vector, or as one row per run."""
    shape = (-1,) if runs is None else (runs, -1)
    return join([value.reshape(shape) for _, value in sorted(nets.items())], axis=-1)


def _views(vectors: Array, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Views of the networks stored in rows of parameters, one row per run."""
    views, first = {}, 0
    for name, shape in sorted(shapes.items()):
        size = math.prod(shape)
        views[name] = vectors[:, first : first + size].reshape(len(vectors), *shape)
        first += size
    return views


@cache
def trainer_on(device: str) -> BatchedTrainer | None:
    """A trainer that uses PyTorch on a device; None if PyTorch is not installed, or has no such device."""
    if not has_torch(device):
        return None
    import torch

    up, down = partial(torch.as_tensor, device=device), lambda tensor: tensor.cpu().numpy()
    return BatchedTrainer(torch, up, down, recorder(device))
