from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import rankdata

from offrank.algorithms.strategies import ES
from offrank.algorithms.strategies.es import centred_ranks
from offrank.core.errors import UsageError
from test_tres import B, candidates, pairs, some_pairs


@pytest.mark.parametrize("values", [[3.0, 1.0, 2.0], [1.0, 1.0, 5.0, 0.0], [2.0, 2.0, 2.0], [7.0], [-1e300, 1e300]])
def test_ranks_are_scipys_spread_over_a_unit(values: list[float]) -> None:
    expected = (rankdata(values) - 1) / max(len(values) - 1, 1) - 0.5
    np.testing.assert_allclose(centred_ranks(np.array(values)), expected)


def test_ranks_see_only_the_order_of_returns() -> None:
    c, used = candidates(), some_pairs()
    start = ES().memory(len(c.theta))
    M, _, _ = ES().update(c, used, start)
    warped, _, _ = ES().update(c, pairs(np.exp(used.plus / 10), np.exp(used.minus / 10)), start)
    assert np.array_equal(M, warped)


def test_steps_are_adam_on_the_antithetic_gradient() -> None:
    """Three updates, against Adam written out for one weight at a time."""
    strategy = ES(learning_rate=0.02, weight_decay=0.1, noise_std=0.3)
    c = candidates()
    theta, memory = c.theta, strategy.memory(len(c.theta))
    expected, m, v = theta.copy(), np.zeros(theta.size), np.zeros(theta.size)
    for t in range(1, 4):
        used = some_pairs(t)
        here = replace(c, theta=theta)
        theta, memory, _ = strategy.update(here, used, memory)
        s = (rankdata(np.concatenate([used.plus, used.minus])) - 1) / (2 * B - 1) - 0.5
        eps = c.directions.take(used.index)
        for i in range(len(expected)):
            g = sum((s[k] - s[B + k]) * eps[k, i] for k in range(B)) / (2 * B) - 0.1 * expected[i]
            m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g**2
            expected[i] += 0.02 * (m[i] / (1 - 0.9**t)) / (np.sqrt(v[i] / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(theta, expected, rtol=1e-10)
    assert int(memory["t"]) == 3


@pytest.mark.parametrize("bad", [{"beta1": 1.0}, {"weight_decay": -0.1}, {"learning_rate": 0.0}])
def test_bad_hyperparameters_are_named(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(bad))):
        ES(**bad)
