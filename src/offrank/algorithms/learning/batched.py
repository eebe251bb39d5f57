"""Training the critics of many runs in one batched computation, on the device where their episodes run.

A run by itself trains its critic with NumPy, to the same bits always. In a fleet on a GPU the lessons of all runs that
wait for one are carried out together, with PyTorch: the same batches and the same updates, with one more axis for the
runs, and in another order of additions. Each run's states and actions stay on the device from lesson to lesson, and
only what is new goes up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from offrank.algorithms.learning import networks as network
from offrank.algorithms.rankers.critic import BATCH, CHUNK, NETWORKS, OUTLIER, SLOW, Critic, CriticLesson
from offrank.core.arrays import Memory, part
from offrank.core.candidates import Lesson

Array = Any  # NumPy's or PyTorch's
Work = Callable[[], None]
Record = Callable[[Work], Work]


@dataclass
class Held:
    """A run's states and actions on the device, in a ring."""

    rows: Array  # (capacity, n + p)
    end: int = 0  # rows ever written
    last: Any = None  # (n,) the state in the last of them


class Tutor:
    """Carries out lessons of critics.

    Args:
        library: `numpy`, or `torch`.
        up: an array of NumPy as the library's own, on the device.
        down: the other way.
        record: what does the same work again on the same arrays, as fast as it can be done.
    """

    def __init__(
        self, library: Any, up: Callable[[Any], Array], down: Callable[[Array], Any], record: Record = lambda work: work
    ):
        self._library, self._up, self._down, self._record = library, up, down, record
        self._desks: dict[Any, _Desk] = {}
        self._held: WeakKeyDictionary[Any, Held] = WeakKeyDictionary()

    def teach(self, pupils: Sequence[tuple[Any, Lesson]]) -> list[Memory]:
        """What each lesson changes of its run's memory.

        Args:
            pupils: of each lesson whose it is, by which its transitions are known again, and the lesson.
        """
        together: dict[Any, list[int]] = defaultdict(list)
        critics: dict[int, tuple[Any, CriticLesson]] = {}
        outcomes: list[Memory] = [{}] * len(pupils)
        for i, (whose, lesson) in enumerate(pupils):
            if isinstance(lesson, CriticLesson):
                critics[i] = whose, lesson
                together[lesson.critic, lesson.candidates.M.shape].append(i)
            else:
                outcomes[i] = lesson.carry_out()
        for members in together.values():
            for i, memory in zip(members, self._teach([critics[i] for i in members]), strict=True):
                outcomes[i] = memory
        return outcomes

    def _teach(self, pupils: Sequence[tuple[Any, CriticLesson]]) -> list[Memory]:
        """Lessons of critics with equal settings for equal tasks. Axes: run, network, row of a batch, value."""
        join, critic = self._library.concatenate, pupils[0][1].critic
        plans = [_Plan.of(lesson, self._hold(whose, lesson)) for whose, lesson in pupils]
        runs, most = len(plans), max(plan.updates for plan in plans)
        now, ahead, gain, boot = (
            self._stacked([_padded(getattr(plan, name), most) for plan in plans]) for name in _Plan.BATCHES
        )
        sizes = self._stacked([_padded(plan.sizes, most) for plan in plans])  # 0 for runs that are done
        mean, scale, M = (self._stacked([getattr(plan, name) for plan in plans]) for name in ("mean", "scale", "M"))
        desk = self._desk(plans[0].lesson, runs)
        for which in NETWORKS:
            rows = np.stack([_flat(part(plan.lesson.memory, f"{which}.")) for plan in plans])
            desk.vectors[which][:runs] = self._up(rows)
        outcomes: list[Memory] = [{}] * runs
        n, at = mean.shape[-1], (slice(0, runs), None, None)
        for begin in range(0, most, CHUNK):
            chunk = slice(begin, begin + CHUNK)
            seen = self._library.stack([plan.held.rows[now[r, chunk]] for r, plan in enumerate(plans)])
            later = self._library.stack([plan.held.rows[ahead[r, chunk]][..., :n] for r, plan in enumerate(plans)])
            done = join([self._normalised(seen[..., :n], mean[at], scale[at]), seen[..., n:]], axis=-1)
            later = self._normalised(later, mean[at], scale[at])
            later = join([later, later @ M[:, None]], axis=-1)
            for i in range(done.shape[1]):
                update = begin + i
                batch = done[:, i], later[:, i], gain[:, update], boot[:, update], sizes[:, update, None]
                desk.update(*batch)
                for r in (r for r, plan in enumerate(plans) if plan.updates == update + 1):
                    outcomes[r] = self._outcome(critic, plans[r], desk, r)
        return outcomes

    def _outcome(self, critic: Critic, plan: _Plan, desk: _Desk, row: int) -> Memory:
        """What a run has learned, now that all of its updates are done."""
        vectors = [np.array(self._down(desk.vectors[which][row : row + 1])) for which in NETWORKS]
        nets = [{name: value[0] for name, value in _views(vector, desk.shapes).items()} for vector in vectors]
        return critic.judged(nets, int(plan.lesson.memory["step"]) + plan.updates, plan.unit, plan.lesson.candidates)

    def _desk(self, lesson: CriticLesson, runs: int) -> _Desk:
        """Room for so many runs' networks. There is one for every power of two, and it is kept."""
        room = 1 << (runs - 1).bit_length()
        shapes = {name: value.shape for name, value in part(lesson.memory, f"{NETWORKS[0]}.").items()}
        key = (room, *sorted(shapes.items()))
        if key not in self._desks:
            zeros = lambda *shape: self._up(np.zeros(shape, dtype=np.float32))  # noqa: E731
            self._desks[key] = _Desk(zeros, self._library.concatenate, self._record, shapes, room)
        desk = self._desks[key]
        desk.clear()
        return desk

    def _hold(self, whose: Any, lesson: CriticLesson) -> Held:
        """The device's copy of a run's replay, brought up to date."""
        memory = lesson.memory
        state, action = memory["replay.state"], memory["replay.action"]
        fresh = min(int(memory["fresh"]), len(state))
        held = self._held.get(whose)
        if held is None or fresh == len(state) or not np.array_equal(state[-fresh - 1], held.last):
            width, fresh = state.shape[1] + action.shape[1], len(state)
            held = self._held[whose] = Held(self._up(np.zeros((lesson.critic.replay, width), dtype=np.float32)))
        new = self._up(np.concatenate([state[len(state) - fresh :], action[len(action) - fresh :]], axis=1))
        capacity, first = len(held.rows), held.end % len(held.rows)
        room = min(fresh, capacity - first)
        held.rows[first : first + room] = new[:room]
        held.rows[: fresh - room] = new[room:]
        held.end, held.last = held.end + fresh, state[-1].copy()
        return held

    def _normalised(self, states: Array, mean: Array, scale: Array) -> Array:
        return self._library.clip((states - mean) * scale, -OUTLIER, OUTLIER)

    def _stacked(self, arrays: Sequence[Any]) -> Array:
        return self._up(np.stack(arrays))


