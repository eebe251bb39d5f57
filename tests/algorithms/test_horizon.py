"""The search for the length of training episodes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from helpers import FunctionEngine, iterate, linear_system, pair_request, proposal
from offrank.algorithms import horizon
from offrank.algorithms.base import Episodes
from offrank.algorithms.learning import networks as network
from offrank.algorithms.proposal import Pairs, Proposal
from offrank.algorithms.rankers import Critic, Random
from offrank.algorithms.rankers.base import Ranker
from offrank.algorithms.strategies import ARS
from offrank.cli import main
from offrank.core.arrays import FloatArray, Memory
from offrank.core.errors import UsageError
from offrank.core.rollouts import Episode, Rollouts, Trajectory
from offrank.engines import make_engine
from offrank.policies import make_policy

P, N_OBS, H = 2, 3, 320
PROBING = Episodes(H, probe_share=0.25)


def pairs_of(rewards: FloatArray) -> Pairs:
    """Pairs whose episodes (2m, T) have these rewards; nan: after the task ended the episode."""
    rng = np.random.default_rng(0)
    episodes = []
    for row in rewards:
        paid = row[~np.isnan(row)]
        seen = rng.normal(size=(len(paid) + 1, N_OBS))
        episodes.append(Episode.of(Trajectory(seen[:-1], paid, len(paid) < len(row), seen[-1]), keep=True))
    rollouts = Rollouts.of(episodes)
    return Pairs(np.arange(len(rewards) // 2), rollouts.totals[0::2], rollouts.totals[1::2], rollouts)


def candidates(episodes: Episodes = PROBING, length: int = H, b: int = 4) -> Proposal:
    M = np.random.default_rng(1).normal(size=(P, N_OBS))
    return proposal(M, 50, b, 0.1, episodes, length=length)


def after(rewards: FloatArray, ranker: Ranker | None = None, before: Memory | None = None) -> Memory:
    return horizon.learn(before or {}, {}, ranker or Random(), candidates(), pairs_of(rewards))


def chosen(known: Memory) -> int:
    """The length of the next iteration, if it is not one of whole episodes."""
    return horizon.length(known | {"steps": np.array([1, 0])}, 0, PROBING)


def test_the_signal_is_the_adjusted_squared_correlation_per_step() -> None:
    rewards = np.random.default_rng(5).normal(size=(60, H))
    known, least = after(rewards), 1.0
    difference = np.cumsum(rewards, axis=1)[0::2] - np.cumsum(rewards, axis=1)[1::2]
    for found, h in zip(horizon.signal(known["evidence"]), horizon.lengths(H), strict=True):
        x, y = difference[:, h - 1], difference[:, -1]
        square = (x @ y) ** 2 / (x @ x) / (y @ y)  # about zero: a pair's signs are exchangeable
        least = min(least, max(square - (1 - square) / 30, 0))  # a shorter part never has a larger correlation
        assert found == pytest.approx(least / h)


def test_the_shortest_length_is_taken_if_the_first_steps_decide() -> None:
    rate = np.random.default_rng(2).normal(size=(16, 1))
    assert chosen(after(np.repeat(rate, H, axis=1))) == H >> horizon.HALVINGS


def test_episodes_stay_whole_if_the_end_decides() -> None:
    rewards = np.random.default_rng(2).normal(size=(64, H))
    rewards[:, -1] *= 1000
    assert chosen(after(rewards)) == H


def test_of_two_lengths_with_nearly_the_same_signal_the_longer_is_taken() -> None:
    evidence = np.tile([100.0, 1.0, 0.0, 1.0, 0.0], (4, 1))
    evidence[:, 4] = 100 * np.array(horizon.lengths(H))
    for square, expected in (([1, 1, 0.4, 0.3], 160), ([1, 0.5, 0.45, 0.2], 80), ([1, 0.2, 0.1, 0.3], 320)):
        evidence[:, 2] = np.sqrt(square)
        assert chosen({"evidence": evidence}) == expected


def test_episodes_that_the_task_ends_early_make_no_length_cheaper_than_it_is() -> None:
    rate = np.random.default_rng(2).normal(size=(16, 1))
    rewards = np.repeat(rate, H, axis=1)
    rewards[:, 80:] = np.nan  # all episodes end within 80 steps: longer lengths have the same correlation and cost
    found = dict(zip(horizon.lengths(H), horizon.signal(after(rewards)["evidence"]), strict=True))
    assert found[320] == found[160] == found[80] == pytest.approx(1 / 80)
    assert found[40] == pytest.approx(1 / 40)


def test_equal_returns_and_no_evidence_mean_whole_episodes() -> None:
    assert chosen(after(np.ones((8, H)))) == H
    assert chosen(horizon.no_evidence(H)) == H


def test_a_few_pairs_are_not_enough_to_cut_episodes() -> None:
    pairs = np.repeat(np.random.default_rng(2).normal(size=(2 * horizon.ENOUGH, 1)), H, axis=1)
    assert chosen(after(pairs[:-2])) == H > chosen(after(pairs))


def test_short_tasks_have_fewer_lengths_to_choose_from() -> None:
    assert horizon.lengths(1000) == [1000, 500, 250, 125]
    assert horizon.lengths(50) == [50, 25] and horizon.lengths(5) == [5]


@pytest.mark.parametrize(("since", "due"), [(29, False), (30, True), (31, True), (1000, True)])
def test_whole_episodes_are_due_when_their_steps_are_no_more_than_their_share(since: int, due: bool) -> None:
    known = after(np.repeat(np.random.default_rng(2).normal(size=(2 * horizon.ENOUGH, 1)), H, axis=1))
    found = horizon.length(known | {"steps": np.array([10, since])}, 0, PROBING)  # a share of a quarter
    assert (found == H) == due


def test_a_length_that_contradicts_the_whole_carries_no_signal() -> None:
    sums = np.array([[20.0, 1.0, 1.0, 1.0, 100.0], [20.0, 1.0, -0.9, 1.0, 50.0]])
    assert horizon.signal(sums).tolist() == pytest.approx([20 / 100, 0.0])


def test_evidence_of_32_pairs_ago_is_forgotten() -> None:
    rewards = np.random.default_rng(4).normal(size=(16, H))  # 8 pairs
    once = after(rewards)["evidence"]
    np.testing.assert_allclose(after(rewards, before=after(rewards))["evidence"], (1 - 8 / 32) * once + once)
    many = np.random.default_rng(4).normal(size=(64, H))
    assert np.array_equal(after(many, before=after(rewards))["evidence"], after(many)["evidence"])


def test_evidence_fades() -> None:
    rng = np.random.default_rng(3)
    late = rng.normal(size=(16, H))
    late[:, -1] *= 1000
    known = after(late)
    for _ in range(20):
        known = after(np.repeat(rng.normal(size=(16, 1)), H, axis=1), before=known)
    assert chosen(known) == H >> horizon.HALVINGS


def test_cut_pairs_are_those_of_a_shorter_horizon() -> None:
    engine = make_engine("Hopper-v3", threads=1)
    long, short = (engine.run(pair_request(engine.space, 6, scale=0.3, horizon=h, keep=True)) for h in (200, 25))
    engine.close()
    assert (short.lengths < 25).any() and (long.lengths > 25).any()
    episodes = Episodes(200, reward_shift=1.0)
    found = horizon.cut(Pairs.of(np.arange(6), long, episodes), 25, episodes)
    expected = short.totals - 1.0 * short.lengths
    assert found.plus == pytest.approx(expected[0::2]) and found.minus == pytest.approx(expected[1::2])
    assert np.array_equal(found.rollouts.lengths, short.lengths)
    for mine, other in zip(found.rollouts.trajectories, short.trajectories, strict=True):
        assert np.array_equal(mine.observations, other.observations) and mine.terminated == other.terminated
        assert np.array_equal(mine.last, other.last)


def test_whole_iterations_take_their_share_of_the_steps_and_are_asked_for_with_their_transitions() -> None:
    engine = FunctionEngine(linear_system(N_OBS, P), N_OBS, P, H)
    final, log = iterate(ARS(n_directions=16, n_top=16), Random(), engine, 100, episodes=PROBING)
    lengths = np.array([metrics["train_length"] for metrics in log])
    assert lengths[0] == H and set(lengths) <= set(horizon.lengths(H)) and len(set(lengths)) > 1
    assert lengths.tolist() == [request.horizon for request in engine.requests]
    assert [request.keep for request in engine.requests] == (lengths == H).tolist()
    for before, at in pairwise(np.flatnonzero(lengths == H)):
        since = lengths[before + 1 : at]
        assert H <= 0.25 * (H + since.sum()) < H + since[-1]
    assert final.memory["horizon.steps"].tolist() == [32 * H, 32 * lengths[at + 1 :].sum()]


def test_a_run_that_searches_for_the_length_resumes_to_the_same_bits(tmp_path: Path) -> None:
    settings = {"n_directions": "20", "n_top": "8", "probe_share": "0.3", "warmup": "1"}
    command = ["train", "Swimmer-v3", "--algo", "ars", "--ranker", "critic", "--horizon", "100", "--quiet", "--resume"]
    command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]

    def train(out: str, iterations: int) -> str:
        assert main([*command, "--eval-every", "0", "--iterations", str(iterations), "--out", str(tmp_path / out)]) == 0
        return json.loads((tmp_path / out / "result.json").read_text())["policy_sha256"]

    assert train("halves", 4) != train("whole", 8) == train("halves", 8)
    log = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert len({line["train_length"] for line in log}) > 1


def test_no_length_is_searched_for_if_it_is_given() -> None:
    engine = FunctionEngine(linear_system(N_OBS, P), N_OBS, P, H)
    _, log = iterate(ARS(n_directions=4, n_top=4), Random(), engine, 3, episodes=replace(PROBING, train_horizon=5))
    assert [metrics["train_length"] for metrics in log] == [5, 5, 5]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"probe_share": 1.0}, r"probe_share = 1.0: must be in \[0, 1\)"),
        ({"probe_share": -0.1}, "must be in"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Episodes(10, **given)


# --- values that a critic adds to cut episodes


def trained(critic: Critic) -> Memory:
    memory = critic.start(make_policy("linear", N_OBS, P), 0)
    rng = np.random.default_rng(7)
    memory |= {name: rng.normal(size=value.shape).astype(np.float32) for name, value in memory.items() if "q." in name}
    return memory | {"unit": np.array(3.0)}


def test_the_value_of_the_last_state_is_added_to_cut_episodes() -> None:
    rewards = np.random.default_rng(8).normal(size=(6, 8))
    rewards[3, 5:] = np.nan  # the task ended this one: its last state has no value
    pairs, critic = pairs_of(rewards), Critic()
    memory, c = trained(critic), candidates(length=8)
    found = critic.finish(memory, c, pairs)
    nets = {name.removeprefix("q."): value for name, value in memory.items() if name.startswith("q.")}
    for i, trajectory in enumerate(pairs.rollouts.trajectories):
        z = trajectory.last
        x = np.concatenate([z, c.theta.reshape(P, N_OBS) @ z]).astype(np.float32)[None]
        value = 0.0 if i == 3 else 3.0 * network.forward(nets, x)[2].mean()
        assert (found.minus if i % 2 else found.plus)[i // 2] == pytest.approx(np.nansum(rewards[i]) + value, rel=1e-4)
    assert abs(found.plus[0] - pairs.plus[0]) > 0.1


def test_nothing_is_added_to_whole_episodes_before_the_critic_has_learned_or_where_it_should_not() -> None:
    pairs, critic = pairs_of(np.ones((4, 8))), Critic()
    memory = trained(critic)
    assert critic.finish(memory, candidates(length=H), pairs) is pairs
    assert critic.finish(memory | {"unit": np.array(0.0)}, candidates(length=8), pairs) is pairs
    assert Critic(tails=False).finish(memory, candidates(length=8), pairs) is pairs


def test_lengths_are_compared_by_the_returns_the_strategy_would_use() -> None:
    """With a ranker that adds the exact value to cut episodes, the shortest ones are as good as whole ones."""
    rewards = np.random.default_rng(2).normal(size=(64, H))
    rewards[:, -1] *= 1000
    known = pairs_of(rewards)

    class Oracle(Random):
        def finish(self, memory: Memory, proposal: Proposal, pairs: Pairs) -> Pairs:
            return replace(pairs, plus=known.plus, minus=known.minus)

    assert chosen(after(rewards)) == H
    assert chosen(after(rewards, Oracle())) == H >> horizon.HALVINGS
