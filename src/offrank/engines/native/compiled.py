"""The compiled part (`_rollout.c`): its structures, and a policy as it reads one."""

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
from offrank.core.policy import Layer, LayerShape, Policy

Address, Int, Real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class Piece(ctypes.Structure):
    _fields_ = [("at", Address), ("count", Int), ("clip", Real)]


class Bound(ctypes.Structure):
    _fields_ = [("at", Address), ("low", Real), ("high", Real), ("closed", Int)]


class LayerTable(ctypes.Structure):
    _fields_ = [
        *[(name, Address) for name in ("weights", "skip", "bias")],
        *[(name, Int) for name in ("inputs", "outputs", "squashes")],
    ]


class ActorTable(ctypes.Structure):
    _fields_ = [
        ("layers", Address),
        *[(name, Int) for name in ("n_layers", "widest")],
        *[(name, Address) for name in ("mean", "scale", "scratch", "live")],
    ]


class World(ctypes.Structure):
    _fields_ = [
        *[(name, Address) for name in ("mj_step", "model", "data", "ctrl", "warnings")],
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
    """The compiled library, or None where it was not built."""
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
        found.offrank_episode.argtypes = [Address, Address, Int, Address, Address, Address]
        found.offrank_actions.restype = None
        found.offrank_actions.argtypes = [Address, Int, Int, Int, Address, Address]
    except (OSError, AttributeError):
        return None
    return found


def is_built() -> bool:
    """Whether the compiled part is there."""
    return library() is not None


class Actor:
    """A policy with its parameters and normaliser, as the compiled loop reads it.

    Nothing in that loop checks a size: all of them are checked here.
    """

    def __init__(self, policy: Policy, theta: FloatArray, whitening: Whitening):
        self.policy = policy
        n, widest = policy.n, max(shape.outputs for shape in policy.table)
        self._kept: list[Any] = []  # what the structure points to
        views = policy.layers(_checked(theta, policy.size))
        layers = [self._layer(layer, shape) for layer, shape in zip(views, policy.table, strict=True)]
        table = (LayerTable * len(layers))(*layers)
        live = np.empty(n, dtype=np.int64)
        self._kept += [table, live]
        arrays = (_checked(whitening.mean, n), _checked(whitening.scale, n), np.empty(n + 2 * widest))
        addresses = [*map(self._address, arrays), live.ctypes.data]
        self.structure = ActorTable(ctypes.addressof(table), len(layers), widest, *addresses)

    def __call__(self, observations: FloatArray) -> FloatArray:
        """Actions (T, p) at observations (T, n), to the bit as in an episode."""
        seen = np.ascontiguousarray(observations, dtype=np.float64)
        n, p = self.policy.n, self.policy.p
        if seen.ndim != 2 or seen.shape[1] != n:
            raise ValueError(f"observations of shape {seen.shape} where (T, {n}) is needed")
        out = np.empty((len(seen), p))
        arguments = (ctypes.byref(self.structure), n, p, len(seen), seen.ctypes.data, out.ctypes.data)
        library().offrank_actions(*arguments)
        return out

    def _layer(self, layer: Layer, shape: LayerShape) -> LayerTable:
        at = [self._address(array) for array in (layer.weights, layer.skip, layer.bias)]
        return LayerTable(*at, shape.inputs, shape.outputs, shape.tanh)

    def _address(self, array: FloatArray | None) -> int | None:
        """Of a copy, a matrix transposed to (inputs, outputs)."""
        if array is None:
            return None
        self._kept.append(np.ascontiguousarray(array.T))
        address: int = self._kept[-1].ctypes.data
        return address


def _checked(values: FloatArray, size: int) -> FloatArray:
    if values.shape != (size,):
        raise ValueError(f"an array of shape {values.shape} where ({size},) is needed")
    return values.astype(np.float64, copy=False)


@lru_cache(maxsize=1)
def mj_step_address() -> int:
    """Address of mj_step in the library that the mujoco package has loaded."""
    folder = Path(mujoco.__file__).parent
    names = ("libmujoco.so*", "libmujoco*.dylib", "mujoco.dll")
    for path in (path for name in names for path in sorted(folder.glob(name))):
        address = ctypes.cast(ctypes.CDLL(str(path)).mj_step, Address).value
        assert address is not None
        return address
    raise EngineError(f"the MuJoCo library was not found in {folder}: reinstall mujoco")
