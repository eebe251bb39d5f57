"""The device side of the GPU engine: arrays, kernels and the graph of a control step."""

from __future__ import annotations

from typing import Any

import numpy as np
import warp as wp
from numpy.typing import NDArray

from offrank.arrays import FloatArray
from offrank.engines.mjwarp import aligned_mjwarp
from offrank.engines.warp import Outcome, device_model
from offrank.normalizer import Whitening
from offrank.rollouts import Trajectory
from offrank.tasks.locomotion import Task

HUGE = wp.constant(1.0e10)  # MuJoCo's own limit for a coordinate that has diverged


@wp.kernel
def see(
    row: wp.array(dtype=int),
    step: wp.array(dtype=int),
    whitening: wp.array(dtype=int),
    mean: wp.array2d(dtype=float),
    scale: wp.array2d(dtype=float),
    keep: wp.array(dtype=int),
    observation: wp.array2d(dtype=float),
    # out
    z: wp.array2d(dtype=float),
    moment1: wp.array2d(dtype=wp.float64),
    moment2: wp.array2d(dtype=wp.float64),
    kept: wp.array3d(dtype=float),
):
    """Normalise what each world sees, add it to its episode's moments (Welford), and keep it where asked."""
    w, j = wp.tid()
    r = row[w]
    if r < 0:
        return
    x = observation[w, j]
    k = whitening[r]
    z[w, j] = (x - mean[k, j]) * scale[k, j]
    d = wp.float64(x) - moment1[w, j]
    moment1[w, j] = moment1[w, j] + d / wp.float64(step[w] + 1)
    moment2[w, j] = moment2[w, j] + d * (wp.float64(x) - moment1[w, j])
    if keep[r] >= 0:
        kept[keep[r], step[w], j] = x


@wp.kernel
def act(
    row: wp.array(dtype=int),
    weights: wp.array3d(dtype=float),
    z: wp.array2d(dtype=float),
    # out
    ctrl: wp.array2d(dtype=float),
):
    w, i = wp.tid()
    r = row[w]
    total = float(0.0)
    if r >= 0:
        for j in range(z.shape[1]):
            total += weights[r, i, j] * z[w, j]
    ctrl[w, i] = total


@wp.kernel
def observe(
    field: wp.array2d(dtype=float),
    skip: int,
    clip: float,
    offset: int,
    # out
    observation: wp.array2d(dtype=float),
):
    w, j = wp.tid()
    observation[w, offset + j] = wp.clamp(field[w, skip + j], -clip, clip)


@wp.kernel
def judge(
    row: wp.array(dtype=int),
    horizon: wp.array(dtype=int),
    keep: wp.array(dtype=int),
    ctrl: wp.array2d(dtype=float),
    qpos: wp.array2d(dtype=float),
    qvel: wp.array2d(dtype=float),
    overflow: wp.array(dtype=int),
    field: wp.array2d(dtype=float),
    first: int,
    stride: int,
    position_weights: wp.array(dtype=float),
    position_total: float,
    bound_in_qvel: wp.array(dtype=int),
    bound_index: wp.array(dtype=int),
    bound_low: wp.array(dtype=float),
    bound_high: wp.array(dtype=float),
    bound_closed: wp.array(dtype=int),
    dt: float,
    forward_weight: float,
    control_weight: float,
    survival_bonus: float,
    ring: int,
    # in and out
    step: wp.array(dtype=int),
    position: wp.array(dtype=float),
    total: wp.array(dtype=wp.float64),
    finished: wp.array(dtype=int),
    # out
    ended: wp.array(dtype=int),
    kept_rewards: wp.array2d(dtype=float),
    out_row: wp.array(dtype=int),
    out_status: wp.array(dtype=int),
    out_length: wp.array(dtype=int),
    out_total: wp.array(dtype=wp.float64),
):
    """Reward, bounds, the end of an episode. ended[w] is 0, or 1 + the place of the episode among the finished."""
    w = wp.tid()
    ended[w] = 0
    r = row[w]
    if r < 0:
        return
    x = float(0.0)
    for i in range(position_weights.shape[0]):
        x += position_weights[i] * field[w, first + stride * i]
    x = x / position_total
    cost = float(0.0)
    for i in range(ctrl.shape[1]):
        cost += ctrl[w, i] * ctrl[w, i]
    reward = forward_weight * ((x - position[w]) / dt) + survival_bonus - control_weight * cost
    position[w] = x
    total[w] = total[w] + wp.float64(reward)
    t = step[w]
    if keep[r] >= 0:
        kept_rewards[keep[r], t] = reward
    step[w] = t + 1

    status = -1
    if t + 1 >= horizon[r]:
        status = 0
    for i in range(bound_index.shape[0]):
        value = float(0.0)
        if bound_in_qvel[i] == 1:
            value = qvel[w, bound_index[i]]
        else:
            value = qpos[w, bound_index[i]]
        if bound_closed[i] == 1:
            if not (bound_low[i] <= value and value <= bound_high[i]):
                status = 1
        else:
            if not (bound_low[i] < value and value < bound_high[i]):
                status = 1
    for i in range(qpos.shape[1]):
        if not (wp.abs(qpos[w, i]) < HUGE):
            status = 2
    for i in range(qvel.shape[1]):
        if not (wp.abs(qvel[w, i]) < HUGE):
            status = 2
    if overflow[w] != 0:
        status = 3
    if status >= 0:
        k = wp.atomic_add(finished, 0, 1)
        ended[w] = k + 1
        place = k % ring
        out_row[place] = r
        out_status[place] = status
        out_length[place] = t + 1
        out_total[place] = total[w]


