"""What a number may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offrank.core.checks import check_whole
from offrank.core.errors import UsageError


def test_whole_numbers_are_those_of_64_bits_with_a_sign() -> None:
    assert [check_whole("a", value) for value in (0, 3.0, np.int8(4), 2**63 - 1)] == [0, 3, 4, 2**63 - 1]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (2**63, "a = 9223372036854775808: must be at most 9,223,372,036,854,775,807"),
        (-1, "a = -1: must not be negative"),
        (2.5, "a = 2.5: must be a whole number"),
        (True, "a = True: must be a whole number"),
        (float("inf"), "a = inf: must be a whole number"),
        ("3", "a = '3': must be a whole number"),
    ],
)
def test_what_is_not_a_whole_number_is_named(value: Any, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_whole("a", value)
    assert str(caught.value) == line
