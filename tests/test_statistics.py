from __future__ import annotations

import pytest

from offrank.errors import UsageError
from offrank.studies.statistics import censored_median, median_of_successes


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


def test_a_run_that_gave_up_early_counts_for_as_long_as_it_ran() -> None:
    """Kaplan-Meier by hand: after the run censored at 2 leaves, 2 remain, and one of them ends at 5."""
    assert censored_median([None, 5, None], [2, 5, 10]) == 5
    assert median_of_successes([None, 5, None]) == 5


def test_the_papers_reading_forgets_the_failures() -> None:
    reached = [3, None, None, None]
    assert median_of_successes(reached) == 3 and censored_median(reached, [9] * 4) is None
    assert median_of_successes([None]) is None


def test_outcomes_and_budgets_must_match() -> None:
    with pytest.raises(UsageError, match="2 outcomes and 1 budgets"):
        censored_median([1, 2], [3])
