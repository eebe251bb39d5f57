"""Contacts between a plane and a capsule, their tangents aligned with the capsule as in MuJoCo (see mjwarp.py)."""

import warp as wp
from mujoco_warp._src.collision_primitive_core import mat23f, plane_sphere


@wp.func
def plane_capsule(
    plane_normal: wp.vec3,
    plane_pos: wp.vec3,
    capsule_pos: wp.vec3,
    capsule_axis: wp.vec3,
    capsule_radius: float,
    capsule_half_length: float,
) -> tuple[wp.vec2, mat23f, wp.mat33]:
    """Distances (2), positions (2 x 3) and the frame of the contacts at the capsule's two ends."""
    n = plane_normal
    along = capsule_axis - n * wp.dot(n, capsule_axis)
    size = wp.length(along)
    b = wp.vec3(0.0, 1.0, 0.0)
    if size > 1.0e-6:
        b = along / size
    elif not (n[1] > -0.5 and n[1] < 0.5):
        b = wp.vec3(0.0, 0.0, 1.0)
    c = wp.cross(n, b)
    frame = wp.mat33(n[0], n[1], n[2], b[0], b[1], b[2], c[0], c[1], c[2])
    end = capsule_axis * capsule_half_length
    dist1, pos1 = plane_sphere(n, plane_pos, capsule_pos + end, capsule_radius)
    dist2, pos2 = plane_sphere(n, plane_pos, capsule_pos - end, capsule_radius)
    pos = mat23f(pos1[0], pos1[1], pos1[2], pos2[0], pos2[1], pos2[2])
    return wp.vec2(dist1, dist2), pos, frame
