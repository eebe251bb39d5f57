"""The files of a run folder, and the versions its bits may depend on."""

from __future__ import annotations

import platform
from importlib.metadata import version

CHECKPOINT = "checkpoint.npz"
CONFIG = "config.json"
METRICS = "metrics.jsonl"
RESULT = "result.json"
CURVE = "curve.png"
BEST = "best.offrank"
FINAL = "final.offrank"
LOCK = ".lock"


def versions() -> dict[str, str]:
    """What a run's bits may depend on."""
    packages = {name: version(name) for name in ("offrank", "numpy", "mujoco", "gymnasium")}
    return {"python": platform.python_version(), "platform": platform.platform(), **packages}
