"""Rendering without a display. Must be imported before MuJoCo, which chooses its OpenGL library at import."""

import os
import sys


def prefer_egl() -> None:
    """On Linux without a display, make MuJoCo render with EGL, unless MUJOCO_GL is set."""
    displays = ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL")
    if sys.platform == "linux" and not any(os.environ.get(name) for name in displays):
        os.environ["MUJOCO_GL"] = "egl"


prefer_egl()
