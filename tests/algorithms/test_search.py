"""Properties of every strategy with every ranker: a new one is tested once it is registered."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from helpers import FunctionEngine, constant_reward, linear_system
from offrank.algorithms.rankers import RANKERS, Random
from offrank.algorithms.strategies import STRATEGIES
from offrank.core.noise import Role
from offrank.runs.config import RunConfig
from offrank.runs.drive import drive
from offrank.runs.metrics import read_metrics
from offrank.runs.opening import open_run
from offrank.runs.recipe import resolve
from offrank.runs.run import Run

N_OBS, N_ACT, N, B, N_B = 4, 2, 6, 3, 2
OTHERS = ("affine", "skip:3", "mlp:4,3")
PARTS = [*product(STRATEGIES, RANKERS, ["linear"]), *product(["ars"], RANKERS, OTHERS), ("tres", "kernel", "skip:3")]


def config(
    algo: str, ranker: str, iterations: int, seed: int = 0, horizon: int = 10, policy: str = "linear"
) -> RunConfig:
    given: dict[str, object] = {"n_directions": N, "n_top": B, "noise_std": 0.1}
    if "n_behaviour" in resolve(None, algo, ranker).hyperparameters:
        given["n_behaviour"] = N_B
    if "warmup" in resolve(None, algo, ranker).hyperparameters:  # so that the critic ranks
        given |= {"warmup": 1, "trust_needed": -1.0}
    recipe = resolve(None, algo, ranker, given)
    return RunConfig(
        task="toy",
        algo=algo,
        ranker=ranker,
        hyperparameters=recipe.hyperparameters,
        sources=recipe.sources,
        seed=seed,
        engine="function",
        policy=policy,
        horizon=horizon,
        eval_every=5,
        eval_episodes=20,
        iterations=iterations,
    )


def run_on(engine: FunctionEngine, cfg: RunConfig, folder: Path | None = None, resume: bool = False) -> Run:
    run = open_run(cfg, engine.space, folder, resume)
    drive([run], engine)
    return run


def toy(horizon: int = 10) -> FunctionEngine:
    return FunctionEngine(linear_system(N_OBS, N_ACT), N_OBS, N_ACT, horizon)


@pytest.mark.parametrize(("algo", "ranker", "policy"), PARTS)
def test_same_seed_same_bits_and_another_seed_others(algo: str, ranker: str, policy: str) -> None:
    first, again, other = (
        run_on(toy(), config(algo, ranker, 6, seed, policy=policy)).policy.sha256 for seed in (0, 0, 1)
    )
    assert first == again != other


@pytest.mark.parametrize(("algo", "ranker", "policy"), PARTS)
def test_resume_equals_uninterrupted(tmp_path: Path, algo: str, ranker: str, policy: str) -> None:
    whole = run_on(toy(), config(algo, ranker, 9, policy=policy))
    for iterations in (2, 6, 9):
        parts = run_on(toy(), config(algo, ranker, iterations, policy=policy), tmp_path / "run", resume=True)
    assert {k: v.tobytes() for k, v in parts.state.arrays().items()} == {
        k: v.tobytes() for k, v in whole.state.arrays().items()
    }


@pytest.mark.parametrize(("algo", "ranker", "policy"), PARTS)
def test_interactions_are_counted_right(tmp_path: Path, algo: str, ranker: str, policy: str) -> None:
    engine = toy()
    run = run_on(engine, config(algo, ranker, 10, policy=policy), tmp_path)
    training = [r for r in engine.requests if Role.EVALUATION not in r.roles]
    assert run.state.episodes == sum(len(r) for r in training)
    assert run.state.steps == 10 * run.state.episodes
    off_policy, on_policy = 2 * B + N_B, 2 * N
    expected = {
        "on-policy": 10 * on_policy,
        "random": 10 * 2 * B,
        "critic": 10 * 2 * B,
        "interleaved": 8 * off_policy + 2 * on_policy,
    }.get(ranker, 10 * off_policy)
    if ranker == "adaptive":
        log = read_metrics(tmp_path / "metrics.jsonl")
        fallbacks = sum(record["on_policy"] for record in log if record["kind"] == "iteration")
        expected = (10 - fallbacks) * off_policy + fallbacks * on_policy
    assert run.state.episodes == expected


@pytest.mark.parametrize(("algo", "ranker", "policy"), PARTS)
def test_improves_a_small_task(algo: str, ranker: str, policy: str) -> None:
    run = run_on(toy(horizon=30), config(algo, ranker, 60, horizon=30, policy=policy))
    untrained = toy(horizon=30)
    base = np.mean(
        [untrained.simulate(np.zeros((N_ACT, N_OBS)), run.policy.whitening, s, 30).rewards.sum() for s in range(200)]
    )
    assert run.best is not None and run.best[0].mean > 0.8 * base  # both are negative: at least a fifth closer to 0


@pytest.mark.parametrize(("algo", "ranker", "policy"), PARTS)
def test_survives_equal_returns(algo: str, ranker: str, policy: str) -> None:
    engine = FunctionEngine(constant_reward(N_OBS), N_OBS, N_ACT)
    run = run_on(engine, config(algo, ranker, 5, policy=policy))
    assert np.array_equal(run.policy.theta, run.policy.kind.start(0))


def test_a_ranker_that_is_no_kernel_reads_nothing_of_the_kernels_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's h = 0.1 on Swimmer is for its kernel, not for the bandwidth of another ranker."""

    @dataclass(frozen=True)
    class Other(Random):
        name: ClassVar[str] = "other"
        bandwidth: float = 1.0

    monkeypatch.setitem(RANKERS, "other", Other)
    recipe = resolve("Swimmer-v3", "ars", "other")
    assert recipe.ranker.bandwidth == 1.0 and recipe.sources["bandwidth"] == "general default"
    for name in ("kernel", "interleaved", "adaptive"):
        found = resolve("Swimmer-v3", "ars", name)
        assert found.ranker.bandwidth == 0.1 and found.sources["bandwidth"].startswith("paper")
    assert resolve("Swimmer-v3", "ars", "smallest-change").ranker.n_behaviour == 2


def test_every_algorithm_has_an_agent() -> None:
    import offrank
    from offrank.agents import AGENTS
    from offrank.algorithms import ALGORITHMS

    assert set(AGENTS) == set(ALGORITHMS)
    for agent in AGENTS.values():
        assert getattr(offrank, agent.__name__) is agent and agent.__name__ in offrank.__all__
