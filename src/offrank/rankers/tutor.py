"""Training the critics of many runs in one batched computation, on the device where their episodes run.

A run by itself trains its critic with NumPy, to the same bits always. In a fleet on a GPU the lessons of all runs that
wait for one are carried out together, with PyTorch: the same batches and the same updates, with one more axis for the
runs, and in another order of additions. Each run's states and actions stay on the device from lesson to lesson, and
only what is new goes up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from offrank.arrays import Memory, part
from offrank.candidates import Lesson
from offrank.rankers import network
from offrank.rankers.critic import CHUNK, NETWORKS, OUTLIER, SLOW, CriticLesson

Array = Any  # NumPy's or PyTorch's


@dataclass
class Held:
    """A run's states and actions on the device, in a ring."""

    rows: Array  # (capacity, n + p)
    end: int = 0  # rows ever written
    iteration: int = -1  # whose rows were the last


class Tutor:
    """Carries out lessons of critics.

    Args:
        library: `numpy`, or `torch`.
        up: an array of NumPy as the library's own, on the device.
        down: the other way.
    """

    def __init__(self, library: Any, up: Callable[[Any], Array], down: Callable[[Array], Any]):
        self._library, self._up, self._down = library, up, down
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
        order = sorted(range(len(plans)), key=lambda i: -plans[i].updates)  # so that those still learning come first
        plans = [plans[i] for i in order]
        updates = np.array([plan.updates for plan in plans])
        now, ahead, gain, boot = (self._padded([getattr(plan, name) for plan in plans]) for name in _Plan.BATCHES)
        mean, scale, M = (self._stacked([getattr(plan, name) for plan in plans]) for name in ("mean", "scale", "M"))
        sizes = self._stacked([plan.sizes(int(updates[0])) for plan in plans])
        flat = [self._stacked([_flat(part(plan.lesson.memory, f"{which}.")) for plan in plans]) for which in NETWORKS]
        shapes = {name: value.shape for name, value in part(plans[0].lesson.memory, f"{NETWORKS[0]}.").items()}
        q, slow, first, second = flat
        n = mean.shape[-1]
        for begin in range(0, int(updates[0]), CHUNK):
            chunk = slice(begin, begin + CHUNK)
            runs = range(int((updates > begin).sum()))
            seen = self._library.stack([plans[r].held.rows[now[r, chunk]] for r in runs])
            later = self._library.stack([plans[r].held.rows[ahead[r, chunk]][..., :n] for r in runs])
            at = (slice(0, len(runs)), None, None)
            done = join([self._normalised(seen[..., :n], mean[at], scale[at]), seen[..., n:]], axis=-1)
            later = self._normalised(later, mean[at], scale[at])
            later = join([later, later @ M[: len(runs), None]], axis=-1)
            for i in range(done.shape[1]):
                update = begin + i
                still = slice(0, int((updates > update).sum()))
                learning, following = (_views(vector[still], shapes) for vector in (q, slow))
                beyond = network.forward(following, later[still, i][:, None])[2]
                y = gain[still, update][:, None, :, None] + boot[still, update][:, None, :, None] * beyond
                gradient = _flat(network.squared_error_gradient(learning, done[still, i][:, None], y), join, len(y))
                moments = {"": first[still]}, {"": second[still]}
                network.adam({"": q[still]}, {"": gradient}, *moments, sizes[still, update][:, None])
                network.follow({"": slow[still]}, {"": q[still]}, SLOW)
        vectors = [self._down(vector) for vector in flat]
        outcomes: list[Memory] = [{}] * len(plans)
        for r, plan in enumerate(plans):
            nets = [_views(vector[r : r + 1], shapes) for vector in vectors]
            copies = [{name: value[0].copy() for name, value in net.items()} for net in nets]
            step = int(plan.lesson.memory["step"]) + plan.updates
            outcomes[order[r]] = critic.judged(copies, step, plan.unit, plan.lesson.candidates)
        return outcomes

    def _hold(self, whose: Any, lesson: CriticLesson) -> Held:
        """The device's copy of a run's replay, brought up to date."""
        memory, iteration = lesson.memory, lesson.candidates.directions.iteration
        state, action = memory["replay.state"], memory["replay.action"]
        fresh = min(int(memory["fresh"]), len(state))
        held = self._held.get(whose)
        if held is None or held.iteration != iteration - 1:
            width, fresh = state.shape[1] + action.shape[1], len(state)
            held = self._held[whose] = Held(self._up(np.zeros((lesson.critic.replay, width), dtype=np.float32)))
        new = self._up(np.concatenate([state[len(state) - fresh :], action[len(action) - fresh :]], axis=1))
        capacity, first = len(held.rows), held.end % len(held.rows)
        room = min(fresh, capacity - first)
        held.rows[first : first + room] = new[:room]
        held.rows[: fresh - room] = new[room:]
        held.end, held.iteration = held.end + fresh, iteration
        return held

    def _normalised(self, states: Array, mean: Array, scale: Array) -> Array:
        return self._library.clip((states - mean) * scale, -OUTLIER, OUTLIER)

    def _stacked(self, arrays: Sequence[Any]) -> Array:
        return self._up(np.stack(arrays))

    def _padded(self, arrays: Sequence[Any]) -> Array:
        """Stacked, with zeros where one has fewer updates than the first."""
        out = np.zeros((len(arrays), *arrays[0].shape), dtype=arrays[0].dtype)
        for row, array in zip(out, arrays, strict=True):
            row[: len(array)] = array
        return self._up(out)


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

    def sizes(self, updates: int) -> Any:
        """Of Adam's updates, as many as asked for."""
        rate, step = self.lesson.critic.critic_rate, int(self.lesson.memory["step"])
        return np.array([network.step_size(rate, step + 1 + i) for i in range(updates)], dtype=np.float32)


def _flat(nets: Memory, join: Callable[..., Any] = np.concatenate, runs: int | None = None) -> Array:
    """The networks' numbers in a row; a row a run, if there are several."""
    shape = (-1,) if runs is None else (runs, -1)
    return join([value.reshape(shape) for _, value in sorted(nets.items())], axis=-1)


def _views(vectors: Array, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """The networks that lie in rows of numbers, one a run, sharing their memory."""
    views, first = {}, 0
    for name, shape in sorted(shapes.items()):
        size = int(np.prod(shape))
        views[name] = vectors[:, first : first + size].reshape(len(vectors), *shape)
        first += size
    return views


def torch_tutor(device: str) -> Tutor | None:
    """One that works with PyTorch on a device; None where that is not installed, or does not know the device."""
    try:
        import torch
    except ImportError:
        return None
    if device.startswith("cuda") and not torch.cuda.is_available():
        return None
    return Tutor(torch, lambda array: torch.as_tensor(array, device=device), lambda tensor: tensor.cpu().numpy())
