"""Kinds of policies: what they compute, their gradients, and their files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from offrank.core.arrays import FloatArray
from offrank.core.errors import FileFormatError, UsageError
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy
from offrank.policies import canonical, make_policy
from offrank.policies.trained import TrainedPolicy

N, P = 5, 3
KINDS = ["linear", "affine", "skip:4", "mlp:4", "mlp:6,4,3"]


def drawn(policy: Policy, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).normal(size=policy.size) / 2


def by_hand(policy: Policy, theta: FloatArray, z: FloatArray) -> FloatArray:
    """The formulas, with the parameters in the order of theta."""
    numbers = iter(theta.tolist())

    def matrix(rows: int, columns: int) -> FloatArray:
        return np.array([[next(numbers) for _ in range(columns)] for _ in range(rows)])

    def vector(size: int) -> FloatArray:
        return np.array([next(numbers) for _ in range(size)])

    kind, _, widths = policy.name.partition(":")
    if kind == "linear":
        return matrix(P, N) @ z
    if kind == "affine":
        return matrix(P, N) @ z + vector(P)
    sizes = [int(w) for w in widths.split(",")]
    if kind == "skip":
        hidden = np.tanh(matrix(sizes[0], N) @ z + vector(sizes[0]))
        V = matrix(P, sizes[0])
        return matrix(P, N) @ z + V @ hidden
    x = z
    for before, after in zip([N, *sizes[:-1]], sizes, strict=True):
        x = np.tanh(matrix(after, before) @ x + vector(after))
    return matrix(P, sizes[-1]) @ x + vector(P)


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_computes_its_formula(name: str) -> None:
    policy = make_policy(name, N, P)
    theta, z = drawn(policy), np.random.default_rng(1).normal(size=(7, N))
    expected = np.stack([by_hand(policy, theta, state) for state in z])
    np.testing.assert_allclose(policy.act(theta, z), expected, rtol=1e-12)
    np.testing.assert_allclose(policy.act_together(theta, z), expected, rtol=1e-12)
    thetas = np.stack([drawn(policy, seed) for seed in range(7)])
    expected = np.stack([by_hand(policy, one, state) for one, state in zip(thetas, z, strict=True)])
    np.testing.assert_allclose(policy.act(thetas, z), expected, rtol=1e-12)
    np.testing.assert_allclose(policy.act_together(thetas, z)[3], policy.act(thetas[3], z), rtol=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_an_action_has_the_same_bits_alone_and_in_a_batch(name: str) -> None:
    policy = make_policy(name, 40, 6)
    theta, z = drawn(policy), np.random.default_rng(1).normal(size=(9, 40))
    together = policy.act(theta, z)
    assert all(np.array_equal(policy.act(theta, z[i]), together[i]) for i in range(9))


@pytest.mark.parametrize("name", KINDS)
def test_pull_back_equals_finite_differences(name: str) -> None:
    policy = make_policy(name, N, P)
    rng = np.random.default_rng(2)
    theta, z, g = drawn(policy), rng.normal(size=(6, N)), rng.normal(size=(6, P))
    found = policy.pull_back(theta, z, g)
    assert found.shape == theta.shape
    for i in range(policy.size):
        step = np.zeros_like(theta)
        step[i] = 1e-6
        up, down = (np.sum(g * policy.act(theta + s * step, z)) for s in (1, -1))
        assert found[i] == pytest.approx((up - down) / 2e-6, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("name", KINDS)
def test_a_batch_of_policies_is_pulled_back_policy_by_policy(name: str) -> None:
    policy = make_policy(name, N, P)
    rng = np.random.default_rng(2)
    thetas, z, g = (
        np.stack([drawn(policy, s) for s in range(3)]),
        rng.normal(size=(3, 6, N)),
        rng.normal(size=(3, 6, P)),
    )
    together = policy.pull_back(thetas, z, g)
    for i in range(3):
        np.testing.assert_allclose(together[i], policy.pull_back(thetas[i], z[i], g[i]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_pytorch_computes_the_same(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    policy = make_policy(name, N, P)
    rng = np.random.default_rng(2)
    theta, z, g = drawn(policy), rng.normal(size=(6, N)), rng.normal(size=(6, P))
    tensors = [torch.as_tensor(array) for array in (theta, z, g)]
    np.testing.assert_allclose(policy.act_together(*tensors[:2]).numpy(), policy.act(theta, z), rtol=1e-10)
    np.testing.assert_allclose(policy.pull_back(*tensors).numpy(), policy.pull_back(theta, z, g), rtol=1e-10)


@pytest.mark.parametrize("name", KINDS)
def test_all_policies_act_as_zero_at_the_start_and_can_leave_it_by_gradient(name: str) -> None:
    policy = make_policy(name, N, P)
    theta, z = policy.start(7), np.random.default_rng(1).normal(size=(4, N))
    assert np.array_equal(policy.act(theta, z), np.zeros((4, P)))
    assert np.abs(policy.pull_back(theta, z, np.ones((4, P)))).max() > 0
    assert np.array_equal(theta, policy.start(7))
    assert policy.is_linear or name == "affine" or not np.array_equal(theta, policy.start(8))


def test_sizes_are_those_of_the_formulas() -> None:
    assert make_policy("linear", 11, 3).size == 33 and make_policy("affine", 11, 3).size == 36
    assert [make_policy("skip:32", n, p).size for n, p in ((11, 3), (17, 6), (27, 8))] == [513, 870, 1368]
    assert make_policy("mlp:64,64", 17, 6).size == 17 * 64 + 64 + 64 * 64 + 64 + 64 * 6 + 6


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("linaer", "did you mean 'linear'"),
        ("skip", "written like skip:32"),
        ("skip:4,4", "written like skip:32"),
        ("mlp:", "written like mlp:64,64"),
        ("mlp:64,0", "widths of at least 1"),
        ("mlp:64,-1", "widths of at least 1"),
        ("linear:3", "written like linear"),
        ("", "unknown policy ''"),
        ("mlp:999999,999999", "at most 100,000,000"),
    ],
)
def test_a_wrong_name_is_one_clear_line(given: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make_policy(given, N, P)


def test_a_name_has_one_canonical_form() -> None:
    assert [canonical(name) for name in ("Linear", " MLP: 64, 32 ", "skip:08")] == ["linear", "mlp:64,32", "skip:8"]


# --- trained policies


def trained(name: str = "skip:4") -> TrainedPolicy:
    kind = make_policy(name, N, P)
    whitening = Whitening(np.arange(N, dtype=np.float64), np.full(N, 0.5))
    return TrainedPolicy(kind, drawn(kind), whitening, low=np.full(P, -1.0), high=np.full(P, 1.0))


@pytest.mark.parametrize("name", KINDS)
def test_what_is_written_is_read(name: str) -> None:
    policy = trained(name)
    again = TrainedPolicy.from_arrays(policy.arrays())
    assert again.sha256 == policy.sha256 and again.kind == policy.kind
    observations = np.random.default_rng(0).normal(size=(4, N))
    assert np.array_equal(again.predict(observations), policy.predict(observations))
    bounded = replace(policy, low=np.full(P, -0.01), high=np.full(P, 0.01))
    assert np.abs(bounded.predict(observations)).max() == 0.01


def test_the_hash_covers_all_that_determines_the_actions() -> None:
    policy = trained()
    others = [
        replace(policy, theta=policy.theta + 1e-9),
        replace(policy, whitening=Whitening(policy.whitening.mean, policy.whitening.scale * 2)),
        replace(policy, low=np.full(P, -2.0)),
        replace(policy, high=np.full(P, 2.0)),
        replace(policy, low=None, high=None),
        replace(policy, discrete=True),
        replace(policy, discrete=True, first=1),
        replace(policy, shape=(P, 1)),
        replace(policy, dtype="float32"),
        replace(trained("mlp:4"), theta=np.resize(policy.theta, make_policy("mlp:4", N, P).size)),
    ]
    assert len({other.sha256 for other in [policy, *others]}) == len(others) + 1


def test_a_matrix_of_version_0_1_is_a_linear_policy() -> None:
    M = np.random.default_rng(0).normal(size=(P, N))
    arrays = trained().arrays()
    del arrays["policy.kind"], arrays["policy.theta"]
    policy = TrainedPolicy.from_arrays(arrays | {"policy.M": M})
    assert policy.kind == make_policy("linear", N, P) and np.array_equal(policy.M, M)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("policy.mean", np.zeros(N - 1), "mean of shape"),
        ("policy.theta", np.zeros(3), "theta of shape"),
        ("policy.theta", np.zeros(make_policy("skip:4", N, P).size, dtype=np.float32), "type float32"),
        ("policy.theta", np.full(make_policy("skip:4", N, P).size, np.nan), "not finite"),
        ("policy.scale", np.zeros((N, 1)), "scale of shape"),
        ("policy.low", np.zeros(P + 1), "low of shape"),
        ("policy.kind", np.frombuffer(b"[]", dtype=np.uint8), "no policy that can be read"),
        ("policy.kind", np.frombuffer(b'{"name": "odd", "n": 5, "p": 3}', dtype=np.uint8), "no policy"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_before_anything_uses_them(name: str, value: FloatArray, says: str) -> None:
    with pytest.raises(FileFormatError, match=says):
        TrainedPolicy.from_arrays(trained().arrays() | {name: value})


def test_only_a_linear_policy_is_a_matrix() -> None:
    assert trained("linear").M.shape == (P, N)
    with pytest.raises(UsageError, match="not a matrix"):
        _ = trained().M


def test_files_of_version_0_1_are_read_and_evaluated() -> None:
    """Written by commit c8b1477."""
    from offrank.runs.evaluation import evaluate_policy
    from offrank.runs.saved import Saved

    found = {}
    for path in sorted(Path(__file__).parent.glob("Swimmer-v3-*.offrank")):
        saved = Saved.read(path)
        assert saved.meta["offrank"] == 1 and saved.policy.kind.name == saved.config.policy == "linear"
        engine = saved.engine(threads=1)
        found[path.stem] = evaluate_policy(saved.policy, engine, 2, horizon=100)["mean"]
        engine.close()
    assert len(found) == 2 and json.dumps(found) and found["Swimmer-v3-trained"] > found["Swimmer-v3-half"]
