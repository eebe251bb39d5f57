"""Statistics of runs that may never reach their threshold: a seed that did not get there is information, not a gap."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from offrank.errors import UsageError, require


def censored_median(reached: Sequence[int | None], budgets: Sequence[int]) -> float | None:
    """The smallest number of steps at which the Kaplan-Meier curve of runs still short of the threshold is at or under
    one half; None if it never is (more than the budget).

    Args:
        reached: steps to the threshold a run, None where it was not reached.
        budgets: steps each run took in all; what is known of a run that did not get there.
    """
    if len(reached) != len(budgets) or not len(reached):
        raise UsageError(f"{len(reached)} outcomes and {len(budgets)} budgets: one of each a run, and at least one run")
    stats = require("scipy.stats", "studies")
    uncensored = [r for r in reached if r is not None]
    right = [b for r, b in zip(reached, budgets, strict=True) if r is None]
    if not uncensored:
        return None
    curve = stats.ecdf(stats.CensoredData(uncensored=uncensored, right=right)).sf
    at_half = np.flatnonzero(curve.probabilities <= 0.5 + 1e-12)
    return float(curve.quantiles[at_half[0]]) if len(at_half) else None


def median_of_successes(reached: Sequence[int | None]) -> float | None:
    """The paper's reading: the median over the seeds that got there, whatever became of the others."""
    found = [r for r in reached if r is not None]
    return float(median(found)) if found else None
