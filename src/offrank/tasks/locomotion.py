"""The six locomotion tasks of the paper, with the semantics of Gym's `-v3` on today's MuJoCo.

A task is data: the fields of the observation, the position whose velocity is rewarded, and the bounds outside of which
an episode ends. Every engine reads the same data. The functions here, over the fields of E simulations, define its
meaning. v3 differs from later versions as follows:

- the survival bonus is paid on the terminal step too;
- actions are not clipped: MuJoCo clamps the controls, but the control cost is that of the raw action;
- contact forces are zero (v3's bindings never computed them), so Ant and Humanoid have 84 zeros and no contact cost;
- derived fields are one substep older than the state; the velocities of Ant and Humanoid are computed from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any

import mujoco
import numpy as np
from numpy.random import Generator

from offrank.core.arrays import BoolArray, FloatArray
from offrank.core.noise import Purpose, philox
from offrank.core.space import Space
from offrank.tasks.models import load_model

Fields = Mapping[str, FloatArray]  # MjData fields of E simulations: qpos (E, nq), qvel (E, nv), xpos (E, nbody, 3), ...


@dataclass(frozen=True)
class Piece:
    """A part of the observation: a flattened field without its first `skip` numbers, clipped to +-clip."""

    field: str
    skip: int = 0
    clip: float = inf


@dataclass(frozen=True)
class Bounds:
    """The episode ends when one of the numbers [first, last) of a field leaves (low, high); [low, high] if closed."""

    field: str
    first: int
    last: int | None  # None: to the end
    low: float
    high: float
    closed: bool = False


@dataclass(frozen=True)
class Task:
    """One task."""

    name: str
    xml: str
    sha256: str
    frame_skip: int  # simulation substeps per control step
    obs_dim: int
    pieces: tuple[Piece, ...]  # of the observation, in order
    bounds: tuple[Bounds, ...]  # empty: the episode never ends early
    control_weight: float
    start_noise: float  # scale of the noise of the start state
    normal_velocities: bool  # start velocities are normal rather than uniform
    zeros: int = 0  # at the end of the observation, in place of the contact forces
    position: str = "qpos"  # the field whose x velocity is rewarded: qpos, xpos (torso) or xipos (centre of mass)
    forward_weight: float = 1.0
    survival_bonus: float = 0.0
    horizon: int = 1000
    camera: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def model(self) -> mujoco.MjModel:
        return load_model(self.xml, self.sha256)

    @property
    def act_dim(self) -> int:
        return int(self.model.nu)

    @cached_property
    def dt(self) -> float:
        """Seconds per control step."""
        return float(self.model.opt.timestep * self.frame_skip)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields that the functions below read."""
        used = [*(p.field for p in self.pieces), *(b.field for b in self.bounds), self.position]
        return tuple(dict.fromkeys(used))

    def start(self, seed: int) -> tuple[FloatArray, FloatArray]:
        """Start state (qpos, qvel) of the episode with a seed, the same in every engine."""
        rng = Generator(philox(seed, Purpose.START_STATE))
        scale, model = self.start_noise, self.model
        qpos = model.qpos0 + rng.uniform(-scale, scale, model.nq)
        if self.normal_velocities:
            return qpos, scale * rng.standard_normal(model.nv)
        return qpos, rng.uniform(-scale, scale, model.nv)

    def observe(self, s: Fields) -> FloatArray:
        """Observations (E, obs_dim)."""
        e = len(s["qpos"])
        parts = [np.clip(s[p.field].reshape(e, -1)[:, p.skip :], -p.clip, p.clip) for p in self.pieces]
        return np.concatenate([*parts, np.zeros((e, self.zeros))], axis=1)

    @cached_property
    def action_box(self) -> tuple[FloatArray, FloatArray]:
        """Bounds (p,) of the controls, which MuJoCo enforces anyway; the control cost is of the action as given."""
        low, high = (np.ascontiguousarray(bound) for bound in self.model.actuator_ctrlrange.T)
        return low, high

    def space(self, clip_actions: bool) -> Space:
        """Of the task, with or without bounds of the actions."""
        low, high = self.action_box if clip_actions else (None, None)
        return Space(self.obs_dim, self.act_dim, self.horizon, low=low, high=high)

    @cached_property
    def position_weights(self) -> tuple[int, int, FloatArray]:
        """(first, stride, weights): the position is the weighted mean of these numbers of its flattened field."""
        if self.position == "xipos":
            return 0, 3, np.array(self.model.body_mass)
        return {"qpos": 0, "xpos": 3}[self.position], 1, np.ones(1)  # body 1 is the torso

    def positions(self, s: Fields) -> FloatArray:
        """The x positions (E,) whose velocity is rewarded."""
        first, stride, weights = self.position_weights
        values = s[self.position].reshape(len(s["qpos"]), -1)[:, first::stride][:, : len(weights)]
        x: FloatArray = np.matmul(values[:, None, :], weights[:, None])[:, 0, 0] / weights.sum()
        return x

    def healthy(self, s: Fields) -> BoolArray:
        """Whether the states are within all bounds, (E,)."""
        good = np.ones(len(s["qpos"]), dtype=bool)
        for b in self.bounds:
            x = s[b.field][:, b.first : b.last]
            inside = (b.low <= x) & (x <= b.high) if b.closed else (b.low < x) & (x < b.high)
            good &= inside.all(axis=1)
        return good

    def reward(self, before: FloatArray, after: FloatArray, actions: FloatArray) -> FloatArray:
        """Reward (E,) of a control step, from the positions (E,) before and after it and the raw actions (E, p)."""
        velocity = (after - before) / self.dt
        cost = self.control_weight * np.square(actions).sum(axis=1)
        reward: FloatArray = self.forward_weight * velocity + self.survival_bonus - cost
        return reward


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="Swimmer-v3",
            xml="swimmer.xml",
            sha256="25b0d46bf5522920fea6a579353aee39d391ad9e2a0574b53f83704c11b21b12",
            frame_skip=4,
            obs_dim=8,
            pieces=(Piece("qpos", skip=2), Piece("qvel")),
            bounds=(),
            control_weight=1e-4,
            start_noise=0.1,
            normal_velocities=False,
            camera={"trackbodyid": 1, "distance": 4.0},
        ),
        Task(
            name="Hopper-v3",
            xml="hopper.xml",
            sha256="3ce93a055ffdcd83c0c701d2400768e40d2cbb9532f3c4ae33377c27f8b39f9e",
            frame_skip=4,
            obs_dim=11,
            pieces=(Piece("qpos", skip=1), Piece("qvel", clip=10.0)),
            bounds=(
                Bounds("qpos", 1, 2, 0.7, inf),
                Bounds("qpos", 2, 3, -0.2, 0.2),
                Bounds("qpos", 2, None, -100.0, 100.0),
                Bounds("qvel", 0, None, -100.0, 100.0),
            ),
            control_weight=1e-3,
            survival_bonus=1.0,
            start_noise=5e-3,
            normal_velocities=False,
            camera={"trackbodyid": 2, "distance": 3.0, "elevation": -20.0},
        ),
        Task(
            name="HalfCheetah-v3",
            xml="half_cheetah.xml",
            sha256="11797a5d69e8ac955e89ca6fdd3a0087f1c990094fda401ac51420de1b6c5494",
            frame_skip=5,
            obs_dim=17,
            pieces=(Piece("qpos", skip=1), Piece("qvel")),
            bounds=(),
            control_weight=0.1,
            start_noise=0.1,
            normal_velocities=True,
            camera={"trackbodyid": 1, "distance": 4.0},
        ),
        Task(
            name="Walker2d-v3",
            xml="walker2d.xml",
            sha256="ac13373c7ac9003a5311c4704b314ed11149b3dd7600bbc02770487300f9ad2d",
            frame_skip=4,
            obs_dim=17,
            pieces=(Piece("qpos", skip=1), Piece("qvel", clip=10.0)),
            bounds=(Bounds("qpos", 1, 2, 0.8, 2.0), Bounds("qpos", 2, 3, -1.0, 1.0)),
            control_weight=1e-3,
            survival_bonus=1.0,
            start_noise=5e-3,
            normal_velocities=False,
            camera={"trackbodyid": 2, "distance": 4.0, "elevation": -20.0},
        ),
        Task(
            name="Ant-v3",
            xml="ant.xml",
            sha256="cd5f83ef0ea35b0969e65d360c5bacd5b74ccaef6b27e4433b5168c605e3e2be",
            frame_skip=5,
            obs_dim=111,
            pieces=(Piece("qpos", skip=2), Piece("qvel")),
            zeros=84,
            position="xpos",
            bounds=(
                Bounds("qpos", 2, 3, 0.2, 1.0, closed=True),
                Bounds("qpos", 0, None, -inf, inf),
                Bounds("qvel", 0, None, -inf, inf),
            ),
            control_weight=0.5,
            survival_bonus=1.0,
            start_noise=0.1,
            normal_velocities=True,
            camera={"trackbodyid": 1, "distance": 4.0},
        ),
        Task(
            name="Humanoid-v3",
            xml="humanoid.xml",
            sha256="85816f372c826d2094b4a598918233bd9c5843b2439119eece2733bdc2e0d073",
            frame_skip=5,
            obs_dim=376,
            pieces=(Piece("qpos", skip=2), Piece("qvel"), Piece("cinert"), Piece("cvel"), Piece("qfrc_actuator")),
            zeros=84,
            position="xipos",
            bounds=(Bounds("qpos", 2, 3, 1.0, 2.0),),
            forward_weight=1.25,
            control_weight=0.1,
            survival_bonus=5.0,
            start_noise=1e-2,
            normal_velocities=False,
            camera={"trackbodyid": 1, "distance": 4.0, "elevation": -20.0},
        ),
    )
}
