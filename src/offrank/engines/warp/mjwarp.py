"""mujoco_warp with two patches, its substep or ours, and the task models in a form it can run.

Patches and our substep know the inside of mujoco_warp 4.0. Any other version runs as it is, by its own substep.

The first patch is to the tangents of a contact between a plane and a capsule. MuJoCo always aligns them with the
capsule's axis; mujoco_warp 4.0 uses fixed axes if the axis is within 30 degrees of the normal. With pyramidal friction
cones this matters: on Ant, accelerations in contact differed by tens of per cent. Kernels are built when they are first
launched, so replacing the function before that is enough.

The second patch is to the deterministic mode, which does not order the rows of the constraints (`rows.py`).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.metadata import version
from typing import Any

import mujoco

from offrank.core.errors import require
from offrank.tasks.locomotion import Task

KNOWN = "4.0."  # the versions of mujoco_warp whose inside we know


@lru_cache(maxsize=1)
def knows_inside() -> bool:
    """Whether mujoco_warp is of a version for which we have a substep. Otherwise a warning says so."""
    installed = version("mujoco-warp")
    if not installed.startswith(KNOWN):
        warnings.warn(
            f"mujoco_warp {installed} runs by its own substep, which is slower than ours for mujoco_warp {KNOWN}x, and "
            "without our corrections to the friction of capsules and to the deterministic mode",
            stacklevel=2,
        )
    return installed.startswith(KNOWN)


def make_substep(model: Any, data: Any) -> Callable[[], None]:
    """A function that advances every world by a substep: ours, or mujoco_warp's."""
    if not knows_inside():
        return partial(aligned_mjwarp().step, model, data)
    from offrank.engines.warp.substep import Substep

    return Substep(model, data)


@lru_cache(maxsize=1)
def aligned_mjwarp() -> Any:
    """The mujoco_warp module, with the patches applied if it is of a version that we know."""
    mjw = require("mujoco_warp", "gpu")
    if not knows_inside():
        return mjw
    from mujoco_warp._src import collision_primitive, constraint

    from offrank.engines.warp.plane_capsule import plane_capsule
    from offrank.engines.warp.rows import sort_rows

    collision_primitive.plane_capsule = plane_capsule
    constraint._sort_constraints = sort_rows
    return mjw


def device_model(task: Task) -> mujoco.MjModel:
    """The task's model as the GPU can run it: Newton instead of PGS, and friction loss disabled if no joint has any."""
    model = copy.copy(task.model)
    if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
        model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    if not model.dof_frictionloss.any():
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_FRICTIONLOSS
    return model
