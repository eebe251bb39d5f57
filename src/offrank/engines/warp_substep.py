"""A substep of mujoco_warp for models without sensors, the independent parts of its dynamics side by side.

With few worlds a step takes as long as its longest chain of kernels, so the chains are laid beside each other:
contacts, the inertia matrix, actuators with passive forces, and velocities. The kernels and what each computes are
mujoco_warp's; inside a captured graph the streams become branches of it.
"""

from __future__ import annotations

from typing import Any

import warp as wp
from mujoco_warp._src import collision_driver, constraint, forward, passive, smooth, solver

CONTACTS, INERTIA, FORCES = range(3)
_streams: dict[tuple[str, int], Any] = {}  # by device and branch


class Branch:
    """Work launched inside the `with` block comes after all that was launched before it on either stream, and runs
    beside what is launched next, until `join`. Without a GPU it runs at once."""

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
        """Let what is launched from here on come after this branch."""
        if self._scope:
            self._main.wait_event(self._done)


def substep(m: Any, d: Any) -> None:
    """Advance every world by a substep of the physics."""
    in_order = forward._forward
    forward._forward = _branched  # the integrators call it, up to four times a substep
    try:
        forward.step(m, d)
    finally:
        forward._forward = in_order


def _branched(m: Any, d: Any, skip_sensor: bool = False) -> None:
    """Accelerations from positions, velocities and controls; stands in for mujoco_warp's `_forward`."""
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
    forward.fwd_acceleration(m, d, factorize=True)
    contacts.join()
    solver.solve(m, d)
