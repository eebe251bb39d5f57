from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import stats

import offrank.lab.cli.rank_quality as command
from helpers import FunctionEngine, Simulate, iterate, matrix
from offrank.algorithms.proposal import Proposal
from offrank.algorithms.rankers import RANKERS, LargestChange, Random, Ranker, Ranking, SmallestChange
from offrank.cli import main
from offrank.core.arrays import FloatArray, Memory
from offrank.core.errors import UsageError
from offrank.core.noise import Directions, Role, episode_seeds
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy
from offrank.core.rollouts import Trajectory
from offrank.core.work import Asking
from offrank.lab.rank_quality.agreement import Order, Resamples, split_halves, targets
from offrank.lab.rank_quality.analysis import analyse, summary
from offrank.lab.rank_quality.checkpoints import Checkpoint, train_to
from offrank.lab.rank_quality.measure import OFF_POLICY, Measurements, check_names, gather, rankers_for
from offrank.policies import make_policy
from offrank.runs.config import RunConfig, configure
from offrank.runs.drive import drive
from offrank.runs.recipe import resolve

P, N_OBS = 2, 4
SLOPE = np.random.default_rng(5).normal(size=(P, N_OBS))

ANY = make_policy("linear", 1, 1)
STATELESS = [name for name in OFF_POLICY if not RANKERS[name]().start(ANY, 0)]  # can be measured in any run


def world(mean_return: Any, noise: float = 0.0) -> Simulate:
    """Episodes of two steps whose return is a known function of the weights, and noise of the episode's seed."""

    def simulate(weights: FloatArray, whitening: Whitening, seed: int, horizon: int) -> Trajectory:
        rng = np.random.default_rng(seed)
        total = mean_return(weights) + noise * rng.normal()
        return Trajectory(rng.normal(size=(2, N_OBS)), np.array([0.25, 0.75]) * total, False)

    return simulate


def slope(weights: FloatArray) -> float:
    return float((SLOPE * weights).sum())


def bowl(weights: FloatArray) -> float:
    return -float((weights**2).sum())


def engine_of(simulate: Simulate) -> FunctionEngine:
    return FunctionEngine(simulate, N_OBS, P)


def checkpoint(engine: FunctionEngine, algo: str = "op-ars", **settings: Any) -> Checkpoint:
    """The start of a run: zero weights."""
    overrides = {"n_directions": 8, "n_top": 2, "noise_std": 0.5} | settings
    recipe = resolve(None, algo, None, overrides)
    config = configure("toy", recipe, engine.space, engine="gymnasium", eval_every=0, iterations=4)
    return Checkpoint(config, recipe.algorithm(engine.space, engine.space.horizon).start(0))


@dataclass(frozen=True)
class Oracle(Ranker):
    """A ranker with the exact gradient."""

    name: ClassVar[str] = "oracle"

    def rank(self, proposal: Proposal, memory: Memory) -> Asking[Ranking]:
        yield from ()
        scores = np.abs(proposal.directions.take(np.arange(proposal.N)) @ SLOPE.ravel())
        return Ranking(chosen=np.arange(proposal.b), scores=scores)


def rho(record: dict[str, Any], ranker: str, target: str) -> float:
    value: float = record["rankers"][ranker][target]["spearman"]["value"]
    return value


def test_on_a_slope_an_oracle_scores_one_and_random_about_zero() -> None:
    engine = engine_of(world(slope))
    record = analyse(gather(checkpoint(engine), [Oracle(), Random()], engine, 200, 2), resamples=50)
    for target in ("max", "gap"):
        assert rho(record, "oracle", target) == pytest.approx(1.0)
        assert record["rankers"]["oracle"][target]["kendall"]["value"] == pytest.approx(1.0)
        assert record["rankers"]["oracle"][target]["overlap"] == 1.0
        assert abs(rho(record, "random", target)) < 0.25
        assert record["rankers"]["oracle"][target]["ahead_of"]["random"]["low"] > 0.7
    assert record["top"] == 50 and record["overlap_by_chance"] == 0.25  # 2 of 8, as the run uses


