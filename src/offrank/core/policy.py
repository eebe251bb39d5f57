"""What turns a normalised observation into an action: a table of layers, and the parameters as one flat vector.

A policy owns no numbers. Its parameters `theta` (d,) are the layers' matrices and biases one after the other, so that
strategies, rankers, files and engines need to know nothing of its kind. A layer computes

    y = W x + S z + c,   or tanh of it,

with x the output of the layer before (z, the normalised observation, for the first one); S and c are there where the
table says so. A linear policy is the table of one layer with W alone. `offrank.policies` names the kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from offrank.core.arrays import FloatArray
from offrank.core.noise import Purpose, philox

Array = Any  # NumPy's or PyTorch's


@dataclass(frozen=True)
class LayerShape:
    """One row of the table."""

    inputs: int
    outputs: int
    tanh: bool = False
    bias: bool = False
    skip: bool = False  # whether it also sees the policy's input z, by a matrix of its own

    def size(self, n: int) -> int:
        """How many parameters it has."""
        return self.outputs * (self.inputs + n * self.skip + self.bias)


@dataclass(frozen=True)
class Layer:
    """The parameters of one layer. Leading axes count policies, where there are several."""

    weights: Array  # (..., outputs, inputs)
    skip: Array | None  # (..., outputs, n)
    bias: Array | None  # (..., outputs)
    tanh: bool


@dataclass(frozen=True)
class Policy:
    """A kind of policy for observations of n numbers and actions of p."""

    name: str  # as the user writes it: linear, skip:32
    n: int
    p: int
    table: tuple[LayerShape, ...]

    @property
    def size(self) -> int:
        """d, how many parameters it has."""
        return sum(shape.size(self.n) for shape in self.table)

    @property
    def is_linear(self) -> bool:
        """Whether it is a = M z, theta the rows of M."""
        return self.table == (LayerShape(self.n, self.p),)

    def start(self, seed: int) -> FloatArray:
        """Parameters (d,) that act as zero: hidden layers are drawn with variance 1 / inputs, the last one is zero."""
        theta = np.zeros(self.size)
        random = Generator(philox(seed, Purpose.POLICY))
        for layer, shape in list(zip(self.layers(theta), self.table, strict=True))[:-1]:
            layer.weights[:] = random.standard_normal((shape.outputs, shape.inputs)) / np.sqrt(shape.inputs)
        return theta

    def layers(self, theta: Array) -> list[Layer]:
        """Views of the parameters (..., d), layer by layer: what engines run."""
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
        """Actions (p,) at z (n,); or (E, p) at z (E, n), of one policy (d,) or of E of them (E, d).

        One product per state: a shared product would change bits with the number of states in it.
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
        """Actions (..., B, p) at many states z (..., B, n) in one product per layer, in the precision of the two, by
        NumPy or PyTorch. Faster than `act`, for learning."""
        return self._outputs(self.layers(theta), z)[-1]

    def pull_back(self, theta: Array, z: Array, g: Array) -> Array:
        """Gradient (..., d) with respect to theta of the sum over B states z (..., B, n) of <g, action>, g (..., B, p):
        what a gradient of the return with respect to the actions means for the parameters."""
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
        """What each layer puts out at states z (..., B, n)."""
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
    """matrix @ x of one or several, each by a product of its own."""
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
