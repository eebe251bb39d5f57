"""A trained policy: a matrix, a normaliser, and what an environment needs to act on it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from offrank.core.arithmetic import act
from offrank.core.arrays import FloatArray, IntArray, Memory
from offrank.core.errors import UsageError
from offrank.core.files import save_arrays
from offrank.core.normalizer import Whitening


@dataclass(frozen=True)
class LinearPolicy:
    """a = M z with z = (s - mean) * scale; for discrete actions, the index of the largest entry of a."""

    M: FloatArray  # (p, n)
    whitening: Whitening
    discrete: bool = False
    first: int = 0  # what the indices are counted from
    low: FloatArray | None = None  # (p,): actions are clipped to [low, high] where given
    high: FloatArray | None = None
    shape: tuple[int, ...] | None = None  # of an action, where it is not (p,)
    dtype: str = "float64"

    def predict(self, observation: ArrayLike) -> FloatArray | IntArray:
        """Action (p,) at an observation (n,), or actions (E, p) at E of them, of the environment's shape and type;
        indices where actions are discrete."""
        out = self.raw(observation)
        if self.discrete:
            return np.asarray(np.argmax(out, axis=-1) + self.first)
        if self.low is not None:
            out = np.clip(out, self.low, self.high)
        return out.reshape(*out.shape[:-1], *(self.shape or out.shape[-1:])).astype(self.dtype)

    def raw(self, observation: ArrayLike) -> FloatArray:
        """M z, neither clipped nor turned into an index: (p,) at an observation (n,), (E, p) at E of them."""
        states = np.asarray(observation, dtype=np.float64)
        n = self.M.shape[1]
        if states.ndim not in (1, 2) or states.shape[-1] != n:
            raise UsageError(f"observation of shape {states.shape}: this policy takes ({n},) or (E, {n})")
        if not np.isfinite(states).all():
            raise UsageError("the observation is not finite")
        z = self.whitening(np.atleast_2d(states))
        actions = act(np.broadcast_to(self.M, (len(z), *self.M.shape)), z)
        return actions if states.ndim == 2 else actions[0]

    @property
    def sha256(self) -> str:
        """A hash of all that determines the actions: equal hashes, equal bits."""
        hasher = hashlib.sha256()
        for part in (self.M, self.whitening.mean, self.whitening.scale):
            hasher.update(np.ascontiguousarray(part, dtype=np.float64).tobytes())
        return hasher.hexdigest()

    def arrays(self) -> Memory:
        out: Memory = {"policy.M": self.M, "policy.mean": self.whitening.mean, "policy.scale": self.whitening.scale}
        out |= {"policy.discrete": np.array(self.discrete), "policy.first": np.array(self.first)}
        if self.low is not None and self.high is not None:
            out |= {"policy.low": self.low, "policy.high": self.high}
        if self.shape is not None:
            out["policy.shape"] = np.array(self.shape, dtype=np.int64)
        out["policy.dtype"] = np.zeros(0, dtype=self.dtype)
        return out

    @staticmethod
    def from_arrays(arrays: Memory) -> LinearPolicy:
        return LinearPolicy(
            arrays["policy.M"],
            Whitening(arrays["policy.mean"], arrays["policy.scale"]),
            bool(arrays["policy.discrete"]),
            int(arrays["policy.first"]),
            arrays.get("policy.low"),
            arrays.get("policy.high"),
            tuple(arrays["policy.shape"].tolist()) if "policy.shape" in arrays else None,
            str(arrays["policy.dtype"].dtype),
        )

    def save(self, path: Path, meta: Mapping[str, Any]) -> None:
        save_arrays(path, "policy", self.arrays(), meta)
