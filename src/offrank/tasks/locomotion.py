"""The six locomotion tasks of the paper, with the semantics of Gym's `-v3` on today's MuJoCo.

A task is data and a few array functions over E simulations at once; every engine runs the same functions. What v3 means
where later versions differ:

- the survival bonus is paid on the terminal step too;
- actions are passed as they are: MuJoCo clamps what the actuators get, the control cost is charged on the raw action;
- contact forces are zero (v3's bindings never computed them), so Ant and Humanoid carry 84 zeros and no contact cost;
- derived fields are one substep older than the state: Ant's and Humanoid's velocity comes from those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import mujoco
import numpy as np
from numpy.random import Generator

from offrank.arrays import BoolArray, FloatArray
from offrank.noise import Purpose, philox
from offrank.tasks.models import load_model

Fields = Mapping[str, FloatArray]  # MjData fields of E simulations: qpos (E, nq), qvel (E, nv), xpos (E, nbody, 3), ...


@dataclass(frozen=True)
class Task:
    """One task. Functions take the fields of E simulations after a control step."""

    name: str
    xml: str
    sha256: str
    frame_skip: int  # simulation substeps a control step
    obs_dim: int
    observe: Callable[[Fields], FloatArray]  # -> (E, obs_dim)
    position: Callable[[mujoco.MjModel, Fields], FloatArray]  # -> (E,), the x whose growth is rewarded
    healthy: Callable[[Fields], BoolArray] | None  # -> (E,); None: never ends early
    forward_weight: float
    control_weight: float
    survival_bonus: float
    start_noise: float  # scale of the start state's noise
    normal_velocities: bool  # start velocities are normal rather than uniform
    derived: tuple[str, ...] = ()  # fields beside qpos and qvel that the functions read
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
        """Seconds a control step."""
        return float(self.model.opt.timestep * self.frame_skip)

    def start(self, seed: int) -> tuple[FloatArray, FloatArray]:
        """Start state (qpos, qvel) of the episode with this seed, the same for every engine."""
        rng = Generator(philox(seed, Purpose.START_STATE))
        scale, model = self.start_noise, self.model
        qpos = model.qpos0 + rng.uniform(-scale, scale, model.nq)
        if self.normal_velocities:
            return qpos, scale * rng.standard_normal(model.nv)
        return qpos, rng.uniform(-scale, scale, model.nv)

    def reward(self, before: FloatArray, after: FloatArray, actions: FloatArray) -> FloatArray:
        """Reward (E,) of a control step, from the positions around it and the raw actions (E, p)."""
        velocity = (after - before) / self.dt
        cost = self.control_weight * np.square(actions).sum(axis=1)
        reward: FloatArray = self.forward_weight * velocity + self.survival_bonus - cost
        return reward


def _root_x(model: mujoco.MjModel, s: Fields) -> FloatArray:
    x: FloatArray = s["qpos"][:, 0].copy()
    return x


def _torso_x(model: mujoco.MjModel, s: Fields) -> FloatArray:
    x: FloatArray = s["xpos"][:, 1, 0].copy()  # body 1 is the torso
    return x


def _mass_centre_x(model: mujoco.MjModel, s: Fields) -> FloatArray:
    # one product a simulation, so that the bits do not depend on how many there are
    x: FloatArray = np.matmul(s["xipos"][:, None, :, 0], model.body_mass[:, None])[:, 0, 0] / model.body_mass.sum()
    return x


def _positions_velocities(skip: int, clip: float | None = None) -> Callable[[Fields], FloatArray]:
    def observe(s: Fields) -> FloatArray:
        qvel = s["qvel"] if clip is None else np.clip(s["qvel"], -clip, clip)
        return np.concatenate([s["qpos"][:, skip:], qvel], axis=1)

    return observe


def _ant_observation(s: Fields) -> FloatArray:
    contact_forces = np.zeros((len(s["qpos"]), 84))
    return np.concatenate([s["qpos"][:, 2:], s["qvel"], contact_forces], axis=1)


def _humanoid_observation(s: Fields) -> FloatArray:
    e = len(s["qpos"])
    contact_forces = np.zeros((e, 84))
    parts = (s["qpos"][:, 2:], s["qvel"], s["cinert"].reshape(e, -1), s["cvel"].reshape(e, -1))
    return np.concatenate([*parts, s["qfrc_actuator"], contact_forces], axis=1)


def _hopper_healthy(s: Fields) -> BoolArray:
    qpos, qvel = s["qpos"], s["qvel"]
    bounded = (np.abs(qpos[:, 2:]) < 100).all(axis=1) & (np.abs(qvel) < 100).all(axis=1)
    healthy: BoolArray = bounded & (qpos[:, 1] > 0.7) & (np.abs(qpos[:, 2]) < 0.2)
    return healthy


def _walker_healthy(s: Fields) -> BoolArray:
    z, angle = s["qpos"][:, 1], s["qpos"][:, 2]
    healthy: BoolArray = (z > 0.8) & (z < 2.0) & (np.abs(angle) < 1.0)
    return healthy


def _ant_healthy(s: Fields) -> BoolArray:
    z = s["qpos"][:, 2]
    finite = np.isfinite(s["qpos"]).all(axis=1) & np.isfinite(s["qvel"]).all(axis=1)
    healthy: BoolArray = finite & (z >= 0.2) & (z <= 1.0)
    return healthy


def _humanoid_healthy(s: Fields) -> BoolArray:
    z = s["qpos"][:, 2]
    healthy: BoolArray = (z > 1.0) & (z < 2.0)
    return healthy


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="Swimmer-v3",
            xml="swimmer.xml",
            sha256="25b0d46bf5522920fea6a579353aee39d391ad9e2a0574b53f83704c11b21b12",
            frame_skip=4,
            obs_dim=8,
            observe=_positions_velocities(skip=2),
            position=_root_x,
            healthy=None,
            forward_weight=1.0,
            control_weight=1e-4,
            survival_bonus=0.0,
            start_noise=0.1,
            normal_velocities=False,
            camera={"distance": 4.0},
        ),
        Task(
            name="Hopper-v3",
            xml="hopper.xml",
            sha256="3ce93a055ffdcd83c0c701d2400768e40d2cbb9532f3c4ae33377c27f8b39f9e",
            frame_skip=4,
            obs_dim=11,
            observe=_positions_velocities(skip=1, clip=10.0),
            position=_root_x,
            healthy=_hopper_healthy,
            forward_weight=1.0,
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
            observe=_positions_velocities(skip=1),
            position=_root_x,
            healthy=None,
            forward_weight=1.0,
            control_weight=0.1,
            survival_bonus=0.0,
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
            observe=_positions_velocities(skip=1, clip=10.0),
            position=_root_x,
            healthy=_walker_healthy,
            forward_weight=1.0,
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
            observe=_ant_observation,
            position=_torso_x,
            healthy=_ant_healthy,
            forward_weight=1.0,
            control_weight=0.5,
            survival_bonus=1.0,
            start_noise=0.1,
            normal_velocities=True,
            derived=("xpos",),
            camera={"trackbodyid": 1, "distance": 4.0},
        ),
        Task(
            name="Humanoid-v3",
            xml="humanoid.xml",
            sha256="85816f372c826d2094b4a598918233bd9c5843b2439119eece2733bdc2e0d073",
            frame_skip=5,
            obs_dim=376,
            observe=_humanoid_observation,
            position=_mass_centre_x,
            healthy=_humanoid_healthy,
            forward_weight=1.25,
            control_weight=0.1,
            survival_bonus=5.0,
            start_noise=1e-2,
            normal_velocities=False,
            derived=("xipos", "cinert", "cvel", "qfrc_actuator"),
            camera={"trackbodyid": 1, "distance": 4.0, "elevation": -20.0},
        ),
    )
}
