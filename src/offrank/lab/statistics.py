"""Statistics of runs that may never reach their threshold: such runs are censored, not left out.

`reached` are steps to the threshold, one entry per run, None where it was not reached; `spent` the steps that each run
took in all, at which a run that did not reach the threshold is censored. None as a result means "later than any run was
observed".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf
from statistics import median
from typing import Any

import numpy as np

from offrank.core.arrays import FloatArray, IntArray
from offrank.core.errors import UsageError, require

Reached = Sequence[int | None]
RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """From low to high; None where an end lies beyond every budget."""

    low: float | None
    high: float | None


def survival(reached: Reached, spent: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    """The Kaplan-Meier curve of runs still short of the threshold: its steps, and the share from each of them on."""
    curve = _still_short(reached, spent)
    return np.asarray(curve.quantiles, dtype=np.float64), np.asarray(curve.probabilities, dtype=np.float64)


def arrivals(reached: Reached, spent: Sequence[int], level: float = LEVEL) -> tuple[FloatArray, ...]:
    """Steps, the share of runs that had reached the threshold (Kaplan-Meier), and the ends of its band (log-log)."""
    curve = _still_short(reached, spent)
    steps, short = survival(reached, spent)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # where none or all arrived: no band
        band = curve.confidence_interval(level, method="log-log")
    low, high = (np.where(np.isnan(side.probabilities), short, side.probabilities) for side in (band.low, band.high))
    return steps, 1 - short, 1 - high, 1 - low


def _still_short(reached: Reached, spent: Sequence[int]) -> Any:
    _check(reached, spent)
    stats = require("scipy.stats", "studies")
    uncensored = [r for r in reached if r is not None]
    right = [s for r, s in zip(reached, spent, strict=True) if r is None]
    return stats.ecdf(stats.CensoredData(uncensored=uncensored, right=right)).sf


def censored_median(reached: Reached, spent: Sequence[int]) -> float | None:
    """The smallest number of steps at which the Kaplan-Meier curve of runs still short of the threshold is at or under
    one half; None if it never is (more than the budget)."""
    steps, share = survival(reached, spent)
    at_half = np.flatnonzero(share <= 0.5 + 1e-12)
    return float(steps[at_half[0]]) if len(at_half) else None


def median_of_successes(reached: Reached) -> float | None:
    """The paper's definition: the median over the seeds that reached the threshold, ignoring the others."""
    found = [r for r in reached if r is not None]
    return float(median(found)) if found else None


def median_interval(reached: Reached, spent: Sequence[int], level: float = LEVEL) -> Interval | None:
    """Percentile bootstrap of the censored median over the seeds; the rule of `censored_median` in every resample.

    None if no run reached the threshold: the runs then say nothing about where the median lies beyond them.
    """
    _check(reached, spent)
    if all(r is None for r in reached):
        return None

    def medians(picks: IntArray) -> float:
        found = censored_median([reached[i] for i in picks], [spent[i] for i in picks])
        return inf if found is None else found

    return _percentiles(_resampled(medians, len(reached)), level)


def success_interval(successes: int, runs: int, level: float = LEVEL) -> Interval:
    """Wilson's interval of a success rate."""
    stats = require("scipy.stats", "studies")
    found = stats.binomtest(successes, runs).proportion_ci(level, method="wilson")
    return Interval(float(found.low), float(found.high))


@dataclass(frozen=True)
class Trend:
    """A straight line through measurements over time."""

    level: float  # median of the measurements
    slope: float  # per unit of time
    interval: Interval  # of the slope


def trend(times: Sequence[float], values: Sequence[float], blocks: int = 12, level: float = LEVEL) -> Trend:
    """The trend of measurements over time, and its interval.

    Neighbouring measurements are alike, and as independent ones they would give too narrow an interval. So the line is
    fitted to the medians of consecutive blocks.

    Raises:
        UsageError: there are fewer than 3 measurements.
    """
    if len(times) != len(values) or len(times) < 3:
        raise UsageError(f"a trend needs 3 measurements or more with their times, not {len(values)}")
    stats = require("scipy.stats", "studies")
    blocks = min(blocks, len(times))
    x, y = (np.array([np.median(block) for block in np.array_split(v, blocks)]) for v in (times, values))
    x -= x.mean()
    slope = float(x @ y / (x @ x))
    rest = y - y.mean() - slope * x
    margin = float(stats.t.ppf((1 + level) / 2, blocks - 2) * np.sqrt(rest @ rest / (blocks - 2) / (x @ x)))
    return Trend(float(np.median(values)), slope, Interval(slope - margin, slope + margin))


