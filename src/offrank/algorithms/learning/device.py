"""PyTorch on a GPU: which device lessons are carried out on, recorded work, and replay buffers that stay there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from offrank.core.arrays import Memory
from offrank.core.errors import UsageError, require

Tensor = Any  # of PyTorch, which may not be installed
Update = Callable[[], None]
Record = Callable[[Update], Update]

LEAST_ROWS = 1 << 16  # for which there is room in a replay buffer on the device


def check_lessons(where: str | None) -> None:
    """Check where lessons are to be carried out: None, cpu, or a GPU such as cuda or cuda:1.

    Raises:
        UsageError: there is no such place, or PyTorch is not installed.
    """
    if where in (None, "cpu"):
        return
    kind, _, number = str(where).partition(":")
    if kind != "cuda" or not (number.isdecimal() or where == "cuda"):
        raise UsageError(f"lessons = {where!r}: must be cpu, cuda, or a GPU such as cuda:1")
    gpus = require("torch", "torch").cuda.device_count()
    if gpus <= int(number or 0):
        raise UsageError(f"lessons = {where!r}: PyTorch sees {gpus or 'no'} GPU{'' if gpus == 1 else 's'} here")


def has_torch(device: str) -> bool:
    """Whether PyTorch is installed, and has GPUs if the device is one."""
    try:
        import torch
    except ImportError:
        return False
    return not device.startswith("cuda") or torch.cuda.is_available()


def wait_for(device: str) -> None:
    """Wait for the work of a GPU, asleep: other processes and the engine's threads need the core meanwhile."""
    if device.startswith("cuda"):
        import torch

        cuda: Any = torch.cuda
        done = cuda.Event(blocking=True)
        done.record()
        done.synchronize()


def recorder(device: str) -> Record:
    """A function that turns work on fixed arrays into the same work, recorded: on a GPU as a CUDA graph, because small
    kernels take less time to run than to launch one by one. The work is done a few times while it is recorded."""
    if not device.startswith("cuda"):
        return lambda work: work
    import torch

    cuda: Any = torch.cuda

    def record(work: Update) -> Update:
        stream = cuda.Stream(device)
        stream.wait_stream(cuda.current_stream(device))
        with cuda.stream(stream):
            for _ in range(3):
                work()  # initialisation on first use must not be recorded
        stream.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.device(device), cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            work()
        replay: Update = graph.replay
        return replay

    return record


class DeviceReplay:
    """The replay buffer of a run on a device, as a ring of rows: state (n), action (p), gain, boot; and as another
    ring its transitions, the rows at which each starts and ends."""

    def __init__(self, device: str, limit: int):
        self._device, self._limit = device, limit
        self.rows: Tensor = None  # (capacity, n + p + 2)
        self._pairs: Tensor = None  # (capacity, 2)
        self.uploaded = 0  # rows copied in the last update
        self._next = 0  # row that is written next
        self._next_pair = 0  # place of the next transition
        self._transitions = 0  # transitions in use, the last ones
        self._written = 0  # rows ever appended to the run's replay
        self._last: Any = None  # (n,) the state in the last row

    @property
    def capacity(self) -> int:
        return 0 if self.rows is None else len(self.rows)

    def update(self, replay: Memory) -> None:
        """Append what is new since the last update; everything, if the device does not have what came before it."""
        import torch

        state, count = replay["state"], len(replay["state"])
        written = int(replay["written"]) if "written" in replay else -1
        new = written - self._written
        known = written >= 0 and 0 <= new < count <= self.capacity and self._last is not None
        if not known or not np.array_equal(state[count - new - 1], self._last):
            new, self._next, self._next_pair = count, 0, 0
        rows = _rows(replay, count - new)
        if count > self.capacity:
            capacity = min(self._limit, max(2 * count, LEAST_ROWS))
            self.rows = self._pairs = None  # freed before the larger ones are made
            self.rows = torch.zeros((capacity, rows.shape[1]), device=self._device)
            self._pairs = torch.zeros((capacity, 2), dtype=torch.int64, device=self._device)
        ahead = replay["ahead"][count - new :]
        starts = np.flatnonzero(ahead)
        pairs = (self._next + np.stack([starts, starts + ahead[starts]], axis=1)) % self.capacity
        self._next = append_to_ring(self.rows, self._next, torch.as_tensor(rows, device=self._device))
        self._next_pair = append_to_ring(self._pairs, self._next_pair, torch.as_tensor(pairs, device=self._device))
        self._transitions = int(np.count_nonzero(replay["ahead"]))
        self._written, self.uploaded = written, new
        self._last = state[-1].copy()

    def transitions(self) -> Tensor:
        """The rows at which each transition starts and ends (m, 2), oldest first: their order does not depend on where
        the rings begin."""
        import torch

        first = self._next_pair - self._transitions
        if first >= 0:
            return self._pairs[first : self._next_pair]
        return torch.cat([self._pairs[first:], self._pairs[: self._next_pair]])


def append_to_ring(ring: Any, place: int, rows: Any) -> int:
    """Write rows, no more than the ring has, to it from a place on. Returns the place after them."""
    room = min(len(rows), len(ring) - place)
    ring[place : place + room] = rows[:room]
    ring[: len(rows) - room] = rows[room:]
    return int((place + len(rows)) % len(ring))


def _rows(replay: Memory, first: int) -> Any:
    """The rows of a replay from `first` on, (m, n + p + 2)."""
    columns = [replay["state"], replay["action"], replay["gain"][:, None], replay["boot"][:, None]]
    return np.concatenate([column[first:] for column in columns], axis=1)
