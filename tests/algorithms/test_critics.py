"""Critics with layer normalisation: gradients against finite differences, and what they share with `networks.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offrank.algorithms.learning import critics, networks
from offrank.core.arrays import Memory

INPUTS, HIDDEN, BATCH = 5, 7, 6


def network(to: Any = np.float64) -> Memory:
    """A network with biases that are not 0."""
    random = np.random.default_rng(4)
    made = critics.draw(random, 1, INPUTS, HIDDEN)
    return {name: (value + 0.1 * random.standard_normal(value.shape)).astype(to)[0] for name, value in made.items()}


def test_a_new_critic_has_units_of_deviation_one_and_a_small_output() -> None:
    made = critics.draw(np.random.default_rng(0), 2, 100, 200)
    assert made["w1"].std() == pytest.approx(1 / np.sqrt(100), rel=0.03)
    assert made["w2"].std() == pytest.approx(1 / np.sqrt(200), rel=0.03)
    assert made["w3"].std() == pytest.approx(0.3 / np.sqrt(200), rel=0.15)
    assert not any(made[name].any() for name in ("c1", "c2", "c3"))


def batch(to: Any = np.float64) -> tuple[Any, Any]:
    random = np.random.default_rng(5)
    return random.standard_normal((BATCH, INPUTS)).astype(to), random.standard_normal((BATCH, 1)).astype(to)


def difference(f: Any, x: Any, step: float = 1e-6) -> Any:
    """The gradient of f by central differences, of the shape of x, which f reads."""
    out = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        kept = x[at]
        x[at] = kept + step
        above = f()
        x[at] = kept - step
        out[at] = (above - f()) / (2 * step)
        x[at] = kept
    return out


def test_the_output_is_that_of_layers_standardised_over_their_units() -> None:
    made, (x, _) = network(), batch()
    h = x
    for layer in (1, 2):
        h = h @ made[f"w{layer}"] + made[f"c{layer}"]
        h = (h - h.mean(axis=1, keepdims=True)) / np.sqrt(h.var(axis=1, keepdims=True) + 1e-5)
        h = np.maximum(h, 0)
    out = h @ made["w3"] + made["c3"]
    np.testing.assert_allclose(critics.forward(made, x)[2], out, rtol=1e-7)


def test_the_gradient_of_the_squared_error_is_its_finite_difference() -> None:
    made, (x, y) = network(), batch()
    gradient = critics.squared_error_gradient(made, x, y)
    assert set(gradient) == set(made)

    def loss() -> float:
        return float(((critics.forward(made, x)[2] - y) ** 2).mean())

    for name, value in made.items():
        np.testing.assert_allclose(gradient[name], difference(loss, value), rtol=1e-5, atol=1e-7, err_msg=name)


def test_the_gradient_at_the_input_is_the_finite_difference_of_the_output() -> None:
    made, (x, _) = network(), batch()
    expected = difference(lambda: float(critics.forward(made, x)[2].sum()), x)
    np.testing.assert_allclose(critics.input_gradient(made, x), expected, rtol=1e-5, atol=1e-7)


def test_arrays_are_those_of_networks_in_single_precision() -> None:
    """Adam, slow copies, packing and saving are of `networks.py`: names, shapes and types must be the same."""
    mine, usual = (module.draw(np.random.default_rng(0), 2, INPUTS, HIDDEN) for module in (critics, networks))
    assert {k: (v.shape, v.dtype) for k, v in mine.items()} == {k: (v.shape, v.dtype) for k, v in usual.items()}
    (x, y), mine = batch(np.float32), {name: value[0] for name, value in mine.items()}
    gradient = critics.squared_error_gradient(mine, x, y)
    assert {k: (v.shape, v.dtype) for k, v in gradient.items()} == {k: (v.shape, v.dtype) for k, v in mine.items()}
    assert critics.forward(mine, x)[2].dtype == critics.input_gradient(mine, x).dtype == np.float32


def test_arguments_are_not_written_to() -> None:
    made, (x, y) = network(), batch()
    before = [value.copy() for value in (*made.values(), x, y)]
    critics.squared_error_gradient(made, x, y)
    critics.input_gradient(made, x)
    assert all(np.array_equal(a, b) for a, b in zip(before, (*made.values(), x, y), strict=True))


def test_hidden_layers_do_not_see_how_large_their_weights_are() -> None:
    made, (x, _) = network(), batch()
    larger = made | {name: 100 * made[name] for name in ("w1", "c1", "w2", "c2")}
    np.testing.assert_allclose(critics.forward(larger, x)[2], critics.forward(made, x)[2], atol=1e-4)


def test_adam_fits_them_to_a_function() -> None:
    random = np.random.default_rng(0)
    made = {name: value[0] for name, value in critics.draw(random, 1, 2, 32).items()}
    first, second = networks.zeros_like(made), networks.zeros_like(made)
    x = random.uniform(-1, 1, (256, 2)).astype(np.float32)
    y = x[:, :1] * x[:, 1:]
    for step in range(1, 601):
        gradient = critics.squared_error_gradient(made, x, y)
        networks.adam(made, gradient, first, second, networks.step_size(3e-3, step))
    error = np.square(critics.forward(made, x)[2] - y).mean()
    assert error < 0.01 * float(y.var())


@pytest.mark.parametrize("size", [0.0, 1e-4])
def test_equal_units_have_finite_gradients(size: float) -> None:
    made = {name: np.full_like(value, size) for name, value in network(to=np.float32).items()}
    x, y = batch(np.float32)
    assert all(np.isfinite(g).all() for g in critics.squared_error_gradient(made, x, y).values())
