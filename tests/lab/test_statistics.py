from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rliable.metrics import probability_of_improvement
from scipy import stats

from offrank.core.errors import UsageError
from offrank.lab.statistics import (
    arrivals,
    censored_median,
    median_interval,
    median_of_successes,
    paired,
    probability_of_winning,
    success_interval,
    survival,
    trend,
    win,
    win_table,
)

BUDGET = 10
runs = st.lists(st.one_of(st.none(), st.integers(1, BUDGET)), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("reached", "expected"),
    [
        ([5, 1, 3], 3),
        ([1, 2, 3, 4], 2),  # the curve is at one half from 2 on
        ([1, 2, None, None], 2),
        ([1, None, None], None),
        ([None, None], None),
        ([7], 7),
    ],
)
def test_censored_median_with_equal_budgets(reached: list[int | None], expected: float | None) -> None:
    assert censored_median(reached, [10] * len(reached)) == expected


def test_a_run_that_ended_early_is_censored_at_its_last_step() -> None:
    """Kaplan-Meier by hand: after the run censored at 2 leaves, 2 remain, and one of them ends at 5."""
    assert censored_median([None, 5, None], [2, 5, 10]) == 5
    assert median_of_successes([None, 5, None]) == 5


def test_survival_is_kaplan_meiers() -> None:
    """By hand: 4 of 5 are left after 1; of the 3 still observed at 5, 2 are left."""
    steps, share = survival([1, None, 5, None, None], [1, 2, 5, 10, 10])
    assert dict(zip(steps, share, strict=True)) == pytest.approx({1: 4 / 5, 2: 4 / 5, 5: 8 / 15, 10: 8 / 15})
    assert censored_median([None, None], [3, 4]) is None


def test_the_papers_median_ignores_the_failures() -> None:
    reached = [3, None, None, None]
    assert median_of_successes(reached) == 3 and censored_median(reached, [9] * 4) is None
    assert median_of_successes([None]) is None


def test_outcomes_and_budgets_must_match() -> None:
    with pytest.raises(UsageError, match="2 outcomes and 1 budgets"):
        censored_median([1, 2], [3])