class _Desk:
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
        """Places that nobody takes stay as they are: their updates have no size."""
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
        beyond = network.forward(following, self._later[:, None])[2]
        y = self._gain[:, None, :, None] + self._boot[:, None, :, None] * beyond
        error = network.squared_error_gradient(learning, self._done[:, None], y)
        gradient = _flat(error, self._join, self._runs)
        network.adam({"": q}, {"": gradient}, {"": first}, {"": second}, self._sizes)
        network.follow({"": slow}, {"": q}, SLOW)


@dataclass
class _Plan:
    """A lesson made ready: which rows its updates learn from, and what goes with them."""

    BATCHES: ClassVar[tuple[str, ...]] = ("now", "ahead", "gain", "boot")

    lesson: CriticLesson
    held: Held
    now: Any  # (updates, BATCH) places in the ring of the states, and of those a few steps later
    ahead: Any
    gain: Any  # (updates, BATCH)
    boot: Any
    unit: float

    @staticmethod
    def of(lesson: CriticLesson, held: Held) -> _Plan:
        memory = lesson.memory
        rows, (gain, unit) = lesson.critic.draws(memory, lesson.candidates), lesson.critic.in_units(memory)
        first, capacity = held.end - len(memory["replay.state"]), len(held.rows)
        now, ahead = ((first + at) % capacity for at in (rows, rows + memory["replay.ahead"][rows]))
        return _Plan(lesson, held, now, ahead, gain[rows], memory["replay.boot"][rows], unit)

    @property
    def updates(self) -> int:
        return len(self.now)

    @property
    def mean(self) -> Any:
        return self.lesson.candidates.whitening.mean.astype(np.float32)

    @property
    def scale(self) -> Any:
        return self.lesson.candidates.whitening.scale.astype(np.float32)

    @property
    def M(self) -> Any:
        return self.lesson.candidates.M.T.astype(np.float32)

    @property
    def sizes(self) -> Any:
        """Of Adam's updates."""
        rate, step = self.lesson.critic.critic_rate, int(self.lesson.memory["step"])
        return np.array([network.step_size(rate, step + 1 + i) for i in range(self.updates)], dtype=np.float32)


def _padded(array: Any, length: int) -> Any:
    """With zeros at its end."""
    out = np.zeros((length, *array.shape[1:]), dtype=array.dtype)
    out[: len(array)] = array
    return out


def _flat(nets: Memory, join: Callable[..., Any] = np.concatenate, runs: int | None = None) -> Array:
    """The networks' numbers in a row; a row a run, if there are several."""
    shape = (-1,) if runs is None else (runs, -1)
    return join([value.reshape(shape) for _, value in sorted(nets.items())], axis=-1)


def _views(vectors: Array, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """The networks that lie in rows of numbers, one a run, sharing their memory."""
    views, first = {}, 0
    for name, shape in sorted(shapes.items()):
        size = math.prod(shape)
        views[name] = vectors[:, first : first + size].reshape(len(vectors), *shape)
        first += size
    return views


def torch_tutor(device: str) -> Tutor | None:
    """One that works with PyTorch on a device; None where that is not installed, or does not know the device."""
    try:
        import torch
    except ImportError:
        return None
    on_gpu = device.startswith("cuda")
    if on_gpu and not torch.cuda.is_available():
        return None

    def record(work: Work) -> Work:
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
        replay: Work = graph.replay
        return replay

    up, down = partial(torch.as_tensor, device=device), lambda tensor: tensor.cpu().numpy()
    return Tutor(torch, up, down, record) if on_gpu else Tutor(torch, up, down)
