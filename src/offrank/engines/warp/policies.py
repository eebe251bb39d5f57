"""Policies on the device: the parameters of every episode, and the tables of layers of their kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import warp as wp
from numpy.typing import NDArray

from offrank.core.policy import Policy
from offrank.engines.warp.kernels import COLUMNS, run_layer, scatter, scatter_ints

HUGE = 3.0e38  # no bound


class Policies:
    """The policies of R episodes, run in W worlds. Arrays grow when a new kind of policy is loaded."""

    def __init__(self, rows: int, worlds: int, actions: int, box: tuple[Any, Any] | None = None):
        self._rows, self._worlds = rows, worlds
        low, high = box or (np.full(actions, -HUGE), np.full(actions, HUGE))
        self.box = [wp.array(bound.astype(np.float32), dtype=float) for bound in (low, high)]
        self._kinds: dict[Policy, int] = {}
        self._kind = wp.zeros(rows, dtype=int)
        self._theta = wp.zeros((rows, 1), dtype=float)
        self._layers: Any = None
        self._hidden: list[Any] = []

    def load(self, rows: Any, policies: list[Policy], thetas: list[NDArray[np.float32]]) -> bool:
        """Write policies into rows of the table, given as a Warp array. Returns whether arrays were reallocated."""
        new = [policy for policy in dict.fromkeys(policies) if policy not in self._kinds]
        for policy in new:
            self._kinds[policy] = len(self._kinds)
        if new:
            self._grow()
        flat = np.zeros((len(thetas), max(map(len, thetas))), dtype=np.float32)
        for row, theta in zip(flat, thetas, strict=True):
            row[: len(theta)] = theta
        wp.launch(scatter, flat.shape, [rows, wp.array(flat, dtype=float)], outputs=[self._theta])
        kinds = as_ints([self._kinds[policy] for policy in policies])
        wp.launch(scatter_ints, len(policies), [rows, kinds, self._kind])
        return bool(new)

    def act(self, row: Any, z: Any, ctrl: Any) -> None:
        """Compute the action in every world, in one launch per layer."""
        tables = [row, self._kind, self._layers, self._theta, z]
        for k, width in enumerate(self._widths):
            before, after = self._hidden[(k + 1) % 2], self._hidden[k % 2]
            wp.launch(run_layer, (self._worlds, width), [k, *tables, before, *self.box], outputs=[after, ctrl])

    @property
    def _widths(self) -> list[int]:
        """The largest number of outputs of any first layer, second layer, ..."""
        depth = max(len(policy.table) for policy in self._kinds)
        tables = [policy.table for policy in self._kinds]
        return [max(table[k].outputs for table in tables if k < len(table)) for k in range(depth)]

    def _grow(self) -> None:
        """Reallocate arrays for all kinds. Existing parameters are kept."""
        size = max(policy.size for policy in self._kinds)
        have = self._theta.shape[1]
        if size > have:
            larger = wp.zeros((self._rows, size), dtype=float)
            larger.assign(np.pad(self._theta.numpy(), ((0, 0), (0, size - have))))
            self._theta = larger
        layers = np.zeros((len(self._kinds), len(self._widths), COLUMNS), dtype=np.int32)
        for policy, number in self._kinds.items():
            layers[number, : len(policy.table)] = table(policy)
        self._layers = wp.array(layers, dtype=int)
        self._hidden = [wp.zeros((self._worlds, max(self._widths)), dtype=float) for _ in range(2)]


def table(policy: Policy) -> NDArray[np.int32]:
    """The table of layers as the kernel reads it, (layers, COLUMNS): offsets in theta, sizes and flags."""
    rows, first = [], 0
    for number, shape in enumerate(policy.table):
        skip = first + shape.outputs * shape.inputs
        bias = skip + shape.outputs * policy.n * shape.skip
        last = number + 1 == len(policy.table)
        begins = (first, skip if shape.skip else -1, bias if shape.bias else -1)
        rows.append((*begins, shape.inputs, shape.outputs, shape.tanh, last))
        first = bias + shape.outputs * shape.bias
    return np.array(rows, dtype=np.int32)


def as_ints(values: Any) -> Any:
    """Copy integers to the device."""
    return wp.array(np.asarray(values, dtype=np.int32), dtype=int)
