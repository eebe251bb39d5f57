"""mujoco_warp, with one correction: the tangents of a contact between a plane and a capsule.

MuJoCo aligns them with the capsule's axis however steep it stands; mujoco_warp 4.0 falls back to fixed axes where the
axis is within 30 degrees of the normal. With pyramidal friction cones the choice matters: on Ant, accelerations in
contact differed by tens of per cent. Kernels are built when they are first launched, so replacing the function before
that is enough.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from offrank.errors import require


@lru_cache(maxsize=1)
def aligned_mjwarp() -> Any:
    """The mujoco_warp module, corrected."""
    mjw = require("mujoco_warp", "gpu")
    from mujoco_warp._src import collision_primitive

    from offrank.engines.plane_capsule import plane_capsule

    collision_primitive.plane_capsule = plane_capsule
    return mjw