def test_in_a_bowl_the_smallest_change_is_the_better_one_and_the_largest_its_mirror() -> None:
    engine = engine_of(world(bowl))
    rankers = [SmallestChange(n_behaviour=50), LargestChange(n_behaviour=50)]
    record = analyse(gather(checkpoint(engine), rankers, engine, 100, 2), resamples=50)
    for target in ("max", "mean"):
        assert rho(record, "smallest-change", target) > 0.9
        assert rho(record, "largest-change", target) == pytest.approx(-rho(record, "smallest-change", target))
        ahead = record["rankers"]["smallest-change"][target]["ahead_of"]["largest-change"]["value"]
        assert ahead == pytest.approx(2 * rho(record, "smallest-change", target), abs=1e-3)
    assert record["alike"]["smallest-change"] == {"largest-change": pytest.approx(-1.0)}


def test_without_noise_one_episode_ranks_as_well_as_many() -> None:
    engine = engine_of(world(slope))
    record = analyse(gather(checkpoint(engine), [], engine, 40, 3), resamples=20)
    assert rho(record, "one-episode max", "max") == pytest.approx(1.0)
    assert rho(record, "one-episode gap", "gap") == pytest.approx(1.0)
    assert record["noise"]["max"]["ceiling"] == pytest.approx(1.0)


def test_split_halves_give_the_ceiling_of_exact_scores() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(2, 2000))
    returns = truth[:, :, None] + 3.0 * rng.normal(size=(2, 2000, 12))
    found = split_halves(returns)
    exact, seen = targets(*truth), targets(*returns.mean(axis=2))
    for name in exact:
        reached = stats.spearmanr(exact[name], seen[name]).statistic
        assert found[name]["ceiling"] == pytest.approx(reached, abs=0.06)
        assert found[name]["halves"] < reached < 0.95


def test_one_episode_is_compared_with_the_other_episodes() -> None:
    """Of pure noise, an episode says nothing about the others; against an average with itself in it, it would."""
    returns = np.random.default_rng(0).normal(size=(2, 400, 3))
    record = analyse(Measurements({}, returns, 100), resamples=20)
    assert abs(rho(record, "one-episode max", "max")) < 0.12


def test_resampled_correlations_equal_scipys_on_every_resample() -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(6, size=15).astype(float)  # with ties
    y = x + 3 * rng.normal(size=15)
    drawn = Resamples(15, 30, seed=1)
    found = Order(x, drawn).agreement(Order(y, drawn), 4)
    for r, index in enumerate(drawn.index):
        assert found.spearman.resampled[r] == pytest.approx(stats.spearmanr(x[index], y[index]).statistic)
        assert found.kendall.resampled[r] == pytest.approx(stats.kendalltau(x[index], y[index]).statistic)
    low, high = found.spearman.interval
    assert low < found.spearman.value < high


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    exact = 6 / np.pi * np.arcsin(0.5 / 2)  # Spearman's of a bivariate normal with correlation 0.5
    inside = 0
    for trial in range(100):
        x, e = rng.normal(size=(2, 100))
        drawn = Resamples(100, 200, seed=trial)
        low, high = Order(x, drawn).agreement(Order(x / 2 + np.sqrt(0.75) * e, drawn), 10).spearman.interval
        inside += low <= exact <= high
    assert 87 <= inside <= 100


def test_equal_scores_agree_with_nothing() -> None:
    drawn = Resamples(10, 5)
    found = Order(np.zeros(10), drawn).agreement(Order(np.arange(10.0), drawn), 3)
    assert found.spearman.value == found.kendall.value == 0.0
    assert found.overlap == 0.0  # the lowest indices are taken, and the true top are the highest


def test_candidates_and_starts_are_not_used_in_training() -> None:
    engine = engine_of(world(slope, noise=1.0))
    at = checkpoint(engine)
    gather(at, [RANKERS["kernel"]()], engine, 20, 3)
    behaviour, *rounds = engine.requests
    assert len(behaviour) == 1 and len(rounds) == 3
    seeds = np.concatenate([request.seeds for request in rounds])
    assert len(np.unique(seeds)) == len(seeds) == 3 * 2 * 20
    trained = [episode_seeds(0, 0, role, np.arange(8)) for role in (Role.PLUS, Role.MINUS)]
    assert not set(seeds) & set(np.concatenate(trained))
    theirs = Directions(0, 0, 8, P * N_OBS).take(np.arange(8))
    for request in rounds:
        assert request.index.min() == 8
        ours = request.candidates.directions.take(np.unique(request.index))
        assert not np.isin(ours, theirs).any()


