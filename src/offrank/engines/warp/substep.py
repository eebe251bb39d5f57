"""A substep of the physics for the models of the six tasks, with as short a chain of dependent kernels as possible.

With few worlds the time of a substep is that of its longest chain of kernels. mujoco_warp's substep has about 75 in a
row, and ten more per iteration of its solver. Here independent chains run in parallel (contacts, the inertia matrix,
actuators with passive forces, and velocities), and forces, solver and integrator are two kernels (`newton.py`,
`integrate.py`). All other kernels are mujoco_warp's. In a captured graph, streams become branches.
"""

from __future__ import annotations

from typing import Any

import warp as wp
from mujoco_warp import IntegratorType
from mujoco_warp._src import collision_driver, constraint, forward, passive, smooth

from offrank.engines.warp.integrate import AHEAD, WEIGHTS, euler, stage
from offrank.engines.warp.newton import Newton

CONTACTS, INERTIA, FORCES = range(3)
_streams: dict[tuple[str, int], Any] = {}  # by device and branch


class Branch:
    """A parallel stream. Work launched inside the `with` block runs after everything launched before it on either
    stream, and concurrently with what is launched after it, until `join`. Without a GPU it runs immediately."""

    def __init__(self, which: int):
        device = wp.get_device()
        self._scope: Any = None
        if device.is_cuda:
            if (device.alias, which) not in _streams:
                _streams[device.alias, which] = wp.Stream(device)
            self._stream, self._main = _streams[device.alias, which], wp.get_stream()
            self._scope = wp.ScopedStream(self._stream, sync_enter=False)

    def __enter__(self) -> Branch:
        if self._scope:
            self._stream.wait_event(self._main.record_event())
            self._scope.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._scope:
            self._done = self._stream.record_event()
            self._scope.__exit__(*error)

    def join(self) -> None:
        """Make everything launched from here on wait for this branch."""
        if self._scope:
            self._main.wait_event(self._done)


class Substep:
    """Advances every world by a substep.

    Args:
        m: model of mujoco_warp, without sensors, with the Euler or Runge-Kutta integrator.
        d: its data.
    """

    def __init__(self, m: Any, d: Any):
        self.m, self.d = m, d
        self.newton = Newton(m, d)
        joints = [m.opt.timestep, m.jnt_type, m.jnt_qposadr, m.jnt_dofadr]
        self.inputs = [*joints, d.nefc, d.njmax, d.ncollision, d.nacon, d.naconmax, d.qacc]
        self.stages = [wp.empty_like(a) for a in (d.qpos, d.qvel, d.qvel, d.qvel, d.qacc)]

    def __call__(self) -> None:
        m, d = self.m, self.d
        shape, state = (d.nworld, m.njnt), [d.overflow, d.qpos, d.qvel]
        if m.opt.integrator == IntegratorType.EULER:
            self._forward()
            wp.launch(euler, shape, [*self.inputs, self.newton.advancing, *state], outputs=[d.qacc_warmstart])
            return
        for which, (weight, behind, ahead) in enumerate(zip(WEIGHTS, (0.0, *AHEAD), (*AHEAD, 0.0), strict=True)):
            self._forward()
            inputs = [which, weight, behind, ahead, *self.inputs, *state, *self.stages]
            wp.launch(stage, shape, inputs, outputs=[d.qacc_warmstart])

    def _forward(self) -> None:
        """Accelerations from positions, velocities and controls."""
        m, d = self.m, self.d
        smooth.kinematics(m, d)
        with Branch(CONTACTS):
            collision_driver.collision(m, d)
        smooth.com_pos(m, d)
        smooth.tendon(m, d)
        with Branch(CONTACTS) as contacts:
            constraint.make_constraint(m, d)
        with Branch(INERTIA) as inertia:
            smooth.crb(m, d)
            smooth.tendon_armature(m, d)
        with Branch(FORCES):
            smooth.transmission(m, d)
            moments = [d.moment_rownnz, d.moment_rowadr, d.moment_colind, d.actuator_moment]
            wp.launch(
                forward._actuator_velocity, (d.nworld, m.nactuator), [d.qvel, *moments], outputs=[d.actuator_velocity]
            )
            tendons = [m.ten_J_rownnz, m.ten_J_rowadr, m.ten_J_colind, d.qvel, d.ten_J]
            wp.launch(forward._tendon_velocity, (d.nworld, m.ntendon), tendons, outputs=[d.ten_velocity])
        smooth.com_vel(m, d)
        with Branch(FORCES) as forces:
            passive.passive(m, d)
            forward.fwd_actuation(m, d)
        smooth.rne(m, d)
        inertia.join()
        smooth.tendon_bias(m, d, d.qfrc_bias)
        forces.join()
        contacts.join()
        self.newton()
