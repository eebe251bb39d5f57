"""Critics of `guided`: two hidden layers, each standardised over its units (layer normalisation) and rectified.

Standardising keeps the values of actions that were never tried from running away, which lets a critic learn from a few
thousand transitions. Arrays are as in `networks.py`, whose Adam and slow copies are used: the first axis is the net.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.random import Generator

from offrank.algorithms.learning.networks import Floats
from offrank.core.arrays import Memory

TINY = np.float32(1e-5)  # added to a variance


@dataclass
class Hidden:
    """A hidden layer at a batch: standardised (E, B, hidden), by which factor (E, B, 1), and rectified."""

    standard: Floats
    factor: Floats
    output: Floats


def draw(random: Generator, count: int, inputs: int, hidden: int) -> Memory:
    """Weights w1 ... w3 (E, in, out) and biases c1 ... c3 (E, 1, out) of new networks."""
    nets: Memory = {}
    for layer, (into, out) in enumerate(pairwise((inputs, hidden, hidden, 1)), start=1):
        deviation = (0.3 if out == 1 else 1.0) / np.sqrt(into)
        nets[f"w{layer}"] = (deviation * random.standard_normal((count, into, out))).astype(np.float32)
        nets[f"c{layer}"] = np.zeros((count, 1, out), dtype=np.float32)
    return nets


def forward(nets: Memory, x: Floats) -> tuple[Hidden, Hidden, Floats]:
    """Both hidden layers and the output (E, B, 1) at inputs (B, inputs)."""
    first = _hidden(x @ nets["w1"] + nets["c1"])
    second = _hidden(first.output @ nets["w2"] + nets["c2"])
    return first, second, second.output @ nets["w3"] + nets["c3"]


def input_gradient(nets: Memory, x: Floats) -> Floats:
    """Gradient of the networks' mean output with respect to the input, (B, inputs)."""
    first, second, out = forward(nets, x)
    d1, _ = _back(nets, first, second, np.ones_like(out))
    gradient: Floats = (d1 @ nets["w1"].swapaxes(-1, -2)).mean(axis=0)
    return gradient


def squared_error_gradient(nets: Memory, x: Floats, y: Floats) -> Memory:
    """Gradient of each network's mean of (output - y)^2, y (B, 1), with respect to its weights and biases."""
    first, second, out = forward(nets, x)
    d3 = (out - y) * np.float32(2 / len(x))
    d1, d2 = _back(nets, first, second, d3)
    return {
        "w1": x.T @ d1,
        "w2": first.output.swapaxes(-1, -2) @ d2,
        "w3": second.output.swapaxes(-1, -2) @ d3,
        **{f"c{layer}": d.sum(axis=-2, keepdims=True) for layer, d in ((1, d1), (2, d2), (3, d3))},
    }


def _hidden(x: Floats) -> Hidden:
    x -= x.mean(axis=-1, keepdims=True)
    count = np.float32(x.shape[-1])
    factor = 1 / np.sqrt(np.einsum("...h,...h->...", x, x)[..., None] / count + TINY)
    x *= factor
    return Hidden(x, factor, np.maximum(x, 0))


def _back(nets: Memory, first: Hidden, second: Hidden, d3: Floats) -> tuple[Floats, Floats]:
    """Backpropagate a gradient d3 (E, B, 1) at the output to what the hidden layers standardise, (E, B, hidden)."""
    d2 = _through(second, d3 * nets["w3"].swapaxes(-1, -2))
    return _through(first, d2 @ nets["w2"].swapaxes(-1, -2)), d2


def _through(layer: Hidden, d: Floats) -> Floats:
    """The gradient before a hidden layer, from that at its output (E, B, hidden), in place."""
    d *= layer.standard > 0
    count = np.float32(d.shape[-1])
    along = np.einsum("...h,...h->...", d, layer.standard)[..., None] / count
    d -= d.mean(axis=-1, keepdims=True)
    d -= layer.standard * along
    d *= layer.factor
    return d
