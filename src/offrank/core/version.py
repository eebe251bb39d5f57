"""The version of this package, and of the packages that the bits of a run may depend on."""

from __future__ import annotations

import platform
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

VERSION = "0.2.0"


def versions() -> dict[str, str]:
    """Versions of everything that the bits of a run may depend on, by name."""
    others = {name: _version_of(name) for name in ("numpy", "mujoco", "gymnasium")}
    return {"python": platform.python_version(), "platform": platform.platform(), "offrank": VERSION, **others}


def _version_of(package: str) -> str:
    """From the installed metadata, or from the module if it is used from a source tree."""
    try:
        return version(package)
    except PackageNotFoundError:
        return str(getattr(import_module(package), "__version__", "unknown"))
