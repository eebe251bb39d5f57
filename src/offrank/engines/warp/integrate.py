"""Integrators, one kernel launch each: a substep of semi-implicit Euler, and a stage of Runge-Kutta of order four.

The rules are MuJoCo's. Euler advances positions with the new velocities. Runge-Kutta expresses the velocities of free
and ball joints in the coordinates of the rotation since the beginning of the substep.
"""

from __future__ import annotations

import warp as wp
from mujoco_warp import JointType, OverflowType
from mujoco_warp._src.math import deriv_expmap, quat_integrate

FREE, BALL = wp.constant(int(JointType.FREE)), wp.constant(int(JointType.BALL))
ROWS, PAIRS = wp.constant(int(OverflowType.NEFC)), wp.constant(int(OverflowType.BROADPHASE))
CONTACTS = wp.constant(int(OverflowType.NARROWPHASE))
wp.set_module_options({"enable_backward": False})

# weight of each stage in the step, and the fraction of the step at which the next stage is
WEIGHTS = (1.0 / 6.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 6.0)
AHEAD = (0.5, 0.5, 1.0)


@wp.func
def dofs(kind: int) -> int:
    """Number of degrees of freedom of a joint."""
    if kind == FREE:
        return 6
    if kind == BALL:
        return 3
    return 1


@wp.func
def integrate_position(
    kind: int,
    at: int,
    dof: int,
    time: float,
    since: wp.array[float],
    velocity: wp.array[float],
    # out
    position: wp.array[float],
):
    """Position of a joint after moving from `since` with a velocity for a time."""
    a = at
    v = dof
    if kind == FREE:
        for i in range(3):
            position[a + i] = since[a + i] + time * velocity[v + i]
        a += 3
        v += 3
    if kind == FREE or kind == BALL:
        turned = quat_integrate(
            wp.quat(since[a], since[a + 1], since[a + 2], since[a + 3]),
            wp.vec3(velocity[v], velocity[v + 1], velocity[v + 2]),
            time,
        )
        for i in range(4):
            position[a + i] = turned[i]
    else:
        position[a] = since[a] + time * velocity[v]


@wp.func
def record_overflow(
    w: int,
    rows: wp.array[int],
    most_rows: int,
    pairs: wp.array[int],
    contacts: wp.array[int],
    most_contacts: int,
    # in and out
    overflow: wp.array[int],
):
    """Record which constraint buffers were too small for a world."""
    if rows[w] > most_rows:
        overflow[w] = overflow[w] | ROWS
    if pairs[0] > most_contacts:
        overflow[w] = overflow[w] | PAIRS
    if contacts[0] > most_contacts:
        overflow[w] = overflow[w] | CONTACTS


@wp.kernel
def euler(
    timestep: wp.array[float],
    joint_kind: wp.array[int],
    joint_qpos: wp.array[int],
    joint_dof: wp.array[int],
    rows: wp.array[int],
    most_rows: int,
    pairs: wp.array[int],
    contacts: wp.array[int],
    most_contacts: int,
    qacc: wp.array2d[float],
    advancing: wp.array2d[float],
    # in and out
    overflow: wp.array[int],
    qpos: wp.array2d[float],
    qvel: wp.array2d[float],
    # out
    warmstart: wp.array2d[float],
):
    """Thread (world, joint): a substep of semi-implicit Euler."""
    w, j = wp.tid()
    if j == 0:
        record_overflow(w, rows, most_rows, pairs, contacts, most_contacts, overflow)
    kind, dof, h = joint_kind[j], joint_dof[j], timestep[0]
    for i in range(dof, dof + dofs(kind)):
        qvel[w, i] = qvel[w, i] + h * advancing[w, i]
        warmstart[w, i] = qacc[w, i]
    integrate_position(kind, joint_qpos[j], dof, h, qpos[w], qvel[w], qpos[w])


@wp.kernel
def stage(
    which: int,
    weight: float,
    behind: float,
    ahead: float,
    timestep: wp.array[float],
    joint_kind: wp.array[int],
    joint_qpos: wp.array[int],
    joint_dof: wp.array[int],
    rows: wp.array[int],
    most_rows: int,
    pairs: wp.array[int],
    contacts: wp.array[int],
    most_contacts: int,
    qacc: wp.array2d[float],
    # in and out
    overflow: wp.array[int],
    qpos: wp.array2d[float],
    qvel: wp.array2d[float],
    first_qpos: wp.array2d[float],
    first_qvel: wp.array2d[float],
    stage_qvel: wp.array2d[float],
    mean_qvel: wp.array2d[float],
    mean_qacc: wp.array2d[float],
    # out
    warmstart: wp.array2d[float],
):
    """Thread (world, joint): add a stage to the step, and move to the state of the next stage, or to the end of the
    substep."""
    w, j = wp.tid()
    if j == 0:
        record_overflow(w, rows, most_rows, pairs, contacts, most_contacts, overflow)
    kind, at, dof, h = joint_kind[j], joint_qpos[j], joint_dof[j], timestep[0]
    last = ahead == 0.0
    turning = kind == FREE or kind == BALL
    turn = dof
    places = int(1)
    if kind == FREE:
        turn = dof + 3
        places = 7
    elif kind == BALL:
        places = 4
    rate = wp.vec3()
    if which == 0:
        for i in range(at, at + places):
            first_qpos[w, i] = qpos[w, i]
    elif turning:
        before = wp.vec3(stage_qvel[w, turn], stage_qvel[w, turn + 1], stage_qvel[w, turn + 2])
        rate = deriv_expmap(h * behind * before, wp.vec3(qvel[w, turn], qvel[w, turn + 1], qvel[w, turn + 2]))
    for i in range(dof, dof + dofs(kind)):
        v = qvel[w, i]
        if which == 0:
            first_qvel[w, i] = v
            mean_qvel[w, i] = 0.0
            mean_qacc[w, i] = 0.0
        elif turning and i >= turn:
            v = rate[i - turn]
        stage_qvel[w, i] = v
        mean_qvel[w, i] = mean_qvel[w, i] + weight * v
        mean_qacc[w, i] = mean_qacc[w, i] + weight * qacc[w, i]
        warmstart[w, i] = qacc[w, i]
        if last:
            qvel[w, i] = first_qvel[w, i] + h * mean_qacc[w, i]
        else:
            qvel[w, i] = first_qvel[w, i] + h * ahead * qacc[w, i]
    if last:
        integrate_position(kind, at, dof, h, first_qpos[w], mean_qvel[w], qpos[w])
    else:
        integrate_position(kind, at, dof, h * ahead, first_qpos[w], stage_qvel[w], qpos[w])