def test_gathering_twice_gives_the_same_bits_whichever_rankers_are_measured() -> None:
    engine = engine_of(world(slope, noise=1.0))
    at = checkpoint(engine)
    one = gather(at, rankers_for(at.config, OFF_POLICY), engine, 20, 2)
    two = gather(at, [RANKERS["kernel"]()], engine, 20, 2)
    assert np.array_equal(one.returns, two.returns)
    assert np.array_equal(one.scores["kernel"], two.scores["kernel"])


def test_the_survival_bonus_is_taken_off_as_in_training() -> None:
    engine = engine_of(world(slope))
    plain, shifted = (gather(checkpoint(engine, reward_shift=s), [], engine, 5, 2) for s in (0.0, 3.0))
    np.testing.assert_allclose(plain.returns - shifted.returns, 6.0)  # episodes of two steps


@dataclass(frozen=True)
class Stateful(Ranker):
    name: ClassVar[str] = "stateful"

    def start(self, policy: Policy, seed: int) -> Memory:
        return {"seen": np.zeros(())}

    def rank(self, proposal: Proposal, memory: Memory) -> Asking[Ranking]:
        yield from ()
        return Ranking(np.arange(proposal.b), scores=float(memory["seen"]) * np.arange(proposal.N))


@pytest.fixture
def stateful() -> Iterator[None]:
    RANKERS["stateful"] = Stateful
    yield
    del RANKERS["stateful"]


def test_a_ranker_with_state_is_measured_with_its_state_and_only_where_it_ranked(stateful: None) -> None:
    engine = engine_of(world(slope))
    at = checkpoint(engine)
    names = [*OFF_POLICY, "stateful"]
    assert [r.name for r in rankers_for(at.config, names)] == STATELESS
    own = replace(at.config, ranker="stateful", hyperparameters=resolve(None, "ars", "stateful").hyperparameters)
    found = rankers_for(own, names)
    assert found[-1].name == "stateful"
    state = replace(at.state, memory=at.state.memory | {"ranker.seen": np.array(2.0)})
    measured = gather(Checkpoint(own, state), found[-1:], engine, 4, 2)
    assert np.array_equal(np.diff(measured.scores["stateful"]), [2.0, 2.0, 2.0])


def test_rankers_have_the_hyperparameters_of_the_run() -> None:
    at = checkpoint(engine_of(world(slope)), n_behaviour=3, bandwidth=0.125)
    found = {ranker.name: ranker for ranker in rankers_for(at.config, OFF_POLICY)}
    assert found["kernel"].bandwidth == 0.125
    assert found["kernel"].n_behaviour == found["smallest-change"].n_behaviour == 3


def test_on_policy_ranking_and_mixtures_are_not_measured() -> None:
    assert not {"on-policy", "interleaved", "adaptive"} & set(OFF_POLICY)
    with pytest.raises(UsageError, match=r"ranker 'kernal' cannot be measured: one of kernel, .*mean 'kernel'"):
        check_names(["kernal"])


def test_measurements_are_read_as_they_were_saved(tmp_path: Path) -> None:
    engine = engine_of(world(slope, noise=1.0))
    at = checkpoint(engine)
    measured = gather(at, rankers_for(at.config, OFF_POLICY), engine, 12, 2)
    measured.save(tmp_path / "e.npz", {"asked": 1})
    again, meta = Measurements.read(tmp_path / "e.npz")
    assert meta["asked"] == 1
    assert analyse(again, 10) == analyse(measured, 10)


