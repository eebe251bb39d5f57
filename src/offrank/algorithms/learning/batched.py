"""Training the critics of many runs in one batched computation, on the device where their episodes run.

A run by itself trains its critic with NumPy, to the same bits always. In a fleet on a GPU the lessons of all runs that
wait for one are carried out together, with PyTorch: the same batches and the same updates, with one more axis for the
runs, and in another order of additions. Each run's states and actions stay on the device from lesson to lesson, and
only what is new is copied there.
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
from offrank.algorithms.rankers.critic import BATCH, CHUNK, NETWORKS, OUTLIER, SLOW, CriticLesson
from offrank.core.arrays import Memory, part

Array = Any  # NumPy's or PyTorch's
Update = Callable[[], None]
Record = Callable[[Update], Update]


@dataclass
class ReplayBuffer:
    """A run's states and actions on the device, in a ring."""

    rows: Array  # (capacity, n + p)
    end: int = 0  # rows ever written
    last: Any = None  # (n,) the state in the last of them


class BatchedTrainer:
    """Carries out lessons of critics.

    Args:
        library: `numpy`, or `torch`.
        up: copies an array of NumPy to the device, as the library's own.
        down: the other way.
        record: returns a function that does the same work again on the same arrays, as fast as it can be done.
    """

    def __init__(
        self, library: Any, up: Callable[[Any], Array], down: Callable[[Array], Any], record: Record = lambda work: work
    ):
        self._library, self._up, self._down, self._record = library, up, down, record
        self._batches: dict[Any, _NetworkBatch] = {}
        self._buffers: WeakKeyDictionary[Any, ReplayBuffer] = WeakKeyDictionary()

    def train(self, lessons: Sequence[CriticLesson], owners: Sequence[object]) -> list[Memory]:
        """What each lesson changes of its run's memory. The lessons have equal batch keys.

        Args:
            lessons: axes of the arrays below: run, network, row of a batch, value.
            owners: the run of each, by which its transitions on the device are found again.
        """
        join = self._library.concatenate
        jobs = [_Job.of(lesson, self._buffer(owner, lesson)) for owner, lesson in zip(owners, lessons, strict=True)]
        policy, runs, most = lessons[0].proposal.policy, len(jobs), max(job.updates for job in jobs)
        now, ahead, gain, boot = (
            self._stacked([_padded(getattr(job, name), most) for job in jobs]) for name in _Job.BATCHES
        )
        sizes = self._stacked([_padded(job.sizes, most) for job in jobs])  # 0 for runs that are done
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
        """What a run has learned, when all of its updates are done."""
        vectors = [np.array(self._down(batch.vectors[which][row : row + 1])) for which in NETWORKS]
        nets = [{name: value[0] for name, value in _views(vector, batch.shapes).items()} for vector in vectors]
        lesson = job.lesson
        return lesson.critic.outcome(nets, int(lesson.memory["step"]) + job.updates, job.unit, lesson.proposal)

    def _batch(self, lesson: CriticLesson, runs: int) -> _NetworkBatch:
        """Arrays for so many runs' networks. There is one for every power of two, and it is kept."""
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
        """The device's copy of a run's replay, brought up to date."""
        memory = lesson.memory
        state, action = memory["replay.state"], memory["replay.action"]
        fresh = min(int(memory["fresh"]), len(state))
        buffer = self._buffers.get(owner)
        if buffer is None or fresh == len(state) or not np.array_equal(state[-fresh - 1], buffer.last):
            width, fresh = state.shape[1] + action.shape[1], len(state)
            buffer = ReplayBuffer(self._up(np.zeros((lesson.critic.replay, width), dtype=np.float32)))
            self._buffers[owner] = buffer
        new = self._up(np.concatenate([state[len(state) - fresh :], action[len(action) - fresh :]], axis=1))
        capacity, first = len(buffer.rows), buffer.end % len(buffer.rows)
        room = min(fresh, capacity - first)
        buffer.rows[first : first + room] = new[:room]
        buffer.rows[: fresh - room] = new[room:]
        buffer.end, buffer.last = buffer.end + fresh, state[-1].copy()
        return buffer

    def _normalised(self, states: Array, mean: Array, scale: Array) -> Array:
        return self._library.clip((states - mean) * scale, -OUTLIER, OUTLIER)

    def _stacked(self, arrays: Sequence[Any]) -> Array:
        return self._up(np.stack(arrays))


class _NetworkBatch:
    """Arrays in a fixed place, for the networks of so many runs and a batch of each, and an update of them all."""

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
        self._again = record(self._update)

    def clear(self) -> None:
        """Rows that no run takes stay as they are: their updates have size 0."""
        for array in (*self.vectors.values(), *self._batch):
            array[:] = 0

    def update(self, *batch: Array) -> None:
        """One update of the first runs' networks, in place, by (their inputs, those a few steps later, gains, weights
        of what is beyond, sizes of Adam's updates)."""
        for place, values in zip(self._batch, batch, strict=True):
            place[: len(values)] = values
        self._again()

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
    """A lesson made ready: which rows its updates learn from, and what goes with them."""

    BATCHES: ClassVar[tuple[str, ...]] = ("now", "ahead", "gain", "boot")

    lesson: CriticLesson
    buffer: ReplayBuffer
    now: Any  # (updates, BATCH) places in the ring of the states, and of those a few steps later
    ahead: Any
    gain: Any  # (updates, BATCH)
    boot: Any
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
        """Of Adam's updates."""
        rate, step = self.lesson.critic.critic_rate, int(self.lesson.memory["step"])
        return np.array([networks.step_size(rate, step + 1 + i) for i in range(self.updates)], dtype=np.float32)


def _padded(array: Any, length: int) -> Any:
    """With zeros at its end."""
    out = np.zeros((length, *array.shape[1:]), dtype=array.dtype)
    out[: len(array)] = array
    return out


def _flat(nets: Memory, join: Callable[..., Any] = np.concatenate, runs: int | None = None) -> Array:
    """The networks' numbers in a row; one row per run, if there are several."""
    shape = (-1,) if runs is None else (runs, -1)
    return join([value.reshape(shape) for _, value in sorted(nets.items())], axis=-1)


def _views(vectors: Array, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """The networks that lie in rows of numbers, one per run, sharing their memory."""
    views, first = {}, 0
    for name, shape in sorted(shapes.items()):
        size = math.prod(shape)
        views[name] = vectors[:, first : first + size].reshape(len(vectors), *shape)
        first += size
    return views


@cache
def trainer_on(device: str) -> BatchedTrainer | None:
    """One that works with PyTorch on a device; None where that is not installed, or does not know the device."""
    try:
        import torch
    except ImportError:
        return None
    on_gpu = device.startswith("cuda")
    if on_gpu and not torch.cuda.is_available():
        return None

    def record(work: Update) -> Update:
        """A graph of what the work launches: some forty kernels, so small that launching them takes the time."""
        cuda: Any = torch.cuda
        aside = cuda.Stream(device)
        aside.wait_stream(cuda.current_stream(device))
        with cuda.stream(aside):
            for _ in range(3):
                work()  # what libraries set up on first use must not be recorded
        aside.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.device(device), cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
            work()
        replay: Update = graph.replay
        return replay

    up, down = partial(torch.as_tensor, device=device), lambda tensor: tensor.cpu().numpy()
    return BatchedTrainer(torch, up, down, record) if on_gpu else BatchedTrainer(torch, up, down)
