"""The GPU kernels of an update, in Triton's interpreter, equal what PyTorch does without them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from offrank.algorithms.learning import batched_networks, kernels  # noqa: E402
from offrank.algorithms.learning.batched_actor_critic import ActorCriticTrainer  # noqa: E402
from offrank.algorithms.learning.batched_networks import Layout, adam  # noqa: E402
from test_batched_actor_critic import SameDraws, alive, assert_close  # noqa: E402

INTERPRETER = "TRITON_INTERPRET"  # must be set before Triton is imported
interpreted = pytest.mark.skipif(INTERPRETER not in os.environ, reason="run by test_in_tritons_interpreter")


@pytest.mark.skipif(INTERPRETER in os.environ, reason="this is the interpreter")
def test_in_tritons_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=os.environ | {INTERPRETER: "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "7 passed" in done.stdout, done.stdout


def normal(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@interpreted
@pytest.mark.parametrize("hidden", [8, 21])
def test_a_hidden_layer_and_its_gradient(hidden: int) -> None:
    layout, y, wide = Layout(3, hidden, standardised=True), 3 * normal(4, 7, hidden) + 2, hidden + 3
    y[0, 0] = 1.0  # of which nothing is left but 0
    h, other = torch.full((2, 4, 7, wide), 5.0)
    kept = layout.rectify(y, h)
    moments = kernels.rectify(y, other)
    torch.testing.assert_close(other, h)
    for name, (one, two) in {"mean": (kept[1], moments[0]), "factor": (kept[2], moments[1])}.items():
        torch.testing.assert_close(two, one.flatten(1), msg=name)
    only = kernels.rectify(y, None)
    assert all(torch.equal(one, two) for one, two in zip(only, moments, strict=True))
    d = normal(2, 7, hidden)
    torch.testing.assert_close(kernels.back(d, y, *moments), layout.back(d, kept))
    expanded = normal(2, 1, hidden).expand_as(d)
    torch.testing.assert_close(kernels.back(expanded, y, *moments), layout.back(expanded, kept))


@interpreted
@pytest.mark.parametrize("follow", [False, True])
def test_adam_and_the_slow_copies(follow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "BLOCK", 16)
    rates = torch.tensor([[0.1, 0.2, 0.0], [0.01, 0.02, 0.0], [-1e-2, -2e-2, 0.0], [0.5, 0.1, 0.0]])[..., None]
    rates = rates if follow else rates[:3]
    start = [normal(3, 40), normal(3, 41)[:, 1:].contiguous(), normal(3, 40) / 9, normal(3, 40).square()]
    slow = normal(3, 42)[:, 2:].contiguous() if follow else None
    one, two = ([array.clone() for array in [*start, *([slow] if follow else [])]] for _ in range(2))
    adam(*one[:4], rates, *one[4:])
    kernels.adam(*two[:4], rates, *two[4:] or [None])
    for place in (0, 2, 3, *([4] if follow else [])):
        torch.testing.assert_close(two[place], one[place])
        assert torch.equal(two[place][2], start[place][2] if place < 4 else slow[2])  # rates of 0 change nothing
        assert not torch.equal(two[place][:2], (start[place] if place < 4 else slow)[:2])


@interpreted
def test_lessons_with_them_are_those_without(monkeypatch: pytest.MonkeyPatch) -> None:
    learners = alive(2)
    lessons = [learner.lesson(count) for learner, count in zip(learners, (5, 2), strict=True)]
    monkeypatch.setattr(batched_networks, "fused", lambda array: True)
    together = ActorCriticTrainer("cpu", SameDraws).train(lessons, learners)
    for lesson, other in zip(lessons, together, strict=True):
        assert_close(lesson.carry_out(), other)


@pytest.fixture
def unknown() -> Iterator[None]:
    """Whether the kernels work is not known, before and after the test."""
    batched_networks.kernels_work.cache_clear()
    yield
    batched_networks.kernels_work.cache_clear()


def test_they_are_for_gpus(unknown: None, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu, on_cpu = SimpleNamespace(is_cuda=True, device="cpu"), torch.zeros(1)
    monkeypatch.setattr(batched_networks, "kernels", SimpleNamespace(adam=lambda *given: None))
    assert batched_networks.fused(on_gpu) and not batched_networks.fused(on_cpu)
    monkeypatch.setattr(batched_networks, "kernels", None)
    assert not batched_networks.fused(on_gpu)


def test_without_a_compiler_there_is_a_warning_and_no_kernels(unknown: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def adam(*given: Any) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC environment variable.")

    monkeypatch.setattr(batched_networks, "kernels", SimpleNamespace(adam=adam))
    with pytest.warns(UserWarning, match=r"lessons are slower .* fails here \(Failed to find C compiler\.\)"):
        assert not batched_networks.kernels_work("cpu")