@wp.kernel
def flush(
    ended: wp.array(dtype=int),
    moment1: wp.array2d(dtype=wp.float64),
    moment2: wp.array2d(dtype=wp.float64),
    observation: wp.array2d(dtype=float),
    ring: int,
    # out
    out_mean: wp.array2d(dtype=wp.float64),
    out_m2: wp.array2d(dtype=wp.float64),
    out_last: wp.array2d(dtype=float),
):
    """Moments and last observation of the episodes that just ended."""
    w, j = wp.tid()
    if ended[w] == 0:
        return
    place = (ended[w] - 1) % ring
    out_mean[place, j] = moment1[w, j]
    out_m2[place, j] = moment2[w, j]
    out_last[place, j] = observation[w, j]


@wp.kernel
def refill(
    ended: wp.array(dtype=int),
    queue: wp.array(dtype=int),
    tail: wp.array(dtype=int),
    ring: int,
    start_qpos: wp.array2d(dtype=float),
    start_qvel: wp.array2d(dtype=float),
    start_position: wp.array(dtype=float),
    qpos0: wp.array(dtype=float),
    # in and out
    head: wp.array(dtype=int),
    row: wp.array(dtype=int),
    # out
    fresh: wp.array(dtype=int),
    step: wp.array(dtype=int),
    position: wp.array(dtype=float),
    total: wp.array(dtype=wp.float64),
    qpos: wp.array2d(dtype=float),
    qvel: wp.array2d(dtype=float),
    warmstart: wp.array2d(dtype=float),
    overflow: wp.array(dtype=int),
):
    """A world without an episode takes the next that waits, or stands still."""
    w = wp.tid()
    fresh[w] = 0
    if row[w] >= 0 and ended[w] == 0:
        return
    r = -1
    h = wp.atomic_add(head, 0, 1)
    if h < tail[0]:
        r = queue[h % ring]
    else:
        wp.atomic_add(head, 0, -1)
    row[w] = r
    for i in range(warmstart.shape[1]):
        warmstart[w, i] = 0.0
    overflow[w] = 0
    step[w] = 0
    total[w] = wp.float64(0.0)
    if r >= 0:
        fresh[w] = 1
        position[w] = start_position[r]
        for i in range(qpos.shape[1]):
            qpos[w, i] = start_qpos[r, i]
        for i in range(qvel.shape[1]):
            qvel[w, i] = start_qvel[r, i]
    else:
        for i in range(qpos.shape[1]):
            qpos[w, i] = qpos0[i]
        for i in range(qvel.shape[1]):
            qvel[w, i] = 0.0


@wp.kernel
def begin(
    fresh: wp.array(dtype=int),
    row: wp.array(dtype=int),
    start_observation: wp.array2d(dtype=float),
    # out
    observation: wp.array2d(dtype=float),
    moment1: wp.array2d(dtype=wp.float64),
    moment2: wp.array2d(dtype=wp.float64),
):
    w, j = wp.tid()
    if fresh[w] == 1:
        observation[w, j] = start_observation[row[w], j]
        moment1[w, j] = wp.float64(0.0)
        moment2[w, j] = wp.float64(0.0)


@wp.kernel
def scatter(
    rows: wp.array(dtype=int),
    values: wp.array2d(dtype=float),
    # out
    table: wp.array2d(dtype=float),
):
    i, j = wp.tid()
    table[rows[i], j] = values[i, j]


