"""What trainers on a device keep and do whatever the lesson: replay buffers, arrays and graphs, and batches of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch

from offrank.algorithms.learning import networks
from offrank.algorithms.learning.batched_networks import CriticBatch, upload
from offrank.algorithms.learning.device import DeviceReplay, Tensor, Update, recorder
from offrank.algorithms.learning.td3 import TD3Settings
from offrank.core.arrays import Memory
from offrank.core.errors import EngineError, OffrankError
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy


class Learning(Protocol):
    """What the lessons have in common."""

    @property
    def settings(self) -> TD3Settings: ...
    @property
    def policy(self) -> Policy: ...
    @property
    def whitening(self) -> Whitening: ...
    @property
    def replay(self) -> Memory: ...
    @property
    def batch_key(self) -> Hashable: ...


L = TypeVar("L", bound=Learning)
Made = TypeVar("Made")


class DeviceTrainer(ABC, Generic[L, Made]):
    """Carries out the lessons of several runs in one batch. What it makes on the device is kept: a replay buffer and
    the critics of each run, and the arrays and graphs for a number of runs.

    Args:
        device: a PyTorch device name.
        draws: makes the random numbers of a lesson.
    """

    def __init__(self, device: str, draws: Callable[[L, str], Any]):
        self._device, self._draws = device, draws
        self._record: Callable[[Update], Update] = recorder(device)
        self._batches: dict[Any, Made] = {}
        self._replays: WeakKeyDictionary[Any, DeviceReplay] = WeakKeyDictionary()
        self._kept: WeakKeyDictionary[Any, tuple[Memory, Tensor]] = WeakKeyDictionary()  # outcome, rows of its critics
        self._stream: Callable[[], AbstractContextManager[Any]] = nullcontext
        if device.startswith("cuda"):  # a stream of its own: the engine's work goes on beside it
            cuda: Any = torch.cuda
            self._stream = partial(cuda.stream, cuda.Stream(device))

    @abstractmethod
    def _make(self, lesson: L, runs: int) -> Made:
        """The arrays and graphs for lessons like this one of several runs."""

    @abstractmethod
    def _train(self, lessons: Sequence[L], owners: Sequence[Any], made: Made) -> list[Memory | OffrankError]:
        """Carry out lessons on arrays that have room for them."""

    def train(self, lessons: Sequence[L], owners: Sequence[object]) -> list[Memory | OffrankError]:
        """Carry out lessons with equal batch keys. Returns each one's result, or its error.

        Args:
            lessons: one per run.
            owners: the run of each lesson; its replay buffer on the device is identified by it.

        Raises:
            EngineError: there is not enough memory on the device.
        """
        try:
            with self._stream():
                self._update_replays(lessons, owners)
                return self._train(lessons, owners, self._batch(lessons[0], len(lessons)))
        except torch.cuda.OutOfMemoryError:
            self._batches.clear()
            self._replays.clear()
            self._kept.clear()
        raise EngineError(
            f"{self._device} has no room for the lessons of {len(lessons)} runs, with a replay of "
            f"{lessons[0].settings.replay:,} transitions each: train fewer runs at a time, or set a smaller replay"
        )

    def _update_replays(self, lessons: Sequence[L], owners: Sequence[object]) -> None:
        for ended in [owner for owner in self._replays if getattr(owner, "done", False)]:
            del self._replays[ended]  # it may be kept by someone else, but needs no room here
            self._kept.pop(ended, None)
        for owner, lesson in zip(owners, lessons, strict=True):
            if owner not in self._replays:
                self._replays[owner] = DeviceReplay(self._device, lesson.settings.replay)
            self._replays[owner].update(lesson.replay)

    def _load(self, batch: CriticBatch, critics: Sequence[Memory], owners: Sequence[Any]) -> None:
        """Begin with the critics of some runs. Those that are what the run's last lesson returned are there already."""
        found = [self._rows_of(owner, own) for owner, own in zip(owners, critics, strict=True)]
        batch.load([own if rows is None else rows for rows, own in zip(found, critics, strict=True)])

    def _rows_of(self, owner: Any, critics: Memory) -> Tensor | None:
        """The rows of a run's critics on the device; None if it has not these."""
        outcome, rows = self._kept.get(owner, ({}, None))
        return rows if all(critics[name] is array for name, array in outcome.items()) else None

    def _unload(self, batch: CriticBatch, owners: Sequence[Any]) -> list[list[Memory]]:
        """The critics of some runs after their lessons, as `networks.pack` takes them."""
        rows, nets = batch.unload(len(owners))
        for owner, own, kept in zip(owners, nets, rows, strict=True):
            self._kept[owner] = networks.pack(own), kept
        return nets

    def _batch(self, lesson: L, runs: int) -> Made:
        """The arrays and graphs for several runs: one set per power of two, and for the middle between two."""
        room = 1 << (runs - 1).bit_length()
        room = 3 * room // 4 if room >= 8 and runs <= 3 * room // 4 else room
        key = (room, lesson.batch_key)
        if key not in self._batches:
            self._batches[key] = self._make(lesson, room)
        return self._batches[key]


class TransitionRows:
    """The transitions of several runs, to gather batches of them.

    Args:
        count: of transitions per run that are looked up together.
        outlier: normalised states are clipped to this.
    """

    def __init__(
        self,
        lessons: Sequence[Learning],
        replays: Sequence[DeviceReplay],
        count: int,
        device: str,
        outlier: float | None = None,
    ):
        self.n, self.p, self._outlier = lessons[0].policy.n, lessons[0].policy.p, outlier
        self.rings = [replay.rows for replay in replays]
        self.transitions = [replay.transitions() for replay in replays]  # (m, 2) each
        self._mean, self._scale = (
            upload(np.stack(rows, dtype=np.float32, casting="same_kind"), device)[:, None]
            for rows in zip(*((lesson.whitening.mean, lesson.whitening.scale) for lesson in lessons), strict=True)
        )
        self.width = self.rings[0].shape[1]
        self._seen = torch.zeros(len(lessons), count, 2, self.width, device=device)

    def look_up(self, at: Tensor, going: Sequence[int]) -> None:
        """Look up the transitions of some runs, which `feed` then writes into batches.

        Args:
            at: the rows (runs, count, 2) at which they start and end.
        """
        for r in going:
            torch.index_select(self.rings[r], 0, at[r].flatten(), out=self._seen[r].flatten(0, 1))

    def feed(self, critics: CriticBatch, begin: int, scale: Tensor | float) -> Tensor:
        """Write the next transitions, from number `begin` of those looked up on, into the batches of the critics, with
        actions in units of `scale`.

        Returns:
            Normalised states (runs, m, n) at which they end.
        """
        n, p, runs = self.n, self.p, len(self.rings)
        x, target = critics.inputs[:, :, :runs].flatten(3, 4)  # each (2, runs, m, columns)
        seen = self._seen[:, begin : begin + x.shape[2]]
        x[..., :n] = self.normalised(seen[:, :, 0, :n])
        x[..., n : n + p] = seen[:, :, 0, n : n + p] / scale
        later = self.normalised(seen[:, :, 1, :n])
        target[..., :n] = later
        critics.gain[:runs].flatten(1, 2).copy_(seen[:, :, 0, n + p : n + p + 1])
        critics.boot[:runs].flatten(1, 2).copy_(seen[:, :, 0, n + p + 1 : n + p + 2])
        return later

    def normalised(self, states: Tensor) -> Tensor:
        """States (runs, m, n) as the policies see them."""
        z = (states - self._mean).mul_(self._scale)
        return z if self._outlier is None else z.clamp_(-self._outlier, self._outlier)
