"""TRES against densities, finite differences, and the plain evolution-strategies gradient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from helpers import proposal
from offrank.algorithms.base import Episodes
from offrank.algorithms.proposal import Pairs, Proposal
from offrank.algorithms.strategies import TRES
from offrank.algorithms.strategies.tres import CHUNK, clip_gradient
from offrank.core.arrays import FloatArray
from offrank.core.errors import OffrankError, UsageError

P, N_OBS, B = 3, 5, 4
D = P * N_OBS


def candidates(sigma: float = 0.3, p: int = P) -> Proposal:
    M = np.random.default_rng(1).normal(size=(p, N_OBS))
    return proposal(M, 9, B, sigma, Episodes(10))


def pairs(plus: FloatArray, minus: FloatArray) -> Pairs:
    return Pairs(np.array([0, 2, 3, 8]), plus, minus, None)  # type: ignore[arg-type]


def some_pairs(seed: int = 0) -> Pairs:
    rng = np.random.default_rng(seed)
    return pairs(rng.normal(100, 20, size=B), rng.normal(100, 20, size=B))


def l_clip(theta_new: FloatArray, theta: FloatArray, sigma: float, x: FloatArray, V: FloatArray, clip: float) -> float:
    """The objective as the paper writes it, with SciPy's densities."""
    r = norm.pdf(x, theta_new, sigma) / norm.pdf(x, theta, sigma)
    value = np.minimum(r * V[:, None], np.clip(r, 1 - clip, 1 + clip) * V[:, None])
    return float(value.sum(axis=1).mean())


def samples(c: Proposal, used: Pairs) -> tuple[FloatArray, FloatArray]:
    """The 2b samples (2b, d) and their values V (2b,)."""
    eps = c.directions.take(used.index)
    R = np.concatenate([used.plus, used.minus])
    return c.theta + c.scale * np.concatenate([eps, -eps]), (R - R.mean()) / R.std()


def test_one_unclipped_epoch_is_the_antithetic_gradient_over_the_deviation() -> None:
    c, used, sigma, alpha = candidates(), some_pairs(), 0.3, 0.01
    M, _, metrics = TRES(learning_rate=alpha, epochs=1, clip=1e9, noise_std=sigma).update(c, used, {})
    x = c.theta + sigma * c.directions.take(used.index)
    total = sum((p - m) * (xi - c.theta) for p, m, xi in zip(used.plus, used.minus, x, strict=True))
    antithetic = total / (2 * B * sigma**2)
    np.testing.assert_allclose(M - c.theta, alpha * antithetic / metrics["sigma_R"], rtol=1e-12)


@pytest.mark.parametrize("clip", [0.1, 0.3, 1e9])
def test_gradient_agrees_with_finite_differences_of_the_papers_objective(clip: float) -> None:
    """At a point away from theta, where with a small lambda many ratios are clipped."""
    c, used, sigma = candidates(), some_pairs(), 0.3
    x, V = samples(c, used)
    eps = c.directions.take(used.index)
    theta = c.theta
    w = np.random.default_rng(3).normal(size=D) * 0.3
    r = norm.pdf(x, theta + sigma * w, sigma) / norm.pdf(x, theta, sigma)
    step = 1e-6
    kinks = np.abs(np.abs(r - 1) - clip) < 20 * step * (np.abs(x - theta) / sigma + 1)
    smooth = ~kinks.any(axis=0)
    assert smooth.sum() >= D - 3

    gradient, clipped = clip_gradient(w, eps, V[:B], V[B:], clip)
    for i in np.flatnonzero(smooth):
        up, down = (theta + sigma * (w + s * step * np.eye(D)[i]) for s in (1, -1))
        difference = (l_clip(up, theta, sigma, x, V, clip) - l_clip(down, theta, sigma, x, V, clip)) / (2 * step)
        assert gradient[i] == pytest.approx(difference, rel=1e-5, abs=1e-6)
    flat = np.where(V[:, None] > 0, r >= 1 + clip, r <= 1 - clip)
    assert clipped == flat.sum()
    assert (clipped > 5) == (clip < 1)


def test_several_epochs_are_gradient_ascent_on_the_papers_objective() -> None:
    c, used, sigma, alpha, clip = candidates(), some_pairs(2), 0.3, 0.004, 0.2
    x, V = samples(c, used)
    theta = c.theta
    path = theta.copy()
    for _ in range(6):
        r = norm.pdf(x, path, sigma) / norm.pdf(x, theta, sigma)
        live = np.where(V[:, None] > 0, r < 1 + clip, r > 1 - clip)
        path = path + alpha * (V[:, None] * r * live * (x - path) / sigma**2).mean(axis=0)
    M, _, metrics = TRES(learning_rate=alpha, epochs=6, clip=clip, noise_std=sigma).update(c, used, {})
    np.testing.assert_allclose(M, path, rtol=1e-9)
    assert metrics["clipped"] > 0.02
    assert l_clip(path, theta, sigma, x, V, clip) > l_clip(theta, theta, sigma, x, V, clip)


def test_clipping_is_by_dimension_not_by_sample() -> None:
    """One dimension far outside of the trust region does not change the gradient of the others."""
    used = some_pairs()
    eps = candidates().directions.take(used.index)
    V = (np.concatenate([used.plus, used.minus]) - 100) / 20
    w = np.zeros(D)
    near, _ = clip_gradient(w, eps, V[:B], V[B:], 0.2)
    w[0] = 5.0
    far, _ = clip_gradient(w, eps, V[:B], V[B:], 0.2)
    assert np.array_equal(far[1:], near[1:]) and far[0] != near[0]


def test_shifting_or_scaling_all_returns_changes_nothing() -> None:
    """The sign of V decides what is clipped: it must not depend on the offset of the returns."""
    strategy, c, used = TRES(noise_std=0.3, learning_rate=0.01, clip=0.2), candidates(), some_pairs()
    M, _, _ = strategy.update(c, used, {})
    for other in (pairs(used.plus - 500, used.minus - 500), pairs(3 * used.plus, 3 * used.minus)):
        np.testing.assert_allclose(strategy.update(c, other, {})[0], M, rtol=1e-9)


def test_equal_returns_give_no_step() -> None:
    M, _, metrics = TRES().update(candidates(), pairs(np.ones(B), np.ones(B)), {})
    assert np.array_equal(M, candidates().theta) and metrics["sigma_R"] == 0


def test_the_result_does_not_depend_on_the_chunks_of_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    c, used = candidates(p=300), some_pairs()
    assert len(c.theta) > 2 * CHUNK
    strategy = TRES(noise_std=0.3, learning_rate=0.01, clip=0.2)
    M, _, metrics = strategy.update(c, used, {})
    monkeypatch.setattr("offrank.algorithms.strategies.tres.CHUNK", 7)
    again, _, others = strategy.update(c, used, {})
    assert np.array_equal(M, again) and metrics == others


def test_an_overflow_stops_with_the_numbers_to_change() -> None:
    strategy = TRES(noise_std=0.3, learning_rate=1e3, epochs=3, clip=0.2)
    with pytest.raises(OffrankError, match="learning_rate is too large for noise_std"):
        strategy.update(candidates(), some_pairs(), {})


@pytest.mark.parametrize("bad", [{"epochs": 0}, {"clip": 0.0}, {"learning_rate": -1.0}, {"noise_std": 0.0}])
def test_bad_hyperparameters_are_named(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(bad))):
        replace(TRES(), **bad)
