"""Several starts, of which the best is gone on with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import FunctionEngine, linear_system
from offrank.algorithms.rankers import Critic, PastPairs, Random, Ranker
from offrank.algorithms.strategies import ARS
from offrank.cli import main
from offrank.core.candidates import Episodes, answered
from offrank.core.errors import UsageError
from offrank.core.state import State
from offrank.runs.config import resolve

P, N_OBS, H, B = 2, 3, 10, 3
ITERATION = 2 * B * H  # steps
STRATEGY = ARS(n_directions=B, n_top=B, noise_std=0.1, step_size=0.1, momentum=0.5)
THREE = Episodes(H, starts=3, start_steps=4 * ITERATION - 5)  # four iterations each


def course(
    ranker: Ranker, episodes: Episodes, iterations: int, seed: int = 0
) -> tuple[list[State], list[dict[str, Any]]]:
    """The state before every iteration and after the last, as a run counts them, and what was logged."""
    engine = FunctionEngine(linear_system(N_OBS, P), N_OBS, P, episodes.horizon)
    states, log = [STRATEGY.start(P, N_OBS, seed, ranker)], []
    for _ in range(iterations):
        state, metrics = answered(STRATEGY.iteration(states[-1], ranker, episodes), engine.run)
        states.append(state.counted(ITERATION, 2 * B))
        log.append(metrics)
    return states, log


def test_a_run_begins_anew_and_goes_on_with_the_best_of_its_beginnings() -> None:
    states, log = course(Random(), THREE, 15)
    assert [state.iteration for state in states] == list(range(16))
    assert [state.steps for state in states] == [ITERATION * i for i in range(16)]
    means = np.array([metrics["return_mean"] for metrics in log[:12]]).reshape(3, 4).mean(axis=1)
    best = int(np.argmax(means))  # fewer than five iterations each: the score is the mean of all
    assert best != 2 and len(set(means)) == 3  # the last is not the best, so that a choice shows
    assert [metrics["start"] for metrics in log] == [1] * 4 + [2] * 4 + [3] * 4 + [best + 1] * 3
    # each start is a run from zero weights with the directions of its own iterations
    engine = FunctionEngine(linear_system(N_OBS, P), N_OBS, P, H)
    ends = []
    for k in range(3):
        state = replace(STRATEGY.start(P, N_OBS, 0, Random()), iteration=4 * k)
        for _ in range(4):
            state, _ = answered(STRATEGY.iteration(state, Random(), Episodes(H)), engine.run)
        np.testing.assert_array_equal(state.M, states[4 * k + 4].M)
        ends.append(state)
    # and then the best is gone on with, and all that goes with it
    state = replace(ends[best], iteration=12)
    for i in range(13, 16):
        state, _ = answered(STRATEGY.iteration(state, Random(), Episodes(H)), engine.run)
        np.testing.assert_array_equal(state.M, states[i].M)
        np.testing.assert_array_equal(state.strategy["average"], states[i].strategy["average"])
        assert state.normalizer.count == states[i].normalizer.count
    assert set(states[-1].starts) == {"ended", "start", "steps", "iteration"}  # nothing else is kept


def test_the_score_is_of_the_last_iterations() -> None:
    states, log = course(Random(), Episodes(H, starts=2, start_steps=100 * ITERATION), 30)
    means = [metrics["return_mean"] for metrics in log]
    expected = 0.0
    for i, mean in enumerate(means):
        expected += (mean - expected) / min(i + 1, 5)
    assert float(states[-1].starts["score"]) == pytest.approx(expected) and "best.M" not in states[-1].starts


def test_lengths_and_warm_up_count_from_the_beginning_of_the_policy() -> None:
    growing = replace(THREE, train_horizon=4, horizon_growth=1.0, start_steps=2 * ITERATION)
    _, log = course(Random(), growing, 8)
    assert [metrics["train_length"] for metrics in log] == [4, 5, 4, 5, 4, 5, 6, 7]
    _, log = course(Critic(warmup=3, trust_needed=-1.0, networks=1, hidden=4), THREE, 15)
    assert [metrics["ranker_learned"] for metrics in log[:12]] == [False, False, False, True] * 3
    assert all(metrics["ranker_learned"] for metrics in log[12:])


def test_a_remembering_ranker_finds_its_pairs_again_when_its_start_is_gone_on_with() -> None:
    states, _ = course(PastPairs(warmup=0), replace(THREE, start_steps=40 * ITERATION), 122, seed=1)
    best = int(states[-1].starts["start"])
    assert best != 3  # so that its pairs are from long ago
    kept, after = states[40 * best].ranker["index"], states[121].ranker["index"]
    assert len(kept) > 3 * B and len(after) >= len(kept) - B
    np.testing.assert_array_equal(after[-B - 5 : -B], kept[-5:])


def test_only_whole_episodes_are_compared_where_lengths_differ() -> None:
    probing = replace(THREE, horizon=40, probe_share=0.3, start_steps=100 * ITERATION)
    states, log = course(Random(), probing, 30)
    expected = count = 0.0
    for metrics in log:
        if metrics["train_length"] == 40:
            count += 1
            expected += (metrics["return_mean"] - expected) / min(count, 5)
    assert 1 < count < 30 and float(states[-1].starts["score"]) == pytest.approx(expected)


def test_what_a_critic_adds_to_cut_episodes_is_no_score() -> None:
    critic = Critic(warmup=0, trust_needed=-1.0, networks=1, hidden=4)
    states, log = course(critic, replace(THREE, train_horizon=5, start_steps=100 * ITERATION), 4)
    assert float(states[-1].starts["score"]) == pytest.approx(np.mean([metrics["return_mean"] for metrics in log]))


def test_starts_that_take_all_steps_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "Swimmer-v3", "--set", "starts=4", "--set", "start_steps=1000", "--steps", "4000"]
    assert main(command) == 2
    assert "steps = 4000: 4 starts of 1000 steps leave none to go on with" in capsys.readouterr().err


def test_a_run_with_several_starts_resumes_to_the_same_bits(tmp_path: Path) -> None:
    settings = {"n_directions": "4", "n_top": "2", "starts": "3", "start_steps": "900"}
    command = ["train", "Swimmer-v3", "--algo", "op-ars", "--horizon", "100", "--quiet", "--resume"]
    command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]

    def train(out: str, iterations: int) -> str:
        assert main([*command, "--eval-every", "0", "--iterations", str(iterations), "--out", str(tmp_path / out)]) == 0
        return str(json.loads((tmp_path / out / "result.json").read_text())["policy_sha256"])

    whole = train("whole", 8)
    log = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    starts = [line["start"] for line in log]
    assert starts[:6] == [1, 1, 2, 2, 3, 3] and starts[6] == starts[7]
    for iterations in range(1, 9):
        last = train("parts", iterations)
    assert last == whole


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"starts": 0}, "starts = 0"),
        ({"starts": 2, "start_steps": -1}, "not negative"),
        ({"starts": 2}, "starts = 2, start_steps = 0: several starts and steps for each"),
        ({"start_steps": 1000}, "starts = 1, start_steps = 1000"),
    ],
)
def test_wrong_settings_are_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Episodes(H, **given)


def test_they_are_settings_of_every_algorithm() -> None:
    for algo in ("ars", "op-tres", "q-es"):
        recipe = resolve("Hopper-v3", algo, None, {"starts": "4", "start_steps": "1e5"})
        assert recipe.episodes["starts"] == 4 and recipe.episodes["start_steps"] == 100_000
