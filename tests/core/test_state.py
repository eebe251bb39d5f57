"""What a saved state may be."""

from __future__ import annotations

import numpy as np
import pytest

from offrank.core.normalizer import Normalizer
from offrank.core.state import State


def state(counter: int) -> State:
    return State(0, Normalizer.empty(3), memory={"counter": np.array(counter)})


@pytest.mark.parametrize("counter", [-1, -(2**63), 2**53, 2**63 - 1])
def test_a_counter_of_an_algorithm_is_natural_and_exact_as_a_float(counter: int) -> None:
    start = state(0)
    state(2**53 - 1).check(start)
    with pytest.raises(ValueError, match=f"counter is {counter}"):
        state(counter).check(start)