def test_checkpoints_equal_those_of_a_plain_run_and_saved_ones_are_not_trained_again(tmp_path: Path) -> None:
    engine = engine_of(world(slope, noise=1.0))
    config: RunConfig = checkpoint(engine).config
    recipe = config.recipe

    def go(iterations: list[int]) -> list[Checkpoint]:
        engine.requests.clear()
        ends = replace(config, iterations=iterations[-1])
        return train_to([ends], iterations, engine.space, tmp_path, lambda runs: drive(runs, engine))

    first = go([1, 3])
    for at in first:
        plain, _ = iterate(recipe.settings, recipe.ranker, engine_of(world(slope, noise=1.0)), at.state.iteration)
        assert np.array_equal(matrix(at.state), matrix(plain))
    assert go([1, 3])[1].state.steps == first[1].state.steps and not engine.requests
    further = go([1, 3, 4])
    assert [at.state.iteration for at in further] == [1, 3, 4]
    assert len(engine.requests) == 2  # one more iteration: behaviour, then pairs
    whole = train_to([config], [4], engine.space, None, lambda runs: drive(runs, engine))
    assert np.array_equal(matrix(whole[0].state), matrix(further[2].state))
    stored = Checkpoint.read(tmp_path / f"{first[0].name}.state.npz")
    assert np.array_equal(matrix(stored.state), matrix(first[0].state))


def test_the_summary_is_over_the_seeds_of_an_algorithm_and_iteration() -> None:
    engine = engine_of(world(slope, noise=1.0))
    record = analyse(gather(checkpoint(engine), [Oracle()], engine, 20, 2), resamples=10)
    heads = [
        {"task": "toy", "algo": "ars", "ranker": "x", "seed": s, "iteration": i} for s, i in ((0, 1), (1, 1), (0, 2))
    ]
    groups = summary([head | record for head in heads])
    assert [(g["iteration"], g["seeds"]) for g in groups] == [(1, [0, 1]), (2, [0])]
    assert groups[0]["rankers"]["oracle"]["gap"]["mean"] == rho(record, "oracle", "gap")


WORDS = "rank-quality Swimmer-v3 --iterations 1,2 --candidates 8 --episodes 2 --horizon 20 --resamples 20 --quiet"


def test_the_command_saves_its_work_and_does_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS.split(), "--seeds", "0-1", "--out", str(tmp_path / "q"), "--json"]
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out)
    assert len(first["checkpoints"]) == 4 and len(first["summary"]) == 2
    assert set(first["checkpoints"][0]["rankers"]) == {*STATELESS, "one-episode max", "one-episode gap"}
    assert json.loads((tmp_path / "q/rank-quality.json").read_text()) == first
    picture = (tmp_path / "q/rank-quality.png").read_bytes()
    assert len(picture) > 1000 and not list((tmp_path / "q").glob("*.svg"))

    def refuse(*_: object) -> None:
        raise AssertionError("measured again")

    with monkeypatch.context() as patched:
        patched.setattr(command, "gather", refuse)
        patched.setattr(command, "drive_shown", refuse)
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out) == first
        assert (tmp_path / "q/rank-quality.png").read_bytes() == picture
        states = sorted(map(str, (tmp_path / "q").glob("*.state.npz")))
        patched.setattr("offrank.display.figures.save", lambda *_: None)
        more = ["--candidates", "8", "--episodes", "2", "--resamples", "20", "--quiet", "--json"]
        assert main(["rank-quality", "Swimmer-v3", "--run", *states, "--out", str(tmp_path / "q"), *more]) == 0
        assert json.loads(capsys.readouterr().out)["summary"] == first["summary"]
    monkeypatch.setattr("offrank.display.figures.save", lambda *_: None)
    assert main([*words, "--episodes", "3"]) == 0  # other settings: measured again
    assert json.loads(capsys.readouterr().out)["checkpoints"][0]["episodes"] == 3


def test_the_command_prints_one_table_per_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS.split(), "--rankers", "kernel,random", "--algo", "ars"]) == 0
    out = capsys.readouterr().out
    assert "Swimmer-v3 ars seed 0, iteration 1" in out and "iteration 2" in out
    assert "kernel" in out and "one-episode max" in out and "smallest-change" not in out


