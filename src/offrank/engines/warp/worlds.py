"""The device side of the GPU engine: arrays, the graph of a control step, and transfer of episodes and results."""

from __future__ import annotations

from typing import Any

import numpy as np
import warp as wp
from numpy.typing import NDArray

from offrank.core.arrays import FloatArray
from offrank.core.errors import EngineError
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy
from offrank.core.rollouts import Episode, Trajectory
from offrank.core.work import device_lock
from offrank.engines.warp.kernels import (
    FIELDS,
    add_noise,
    observe,
    record_observation,
    reward_and_reset,
    scatter,
    scatter_ints,
)
from offrank.engines.warp.mjwarp import aligned_mjwarp, device_model, make_substep
from offrank.engines.warp.policies import Policies, as_ints
from offrank.engines.warp.whitenings import Whitenings
from offrank.tasks.locomotion import Task

STATUS = ("horizon", "terminated", "the simulation diverged", "the contact buffers overflowed")


class Worlds:
    """W simulations on a device, a table of their episodes, and a ring buffer of results.

    Args:
        task: one of the six.
        count: number of simulations, W.
        rows: size of the table: episodes that are queued, running or finished.
        device: a Warp device.
        deterministic: whether to use mujoco_warp's deterministic mode.

    Raises:
        EngineError: there is not enough memory on the device.
    """

    def __init__(self, task: Task, count: int, rows: int, device: Any, deterministic: bool, clip_actions: bool = False):
        self.task, self.count, self.rows, self.device = task, count, rows, device
        try:
            with wp.ScopedDevice(device):
                self._allocate(deterministic, task.action_box if clip_actions else None)
        except (RuntimeError, MemoryError, ValueError) as error:  # ValueError: an array would be too large
            raise EngineError(
                f"{device} has no room for {count} worlds of {task.name} ({error}): give --worlds a smaller number"
            ) from error
        self._free = list(range(rows))
        self._whitenings = Whitenings(rows)
        self._free_keep: list[int] = []
        self._kept: dict[int, int] = {}  # row: slot of its transitions
        self._noise: Any = None  # (slots, steps, p) on the actions of kept episodes
        self._tail = self._seen = 0
        self._graph: Any = None
        self._launched: Any = None  # an event recorded after the last launch

    def _allocate(self, deterministic: bool, box: tuple[Any, Any] | None) -> None:
        task, W, R = self.task, self.count, self.rows
        n = task.obs_dim
        mjw = aligned_mjwarp()
        model = device_model(task)
        self.model = mjw.put_model(model)
        self.model.opt.warn_overflow = False
        self.model.opt.deterministic = deterministic
        self.data = mjw.make_data(model, nworld=W)
        self.substep = make_substep(self.model, self.data)

        def ints(size: int, value: int = 0) -> Any:
            return wp.full(size, value, dtype=int)

        def floats(*shape: int) -> Any:
            return wp.zeros(shape, dtype=float)

        def doubles(*shape: int) -> Any:
            return wp.zeros(shape, dtype=wp.float64)

        self.a: dict[str, Any] = {
            # the worlds
            **{name: ints(W) for name in ("step", "ended", "fresh", "diverged")},
            "row": ints(W, -1),
            "observation": floats(W, n),
            "z": floats(W, n),
            "position": floats(W),
            "total": doubles(W),
            "moment1": doubles(W, n),
            "moment2": doubles(W, n),
            # the table of episodes, and their queue
            **{name: ints(R) for name in ("whitening", "horizon", "queue")},
            "keep": ints(R, -1),
            "mean": floats(R, n),
            "scale": floats(R, n),
            "start_qpos": floats(R, model.nq),
            "start_qvel": floats(R, model.nv),
            "start_observation": floats(R, n),
            "start_position": floats(R, 1),
            # the ring buffer of finished episodes
            **{name: ints(R) for name in ("out_row", "out_status", "out_length")},
            "out_total": doubles(R),
            "out_mean": doubles(R, n),
            "out_m2": doubles(R, n),
            "out_last": floats(R, n),
            **{name: wp.zeros(1, dtype=wp.int64) for name in ("head", "tail", "finished")},
            # transitions of the episodes with keep=True
            "kept": floats(1, 1, n),
            "kept_rewards": floats(1, 1),
        }
        self.policies = Policies(R, W, task.act_dim, box)
        self.qpos0 = wp.array(model.qpos0, dtype=float)
        self.fields = {name: self._flat(getattr(self.data, name)) for name in ("qpos", "qvel", *task.fields)}
        self._describe_observation()
        self._describe_rewards()

    def _flat(self, array: Any) -> Any:
        """A field of the simulation as (W, numbers), sharing its memory."""
        width = int(np.prod(array.shape[1:])) * (wp.types.type_size(array.dtype) if array.dtype is not float else 1)
        strides = (array.strides[0], 4)
        return wp.array(ptr=array.ptr, shape=(self.count, width), strides=strides, dtype=float, device=self.device)

    def _describe_observation(self) -> None:
        task = self.task
        names = list(dict.fromkeys(piece.field for piece in task.pieces))
        which, column, clip = [], [], []
        for piece in task.pieces:
            width = self.fields[piece.field].shape[1] - piece.skip
            which += [names.index(piece.field)] * width
            column += list(range(piece.skip, piece.skip + width))
            clip += [min(piece.clip, 3.0e38)] * width
        self.seen = len(which)  # the rest of an observation is always 0
        seen = [self.fields[name] for name in names]
        assert len(seen) <= FIELDS
        tables = [wp.array(which, dtype=int), wp.array(column, dtype=int), wp.array(clip, dtype=float)]
        self.observation = [*seen, *[seen[0]] * (FIELDS - len(seen)), *tables]

    def _describe_rewards(self) -> None:
        task = self.task
        first, stride, weights = task.position_weights
        columns: tuple[list[Any], ...] = ([], [], [], [], [])
        for b in task.bounds:
            size = task.model.nq if b.field == "qpos" else task.model.nv
            for i in range(b.first, size if b.last is None else b.last):
                for column, value in zip(columns, (b.field == "qvel", i, b.low, b.high, b.closed), strict=True):
                    column.append(value)
        kinds = (int, int, float, float, int)
        self.rewards = [
            self.fields[task.position],
            *(first, stride, wp.array(weights, dtype=float), float(weights.sum())),
            *(wp.array(np.array(c, dtype=k), dtype=k) for c, k in zip(columns, kinds, strict=True)),
            *(task.dt, task.forward_weight, task.control_weight, task.survival_bonus),
        ]

    # --- episodes in

    @property
    def free(self) -> int:
        """Number of free rows."""
        return len(self._free)

    def load(
        self,
        episodes: dict[str, NDArray[np.float32]],
        policies: list[Policy],
        thetas: list[NDArray[np.float32]],
        whitenings: list[Whitening],
        horizons: NDArray[np.int64],
        keep: NDArray[np.bool_],
        noise: list[FloatArray | None],
    ) -> list[int]:
        """Put m episodes into the table and the queue. Returns their rows.

        Args:
            episodes: their entries of the table (start_qpos, ...) by name, (m, ...) each.
            policies, thetas, whitenings: kind, parameters and normaliser of each policy.
            horizons: (m,).
            keep: (m,), whether to store the transitions.
            noise: (horizon, p) each, added to the actions of a kept episode; None: nothing.
        """
        m = len(whitenings)
        rows = [self._free.pop() for _ in range(m)]
        self._reserve_keep(int(keep.sum()), int(horizons.max()))
        keep_rows = np.full(m, -1)
        for i in np.flatnonzero(keep):
            keep_rows[i] = self._kept[rows[i]] = self._free_keep.pop()
        self._load_noise(keep_rows, noise)
        places, fresh = self._whitenings.place(rows, whitenings)
        with wp.ScopedDevice(self.device):
            if fresh:
                at = as_ints([place for place, _ in fresh])
                self._scatter(at, np.stack([w.mean for _, w in fresh]), "mean")
                self._scatter(at, np.stack([w.scale for _, w in fresh]), "scale")
            ids = as_ints(rows)
            if self.policies.load(ids, policies, thetas):
                self._graph = None  # arrays were reallocated
            for name, values in episodes.items():
                self._scatter(ids, values, name)
            for name, values in (("whitening", places), ("horizon", horizons), ("keep", keep_rows)):
                wp.launch(scatter_ints, m, [ids, as_ints(values), self.a[name]])
            wp.launch(scatter_ints, m, [as_ints((self._tail + np.arange(m)) % self.rows), ids, self.a["queue"]])
            self._tail += m
            self.a["tail"].fill_(self._tail)
        return rows

    def _scatter(self, ids: Any, values: NDArray[Any], name: str) -> None:
        flat = np.ascontiguousarray(values.reshape(len(values), -1), dtype=np.float32)
        wp.launch(
            scatter, flat.shape, [ids, wp.array(flat, dtype=float)], outputs=[self.a[name].reshape((self.rows, -1))]
        )

    def _reserve_keep(self, wanted: int, horizon: int) -> None:
        """Allocate slots for the transitions of kept episodes. The graph is captured again if the buffers move."""
        if not wanted:
            return
        slots, steps = self.a["kept"].shape[:2]
        have = slots if steps > 1 else 0
        missing = wanted - len(self._free_keep)
        if missing <= 0 and steps >= horizon:
            return
        more, steps = (max(have + missing, 2 * have) if missing > 0 else have), max(steps, horizon)
        with wp.ScopedDevice(self.device):
            kept = wp.zeros((more, steps, self.task.obs_dim), dtype=float)
            rewards = wp.zeros((more, steps), dtype=float)
            if have:
                old = self.a["kept"], self.a["kept_rewards"]
                kept.assign(np.pad(old[0].numpy(), ((0, more - have), (0, steps - old[0].shape[1]), (0, 0))))
                rewards.assign(np.pad(old[1].numpy(), ((0, more - have), (0, steps - old[1].shape[1]))))
        self.a["kept"], self.a["kept_rewards"] = kept, rewards
        self._free_keep += list(range(have, more))
        self._graph = None

    def _load_noise(self, slots: NDArray[np.int64], noise: list[FloatArray | None]) -> None:
        """Write the noise on the actions of kept episodes to their slots, zeros where there is none. There is an array
        for it once an episode has noise."""
        kept = [(int(slot), own) for slot, own in zip(slots, noise, strict=True) if slot >= 0]
        if self._noise is None and not any(own is not None for _, own in kept):
            return
        (count, steps, _), p = self.a["kept"].shape, self.task.act_dim
        with wp.ScopedDevice(self.device):
            if self._noise is None or self._noise.shape[:2] != (count, steps):
                larger = np.zeros((count, steps, p), dtype=np.float32)
                if self._noise is not None:
                    before = self._noise.numpy()
                    larger[: len(before), : before.shape[1]] = before
                self._noise, self._graph = wp.array(larger, dtype=float), None
            if kept:
                values = np.zeros((len(kept), steps, p), dtype=np.float32)
                for place, (_, own) in zip(values, kept, strict=True):
                    if own is not None:
                        place[: len(own)] = own
                flat = wp.array(values.reshape(len(kept), -1), dtype=float)
                at = as_ints([slot for slot, _ in kept])
                wp.launch(scatter, flat.shape, [at, flat], outputs=[self._noise.reshape((count, -1))])

    # --- control steps

    @property
    def busy(self) -> bool:
        """Whether the device is still running the steps launched last."""
        return self._launched is not None and not self._launched.is_complete

    def advance(self, steps: int) -> None:
        """Launch control steps in every world. Returns before they are finished."""
        with wp.ScopedDevice(self.device):
            if not self.device.is_cuda:
                for _ in range(steps):
                    self._control_step()
                return
            if self._graph is None:
                self._control_step()  # compiles the kernels, which cannot be captured
                with device_lock, wp.ScopedCapture() as capture:
                    self._control_step()
                self._graph = capture.graph
            for _ in range(steps):
                wp.capture_launch(self._graph)
            self._launched = wp.record_event(self._launched)

    def _control_step(self) -> None:
        self._act()
        for _ in range(self.task.frame_skip):
            self.substep()
        self._observe_and_reset()

    def _act(self) -> None:
        self.policies.act(self.a["row"], self.a["z"], self.data.ctrl)
        if self._noise is not None:
            noisy = [*self._of("row", "step", "keep"), self._noise, *self.policies.box]
            wp.launch(add_noise, (self.count, self.task.act_dim), noisy, outputs=[self.data.ctrl])

    def _observe_and_reset(self) -> None:
        """Observations and rewards after a control step, results of ended episodes, and start of the next ones."""
        a, d, W, of = self.a, self.data, self.count, self._of
        wp.launch(observe, (W, self.seen), self.observation, outputs=of("observation", "diverged"))
        table = [*of("horizon", "keep", "start_qpos", "start_qvel"), a["start_position"].flatten()]
        simulation = [self.qpos0, d.ctrl, d.qpos, d.qvel, d.qacc_warmstart, d.overflow, a["diverged"]]
        changed = of("head", "finished", "row", "step", "position", "total")
        out = of("ended", "fresh", "kept_rewards", "out_row", "out_status", "out_length", "out_total")
        wp.launch(
            reward_and_reset, W, [*self.rewards, *table, *of("queue", "tail"), *simulation, *changed], outputs=out
        )
        episodes = of("ended", "fresh", "row", "step", "start_observation", "whitening", "mean", "scale", "keep")
        out = of("out_mean", "out_m2", "out_last", "kept", "z")
        wp.launch(
            record_observation,
            (W, self.task.obs_dim),
            [*episodes, *of("observation", "moment1", "moment2")],
            outputs=out,
        )

    def _of(self, *names: str) -> list[Any]:
        return [self.a[name] for name in names]

    # --- episodes out

    def collect_finished(self) -> list[tuple[int, Episode | str, int]]:
        """The episodes finished since the last call, as (row, result or error text, length). Waits for the device.
        Their rows are free afterwards."""
        finished = int(self.a["finished"].numpy()[0])
        if finished == self._seen:
            return []
        places = np.arange(self._seen, finished) % self.rows
        self._seen = finished
        names = ("out_row", "out_status", "out_length", "out_total", "out_mean", "out_m2", "out_last")
        row, status, length, total, mean, m2, last = (self._read(self.a[name], places) for name in names)
        found: list[tuple[int, Episode | str, int]] = []
        for i, r in enumerate(row.tolist()):
            T = int(length[i])
            outcome: Episode | str = Episode(float(total[i]), T, mean[i], m2[i])
            if r in self._kept:
                slot = self._kept.pop(r)
                self._free_keep.append(slot)
                seen = self.a["kept"][slot, :T].numpy().astype(np.float64)
                rewards = self.a["kept_rewards"][slot, :T].numpy().astype(np.float64)
                trajectory = Trajectory(seen, rewards, bool(status[i] == 1), last[i].astype(np.float64))
                outcome = Episode.of(trajectory, keep=True)  # moments computed as in the other engines
            if status[i] > 1:
                outcome = STATUS[status[i]]
            elif not np.isfinite(total[i]):
                outcome = "non-finite reward"
            found.append((r, outcome, T))
            self._free.append(r)
            self._whitenings.release(r)
        return found

    def _read(self, array: Any, places: NDArray[np.int64]) -> NDArray[Any]:
        """Consecutive entries of a ring buffer."""
        first, last = int(places[0]), int(places[-1])
        if last >= first:
            out: NDArray[Any] = array[first : last + 1].numpy()
            return out
        return np.concatenate([array[first:].numpy(), array[: last + 1].numpy()])

    def clear(self) -> None:
        """Drop all episodes."""
        self._free = list(range(self.rows))
        self._free_keep = list(range(self.a["kept"].shape[0])) if self.a["kept"].shape[1] > 1 else []
        self._kept.clear()
        self._whitenings = Whitenings(self.rows)
        self._tail = self._seen = 0
        for name in ("head", "tail", "finished"):
            self.a[name].zero_()
        self.a["row"].fill_(-1)
