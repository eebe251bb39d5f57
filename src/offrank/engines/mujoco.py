"""The native engine: episodes of the six tasks on `mujoco.batch`, many at once on all cores.

A fixed number of slots each hold one running episode. All slots take a control step together; a slot whose episode
ended takes the next one that waits, of whichever request, so short episodes do not hold up the others and an ended
episode costs nothing. A slot's arithmetic never looks at its neighbours: results do not depend on threads, slots or
company.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any

import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from offrank.arithmetic import act, one_blas_thread
from offrank.arrays import BoolArray, FloatArray, IntArray
from offrank.engines.base import Engine, EnvInfo
from offrank.errors import EpisodeError
from offrank.rollouts import Episode, Request, Trajectory
from offrank.tasks.locomotion import Fields, Task
from offrank.tasks.models import DIVERGED, quiet_mujoco

SLOT_MEMORY = 64 * 2**20  # bytes of observations held for running episodes
MAX_SLOTS = 128
MIN_SLOTS = 8


class MujocoEngine(Engine):
    """Runs episodes of one task on `threads` threads (0: all CPUs)."""

    name = "mujoco"

    def __init__(self, task: Task, threads: int = 0, slots: int | None = None):
        super().__init__()
        self.task = task
        self.info = EnvInfo(task.obs_dim, task.act_dim, task.horizon)
        self._threads = threads or os.cpu_count() or 1
        self._max_slots = slots
        self._waiting: deque[tuple[int, int]] = deque()  # (ticket, episode)
        self._slots: _Slots | None = None

    def close(self) -> None:
        self._abandon()

    def _abandon(self) -> None:
        self._waiting.clear()
        self._slots = None

    def _enqueue(self, ticket: int, request: Request) -> None:
        self._waiting.extend((ticket, i) for i in range(len(request)))
        wanted = min(self._limit(request.horizon), len(self._waiting))
        slots = self._slots
        if slots is None or (not slots.busy.any() and (wanted > slots.count or request.horizon > slots.horizon)):
            self._slots = _Slots(self.task, wanted, request.horizon, self._threads)

    def _limit(self, horizon: int) -> int:
        if self._max_slots is not None:
            return self._max_slots
        bytes_a_slot = horizon * self.task.obs_dim * 8
        return int(np.clip(SLOT_MEMORY // bytes_a_slot, MIN_SLOTS, MAX_SLOTS))

    def _work(self, timeout: float | None) -> None:
        end = None if timeout is None else time.perf_counter() + timeout
        with one_blas_thread(), quiet_mujoco():
            while not self._done:
                slots = self._grown_slots()
                self._fill(slots)
                ended = slots.step()
                for slot in np.flatnonzero(ended):
                    ticket, index, episode = slots.harvest(int(slot))
                    self._finish(ticket, index, episode)
                if end is not None and time.perf_counter() > end:
                    return

    def _grown_slots(self) -> _Slots:
        """The slots; replaced while all are free if a waiting episode is longer than they hold."""
        assert self._slots is not None
        if self._waiting and not self._slots.busy.any():
            horizon = max(self._open[ticket][0].horizon for ticket in {ticket for ticket, _ in self._waiting})
            if horizon > self._slots.horizon:
                count = min(self._limit(horizon), len(self._waiting))
                self._slots = _Slots(self.task, count, horizon, self._threads)
        return self._slots

    def _fill(self, slots: _Slots) -> None:
        """Give waiting episodes to the free slots."""
        if not self._waiting or slots.busy.all():
            return
        for slot in np.flatnonzero(~slots.busy):
            if not self._waiting:
                break
            ticket, index = self._waiting[0]
            if self._open[ticket][0].horizon > slots.horizon:
                break  # waits until the slots are free to be replaced
            self._waiting.popleft()
            slots.load(int(slot), ticket, index, self._open[ticket][0])
        slots.begin()


class _Slots:
    """The running episodes: their simulations, policies and what they have seen so far."""

    def __init__(self, task: Task, count: int, horizon: int, threads: int):
        n, p = task.obs_dim, task.act_dim
        self.task, self.count, self.horizon = task, count, horizon
        self.batch = Batch(task.model, count, min(threads, count))
        self.fields = {name: self.batch.bind(name) for name in ("qpos", "qvel", *task.derived)}
        self.ctrl = self.batch.bind("ctrl")
        self.diverged = self.batch.warning[:, DIVERGED, 1]
        self.busy: BoolArray = np.zeros(count, dtype=bool)
        self.fresh: list[int] = []  # loaded, not yet begun
        self.owner: list[tuple[int, int, Request] | None] = [None] * count
        self.weights: FloatArray = np.zeros((count, p, n))
        self.mean: FloatArray = np.zeros((count, n))
        self.scale: FloatArray = np.zeros((count, n))
        self.limit: IntArray = np.zeros(count, dtype=np.int64)  # horizon of the slot's episode
        self.t: IntArray = np.zeros(count, dtype=np.int64)
        self.observation: FloatArray = np.zeros((count, n))
        self.position: FloatArray = np.zeros(count)
        self.seen: FloatArray = np.empty((count, horizon, n))
        self.rewards: FloatArray = np.empty((count, horizon))
        self.terminated: BoolArray = np.zeros(count, dtype=bool)
        self._select()

    def load(self, slot: int, ticket: int, index: int, request: Request) -> None:
        """Put an episode into a free slot."""
        self.owner[slot] = (ticket, index, request)
        self.weights[slot] = request.weights(index)
        self.mean[slot], self.scale[slot] = request.whitening.mean, request.whitening.scale
        self.limit[slot], self.t[slot] = request.horizon, 0
        self.fresh.append(slot)

    def begin(self) -> None:
        """Start the episodes just loaded."""
        ids = np.array(sorted(self.fresh), dtype=np.int32)
        self.fresh.clear()
        self.batch.reset(ids, stage=0)
        for slot in ids:
            owner = self.owner[slot]
            assert owner is not None
            _, index, request = owner
            self.fields["qpos"][slot], self.fields["qvel"][slot] = self.task.start(int(request.seeds[index]))
        self.batch.forward(ids)
        state = self._state(ids)
        self.observation[ids] = self.task.observe(state)
        self.position[ids] = self.task.position(self.task.model, state)
        self.busy[ids] = True
        self._select()

    def step(self) -> BoolArray:
        """One control step of every running episode. Returns which of the slots ended, (count,)."""
        sel, t = self.sel, self.t[self.sel]
        observation, before = self.observation[sel], self.position[sel]
        actions = act(self.running_weights, (observation - self.running_mean) * self.running_scale)
        self.ctrl[sel] = actions
        self.batch.step(self.ids, nstep=self.task.frame_skip)
        state = self._state(sel)
        after = self.task.position(self.task.model, state)
        reward = self.task.reward(before, after, actions)
        self.seen[self.rows, t] = observation
        self.rewards[self.rows, t] = reward
        observation = self.task.observe(state)
        if self.diverged.any() or not (np.isfinite(reward).all() and np.isfinite(observation).all()):
            self._blame(reward, observation)
        self.observation[sel], self.position[sel] = observation, after
        self.t[sel] += 1
        over = self.t[sel] >= self.limit[sel]
        if self.task.healthy is not None:
            fallen = ~self.task.healthy(state)
            self.terminated[sel] = fallen
            over |= fallen
        ended = np.zeros(self.count, dtype=bool)
        ended[sel] = over
        return ended

    def harvest(self, slot: int) -> tuple[int, int, Episode]:
        """Take the outcome out of a slot whose episode ended, and free it."""
        owner = self.owner[slot]
        assert owner is not None
        ticket, index, request = owner
        length = int(self.t[slot])
        trajectory = Trajectory(
            observations=self.seen[slot, :length],
            rewards=self.rewards[slot, :length],
            terminated=bool(self.terminated[slot]),
            last_observation=self.observation[slot],
        )
        self.owner[slot] = None
        self.busy[slot] = False
        self._select()
        return ticket, index, Episode.of(trajectory, request.keep)

    def _select(self) -> None:
        """Note which slots run, so that a step need not work it out."""
        everyone = bool(self.busy.all())
        self.rows = np.flatnonzero(self.busy)
        self.ids = None if everyone else self.rows.astype(np.int32)
        self.sel: slice | IntArray = slice(None) if everyone else self.rows
        self.running_weights = self.weights[self.sel]
        self.running_mean, self.running_scale = self.mean[self.sel], self.scale[self.sel]

    def _state(self, sel: slice | NDArray[Any]) -> Fields:
        return {name: values[sel] for name, values in self.fields.items()}

    def _blame(self, reward: FloatArray, observation: FloatArray) -> None:
        """Name the first episode, in slot order, that cannot be trusted."""
        for row, slot in enumerate(self.rows):
            what = None
            if self.diverged[slot].any():
                what = "the simulation diverged"
            elif not np.isfinite(reward[row]):
                what = f"non-finite reward ({reward[row]})"
            elif not np.isfinite(observation[row]).all():
                what = "non-finite observation"
            owner = self.owner[slot]
            if what is not None and owner is not None:
                _, index, request = owner
                raise EpisodeError(what, int(request.seeds[index]), int(self.t[slot]))