@settings(deadline=None)
@given(runs)
def test_with_one_budget_the_censored_median_is_a_lower_median(reached: list[int | None]) -> None:
    times = sorted(BUDGET + 1 if r is None else r for r in reached)
    lower = times[(len(times) - 1) // 2]
    assert censored_median(reached, [BUDGET] * len(reached)) == (None if lower > BUDGET else lower)


def test_shares_that_arrived_have_a_band_except_where_none_or_all_did() -> None:
    reached, spent = [10, None, 20, 30], [10, 15, 20, 30]
    steps, share, low, high = arrivals(reached, spent)
    assert steps.tolist() == [10, 15, 20, 30]
    np.testing.assert_allclose(share, [1 / 4, 1 / 4, 5 / 8, 1])
    assert np.all(low <= share) and np.all(share <= high)
    assert low[0] < share[0] < high[0] and low[-1] == high[-1] == 1
    # Greenwood's formula on the scale log(-log)
    error = 1.959964 * np.sqrt(1 / (4 * 3)) / np.log(0.75)
    np.testing.assert_allclose(high[0], 1 - 0.75 ** np.exp(-error), rtol=1e-5)
    assert [side.tolist() for side in arrivals([None], [5])] == [[5], [0], [0], [0]]


def exact_bootstrap(reached: list[int | None], level: float) -> tuple[float, float]:
    """Percentiles of the censored median over all n^n resamples."""
    n = len(reached)
    every = [censored_median([reached[i] for i in pick], [BUDGET] * n) for pick in product(range(n), repeat=n)]
    values = np.array([np.inf if m is None else m for m in every])
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return float(low), float(high)


@pytest.mark.parametrize("reached", [[1, 4, 9, None], [2, None, None], [3, 3, 8, 5]])
def test_the_interval_of_a_median_is_that_of_all_resamples(reached: list[int | None]) -> None:
    found = median_interval(reached, [BUDGET] * len(reached), level=0.8)
    assert found is not None
    low, high = exact_bootstrap(reached, level=0.8)
    assert (found.low or np.inf, found.high or np.inf) == (low, high)


@settings(max_examples=8, deadline=None)
@given(runs)
def test_the_interval_contains_the_median_and_does_not_change_when_computed_again(reached: list[int | None]) -> None:
    spent = [BUDGET] * len(reached)
    found = median_interval(reached, spent)
    if found is None:
        assert set(reached) == {None}
        return
    middle = censored_median(reached, spent) or np.inf
    assert (found.low or np.inf) <= middle <= (found.high or np.inf)
    assert found == median_interval(reached, spent)


@settings(deadline=None)
@given(st.integers(1, 100), st.data())
def test_success_intervals_are_wilsons(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    z = stats.norm.ppf(0.975)
    middle = (k + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * np.sqrt(k * (n - k) / n + z * z / 4)
    found = success_interval(k, n)
    assert found.low == pytest.approx(max(middle - half, 0), abs=1e-12)
    assert found.high == pytest.approx(min(middle + half, 1), abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(runs, runs)
def test_winning_is_mann_whitney_and_rliables_where_every_budget_is_the_same(a, b) -> None:
    table = win_table(a, [BUDGET] * len(a), b, [BUDGET] * len(b))
    steps = [[BUDGET + 1 if r is None else r for r in runs] for runs in (a, b)]
    found = probability_of_winning(table)
    if found is None:
        assert set(table.ravel()) == {0.5}
        return
    chance, interval = found
    fewer = stats.mannwhitneyu(steps[1], steps[0], method="asymptotic").statistic / table.size
    assert chance == pytest.approx(fewer)
    scores = (-np.array(values, dtype=float)[:, None] for values in steps)
    assert chance == pytest.approx(probability_of_improvement(*scores))
    assert interval.low is not None and interval.high is not None
    assert interval.low <= chance + 1e-12 and chance - 1e-12 <= interval.high


@given(runs, runs)
def test_what_one_wins_the_other_loses(a, b) -> None:
    spent = [BUDGET] * len(a), [BUDGET] * len(b)
    assert np.array_equal(win_table(a, spent[0], b, spent[1]), 1 - win_table(b, spent[1], a, spent[0]).T)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((3, 3), (5, 5), 1.0),
        ((5, 5), (5, 5), 0.5),
        ((3, 3), (None, 10), 1.0),
        ((7, 7), (None, 5), 0.5),  # the other was censored before: the order is unknown
        ((None, 10), (None, 4), 0.5),
        ((None, 10), (6, 6), 0.0),
    ],
)
def test_an_unknown_order_is_a_tie(a, b, expected: float) -> None:
    assert win(a, b) == expected and win(b, a) == 1 - expected


def test_pairs_are_compared_on_the_seeds_both_have() -> None:
    a = {0: (3, 3), 1: (4, 4), 2: (None, 9), 3: (2, 2), 8: (1, 1)}
    b = {0: (5, 5), 1: (None, 9), 2: (None, 9), 3: (6, 6), 9: (1, 1)}
    found = paired(a, b)
    assert (found.wins, found.losses, found.ties) == (3, 0, 1)
    assert found.p == pytest.approx(2 * 0.5**3)
    assert paired({0: (None, 9)}, {0: (None, 9)}).p is None


def test_where_nobody_arrived_there_is_no_probability_and_no_interval() -> None:
    assert median_interval([None, None], [5, 9]) is None
    assert probability_of_winning(win_table([None, None], [5, 9], [None], [9])) is None
    assert probability_of_winning(win_table([7], [7], [None], [5])) is None  # the order is unknown
    assert probability_of_winning(win_table([7], [7], [None], [9])) is not None


def test_a_trend_is_least_squares_through_the_medians_of_blocks() -> None:
    random = np.random.default_rng(1)
    times, values = np.arange(12.0), random.normal(size=12) + 3.0
    line, found = stats.linregress(times, values), trend(times, values)
    margin = line.stderr * stats.t.ppf(0.975, 10)
    assert np.isclose(found.slope, line.slope) and found.level == np.median(values)
    assert np.allclose((found.interval.low, found.interval.high), (line.slope - margin, line.slope + margin))
    assert trend(np.repeat(times, 3), np.repeat(values, 3)).interval == found.interval  # copies say no more


def test_a_constant_has_no_trend_and_two_values_are_too_few() -> None:
    flat = trend([0, 1, 2], [5, 5, 5])
    assert (flat.slope, flat.interval.low, flat.interval.high) == (0, 0, 0)
    with pytest.raises(UsageError, match="needs 3 measurements"):
        trend([0, 1], [1, 2])
