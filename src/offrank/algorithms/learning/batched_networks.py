"""Critics and actors of many runs as arrays of PyTorch, and their updates: what `batched_td3.py` and
`batched_actor_critic.py` share.

On a GPU the time of an update is the number of its kernels, so there are few of them, and UNROLLED updates are one
recorded graph:

- A network is a row of one array, so that Adam is a few operations on all networks together. Biases are further rows
  of the weights (`Layout`): no sums and additions of their own.
- The critics and their slow copies are evaluated together.
- With Triton, steps that read and write the same memory are one kernel (`kernels.py`).
- The batches of the next UNROLLED updates are gathered at once, between two graphs.

Runs have different numbers of updates. An update that a run does not have moves nothing: its rates are 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from offrank.algorithms.learning import networks
from offrank.algorithms.learning.critics import TINY
from offrank.algorithms.learning.device import Tensor, wait_for
from offrank.algorithms.learning.networks import EPSILON, NETWORKS, NEW1, NEW2
from offrank.core.arrays import Memory, part
from offrank.core.policy import Layer, Policy
from offrank.core.space import Space

Bounds = tuple[Tensor, Tensor] | None

# PyTorch comes with Triton where it has GPUs, except on Windows
kernels: Any = import_module("offrank.algorithms.learning.kernels") if find_spec("triton") else None

WITHOUT = "lessons are slower than they need be: Triton, which wants a C compiler and Python's headers, fails here"
UNROLLED = 20  # updates per graph
ALIGNED = 8  # matrices have a multiple of this many rows, for the speed of their products


class Layout:
    """A network with two hidden layers as a row (P,): its three matrices (rows, outputs), one after the other.

    The rows of a matrix are the weights of the inputs, then the biases, then zeros. So inputs and hidden layers have as
    many columns: the values, then a 1, then zeros. Hidden layers are rectified, and may be standardised over their
    units before.
    """

    def __init__(self, inputs: int, hidden: int, standardised: bool = False):
        self.inputs, self.hidden, self.standardised = inputs, hidden, standardised
        self.shapes = [(_aligned(inputs + 1), hidden), (_aligned(hidden + 1), hidden), (_aligned(hidden + 1), 1)]
        self._ends = [0, *np.cumsum([rows * outputs for rows, outputs in self.shapes]).tolist()]
        self.size = _aligned(self._ends[-1])

    def matrices(self, rows: Any) -> list[Any]:
        """Views (L, rows, outputs) of the matrices of networks (L, P), NumPy's or PyTorch's."""
        parts = zip(pairwise(self._ends), self.shapes, strict=True)
        return [rows[:, begin:end].reshape(len(rows), *shape) for (begin, end), shape in parts]

    def pack(self, nets: Memory, rows: Any) -> None:
        """Write networks of `networks.py` as rows (E, P)."""
        for layer, matrix in enumerate(self.matrices(rows), start=1):
            into = nets[f"w{layer}"].shape[1]
            matrix[:, :into], matrix[:, into : into + 1] = nets[f"w{layer}"], nets[f"c{layer}"]
            matrix[:, into + 1 :] = 0

    def unpack(self, rows: Any) -> Memory:
        """The inverse of `pack`, as views."""
        nets: Memory = {}
        for layer, (matrix, into) in enumerate(
            zip(self.matrices(rows), (self.inputs, self.hidden, self.hidden), strict=True), start=1
        ):
            nets[f"w{layer}"], nets[f"c{layer}"] = matrix[:, :into], matrix[:, into : into + 1]
        return nets

    def rectify(self, y: Tensor, h: Tensor | None) -> tuple[Tensor, ...]:
        """Write the values y (L, B, hidden) of a hidden layer, rectified, to the first columns of h (L, B, ...), if
        given. Returns what `back` needs."""
        if self.standardised and fused(y):
            return y, *kernels.rectify(y, h)
        kept = torch.native_layer_norm(y, (self.hidden,), None, None, float(TINY)) if self.standardised else (y,)
        if h is not None:
            torch.clamp(kept[0], min=0, out=h[..., : self.hidden])
        return (*kept, y)

    def back(self, d: Tensor, kept: Sequence[Tensor]) -> Tensor:
        """The gradient with respect to the first of the values of a hidden layer, from that with respect to what they
        became, d (L, B, hidden)."""
        if self.standardised and fused(d):
            return kernels.back(d, *kept)
        standard, *moments, y = (array[: len(d)] for array in kept)
        d = torch.ops.aten.threshold_backward(d, standard, 0)
        if not self.standardised:
            return d
        only = [True, False, False]  # there are no weights and biases after standardising
        return torch.ops.aten.native_layer_norm_backward(d, y, (self.hidden,), *moments, None, None, only)[0]

    def input_gradient(self, nets: Tensor, x: Tensor, columns: slice, h1: Tensor) -> Tensor:
        """Gradient (L, B, k) of the outputs of networks (L, P) with respect to k columns of their inputs x. `h1` is
        overwritten: the first hidden layer, with its column of 1."""
        w1, w2, w3 = self.matrices(nets)
        kept1 = self.rectify(torch.bmm(x, w1), h1)
        kept2 = self.rectify(torch.bmm(h1, w2), None)
        d2 = self.back(w3[:, : self.hidden].mT.expand_as(kept2[0]), kept2)
        d1 = self.back(torch.bmm(d2, w2[:, : self.hidden].mT), kept1)
        return torch.bmm(d1, w1[:, columns].mT)


class CriticBatch:
    """The twin critics of C runs, and the batches of U updates of them, in arrays at fixed addresses.

    The order of the networks is (critic or slow copy, twin, run). A run's networks and Adam's moments of them, in the
    order of `networks.NETWORKS`, are also one array (4, 2, P), its *rows*.
    """

    def __init__(self, layout: Layout, runs: int, batch: int, updates: int, device: str):
        zeros = partial(torch.zeros, device=device)
        self.layout, self.runs, self._device = layout, runs, device
        columns, wide = layout.shapes[0][0], layout.shapes[1][0]
        self._rows, self._gradient = zeros(4, 2, runs, layout.size), zeros(2 * runs, layout.size)
        self.values, (self.first, self.second) = self._rows[:2], self._rows[2:].flatten(1, 2)
        self.inputs = zeros(2, 2, runs, updates, batch, columns)  # at which the critics are trained; of their targets
        self.gain, self.boot = zeros(runs, updates, batch, 1), zeros(runs, updates, batch, 1)
        self.rates = zeros(updates, 4, 2 * runs, 1)  # Adam's, and the shares by which the slow copies follow
        self.optimism = zeros(runs, 1, 1)  # how far targets lie from the smaller slow copy towards the larger
        self.h1, self._h2 = zeros(4 * runs, batch, wide), zeros(4 * runs, batch, wide)
        for ones in (self.inputs[..., layout.inputs], self.h1[..., layout.hidden], self._h2[..., layout.hidden]):
            ones.fill_(1)
        self._host = torch.zeros(runs, 4, 2, layout.size, pin_memory=device.startswith("cuda"))

    def load(self, critics: Sequence[Memory | Tensor]) -> None:
        """Begin with the critics of some runs: by name, or their rows on the device."""
        for r, own in enumerate(critics):
            if isinstance(own, dict):
                for which, rows in zip(NETWORKS, self._host[r].numpy(), strict=True):
                    self.layout.pack(part(own, f"{which}."), rows)
                own = self._host[r]
            self._rows[:, :, r].copy_(own, non_blocking=True)

    def unload(self, runs: int) -> tuple[list[Tensor], list[list[Memory]]]:
        """The critics of the first runs: rows on the device, and networks, as `networks.pack` takes them."""
        kept = [self._rows[:, :, r].clone() for r in range(runs)]
        for place, rows in zip(self._host, kept, strict=False):
            place.copy_(rows, non_blocking=True)
        wait_for(self._device)
        copies = [rows.numpy().copy() for rows in self._host[:runs]]
        return kept, [[self.layout.unpack(rows) for rows in copy] for copy in copies]

    def update(self, u: int) -> None:
        """Update number u of the critics, and of the slow copies."""
        layout, runs, hidden, scale = self.layout, self.runs, self.layout.hidden, 2 / self.inputs.shape[-2]
        x = self.inputs[:, :, :, u].flatten(0, 2)
        w1, w2, w3 = layout.matrices(self.values.flatten(0, 2))
        # values of the critics, and targets by the slow copies
        kept1 = layout.rectify(torch.bmm(x, w1), self.h1)
        kept2 = layout.rectify(torch.bmm(self.h1, w2), self._h2)
        out, slow = torch.bmm(self._h2, w3).view(2, 2, runs, -1, 1)
        beyond = torch.lerp(torch.minimum(*slow), torch.maximum(*slow), self.optimism)
        y = torch.addcmul(self.gain[:, u], self.boot[:, u], beyond)
        # gradient of the mean squared error of each critic
        half = 2 * runs
        h1, h2, w2, w3 = self.h1[:half], self._h2[:half], w2[:half], w3[:half]
        d3 = (out - y).flatten(0, 1)
        d2 = layout.back(d3 * w3[:, :hidden].mT, kept2)
        d1 = layout.back(torch.bmm(d2, w2[:, :hidden].mT), kept1)
        for place, into, d in zip(layout.matrices(self._gradient), (x[:half], h1, h2), (d1, d2, d3), strict=True):
            place.baddbmm_(into.mT, d, beta=0, alpha=scale)
        q, following = self.values.flatten(1, 2)
        adam(q, self._gradient, self.first, self.second, self.rates[u], following)


class Actors:
    """Actors (L, d) with Adam's moments, in arrays at fixed addresses."""

    def __init__(self, policy: Policy, count: int, device: str):
        self.policy = policy
        zeros = partial(torch.zeros, count, policy.size, device=device)
        self.thetas, self.first, self.second, self._gradient = (zeros() for _ in range(4))

    def outputs(self, z: Tensor) -> list[Tensor]:
        """The output of each layer at states z (L, B, n)."""
        outputs: list[Tensor] = []
        for k, layer in enumerate(self._layers()):
            y = torch.bmm(outputs[k - 1] if k else z, layer.weights.mT)
            if layer.skip is not None:
                y.baddbmm_(z, layer.skip.mT)
            if layer.bias is not None:
                y.add_(layer.bias[:, None])
            outputs.append(y.tanh_() if layer.tanh else y)
        return outputs

    def descend(self, z: Tensor, outputs: Sequence[Tensor], g: Tensor, rates: Tensor) -> None:
        """One update of Adam. `g` (L, B, p) is the gradient with respect to the actions, and Adam minimises."""
        layers, places = self._layers(), self.policy.layers(self._gradient)
        for k in reversed(range(len(layers))):
            if layers[k].tanh:
                g = torch.ops.aten.tanh_backward(g, outputs[k])
            torch.bmm(g.mT, outputs[k - 1] if k else z, out=places[k].weights)
            if layers[k].skip is not None:
                torch.bmm(g.mT, z, out=places[k].skip)
            if layers[k].bias is not None:
                torch.sum(g, 1, out=places[k].bias)
            if k:
                g = torch.bmm(g, layers[k].weights)
        adam(self.thetas, self._gradient, self.first, self.second, rates)

    def _layers(self) -> list[Layer]:
        return self.policy.layers(self.thetas)


