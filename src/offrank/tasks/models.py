"""MuJoCo models of the tasks: Gymnasium's own XML files, used in place and checked against known hashes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mujoco

from offrank.core.errors import UsageError

# MuJoCo resets a simulation that diverged and continues; only these warning counters show it
DIVERGED = slice(mujoco.mjtWarning.mjWARN_BADQPOS.value, mujoco.mjtWarning.mjWARN_BADCTRL.value + 1)

_silence = threading.Lock()
_silent = 0  # number of active `quiet_mujoco` contexts
_before: Any = None  # the handler that was set before the first of them


@contextmanager
def quiet_mujoco() -> Iterator[None]:
    """Suppress MuJoCo's warnings on stderr and in MUJOCO_LOG.TXT in the working directory.

    The handler is global to the process, so it is restored when the last such context, of any thread, exits.
    """
    global _silent, _before
    with _silence:
        if _silent == 0:
            _before = mujoco.get_mju_user_warning()
            mujoco.set_mju_user_warning(_ignore)
        _silent += 1
    try:
        yield
    finally:
        with _silence:
            _silent -= 1
            if _silent == 0:
                mujoco.set_mju_user_warning(_before)


def _ignore(message: str) -> None:
    """Warnings are read from MuJoCo's counters instead."""


def assets() -> Path:
    """Gymnasium's folder of MuJoCo models, found without importing its environments."""
    spec = find_spec("gymnasium")
    if spec is None or spec.origin is None:
        raise UsageError("gymnasium is not installed: pip install gymnasium")
    return Path(spec.origin).parent / "envs" / "mujoco" / "assets"


@lru_cache(maxsize=8)
def load_model(xml: str, sha256: str) -> mujoco.MjModel:
    """Compile one of Gymnasium's models.

    Raises:
        UsageError: the file is missing, or differs from the one the task is defined by.
    """
    path = assets() / xml
    if not path.is_file():
        raise UsageError(f"Gymnasium's model {xml} is missing from {path.parent}: reinstall gymnasium")
    found = hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()
    if found != sha256:
        raise UsageError(
            f"Gymnasium's {xml} is not the model this task is defined by (sha256 {found[:12]}..., "
            f"expected {sha256[:12]}...): install another release of gymnasium"
        )
    with quiet_mujoco():
        return mujoco.MjModel.from_xml_path(str(path))