@wp.kernel
def scatter_ints(rows: wp.array(dtype=int), values: wp.array(dtype=int), table: wp.array(dtype=int)):
    i = wp.tid()
    table[rows[i]] = values[i]


class Worlds:
    """W simulations on a device, a table of episodes they take their work from, and a ring of finished ones."""

    def __init__(self, task: Task, count: int, rows: int, device: Any, deterministic: bool):
        self.task, self.count, self.rows, self.device = task, count, rows, device
        n, p = task.obs_dim, task.act_dim
        self.mjw = aligned_mjwarp()
        model = device_model(task)
        nq, nv = model.nq, model.nv
        with wp.ScopedDevice(device):
            self.model = self.mjw.put_model(model)
            self.model.opt.warn_overflow = False
            if deterministic:
                self.model.opt.deterministic = True
            self.data = self.mjw.make_data(model, nworld=count)
            ints = {"row": -1, "step": 0, "ended": 0, "fresh": 0}
            self.a: dict[str, Any] = {k: wp.full(count, v, dtype=int) for k, v in ints.items()}
            self.a |= {k: wp.zeros((count, n), dtype=float) for k in ("observation", "z")}
            self.a |= {k: wp.zeros((count, n), dtype=wp.float64) for k in ("moment1", "moment2")}
            self.a |= {"position": wp.zeros(count, dtype=float), "total": wp.zeros(count, dtype=wp.float64)}
            # the table of episodes
            self.a["weights"] = wp.zeros((rows, p, n), dtype=float)
            self.a |= {k: wp.zeros(rows, dtype=int) for k in ("whitening", "horizon", "queue")}
            self.a["keep"] = wp.full(rows, -1, dtype=int)
            self.a |= {"mean": wp.zeros((rows, n), dtype=float), "scale": wp.zeros((rows, n), dtype=float)}
            self.a |= {"start_qpos": wp.zeros((rows, nq), dtype=float), "start_qvel": wp.zeros((rows, nv), dtype=float)}
            self.a |= {"start_observation": wp.zeros((rows, n), dtype=float)}
            self.a |= {"start_position": wp.zeros((rows, 1), dtype=float)}
            # the ring of finished episodes
            self.a |= {k: wp.zeros(rows, dtype=int) for k in ("out_row", "out_status", "out_length")}
            self.a |= {"out_total": wp.zeros(rows, dtype=wp.float64), "out_last": wp.zeros((rows, n), dtype=float)}
            self.a |= {k: wp.zeros((rows, n), dtype=wp.float64) for k in ("out_mean", "out_m2")}
            self.a |= {k: wp.zeros(1, dtype=int) for k in ("head", "tail", "finished")}
            self.a |= {"qpos0": wp.array(model.qpos0, dtype=float)}
            self.a |= {"kept": wp.zeros((1, 1, n), dtype=float), "kept_rewards": wp.zeros((1, 1), dtype=float)}
            self._describe_task()
        self.fields = {name: self._flat(getattr(self.data, name)) for name in ("qpos", "qvel", *task.fields)}
        self._free = list(range(rows))
        self._free_keep: list[int] = []
        self._tail = self._seen = 0
        self._whitenings: dict[int, tuple[Whitening, int, int]] = {}  # by identity: the object, its row, its users
        self._users: dict[int, int] = {}
        self._kept: dict[int, int] = {}
        self._graph: Any = None

    def _describe_task(self) -> None:
        task = self.task
        first, stride, weights = task.position_weights
        self.position = (first, stride, wp.array(weights, dtype=float), float(weights.sum()))
        columns: tuple[list[Any], ...] = ([], [], [], [], [])
        for b in task.bounds:
            size = task.model.nq if b.field == "qpos" else task.model.nv
            for i in range(b.first, size if b.last is None else b.last):
                for column, value in zip(columns, (b.field == "qvel", i, b.low, b.high, b.closed), strict=True):
                    column.append(value)
        kinds = (int, int, float, float, int)
        self.bounds = [wp.array(np.array(c, dtype=k), dtype=k) for c, k in zip(columns, kinds, strict=True)]

    def _flat(self, array: Any) -> Any:
        """A field of the simulation as (W, numbers), sharing its memory."""
        width = int(np.prod(array.shape[1:])) * (wp.types.type_size(array.dtype) if array.dtype is not float else 1)
        strides = (array.strides[0], 4)
        return wp.array(ptr=array.ptr, shape=(self.count, width), strides=strides, dtype=float, device=self.device)

    # --- what the engine asks for

    @property
    def free(self) -> int:
        return len(self._free)

    def load(
        self,
        weights: FloatArray,
        whitenings: list[Whitening],
        starts: dict[str, NDArray[Any]],
        horizons: NDArray[np.int64],
        keep: NDArray[np.bool_],
    ) -> list[int]:
        """Put episodes into the table and the queue; returns their rows."""
        m = len(weights)
        rows = [self._free.pop() for _ in range(m)]
        self._reserve_keep(int(keep.sum()), int(horizons.max()))
        keep_rows = np.full(m, -1)
        for i in np.flatnonzero(keep):
            keep_rows[i] = self._kept[rows[i]] = self._free_keep.pop()
        table_rows = np.array([self._whitening_row(rows[i], w) for i, w in enumerate(whitenings)])
        with wp.ScopedDevice(self.device):
            ids = wp.array(np.array(rows), dtype=int)
            flat = self.a["weights"].reshape((self.rows, -1))
            self._scatter(ids, weights.reshape(m, -1), flat)
            for name in ("qpos", "qvel", "observation"):
                self._scatter(ids, starts[name], self.a[f"start_{name}"])
            self._scatter(ids, starts["position"][:, None], self.a["start_position"])
            for name, values in (("whitening", table_rows), ("horizon", horizons), ("keep", keep_rows)):
                wp.launch(scatter_ints, m, [ids, wp.array(values, dtype=int), self.a[name]])
            places = wp.array((self._tail + np.arange(m)) % self.rows, dtype=int)
            wp.launch(scatter_ints, m, [places, ids, self.a["queue"]])
            self._tail += m
            self.a["tail"].fill_(self._tail)
        return rows

    def advance(self, steps: int) -> None:
        """Take control steps in every world."""
        with wp.ScopedDevice(self.device):
            if not self.device.is_cuda:
                for _ in range(steps):
                    self._control_step()
                return
            if self._graph is None:
                self._control_step()  # builds the kernels, outside the capture
                with wp.ScopedCapture() as capture:
                    self._control_step()
                self._graph = capture.graph
            for _ in range(steps):
                wp.capture_launch(self._graph)

    def harvest(self) -> list[tuple[int, Outcome]]:
        """Episodes finished since the last call, with their rows, which are free again."""
        finished = int(self.a["finished"].numpy()[0])
        if finished == self._seen:
            return []
        places = np.arange(self._seen, finished) % self.rows
        self._seen = finished
        names = ("out_row", "out_status", "out_length", "out_total", "out_mean", "out_m2", "out_last")
        row, status, length, total, mean, m2, last = (self._read(self.a[name], places) for name in names)
        found = []
        for i in np.argsort(row, kind="stable"):
            r, T = int(row[i]), int(length[i])
            trajectory = None
            if r in self._kept:
                slot = self._kept.pop(r)
                seen = self.a["kept"][slot, :T].numpy().astype(np.float64)
                rewards = self.a["kept_rewards"][slot, :T].numpy().astype(np.float64)
                trajectory = Trajectory(seen, rewards, int(status[i]) == 1, last[i].astype(np.float64))
                self._free_keep.append(slot)
            found.append((r, Outcome(int(status[i]), T, float(total[i]), mean[i], m2[i], trajectory)))
            self._free.append(r)
            self._release_whitening(r)
        return found

    def clear(self) -> None:
        """Forget every episode."""
        self._free = list(range(self.rows))
        self._free_keep = list(range(self.a["kept"].shape[0])) if self.a["kept"].shape[1] > 1 else []
        self._kept.clear()
        self._whitenings.clear()
        self._users.clear()
        self._tail = self._seen = 0
        for name in ("head", "tail", "finished"):
            self.a[name].zero_()
        self.a["row"].fill_(-1)

    # --- the control step

    def _control_step(self) -> None:
        a, d, task, W = self.a, self.data, self.task, self.count
        n, p = task.obs_dim, task.act_dim
        seeing = [a[k] for k in ("row", "step", "whitening", "mean", "scale", "keep", "observation")]
        wp.launch(see, (W, n), seeing, outputs=[a["z"], a["moment1"], a["moment2"], a["kept"]])
        wp.launch(act, (W, p), [a["row"], a["weights"], a["z"]], outputs=[d.ctrl])
        for _ in range(task.frame_skip):
            self.mjw.step(self.model, d)
        offset = 0
        for piece in task.pieces:
            field = self.fields[piece.field]
            width = field.shape[1] - piece.skip
            clip = min(piece.clip, 3.0e38)
            wp.launch(observe, (W, width), [field, piece.skip, clip, offset], outputs=[a["observation"]])
            offset += width
        wp.launch(
            judge,
            W,
            [
                *[a[k] for k in ("row", "horizon", "keep")],
                *[d.ctrl, d.qpos, d.qvel, d.overflow, self.fields[task.position]],
                *[*self.position, *self.bounds],
                *[task.dt, task.forward_weight, task.control_weight, task.survival_bonus, self.rows],
                *[a[k] for k in ("step", "position", "total", "finished")],
            ],
            outputs=[a[k] for k in ("ended", "kept_rewards", "out_row", "out_status", "out_length", "out_total")],
        )
        flushing = [a[k] for k in ("ended", "moment1", "moment2", "observation")]
        wp.launch(flush, (W, n), [*flushing, self.rows], outputs=[a[k] for k in ("out_mean", "out_m2", "out_last")])
        starting = [a["start_qpos"], a["start_qvel"], a["start_position"].flatten(), a["qpos0"], a["head"], a["row"]]
        resetting = [a["fresh"], a["step"], a["position"], a["total"], d.qpos, d.qvel, d.qacc_warmstart, d.overflow]
        wp.launch(refill, W, [a["ended"], a["queue"], a["tail"], self.rows, *starting], outputs=resetting)
        beginning = [a["fresh"], a["row"], a["start_observation"]]
        wp.launch(begin, (W, n), beginning, outputs=[a["observation"], a["moment1"], a["moment2"]])

    # --- small things

    def _scatter(self, ids: Any, values: NDArray[Any], table: Any) -> None:
        array = wp.array(np.ascontiguousarray(values, dtype=np.float32), dtype=float)
        wp.launch(scatter, array.shape, [ids, array], outputs=[table])

    def _read(self, array: Any, places: NDArray[np.int64]) -> NDArray[Any]:
        """Entries of a ring that are side by side, but for the wrap-around."""
        first, last = int(places[0]), int(places[-1])
        if last >= first:
            out: NDArray[Any] = array[first : last + 1].numpy()
            return out
        return np.concatenate([array[first:].numpy(), array[: last + 1].numpy()])

    def _whitening_row(self, row: int, whitening: Whitening) -> int:
        """The row of a frozen normaliser, which the episodes of a request share."""
        key = id(whitening)
        if key not in self._whitenings:
            taken = {place for _, place, _ in self._whitenings.values()}
            place = next(i for i in range(self.rows) if i not in taken)
            with wp.ScopedDevice(self.device):
                ids = wp.array([place], dtype=int)
                self._scatter(ids, whitening.mean[None], self.a["mean"])
                self._scatter(ids, whitening.scale[None], self.a["scale"])
            self._whitenings[key] = (whitening, place, 0)
        kept, place, users = self._whitenings[key]
        self._whitenings[key] = (kept, place, users + 1)
        self._users[row] = key
        return place

    def _release_whitening(self, row: int) -> None:
        key = self._users.pop(row)
        whitening, place, users = self._whitenings[key]
        if users == 1:
            del self._whitenings[key]
        else:
            self._whitenings[key] = (whitening, place, users - 1)

    def _reserve_keep(self, wanted: int, horizon: int) -> None:
        """Room for the transitions of kept episodes; the graph is captured anew when the buffers move."""
        slots, steps = self.a["kept"].shape[:2]
        if len(self._free_keep) >= wanted and steps >= horizon:
            return
        n = self.task.obs_dim
        have = slots if steps > 1 else 0
        more, steps = max(have + wanted - len(self._free_keep), have), max(steps, horizon)
        with wp.ScopedDevice(self.device):
            kept, rewards = wp.zeros((more, steps, n), dtype=float), wp.zeros((more, steps), dtype=float)
            if have:
                old = self.a["kept"], self.a["kept_rewards"]
                kept.assign(np.pad(old[0].numpy(), ((0, more - have), (0, steps - old[0].shape[1]), (0, 0))))
                rewards.assign(np.pad(old[1].numpy(), ((0, more - have), (0, steps - old[1].shape[1]))))
        self.a["kept"], self.a["kept_rewards"] = kept, rewards
        self._free_keep += list(range(have, more))
        self._graph = None
