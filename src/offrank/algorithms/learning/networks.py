"""An ensemble of small networks as arrays: two hidden ReLU layers, one output, trained by Adam.

NumPy is enough here: the networks are so small that the overhead of a framework would outweigh its speed, their state
is part of a run's checkpoint, and with one BLAS thread their bits are the same on resume. The first axis of every array
is the network (E). All networks get the same inputs, but are initialised differently; their mean varies less than each
of them. A leading axis of runs is allowed, with inputs (runs, 1, B, inputs). The functions also take PyTorch tensors
(`batched.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from offrank.core.arrays import Memory, part, prefixed

Floats = NDArray[np.float32]

NETWORKS = ("q", "slow", "first", "second")  # the networks, the target networks, Adam's two moments

BETA1, BETA2, EPSILON = (float(np.float32(value)) for value in (0.9, 0.999, 1e-8))  # of Adam
NEW1, NEW2 = (float(np.float32(1) - np.float32(beta)) for beta in (BETA1, BETA2))  # 1 - beta in single precision


def draw(random: Generator, count: int, inputs: int, hidden: int) -> Memory:
    """Weights w1 ... w3 (E, in, out) and biases c1 ... c3 (E, 1, out) of new networks (He initialisation)."""
    sizes = (inputs, hidden, hidden, 1)
    nets: Memory = {}
    for layer, (into, out) in enumerate(pairwise(sizes), start=1):
        deviation = np.sqrt((0.1 if out == 1 else 2.0) / into)  # initial outputs are near 0
        nets[f"w{layer}"] = (deviation * random.standard_normal((count, into, out))).astype(np.float32)
        nets[f"c{layer}"] = np.zeros((count, 1, out), dtype=np.float32)
    return nets


def zeros_like(nets: Memory) -> Memory:
    return {name: np.zeros_like(value) for name, value in nets.items()}


def pack(nets: Sequence[Memory]) -> Memory:
    """The networks, the target networks and Adam's two moments as one set of arrays by name."""
    return {
        name: value
        for which, arrays in zip(NETWORKS, nets, strict=True)
        for name, value in prefixed(f"{which}.", arrays).items()
    }


def unpack(memory: Memory) -> list[Memory]:
    """The inverse of `pack`, as copies that may be written to. Other arrays of the memory are ignored."""
    return [{name: value.copy() for name, value in part(memory, f"{which}.").items()} for which in NETWORKS]


def forward(nets: Memory, x: Floats) -> tuple[Floats, Floats, Floats]:
    """Both hidden layers (E, B, hidden) and the output (E, B, 1) at inputs (B, inputs)."""
    h1 = _rectified(x @ nets["w1"], nets["c1"])
    h2 = _rectified(h1 @ nets["w2"], nets["c2"])
    return h1, h2, h2 @ nets["w3"] + nets["c3"]


def input_gradient(nets: Memory, x: Floats) -> Floats:
    """Gradient of the networks' mean output with respect to the input, (B, inputs)."""
    h1, h2, out = forward(nets, x)
    d1, _ = _back(nets, h1, h2, np.ones_like(out))
    gradient: Floats = (d1 @ _transposed(nets["w1"])).mean(axis=0)
    return gradient


def squared_error_gradient(nets: Memory, x: Floats, y: Floats) -> Memory:
    """Gradient of each network's mean of (output - y)^2, y (E, B, 1), with respect to its weights and biases."""
    h1, h2, out = forward(nets, x)
    d3 = (out - y) * float(np.float32(2 / x.shape[-2]))
    d1, d2 = _back(nets, h1, h2, d3)
    weights: Memory = {"w1": _transposed(x) @ d1, "w2": _transposed(h1) @ d2, "w3": _transposed(h2) @ d3}
    return weights | {f"c{layer}": d.sum(axis=-2, keepdims=True) for layer, d in ((1, d1), (2, d2), (3, d3))}


def step_size(rate: float, step: Any) -> Any:
    """Step size of Adam's update number `step`, counted from 1, with bias correction; an array for several."""
    size = np.float32(rate * np.sqrt(1 - BETA2**step) / (1 - BETA1**step))
    return size if isinstance(step, np.ndarray) else float(size)


def adam(nets: Memory, gradient: Memory, first: Memory, second: Memory, size: Any) -> None:
    """One update of Adam, in place. `size` is the step size, or one per run."""
    for name, g in gradient.items():
        m, v = first[name], second[name]
        m += NEW1 * (g - m)
        v += NEW2 * (g * g - v)
        nets[name] -= size * m / (v**0.5 + EPSILON)


def follow(slow: Memory, nets: Memory, share: float) -> None:
    """Move target networks towards the networks: slow += share * (nets - slow), in place."""
    for name, value in slow.items():
        value += share * (nets[name] - value)


def _back(nets: Memory, h1: Floats, h2: Floats, d3: Floats) -> tuple[Floats, Floats]:
    """Backpropagate a gradient d3 (E, B, 1) at the output to both hidden layers, (E, B, hidden) each."""
    d2: Floats = d3 * _transposed(nets["w3"])
    d2 *= h2 > 0
    d1: Floats = d2 @ _transposed(nets["w2"])
    d1 *= h1 > 0
    return d1, d2


def _rectified(x: Floats, c: Floats) -> Floats:
    """max(x + c, 0), in place."""
    x += c
    return np.maximum(x, 0, out=x) if isinstance(x, np.ndarray) else x.clamp_(min=0)


def _transposed(x: Floats) -> Floats:
    return x.swapaxes(-1, -2)
