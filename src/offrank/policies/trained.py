"""A trained policy: its kind and parameters, its normaliser, and how its outputs become actions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offrank.core.arrays import FloatArray, IntArray, Memory
from offrank.core.checks import LARGEST, check_whole
from offrank.core.errors import FileFormatError, UsageError
from offrank.core.files import digest, save_arrays
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy
from offrank.core.space import Space
from offrank.policies import make_policy

# of actions
DTYPES = ("float64", "float32", "float16", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))


def _whole(array: NDArray[Any]) -> NDArray[Any]:
    """Raise ValueError unless it is of whole numbers."""
    if array.dtype.kind not in "biu":
        raise ValueError(f"whole numbers of type {array.dtype}")
    return array


@dataclass(frozen=True)
class TrainedPolicy:
    """A policy that acts on z = (s - mean) * scale. A discrete action is the index of the largest output."""

    kind: Policy
    theta: FloatArray  # (d,)
    whitening: Whitening
    discrete: bool = False
    first: int = 0  # the smallest discrete action
    low: FloatArray | None = None  # (p,): actions are clipped to [low, high]; None: no clipping
    high: FloatArray | None = None
    shape: tuple[int, ...] | None = None  # of an action, if it is not (p,)
    dtype: str = "float64"
    choices: tuple[int, ...] = ()  # of a discrete action with several parts: how many choices each of them has

    @staticmethod
    def for_space(space: Space, kind: Policy, theta: FloatArray, whitening: Whitening) -> TrainedPolicy:
        """The policy with parameters theta (d,), with actions as the environment takes them."""
        how = space.discrete, space.first, space.low, space.high, space.shape, space.dtype, space.choices
        return TrainedPolicy(kind, theta, whitening, *how)

    def predict(self, observation: ArrayLike, noise: FloatArray | None = None) -> FloatArray | IntArray:
        """Action at an observation (n,), or E actions at observations (E, n), in the environment's shape and type.
        One discrete action is a NumPy integer. Noise (p,) is added to the outputs within their box (`Space.box`)."""
        out, space = self.raw(observation), self._space
        if noise is not None:
            out = space.clip(out) + noise
        if self.discrete:
            return space.choose(out)[()]
        out = np.asarray(space.clip(out))
        shape = out.shape[-1:] if self.shape is None else self.shape
        return out.reshape((*out.shape[:-1], *shape)).astype(self.dtype)

    @property
    def _space(self) -> Space:
        n, p = self.kind.n, self.kind.p
        how = self.first, self.low, self.high, self.shape, self.dtype
        return Space(n, p, 1, self.discrete, *how, choices=self.choices)

    def raw(self, observation: ArrayLike) -> FloatArray:
        """The outputs (p,) at an observation (n,), or (E, p) at (E, n): neither clipped nor turned into an index."""
        if np.iscomplexobj(observation):
            raise UsageError("a complex observation: it must be real")
        states = np.asarray(observation, dtype=np.float64)
        n = self.kind.n
        if states.ndim not in (1, 2) or states.shape[-1] != n:
            raise UsageError(f"observation of shape {states.shape}: this policy takes ({n},) or (E, {n})")
        if not np.isfinite(states).all():
            raise UsageError("the observation is not finite")
        return self.kind.act(self.theta, self.whitening(states))

    @property
    def M(self) -> FloatArray:
        """The matrix (p, n) of a linear policy."""
        if not self.kind.is_linear:
            raise UsageError(f"a policy of the kind {self.kind.name} is not a matrix: its parameters are theta")
        return self.theta.reshape(self.kind.p, self.kind.n)

    @property
    def sha256(self) -> str:
        """A hash of everything that determines the actions: equal hashes mean equal actions, to the last bit."""
        return digest(self.arrays()).hex()

    def arrays(self) -> Memory:
        """The policy as arrays by name, to be saved."""
        kind = json.dumps({"name": self.kind.name, "n": self.kind.n, "p": self.kind.p}).encode()
        out: Memory = {
            "policy.kind": np.frombuffer(kind, dtype=np.uint8),
            "policy.theta": self.theta,
            "policy.mean": self.whitening.mean,
            "policy.scale": self.whitening.scale,
            "policy.discrete": np.array(self.discrete),
            "policy.first": np.array(self.first),
            "policy.dtype": np.zeros(0, dtype=self.dtype),
        }
        if self.low is not None and self.high is not None:
            out |= {"policy.low": self.low, "policy.high": self.high}
        if self.shape is not None:
            out["policy.shape"] = np.array(self.shape, dtype=np.int64)
        if self.choices:
            out["policy.choices"] = np.array(self.choices, dtype=np.int64)
        return out

    @staticmethod
    def from_arrays(arrays: Memory) -> TrainedPolicy:
        """The inverse of `arrays`. Files of version 0.1 have the matrix `policy.M` of a linear policy instead.

        Raises:
            FileFormatError: an array is missing, or does not match the kind of policy.
        """
        try:
            if "policy.M" in arrays:
                p, n = arrays["policy.M"].shape
                kind, theta = make_policy("linear", n, p), np.ascontiguousarray(arrays["policy.M"]).ravel()
            else:
                named = json.loads(arrays["policy.kind"].tobytes())
                kind = make_policy(named["name"], *(check_whole(size, named[size], 1) for size in ("n", "p")))
                theta = arrays["policy.theta"]
            policy = TrainedPolicy(
                kind,
                theta,
                Whitening(arrays["policy.mean"], arrays["policy.scale"]),
                bool(_whole(arrays["policy.discrete"])),
                int(_whole(arrays["policy.first"])),
                arrays.get("policy.low"),
                arrays.get("policy.high"),
                tuple(map(int, _whole(arrays["policy.shape"]))) if "policy.shape" in arrays else None,
                str(arrays["policy.dtype"].dtype),
                tuple(map(int, _whole(arrays["policy.choices"]))) if "policy.choices" in arrays else (),
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise FileFormatError(f"this holds no policy that can be read: {error}") from error
        policy.check()
        return policy

    def check(self) -> None:
        """Raise FileFormatError unless every array has the size and type that the kind of policy requires."""
        n, p, d = self.kind.n, self.kind.p, self.kind.size
        if (self.low is None) != (self.high is None):
            raise FileFormatError("actions have one bound and not the other")
        sizes = [("theta", self.theta, d), ("mean", self.whitening.mean, n), ("scale", self.whitening.scale, n)]
        sizes += [(name, bound, p) for name, bound in (("low", self.low), ("high", self.high)) if bound is not None]
        for name, values, size in sizes:
            if values.shape != (size,) or values.dtype != np.float64:
                given = f"{name} of shape {values.shape} and type {values.dtype}"
                raise FileFormatError(f"{given}: a policy {self.kind.name} needs {size} float64 numbers")
        has = f"{len(self.choices)} choices" if self.choices else f"{p} outputs"
        if self.shape is not None and (
            min(self.shape, default=1) < 1 or math.prod(self.shape) != (len(self.choices) or p)
        ):
            raise FileFormatError(f"actions of shape {self.shape}: the policy has {has}")
        if self.choices and (not self.discrete or min(self.choices) < 1 or sum(self.choices) != p):
            raise FileFormatError(f"choices {self.choices} of a discrete action: the policy has {p} outputs")
        for values in (self.theta, self.whitening.mean, self.whitening.scale):
            if not (np.abs(values) <= LARGEST).all():
                raise FileFormatError(f"a parameter of the policy is not finite, or beyond {LARGEST:g}")
        if (self.whitening.scale < 0).any():
            raise FileFormatError("a scale of the normaliser is negative")
        if self.low is not None and self.high is not None and not (self.low <= self.high).all():
            raise FileFormatError("a lower bound of the actions is not below the upper one")
        if self.dtype not in DTYPES:
            raise FileFormatError(f"actions of type {self.dtype}: they are of {', '.join(DTYPES)}")

    def save(self, path: Path, meta: Mapping[str, Any]) -> None:
        save_arrays(path, "policy", self.arrays(), meta)