def win(a: tuple[int | None, int], b: tuple[int | None, int]) -> float:
    """1 if the run a = (reached, spent) is known to have reached the threshold before b, 0 if after, else 1/2.

    Two runs that never reached it tie; so do runs whose order is unknown because one was stopped before the other
    reached it.
    """
    (reached_a, spent_a), (reached_b, spent_b) = a, b
    if reached_a is not None and reached_b is not None:
        return 0.5 if reached_a == reached_b else float(reached_a < reached_b)
    if reached_a is not None:
        return 1.0 if reached_a <= spent_b else 0.5
    if reached_b is not None:
        return 0.0 if reached_b <= spent_a else 0.5
    return 0.5


def win_table(reached_a: Reached, spent_a: Sequence[int], reached_b: Reached, spent_b: Sequence[int]) -> FloatArray:
    """`win` of every run of A against every run of B."""
    _check(reached_a, spent_a)
    _check(reached_b, spent_b)
    first, second = list(zip(reached_a, spent_a, strict=True)), list(zip(reached_b, spent_b, strict=True))
    return np.array([[win(a, b) for b in second] for a in first])


def probability_of_winning(table: FloatArray, level: float = LEVEL) -> tuple[float, Interval] | None:
    """The probability that a run of A beats one of B (ties half), with a bootstrap interval, from the outcomes of all
    pairs: a `win_table` or a `higher_table`. None if every pair ties: nothing is decided.

    With a `win_table` it is Gehan's form of the Mann-Whitney statistic: with nothing censored it is the usual one.
    """
    if (table == 0.5).all():
        return None
    rng = np.random.default_rng(0)
    rows, columns = (rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES) for n in table.shape)  # how often each run
    values: FloatArray = ((rows @ table) * columns).sum(axis=1) / table.size
    return float(table.mean()), _percentiles(values, level)


def higher_table(a: Sequence[float], b: Sequence[float]) -> FloatArray:
    """1 where a value of A is higher than one of B, 0 where it is lower, 1/2 where they are equal."""
    first, second = np.array(a)[:, None], np.array(b)
    table: FloatArray = (first > second) + 0.5 * (first == second)
    return table


def bootstrap(values: Sequence[float], statistic: Callable[[Sequence[float]], float], level: float = LEVEL) -> Interval:
    """Percentile bootstrap of a statistic of one value per run."""
    return _percentiles(_resampled(lambda picks: statistic([values[i] for i in picks]), len(values)), level)


@dataclass(frozen=True)
class Paired:
    """A against B on the seeds both ran."""

    wins: int
    losses: int
    ties: int
    p: float | None  # of the two-sided sign test, without ties; None if all tie


def paired(a: Mapping[int, tuple[int | None, int]], b: Mapping[int, tuple[int | None, int]]) -> Paired:
    """Compare by seed; each mapping goes from seed to (reached, spent)."""
    stats = require("scipy.stats", "studies")
    outcomes = [win(a[seed], b[seed]) for seed in sorted(set(a) & set(b))]
    wins, losses = outcomes.count(1.0), outcomes.count(0.0)
    p = float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else None
    return Paired(wins, losses, len(outcomes) - wins - losses, p)


def _resampled(statistic: Callable[[IntArray], float], n: int) -> FloatArray:
    """The statistic of resamples of n runs, given as indices; the same resamples every time.

    A resample is a multiset, so equal ones (few seeds have few) are computed once.
    """
    picks = np.sort(np.random.default_rng(0).integers(n, size=(RESAMPLES, n)), axis=1)
    distinct, counts = np.unique(picks, axis=0, return_counts=True)
    return np.repeat([statistic(pick) for pick in distinct], counts)


def _percentiles(values: FloatArray, level: float) -> Interval:
    """The middle `level` of the values, without interpolation, because values may be infinite."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return Interval(*(None if isinf(end) else float(end) for end in (low, high)))


def _check(reached: Reached, spent: Sequence[int]) -> None:
    if len(reached) != len(spent) or not len(reached):
        raise UsageError(f"{len(reached)} outcomes and {len(spent)} budgets: one of each per run, and at least one run")
