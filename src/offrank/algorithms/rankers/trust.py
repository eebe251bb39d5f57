"""How far a ranker's predictions have been right of late, on directions that were then run.

A prediction x is made before the episodes of its direction are run, so their difference y = r+ - r- is held out. The
learned rankers choose directions of large |x|, which flatters a plain correlation or sign count, and would make trust
jump whenever a ranker takes over. The slope of y on x does not depend on how x was chosen. So trust is

    rho = beta / sqrt(beta^2 + s^2),   beta = sum xy / sum x^2,   s^2 = mean (y - beta x)^2,

which is the correlation of prediction and outcome on *random* directions, where x has unit variance. Returns are
heavy-tailed and grow as a run goes on, so y is taken in units of its root mean square over the iteration: otherwise one
lucky pair would drown all evidence for a hundred iterations. The sums forget by a factor an iteration.
"""

from __future__ import annotations

import numpy as np

from offrank.core.arrays import FloatArray

COUNT, XX, XY, YY, RIGHT = range(5)


def no_evidence() -> FloatArray:
    """The sums (5,) before anything was predicted: count, xx, xy, yy, and how many signs were right."""
    return np.zeros(5)


def observe(sums: FloatArray, x: FloatArray, y: FloatArray, decay: float) -> FloatArray:
    """The sums (5,) after the predictions x (m,) met the outcomes y (m,) of an iteration. Equal returns say nothing."""
    size = np.sqrt(np.mean(y * y))
    if size == 0.0:
        return sums
    y = y / size
    right = np.count_nonzero(np.sign(x) == np.sign(y))
    after: FloatArray = decay * sums + np.array([len(x), np.sum(x * x), np.sum(x * y), np.sum(y * y), right])
    return after


def correlation(sums: FloatArray) -> float:
    """rho, in [-1, 1]; 0 while there is no evidence."""
    count, xx, xy, yy, _ = sums.tolist()
    if xx == 0.0 or yy == 0.0:
        return 0.0
    beta = xy / xx
    residual = max(yy - beta * xy, 0.0) / count
    return float(beta / np.sqrt(beta**2 + residual))


def sign_accuracy(sums: FloatArray) -> float:
    """Share of signs that were right, of the directions run; one half while there is no evidence."""
    return float(sums[RIGHT] / sums[COUNT]) if sums[COUNT] else 0.5