def adam(
    values: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rates: Tensor, slow: Tensor | None = None
) -> None:
    """One update of Adam of rows (L, P), in place. `gradient` is overwritten. The rates (3, L, 1) are the shares of the
    new in both moments, and minus the step sizes. With slow copies, a fourth is the share by which they follow."""
    if fused(values):
        kernels.adam(values, gradient, first, second, rates, slow)
        return
    first.lerp_(gradient, rates[0])
    second.lerp_(gradient.square_(), rates[1])
    step = second.sqrt().add_(EPSILON)
    values.addcmul_(torch.div(first, step, out=step), rates[2])
    if slow is not None:
        slow.lerp_(values, rates[3])


def fused(array: Tensor) -> bool:
    """Whether the kernels of `kernels.py` are used for an array."""
    return kernels is not None and bool(array.is_cuda) and kernels_work(str(array.device))


@cache
def kernels_work(device: str) -> bool:
    """Whether Triton can compile a kernel, for which it needs a C compiler and Python's headers. Warns if it cannot."""
    one = torch.zeros(1, 1, device=device)
    try:
        kernels.adam(*(one.clone() for _ in range(4)), torch.zeros(4, 1, device=device), None)
    except Exception as error:  # whatever its compilers raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(f"{WITHOUT} ({reason:.200})", stacklevel=2)
        return False
    return True


def adam_rates(rate: float, step: int, count: int) -> Any:
    """Adam's rates (count, 3) of the updates after number `step`."""
    sizes = networks.step_size(rate, step + 1 + np.arange(count))
    return np.stack([np.full(count, NEW1), np.full(count, NEW2), -sizes], axis=1, dtype=np.float32, casting="same_kind")


def upload(array: Any, device: str) -> Tensor:
    return torch.as_tensor(array, device=device)


def bounds_on(space: Space, device: str) -> Bounds:
    """The environment's box on the device, as low (p,) and high (p,); None if it has none."""
    if (box := space.box) is None:
        return None
    low, high = (upload(bound.astype(np.float32), device) for bound in box)
    return low, high


def clipped(actions: Tensor, bounds: Bounds) -> Tensor:
    return actions if bounds is None else torch.clamp(actions, *bounds)


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
