"""What the bits of an episode depend on besides its request: versions, and the CPU's instructions."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from offrank.core.version import versions
from offrank.engines.native.compiled import is_built


def fingerprint() -> dict[str, str]:
    """Two processes with equal fingerprints give the same bits for an episode.

    NumPy, its BLAS and the C library each choose their code by the CPU's vector instructions. The version of the
    operating system's kernel, which `versions` includes, does not matter.
    """
    config: Any = np.show_config(mode="dicts")
    blas = {library.get("architecture", "") for library in threadpool_info() if library["user_api"] == "blas"}
    return versions() | {
        "platform": f"{platform.system()} {platform.machine()}",
        "C library": " ".join(platform.libc_ver()),
        "vector instructions": " ".join(config["SIMD Extensions"].get("found", [])),
        "BLAS": " ".join(sorted(blas)),
        "compiled part": "built" if is_built() else "not built",
    }


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """The differences between two fingerprints as text; an empty string if there are none."""
    names = [name for name in here if here[name] != there.get(name)]
    return ", ".join(f"{name} {there.get(name) or 'unknown'} instead of {here[name]}" for name in names)
