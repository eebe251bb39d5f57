"""Rendering without a display. Imported before anything that imports MuJoCo, which chooses its OpenGL at import."""

import os
import sys


def prefer_egl() -> None:
    """On Linux without a display let MuJoCo render by EGL, unless the user chose otherwise."""
    displays = ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL")
    if sys.platform == "linux" and not any(os.environ.get(name) for name in displays):
        os.environ["MUJOCO_GL"] = "egl"


prefer_egl()
