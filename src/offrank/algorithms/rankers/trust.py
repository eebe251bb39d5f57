"""How accurate a ranker's recent predictions were, measured on the directions that were run.

A prediction x is made before the episodes of its direction are run, so their difference y = r+ - r- is held out.
Learned rankers choose directions of large |x|. That biases a plain correlation or sign count upwards, and trust would
jump whenever the ranker starts to choose. The slope of y on x does not depend on how x was chosen. So trust is

    rho = beta / sqrt(beta^2 + s^2),   beta = sum xy / sum x^2,   s^2 = mean (y - beta x)^2,

which is the correlation of prediction and outcome on *random* directions, where x has unit variance. Returns are
heavy-tailed and grow during a run, so y is divided by its root mean square over the iteration: otherwise one outlier
would dominate all evidence for a hundred iterations. The sums decay by a constant factor per iteration.
"""

from __future__ import annotations

import numpy as np

from offrank.core.arrays import FloatArray

COUNT, XX, XY, YY, RIGHT = range(5)


def no_evidence() -> FloatArray:
    """The sums (5,) before the first prediction: count, xx, xy, yy, and the number of correct signs."""
    return np.zeros(5)


def observe(sums: FloatArray, x: FloatArray, y: FloatArray, decay: float) -> FloatArray:
    """The sums (5,) after an iteration with predictions x (m,) and outcomes y (m,). If all y are 0, they carry no
    information, and the sums do not change."""
    size = np.sqrt(np.mean(y * y))
    if size == 0.0:
        return sums
    y = y / size
    right = np.count_nonzero(np.sign(x) == np.sign(y))
    after: FloatArray = decay * sums + np.array([len(x), np.sum(x * x), np.sum(x * y), np.sum(y * y), right])
    return after


def correlation(sums: FloatArray) -> float:
    """rho, in [-1, 1]; 0 without evidence."""
    count, xx, xy, yy, _ = sums.tolist()
    if xx == 0.0 or yy == 0.0:
        return 0.0
    beta = xy / xx
    residual = max(yy - beta * xy, 0.0) / count
    return float(beta / np.sqrt(beta**2 + residual))


def sign_accuracy(sums: FloatArray) -> float:
    """Share of correct signs among the directions run; 0.5 without evidence."""
    return float(sums[RIGHT] / sums[COUNT]) if sums[COUNT] else 0.5
