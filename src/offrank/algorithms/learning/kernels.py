"""The parts of an update that PyTorch does in several passes over the same memory, as one GPU kernel each, in Triton.

They are what `batched_networks.py` does on a device without Triton, with sums in another order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from offrank.algorithms.learning.critics import TINY
from offrank.algorithms.learning.device import Tensor
from offrank.algorithms.learning.networks import EPSILON

ROWS = 4  # of a hidden layer per program
BLOCK = 1024  # parameters per program


def rectify(y: Tensor, h: Tensor | None) -> tuple[Tensor, Tensor]:
    """Write the rows y (L, B, hidden), standardised and rectified, to the first columns of h (L, B, ...), if given.
    Returns what was subtracted from each row, and the factor by which it was multiplied, (L, B) each."""
    rows, hidden = y.shape[0] * y.shape[1], y.shape[2]
    mean, factor = (torch.empty(y.shape[:2], device=y.device) for _ in range(2))
    places = (y, mean if h is None else h, mean, factor)
    sizes = (rows, hidden, 0 if h is None else h.shape[2], float(TINY))
    _rectify[(triton.cdiv(rows, ROWS),)](*places, *sizes, h is not None, ROWS, triton.next_power_of_2(hidden))
    return mean, factor


def back(d: Tensor, y: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
    """The gradient with respect to y, from that with respect to h, d (L, B, hidden), of the first L of them."""
    d = d.contiguous()
    rows, hidden, out = d.shape[0] * d.shape[1], d.shape[2], torch.empty_like(d)
    grid = (triton.cdiv(rows, ROWS),)
    _back[grid](d, y, mean, factor, out, rows, hidden, ROWS, triton.next_power_of_2(hidden))
    return out


def adam(values: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rates: Tensor, slow: Tensor | None) -> None:
    """One update of Adam of rows (L, P), in place, as `batched_networks.adam`; then of their slow copies, if given,
    which follow by the share rates[3]."""
    rows, size = values.shape
    grid = (rows, triton.cdiv(size, BLOCK))
    places = (values, gradient, first, second, values if slow is None else slow, rates)
    _adam[grid](*places, rows, size, EPSILON, slow is not None, BLOCK)


@triton.jit
def _rectify(
    y, h, mean, factor, rows, hidden, wide, tiny, WRITE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    there = (row < rows)[:, None] & (column < hidden)[None, :]
    x = tl.load(y + row[:, None] * hidden + column[None, :], mask=there, other=0.0)
    middle = tl.sum(x, axis=1) / hidden
    x = tl.where(there, x - middle[:, None], 0.0)
    by = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / hidden + tiny)
    tl.store(mean + row, middle, mask=row < rows)
    tl.store(factor + row, by, mask=row < rows)
    if WRITE:
        tl.store(h + row[:, None] * wide + column[None, :], tl.maximum(x * by[:, None], 0.0), mask=there)


@triton.jit
def _back(d, y, mean, factor, out, rows, hidden, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    there = (row < rows)[:, None] & (column < hidden)[None, :]
    at = row[:, None] * hidden + column[None, :]
    middle = tl.load(mean + row, mask=row < rows, other=0.0)
    by = tl.load(factor + row, mask=row < rows, other=0.0)
    x = (tl.load(y + at, mask=there, other=0.0) - middle[:, None]) * by[:, None]
    g = tl.where(there & (x > 0), tl.load(d + at, mask=there, other=0.0), 0.0)
    along = tl.sum(g * x, axis=1) / hidden
    g = (g - (tl.sum(g, axis=1) / hidden)[:, None] - x * along[:, None]) * by[:, None]
    tl.store(out + at, g, mask=there)


@triton.jit
def _adam(values, gradient, first, second, slow, rates, rows, size, epsilon, FOLLOW: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < size
    at = row.to(tl.int64) * size + column
    q, g = tl.load(values + at, mask=there, other=0.0), tl.load(gradient + at, mask=there, other=0.0)
    m, v = tl.load(first + at, mask=there, other=0.0), tl.load(second + at, mask=there, other=0.0)
    m += tl.load(rates + row) * (g - m)
    v += tl.load(rates + rows + row) * (g * g - v)
    q += tl.load(rates + 2 * rows + row) * (m / (tl.sqrt(v) + epsilon))
    tl.store(first + at, m, mask=there)
    tl.store(second + at, v, mask=there)
    tl.store(values + at, q, mask=there)
    if FOLLOW:
        s = tl.load(slow + at, mask=there, other=0.0)
        tl.store(slow + at, s + tl.load(rates + 3 * rows + row) * (q - s), mask=there)
