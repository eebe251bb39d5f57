"""Policies: a table of layers that maps a normalised observation to an action, and its parameters as a flat vector.

A Policy object holds no parameters. They are a vector `theta` (d,), the layers' matrices and biases one after the
other, so strategies, rankers, files and engines do not depend on the kind of policy. A layer computes

    y = W x + S z + c,   or tanh of it,

where x is the output of the previous layer (for the first layer z, the normalised observation). S and c are optional.
A linear policy has one layer with W only. `offrank.policies` defines the kinds by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from offrank.core.arrays import FloatArray
from offrank.core.noise import Purpose, philox

Array = Any  # a NumPy array or a PyTorch tensor


@dataclass(frozen=True)
class LayerShape:
    """One row of the table of layers."""

    inputs: int
    outputs: int
    tanh: bool = False
    bias: bool = False
    skip: bool = False  # whether the policy's input z is an input too, with a matrix S of its own

    def size(self, n: int) -> int:
        """The number of parameters."""
        return self.outputs * (self.inputs + n * self.skip + self.bias)


@dataclass(frozen=True)
class Layer:
    """The parameters of one layer. Leading axes, if any, are a batch of policies."""

    weights: Array  # (..., outputs, inputs)
    skip: Array | None  # (..., outputs, n)
    bias: Array | None  # (..., outputs)
    tanh: bool


@dataclass(frozen=True)
class Policy:
    """A kind of policy, for observations (n,) and actions (p,)."""

    name: str  # such as linear or skip:32
    n: int
    p: int
    table: tuple[LayerShape, ...]

    @property
    def size(self) -> int:
        """d, the number of parameters."""
        return sum(shape.size(self.n) for shape in self.table)

    @property
    def is_linear(self) -> bool:
        """Whether it computes a = M z, with theta the rows of M."""
        return self.table == (LayerShape(self.n, self.p),)

    def start(self, seed: int) -> FloatArray:
        """Initial parameters (d,). Hidden weights are random with variance 1 / inputs, the last layer is zero, so the
        initial action is zero."""
        theta = np.zeros(self.size)
        random = Generator(philox(seed, Purpose.POLICY))
        for layer, shape in list(zip(self.layers(theta), self.table, strict=True))[:-1]:
            layer.weights[:] = random.standard_normal((shape.outputs, shape.inputs)) / np.sqrt(shape.inputs)
        return theta

    def layers(self, theta: Array) -> list[Layer]:
        """Views of the parameters (..., d), one Layer per layer."""
        out, first = [], 0

        def take(*shape: int) -> Array:
            nonlocal first
            size = int(np.prod(shape))
            first += size
            return theta[..., first - size : first].reshape(*theta.shape[:-1], *shape)

        for shape in self.table:
            weights = take(shape.outputs, shape.inputs)
            skip = take(shape.outputs, self.n) if shape.skip else None
            out.append(Layer(weights, skip, take(shape.outputs) if shape.bias else None, shape.tanh))
        return out

    def act(self, theta: FloatArray, z: FloatArray) -> FloatArray:
        """Action (p,) at z (n,), or actions (E, p) at z (E, n), of one policy (d,) or of E policies (E, d).

        Each state has its own matrix product: the bits of a batched product depend on the size of the batch.
        """
        x = z
        for layer in self.layers(theta):
            y = _product(layer.weights, x)
            if layer.skip is not None:
                y = _product(layer.skip, z) + y
            if layer.bias is not None:
                y = y + layer.bias
            x = np.tanh(y) if layer.tanh else y
        return x

    def act_together(self, theta: Array, z: Array) -> Array:
        """Actions (..., B, p) at a batch of states z (..., B, n), in one matrix product per layer and the precision of
        the arguments (NumPy or PyTorch). Faster than `act`, but the bits depend on B. For learning."""
        return self._outputs(self.layers(theta), z)[-1]

    def pull_back(self, theta: Array, z: Array, g: Array) -> Array:
        """Gradient (..., d) with respect to theta of the sum over B states z (..., B, n) of <g, action>, g (..., B, p):
        backpropagates a gradient with respect to the actions to the parameters."""
        layers = self.layers(theta)
        outputs = self._outputs(layers, z)
        parts: list[Array] = []
        for k in reversed(range(len(layers))):
            layer, x = layers[k], outputs[k - 1] if k else z
            if layer.tanh:
                g = g * (1 - outputs[k] * outputs[k])
            here = [_transposed(g) @ x]
            if layer.skip is not None:
                here.append(_transposed(g) @ z)
            if layer.bias is not None:
                here.append(g.sum(-2))
            parts = [*(part.reshape(*theta.shape[:-1], -1) for part in here), *parts]
            if k:
                g = g @ layer.weights
        return parts[0] if len(parts) == 1 else _join(parts)

    def _outputs(self, layers: Sequence[Layer], z: Array) -> list[Array]:
        """The output of each layer at states z (..., B, n)."""
        out, x = [], z
        for layer in layers:
            y = x @ _transposed(layer.weights)
            if layer.skip is not None:
                y = z @ _transposed(layer.skip) + y
            if layer.bias is not None:
                y = y + layer.bias[..., None, :]
            x = _tanh(y) if layer.tanh else y
            out.append(x)
        return out


def _product(matrix: FloatArray, x: FloatArray) -> FloatArray:
    """matrix @ x, for each vector of a batch (..., n) by its own product."""
    out: FloatArray = np.matmul(matrix, x[..., None])[..., 0]
    return out


def _transposed(x: Array) -> Array:
    return x.swapaxes(-1, -2)


def _tanh(x: Array) -> Array:
    return np.tanh(x) if isinstance(x, np.ndarray) else x.tanh()


def _join(parts: Sequence[Array]) -> Array:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis=-1)
    import torch

    return torch.cat(list(parts), dim=-1)
