"""Critics of `guided`: two hidden layers, each standardised over its units (layer normalisation) and rectified.

Standardising keeps the values of actions that were never tried from running away, which lets a critic learn from a few
thousand transitions. The functions are of one network at a time, whose arrays stay in the cache. Adam and the slow
copies are those of `networks.py`.
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
    """A hidden layer at a batch: standardised (B, hidden), by which factor (B, 1), and rectified."""

    standard: Floats
    factor: Floats
    output: Floats


def draw(random: Generator, count: int, inputs: int, hidden: int) -> Memory:
    """Weights w1 ... w3 (count, in, out) and biases c1 ... c3 (count, 1, out) of new networks."""
    nets: Memory = {}
    for layer, (into, out) in enumerate(pairwise((inputs, hidden, hidden, 1)), start=1):
        deviation = (0.3 if out == 1 else 1.0) / np.sqrt(into)
        nets[f"w{layer}"] = (deviation * random.standard_normal((count, into, out))).astype(np.float32)
        nets[f"c{layer}"] = np.zeros((count, 1, out), dtype=np.float32)
    return nets


def forward(net: Memory, x: Floats) -> tuple[Hidden, Hidden, Floats]:
    """Both hidden layers and the output (B, 1) at inputs (B, inputs)."""
    first = _hidden(x @ net["w1"] + net["c1"])
    second = _hidden(first.output @ net["w2"] + net["c2"])
    return first, second, second.output @ net["w3"] + net["c3"]


def input_gradient(net: Memory, x: Floats) -> Floats:
    """Gradient of the output with respect to the input, (B, inputs)."""
    first, second, out = forward(net, x)
    d1, _ = _back(net, first, second, np.ones_like(out))
    gradient: Floats = d1 @ net["w1"].T
    return gradient


def squared_error_gradient(net: Memory, x: Floats, y: Floats) -> Memory:
    """Gradient of the mean of (output - y)^2, y (B, 1), with respect to weights and biases."""
    first, second, out = forward(net, x)
    d3 = (out - y) * np.float32(2 / len(x))
    d1, d2 = _back(net, first, second, d3)
    return {
        "w1": x.T @ d1,
        "w2": first.output.T @ d2,
        "w3": second.output.T @ d3,
        **{f"c{layer}": d.sum(axis=-2, keepdims=True) for layer, d in ((1, d1), (2, d2), (3, d3))},
    }


def _hidden(x: Floats) -> Hidden:
    x -= x.mean(axis=-1, keepdims=True)
    count = np.float32(x.shape[-1])
    factor = 1 / np.sqrt(np.einsum("...h,...h->...", x, x)[..., None] / count + TINY)
    x *= factor
    return Hidden(x, factor, np.maximum(x, 0))


def _back(net: Memory, first: Hidden, second: Hidden, d3: Floats) -> tuple[Floats, Floats]:
    """Backpropagate a gradient d3 (B, 1) at the output to what the hidden layers standardise, (B, hidden)."""
    d2 = _through(second, d3 * net["w3"].T)
    return _through(first, d2 @ net["w2"].T), d2


def _through(layer: Hidden, d: Floats) -> Floats:
    """The gradient before a hidden layer, from that at its output (B, hidden), in place."""
    d *= layer.standard > 0
    count = np.float32(d.shape[-1])
    along = np.einsum("...h,...h->...", d, layer.standard)[..., None] / count
    d -= d.mean(axis=-1, keepdims=True)
    d -= layer.standard * along
    d *= layer.factor
    return d
