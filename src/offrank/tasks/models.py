"""MuJoCo models of the tasks: Gymnasium's own XML files, used in place and checked against known hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import mujoco

from offrank.errors import UsageError

# MuJoCo resets a simulation that diverged and goes on; only these of its warning counters tell
DIVERGED = slice(mujoco.mjtWarning.mjWARN_BADQPOS.value, mujoco.mjtWarning.mjWARN_BADCTRL.value + 1)

# MuJoCo resets a simulation that diverged and goes on; only these of its warning counters tell
DIVERGED = slice(mujoco.mjtWarning.mjWARN_BADQPOS.value, mujoco.mjtWarning.mjWARN_BADCTRL.value + 1)


@contextmanager
def quiet_mujoco() -> Iterator[list[str]]:
    """Collect MuJoCo's warnings instead of letting them reach stderr and a MUJOCO_LOG.TXT in the user's folder."""
    heard: list[str] = []
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(heard.append)
    try:
        yield heard
    finally:
        mujoco.set_mju_user_warning(before)


def assets() -> Path:
    """Gymnasium's folder of MuJoCo models, found without importing its environments."""
    spec = find_spec("gymnasium")
    if spec is None or spec.origin is None:
        raise UsageError("gymnasium is not installed: pip install gymnasium")
    return Path(spec.origin).parent / "envs" / "mujoco" / "assets"


@lru_cache(maxsize=8)
def load_model(xml: str, sha256: str) -> mujoco.MjModel:
    """Compile one of Gymnasium's models, having checked that it is the file the task was written for."""
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