def test_the_command_takes_run_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    train = [
        "train",
        "Swimmer-v3",
        "--algo",
        "op-ars",
        "--iterations",
        "2",
        "--horizon",
        "20",
        "--eval-every",
        "0",
        "--quiet",
    ]
    assert main([*train, "--out", str(run)]) == 0
    capsys.readouterr()
    much = ["--candidates", "5", "--episodes", "2", "--resamples", "10", "--quiet"]
    assert main(["rank-quality", "Swimmer-v3", "--run", str(run), *much, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)["checkpoints"][0]
    assert (record["iteration"], record["candidates"]) == (2, 5)
    for words, complaint in (
        (["Hopper-v3", "--run", str(run)], "holds a run of Swimmer-v3, not of Hopper-v3"),
        (["Swimmer-v3", "--run", str(run), "--algo", "ars"], "--algo is for a run to train"),
        (["Swimmer-v3", "--run", str(run / "final.offrank")], "holds a policy, not a run"),
        (["Swimmer-v3", "--run", str(tmp_path / "none")], "cannot read"),
        (["Swimmer-v3", "--episodes", "1"], "at least 2 are needed"),
        (["Swimmer-v3", "--rankers", "smallest"], "did you mean 'smallest-change'?"),
    ):
        assert main(["rank-quality", *words]) == 2
        said = capsys.readouterr()
        assert complaint in said.err and said.err.count("\n") == 1 and said.out == ""


# --- members of a generation, which have no signs


def member_run(engine: FunctionEngine, algo: str) -> Checkpoint:
    small = {"hidden": 8, "batch": 8, "warmup_steps": 10} if algo != "cem" else {}
    recipe = resolve(None, algo, None, small, "linear")
    config = configure("toy", recipe, engine.space, seed=0, engine="gymnasium", eval_every=0, iterations=3)
    (found,) = train_to([config], [3], engine.space, None, lambda runs: drive(runs, engine))
    return found


def test_members_are_compared_with_their_mean_return_and_some_have_followed_the_critic() -> None:
    engine = engine_of(world(slope, noise=0.01))
    at = member_run(engine, "cem-rl")
    rankers = rankers_for(at.config, None)
    assert [ranker.name for ranker in rankers] == ["race", "value", "kernel", "random"]
    measured = gather(at, rankers, engine, 20, 4)
    assert measured.returns.shape == (1, 20, 4) and measured.b == 20  # cem-rl runs all that it draws
    record = analyse(measured, resamples=50)
    assert list(record["noise"]) == ["return"] and "one episode" in record["rankers"]
    assert record["rankers"]["race"]["return"]["spearman"]["value"] > 0.5  # an episode here has two steps
    assert abs(record["rankers"]["random"]["return"]["spearman"]["value"]) < 0.6
    algorithm: Any = at.config.recipe.algorithm(engine.space, at.config.horizon)
    fresh, next_ones = algorithm.draw(at.state, 20, first=10), algorithm.draw(at.state, 10)
    assert not np.isin(fresh, next_ones).any()


def test_rankers_of_guided_are_not_measured() -> None:
    engine = engine_of(world(slope))
    config = replace(member_run(engine, "cem").config, algo="guided")
    with pytest.raises(UsageError, match=r"rank-quality measures rankers under ars, .*, not guided"):
        rankers_for(config, None)


def test_rankers_that_need_a_critic_are_left_out_where_there_is_none() -> None:
    engine = engine_of(world(slope))
    at = member_run(engine, "cem")
    assert [ranker.name for ranker in rankers_for(at.config, None)] == ["kernel", "random"]
    with pytest.raises(UsageError, match="'critic' does not rank the candidates of cem: race, value"):
        rankers_for(at.config, ["critic"])


def test_the_command_measures_members_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["rank-quality", "LQR", "--algo", "op-cem-rl", "--iterations", "2", "--candidates", "8", "--episodes", "2"]
    words += ["--horizon", "20", "--set", "hidden=8", "--set", "batch=8", "--set", "warmup_steps=50", "--quiet"]
    assert main([*words, "--resamples", "20", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "mean return" in shown and "race" in shown and "max(r+, r-)" not in shown
    assert (tmp_path / "rank-quality.png").stat().st_size > 1000
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "report.html")]) == 0
    assert "with mean return" in (tmp_path / "report.html").read_text()
