"""Interface to the compiled loop (`_rollout.c`): its structures, and a policy in the form it reads."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from offrank.core.arrays import FloatArray
from offrank.core.errors import EngineError
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy

Address, Int, Real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class Piece(ctypes.Structure):
    _fields_ = [("at", Address), ("count", Int), ("clip", Real)]


class Bound(ctypes.Structure):
    _fields_ = [("at", Address), ("low", Real), ("high", Real), ("closed", Int)]


class LayerTable(ctypes.Structure):
    _fields_ = [(name, Int) for name in ("inputs", "outputs", "squashes", "skips", "biased")]


class ActorTable(ctypes.Structure):
    _fields_ = [
        ("layers", Address),
        *[(name, Int) for name in ("n_layers", "widest", "n")],
        *[(name, Address) for name in ("theta", "mean", "scale", "scratch", "live")],
    ]


class World(ctypes.Structure):
    _fields_ = [
        *[(name, Address) for name in ("mj_step", "model", "data", "ctrl", "low", "high", "warnings")],
        *[(name, Int) for name in ("n_warnings", "warning_stride", "n", "p", "frame_skip")],
        ("pieces", Address),
        ("n_pieces", Int),
        ("position", Address),
        ("position_weights", Address),
        ("n_positions", Int),
        ("position_stride", Int),
        ("bounds", Address),
        ("n_bounds", Int),
        *[(name, Real) for name in ("dt", "forward_weight", "control_weight", "survival_bonus")],
        ("over", Address),
    ]


@lru_cache(maxsize=1)
def library() -> Any:
    """The compiled library, or None if it was not built."""
    spec = find_spec("offrank.engines.native._rollout")
    if spec is None or spec.origin is None:
        return None
    try:
        found = ctypes.CDLL(spec.origin)
        found.offrank_layout.restype = Int
        sizes = [ctypes.sizeof(kind) for kind in (World, LayerTable, ActorTable)]
        if found.offrank_layout() != sizes[0] + 1000 * (sizes[1] + 1000 * sizes[2]):
            return None  # built from another version of the source
        found.offrank_episode.restype = Int
        found.offrank_episode.argtypes = [Address, Address, Int, Address, Address, Address, Address]
        found.offrank_actions.restype = None
        found.offrank_actions.argtypes = [Address, Int, Int, Address, Address]
    except (OSError, AttributeError):
        return None
    return found


def is_built() -> bool:
    """Whether the compiled part was built."""
    return library() is not None


class Actor:
    """A policy in the form the compiled loop reads. `set` changes its parameters, so one object serves many episodes.

    The loop does not check any size: all sizes are checked here.
    """

    def __init__(self, policy: Policy):
        self.policy = policy
        widest = max(shape.outputs for shape in policy.table)
        rows = [LayerTable(s.inputs, s.outputs, s.tanh, s.skip, s.bias) for s in policy.table]
        scratch, live = np.empty(policy.n + 2 * widest + policy.size), np.empty(policy.n, dtype=np.int64)
        layers = (LayerTable * len(rows))(*rows)
        self._kept = layers, scratch, live  # keeps the arrays alive that the structure points to
        self.structure = ActorTable(
            layers=ctypes.addressof(layers),
            n_layers=len(rows),
            widest=widest,
            n=policy.n,
            scratch=scratch.ctypes.data,
            live=live.ctypes.data,
        )
        self._set: tuple[FloatArray, ...] = ()

    def set(self, theta: FloatArray, whitening: Whitening) -> Actor:
        """Use these parameters (d,) and this normaliser from now on."""
        n = self.policy.n
        arrays = _checked(theta, self.policy.size), _checked(whitening.mean, n), _checked(whitening.scale, n)
        table = self.structure
        table.theta, table.mean, table.scale = (array.ctypes.data for array in arrays)
        self._set = arrays
        return self

    def __call__(self, observations: FloatArray) -> FloatArray:
        """Actions (T, p) at observations (T, n), with the same bits as in an episode."""
        seen = np.ascontiguousarray(observations, dtype=np.float64)
        n, p = self.policy.n, self.policy.p
        if seen.ndim != 2 or seen.shape[1] != n or not self._set:
            raise ValueError(f"observations of shape {seen.shape} where (T, {n}) is needed, of a policy that was set")
        out = np.empty((len(seen), p))
        library().offrank_actions(ctypes.byref(self.structure), p, len(seen), seen.ctypes.data, out.ctypes.data)
        return out


def _checked(values: FloatArray, size: int) -> FloatArray:
    if values.shape != (size,):
        raise ValueError(f"an array of shape {values.shape} where ({size},) is needed")
    return np.ascontiguousarray(values, dtype=np.float64)


@lru_cache(maxsize=1)
def mj_step_address() -> int:
    """Address of mj_step in the library loaded by the mujoco package."""
    folder = Path(mujoco.__file__).parent
    names = ("libmujoco.so*", "libmujoco*.dylib", "mujoco.dll")
    for path in (path for name in names for path in sorted(folder.glob(name))):
        address = ctypes.cast(ctypes.CDLL(str(path)).mj_step, Address).value
        assert address is not None
        return address
    raise EngineError(f"the MuJoCo library was not found in {folder}: reinstall mujoco")
