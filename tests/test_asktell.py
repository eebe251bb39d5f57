from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offrank
import toy_envs
from helpers import perform
from offrank import AskTell, EpisodeError, FileFormatError, UsageError
from offrank.asktell import EpisodeToRun
from offrank.core.files import save_arrays

ROBOT = Path(__file__).parent.parent / "examples" / "robot.py"
HORIZON = 6
SMALL: dict[str, Any] = {"n_directions": 3, "n_top": 2}


def ask_tell(journal: Path | None = None, algorithm: type = offrank.OPARS, **options: Any) -> AskTell:
    given: dict[str, Any] = {"low": -2.0, "high": 2.0, "horizon": HORIZON, "iterations": 3, "journal": journal}
    return AskTell(algorithm, 2, 2, **(given | SMALL | options))


def finish(run: AskTell) -> AskTell:
    while not run.done:
        for episode in run.ask():
            run.tell(episode, **perform(episode))
    return run


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in record.items() if k != "wall_s"}


def metrics(journal: Path) -> list[dict[str, Any]]:
    return [timeless(json.loads(line)) for line in (journal / "metrics.jsonl").read_text().splitlines()]


def told_files(journal: Path) -> set[str]:
    return {path.stem for path in (journal / "told").glob("*")}


# --- learning


@pytest.mark.parametrize("algorithm", [offrank.OPARS, offrank.ARS])
def test_faithful_episodes_give_the_policy_of_the_agent(algorithm) -> None:
    learner = algorithm("toy_envs:Point-v0", workers=0, horizon=HORIZON, **SMALL)
    learner.learn(iterations=3, eval_every=0)
    run = finish(ask_tell(algorithm=algorithm))
    assert run.policy.sha256 == learner.policy.sha256
    assert run.result["steps"] == learner.result["steps"]
    assert run.result["episodes"] == learner.result["episodes"]


def test_discrete_actions() -> None:
    learner = offrank.ARS("toy_envs:Choice-v0", workers=0, horizon=HORIZON, **SMALL).learn(iterations=2, eval_every=0)
    run = AskTell(offrank.ARS, 2, 3, discrete=True, horizon=HORIZON, iterations=2, **SMALL)
    while not run.done:
        for episode in run.ask():
            run.tell(episode, **perform(episode, toy_envs.Choice()))
    assert run.policy.sha256 == learner.policy.sha256


@pytest.mark.parametrize("order", ["backwards", "shuffled", "one at a time"])
def test_the_order_of_telling_does_not_matter(order) -> None:
    rng, run = np.random.default_rng(0), ask_tell()
    while not run.done:
        episodes = run.ask()
        if order == "backwards":
            episodes.reverse()
        elif order == "shuffled":
            rng.shuffle(episodes)  # type: ignore[arg-type]
        else:
            episodes = episodes[-1:]
        for episode in episodes:
            run.tell(episode, **perform(episode))
    assert run.policy.sha256 == finish(ask_tell()).policy.sha256


def test_the_last_observation_may_be_left_out() -> None:
    run = ask_tell()
    while not run.done:
        for episode in run.ask():
            run.tell(episode, **perform(episode, last=False))
    assert run.policy.sha256 == finish(ask_tell()).policy.sha256


def test_episodes_say_what_they_are_for() -> None:
    run = ask_tell(n_behaviour=2)
    behaviour = run.ask()
    assert [(e.role, e.index, e.iteration, e.horizon) for e in behaviour] == [
        ("behaviour", 0, 0, HORIZON),
        ("behaviour", 1, 0, HORIZON),
    ]
    assert all(e.policy.sha256 == run.policy.sha256 for e in behaviour)
    assert len({e.seed for e in behaviour}) == 2
    for episode in behaviour:
        run.tell(episode, **perform(episode))
    pairs = run.ask()
    assert [e.role for e in pairs] == ["plus", "minus"] * 2
    assert [e.index for e in pairs[::2]] == [e.index for e in pairs[1::2]]
    assert len({e.policy.sha256 for e in pairs}) == 4
    np.testing.assert_allclose(pairs[0].policy.M + pairs[1].policy.M, 2 * run.policy.M, atol=1e-15)


def test_short_episodes_count_their_own_steps() -> None:
    run = ask_tell(iterations=1)
    while not run.done:
        for episode in run.ask():
            full = perform(episode)
            if episode.role == "behaviour":
                run.tell(episode, full["rewards"][:2], full["observations"][:3], terminated=True)
            elif episode.role == "plus":
                run.tell(episode, full["rewards"][:4], full["observations"][:4], truncated=True)
            else:
                run.tell(episode, **full)
    assert run.result["steps"] == 2 + 2 * 4 + 2 * HORIZON


def carried_out(run: AskTell) -> np.ndarray:
    """The actions (L, p) that a run learns from."""
    return run._run.state.memory["replay.action"]


def guided(journal: Path | None = None, **options: Any) -> AskTell:
    small = {"warmup_steps": 1, "hidden": 4, "batch": 4, "step_noise": 0.1}
    given: dict[str, Any] = {"low": -2.0, "high": 2.0, "horizon": HORIZON, "iterations": 2, "journal": journal}
    return AskTell(offrank.Guided, 2, 2, **(given | small | options))


@pytest.mark.parametrize("restart", [False, True])
def test_actions_that_were_carried_out_are_learned_from(tmp_path, restart) -> None:
    run, held = guided(tmp_path), np.linspace(-1, 1, 2 * HORIZON).reshape(HORIZON, 2)
    for episode in run.ask():
        run.tell(episode, **perform(episode), actions=held)
        if restart:
            run.close()
            run = guided(tmp_path)
    np.testing.assert_array_equal(carried_out(run)[:HORIZON], held.astype(np.float32))
    np.testing.assert_array_equal(carried_out(run)[HORIZON + 1 : 2 * HORIZON + 1], held.astype(np.float32))


def test_telling_the_actions_of_the_policy_changes_nothing() -> None:
    silent, told = guided(iterations=1), guided(iterations=1)
    for run in (silent, told):
        for episode in run.ask():
            ran = perform(episode)
            own = [episode.act(o, k) for k, o in enumerate(ran["observations"][:-1])]
            run.tell(episode, **ran, actions=own if run is told else None)
    np.testing.assert_allclose(carried_out(told), carried_out(silent), atol=1e-6)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((HORIZON, 3)), r"actions of shape \(6, 3\): expected \(6, 2\) for 6 rewards"),
        (np.zeros((HORIZON + 1, 2)), r"actions of shape \(7, 2\)"),
        (np.full((HORIZON, 2), np.nan), "actions are not finite"),
    ],
)
def test_actions_that_do_not_fit_are_refused(actions, message) -> None:
    run = guided()
    with pytest.raises(UsageError, match=message):
        run.tell(run.ask()[0], **perform(run.ask()[0]), actions=actions)


def test_actions_of_a_discrete_space_are_refused() -> None:
    run = AskTell(offrank.ARS, 2, 3, discrete=True, horizon=HORIZON, iterations=2, **SMALL)
    with pytest.raises(UsageError, match="discrete"):
        run.tell(run.ask()[0], **perform(run.ask()[0], toy_envs.Choice()), actions=np.zeros((HORIZON, 3)))


# --- limits


def test_without_a_limit_it_never_ends() -> None:
    run = ask_tell(iterations=None)
    for _ in range(20):
        for episode in run.ask():
            run.tell(episode, **perform(episode))
    assert not run.done


def test_a_step_budget_ends_it() -> None:
    a_round = HORIZON * (1 + 2 * 2)
    run = finish(ask_tell(iterations=None, total_steps=a_round + 1))
    assert (run.result["stop_reason"], run.result["steps"]) == ("steps", 2 * a_round)
    assert run.ask() == []


def test_there_is_no_evaluation_unless_asked_for() -> None:
    run, roles = ask_tell(), set()
    while not run.done:
        for episode in run.ask():
            roles.add(episode.role)
            run.tell(episode, **perform(episode))
    assert roles == {"behaviour", "plus", "minus"}
    assert run.result["evaluation_steps"] == 0


def test_evaluation_is_counted_when_it_is_on() -> None:
    run, roles = ask_tell(eval_every=2, eval_episodes=3), []
    while not run.done:
        for episode in run.ask():
            roles.append(episode.role)
            run.tell(episode, **perform(episode))
    assert roles.count("evaluation") == 3  # after the second iteration; an unscheduled one would cost time on the robot
    assert run.result["steps"] == HORIZON * len(roles)
    assert run.result["episodes"] == len(roles)
    assert run.policy.sha256 == finish(ask_tell()).policy.sha256


def test_the_threshold_ends_it() -> None:
    run = finish(ask_tell(iterations=None, threshold=-1e9, eval_every=1, eval_episodes=2))
    assert (run.result["stop_reason"], run.result["iterations"]) == ("threshold", 1)
    assert run.result["steps_to_threshold"] == run.result["steps"] == HORIZON * (1 + 2 * 2 + 2)
    assert run.best_policy.sha256 == run.policy.sha256


def test_episodes_that_confirm_are_asked_for_and_counted() -> None:
    run = finish(ask_tell(iterations=None, threshold=-1e9, eval_every=1, eval_episodes=2, confirm_episodes=3))
    assert (run.result["stop_reason"], run.result["iterations"]) == ("threshold", 1)
    assert run.result["steps_to_threshold"] == run.result["steps"] == HORIZON * (1 + 2 * 2 + 2 + 3)


def test_evaluations_after_steps_count_their_own_steps() -> None:
    run = finish(ask_tell(eval_steps=40, eval_episodes=2))  # an iteration has 30 steps, an evaluation 12
    assert [(e.iteration, e.steps) for e in run._run.evaluations] == [(2, 72), (3, 114)]


# --- the journal


CONFIRMED = {"eval_every": 1, "confirm_episodes": 3, "threshold": -10.0}  # reached by some, confirmed for none


@pytest.mark.parametrize("when", [{}, {"eval_every": 1}, {"eval_every": 2}, {"eval_steps": 50}, CONFIRMED], ids=str)
def test_a_restart_after_every_tell_never_asks_twice_and_ends_in_the_same_bits(tmp_path, when) -> None:
    options = {"eval_episodes": 2, "iterations": 3} | when
    told: list[str] = []
    while not (run := ask_tell(tmp_path / "journal", **options)).done:
        episode = run.ask()[-1]
        assert episode.id not in told
        run.tell(episode, **perform(episode))
        told.append(episode.id)
        run.close()
    whole = finish(ask_tell(tmp_path / "whole", **options))
    assert len(told) == whole.result["episodes"]
    assert timeless(run.result) == timeless(whole.result)
    assert metrics(tmp_path / "journal") == metrics(tmp_path / "whole")
    assert len(metrics(tmp_path / "whole")) >= 3


@pytest.mark.parametrize("point", ["_store", "_advance_if_complete", "_delete_used"])
def test_a_power_cut_inside_every_tell_loses_nothing(tmp_path, point) -> None:
    class PowerCut(Exception):
        pass

    def cut(*_: Any) -> None:
        raise PowerCut

    told: list[str] = []
    while not (run := ask_tell(tmp_path)).done:
        episode = run.ask()[0]
        assert episode.id not in told
        setattr(run, point, cut)  # after it was written, and before the next step of the journal
        with suppress(PowerCut):
            run.tell(episode, **perform(episode))
        told.append(episode.id)
    assert timeless(run.result) == timeless(finish(ask_tell()).result)


def test_a_restart_asks_for_the_rest_of_what_was_pending(tmp_path) -> None:
    run = ask_tell(tmp_path, algorithm=offrank.ARS)
    first = run.ask()
    for episode in first[1::2]:
        run.tell(episode, **perform(episode))
    again = ask_tell(tmp_path, algorithm=offrank.ARS).ask()
    assert [e.id for e in again] == [e.id for e in first[0::2]]
    assert [e.seed for e in again] == [e.seed for e in first[0::2]]
    assert [e.policy.sha256 for e in again] == [e.policy.sha256 for e in first[0::2]]


def test_an_episode_from_before_a_restart_can_still_be_told(tmp_path) -> None:
    before = ask_tell(tmp_path).ask()[0]
    run = ask_tell(tmp_path)
    run.tell(before, **perform(before))
    assert run.ask()[0].role == "plus"


def test_a_finished_run_stays_finished(tmp_path) -> None:
    options = {"eval_every": 2, "eval_episodes": 2}  # an extra evaluation follows the third iteration
    result = finish(ask_tell(tmp_path, **options)).result
    for _ in range(2):
        again = ask_tell(tmp_path, **options)
        assert again.done
        assert timeless(again.result) == timeless(result)


def test_a_finished_run_can_be_extended(tmp_path) -> None:
    finish(ask_tell(tmp_path / "journal", iterations=2))
    further = finish(ask_tell(tmp_path / "journal", iterations=4))
    assert further.policy.sha256 == finish(ask_tell(iterations=4)).policy.sha256


def test_the_journal_is_a_run_folder(tmp_path, capsys) -> None:
    from offrank.cli import main

    run = finish(ask_tell(tmp_path))
    names = {"config.json", "metrics.jsonl", "checkpoint.npz", "best.offrank", "final.offrank", "result.json"}
    assert names <= {path.name for path in tmp_path.iterdir()}
    assert json.loads((tmp_path / "result.json").read_text())["policy_sha256"] == run.policy.sha256
    for path in (tmp_path, tmp_path / "final.offrank"):
        loaded = offrank.load(path)
        assert loaded.policy.sha256 == run.policy.sha256
        assert loaded.predict([0.1, 0.2])[0].shape == (2,)
    assert main(["plot", str(tmp_path), "--out", str(tmp_path / "curve.png")]) == 0
    for words in (["evaluate", str(tmp_path)], ["record", str(tmp_path), "--out", str(tmp_path / "a.mp4")]):
        capsys.readouterr()
        assert main(words) == 2
        assert re.fullmatch(r"offrank: .* was trained by ask and tell: [^\n]*\n", capsys.readouterr().err)


def test_the_journal_deletes_what_is_no_longer_needed(tmp_path) -> None:
    run = ask_tell(tmp_path)
    while not run.done:
        for episode in run.ask():
            run.tell(episode, **perform(episode))
            current = f"{run.result['iterations']:06d}-"
            assert all(name.startswith(current) for name in told_files(tmp_path))
    assert told_files(tmp_path) == set()


def test_keep_episodes_keeps_every_one(tmp_path) -> None:
    run, ids = ask_tell(tmp_path, keep_episodes=True, eval_every=2, eval_episodes=2), set()
    while not run.done:
        for episode in run.ask():
            run.tell(episode, **perform(episode))
            ids.add(episode.id)
    assert told_files(tmp_path) == ids
    again = ask_tell(tmp_path, keep_episodes=True, eval_every=2, eval_episodes=2)
    assert again.done
    assert again.policy.sha256 == run.policy.sha256


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, "seed = 0, not 1"),
        ({"horizon": 7}, "horizon = 6, not 7"),
        ({"algorithm": offrank.ARS}, "algo = op-ars, not ars"),
        ({"ranker": "random"}, "ranker = kernel, not random"),
        ({"step_size": 0.5}, r"step_size = 0\.02, not 0\.5"),
        ({"n_directions": 4}, "n_directions = 3, not 4"),
        ({"eval_every": 1}, "eval_every = 0, not 1"),
        ({"high": 1.0}, "env_args"),
        ({"low": None, "high": None}, "env_args"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_the_journal_of_another_run_is_refused(tmp_path, options, message) -> None:
    run = ask_tell(tmp_path)
    run.tell(run.ask()[0], **perform(run.ask()[0]))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=message):
        ask_tell(tmp_path, **options)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_journal_of_another_size_is_refused(tmp_path) -> None:
    ask_tell(tmp_path)
    with pytest.raises(UsageError, match="env_args"):
        AskTell(offrank.OPARS, 3, 2, journal=tmp_path, low=-2.0, high=2.0, horizon=HORIZON, **SMALL)


def test_a_training_folder_is_no_journal(tmp_path) -> None:
    learner = offrank.OPARS("toy_envs:Point-v0", workers=0, horizon=HORIZON, **SMALL)
    learner.learn(iterations=1, eval_every=0, out=tmp_path)
    with pytest.raises(UsageError, match="holds a run of toy_envs:Point-v0, not of ask-tell"):
        ask_tell(tmp_path)


@pytest.mark.parametrize("name", ["told/000000-behaviour-0000.npz", "checkpoint.npz"])
def test_a_truncated_journal_file_is_named(tmp_path, name) -> None:
    run = ask_tell(tmp_path, iterations=2)
    for _ in range(2 if name == "checkpoint.npz" else 1):
        for episode in run.ask():
            run.tell(episode, **perform(episode))
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(FileFormatError, match=re.escape(f"{path} is truncated")):
        ask_tell(tmp_path, iterations=2)


def test_a_damaged_episode_is_asked_for_again_once_it_is_deleted(tmp_path) -> None:
    run = ask_tell(tmp_path)
    (episode,) = run.ask()
    run.tell(episode, **perform(episode))
    path = tmp_path / "told" / f"{episode.id}.npz"
    path.write_bytes(b"")
    with pytest.raises(FileFormatError, match="delete it to be asked for that episode again"):
        ask_tell(tmp_path)
    path.unlink()
    assert [e.id for e in ask_tell(tmp_path).ask()] == [episode.id]
    assert finish(ask_tell(tmp_path)).policy.sha256 == finish(ask_tell()).policy.sha256


@pytest.mark.parametrize(
    ("arrays", "meta", "line"),
    [
        ({"rewards": np.full(HORIZON, 1e160)}, {}, "reward of 1e.160, too large"),
        ({"observations": np.zeros((HORIZON, 3, 2))}, {}, "observations of shape"),
        ({"rewards": None}, {}, "it has no 'rewards'"),
        ({"last_observation": np.zeros(5)}, {}, "not an episode of this run"),
        ({}, {"terminated": None}, "it has no 'terminated'"),
    ],
    ids=str,
)
def test_an_episode_of_the_journal_is_checked_and_asked_for_again_once_deleted(tmp_path, arrays, meta, line) -> None:
    """The checksum of the file is valid: an earlier version stored it, or someone made it."""
    run = ask_tell(tmp_path)
    (episode,) = run.ask()
    run.close()
    told = {"observations": np.zeros((HORIZON, 2)), "rewards": np.zeros(HORIZON)} | arrays
    said = {name: value for name, value in ({"terminated": False} | meta).items() if value is not None}
    path = tmp_path / "told" / f"{episode.id}.npz"
    save_arrays(path, "episode", {name: value for name, value in told.items() if value is not None}, said)
    with pytest.raises(FileFormatError, match=f"{line}.*; delete it to be asked for that episode again"):
        ask_tell(tmp_path)
    path.unlink()
    assert finish(ask_tell(tmp_path)).policy.sha256 == finish(ask_tell()).policy.sha256


def test_a_journal_that_cannot_be_made_is_refused(tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    for journal in (tmp_path / "file", tmp_path / "file" / "journal"):
        with pytest.raises(UsageError, match="file"):
            ask_tell(journal)


# --- invalid input


def good(episode: EpisodeToRun) -> tuple[np.ndarray, np.ndarray]:
    told = perform(episode)
    return np.array(told["rewards"]), np.array(told["observations"])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda r, o: (r[:, None], o), UsageError, r"rewards of shape \(6, 1\): expected \(T,\)"),
        (lambda r, o: (r[:0], o[:1]), UsageError, r"rewards of shape \(0,\)"),
        (lambda r, o: (3.0, o), UsageError, r"rewards of shape \(\)"),
        (lambda r, o: (np.ones(7), np.ones((7, 2))), UsageError, r"rewards of shape \(7,\).*T <= 6"),
        (lambda r, o: (r, o[:-2]), UsageError, r"observations of shape \(5, 2\): expected \(6, 2\) or \(7, 2\)"),
        (lambda r, o: (r, o.T), UsageError, r"observations of shape \(2, 7\)"),
        (lambda r, o: (r, np.ones((6, 3))), UsageError, r"observations of shape \(6, 3\)"),
        (lambda r, o: (r, o.ravel()), UsageError, r"observations of shape \(14,\)"),
        (lambda r, o: (r, [*o[:-1], [1.0]]), UsageError, "observations are not an array of numbers"),
        (lambda r, o: (["a"] * 6, o), UsageError, "rewards are not an array of numbers"),
        (lambda r, o: (None, o), UsageError, "rewards"),
        (lambda r, o: (r + 1j, o), UsageError, "rewards are not an array of numbers: they are of type complex128"),
        (
            lambda r, o: (r.astype("m8[s]"), o),
            UsageError,
            "rewards .* are of type timedelta64",
        ),
        (lambda r, o: (np.where(np.arange(6) == 4, np.nan, r), o), EpisodeError, "non-finite reward .*step 4"),
        (lambda r, o: (r, np.where(np.arange(7)[:, None] == 2, np.inf, o)), EpisodeError, "observation .*step 2"),
        (lambda r, o: (r, np.where(np.arange(7)[:, None] == 6, np.nan, o)), EpisodeError, "observation .*step 6"),
        (
            lambda r, o: (np.where(np.arange(6) == 4, -1e160, r), o),
            EpisodeError,
            "reward of -1e.160, .*step 4",
        ),
        (lambda r, o: (np.full(6, 1e308), o), EpisodeError, "reward of 1e.308, too large.*step 0"),
        (
            lambda r, o: (r, np.where(np.arange(7)[:, None] == 2, 1e160, o)),
            EpisodeError,
            "observation of 1e.160.*step 2",
        ),
        (lambda r, o: (r[:3], o[:3]), UsageError, "ended after 3 of 6 steps: say terminated=True"),
    ],
)
def test_what_does_not_fit_is_refused_and_not_recorded(tmp_path, change, error, message) -> None:
    run = ask_tell(tmp_path)
    (episode,) = run.ask()
    rewards, observations = change(*good(episode))
    with pytest.raises(error, match=message):
        run.tell(episode, rewards, observations)
    assert told_files(tmp_path) == set()
    assert [e.id for e in run.ask()] == [episode.id]
    again = ask_tell(tmp_path)
    assert [e.id for e in again.ask()] == [episode.id]
    assert finish(again).policy.sha256 == finish(ask_tell()).policy.sha256


def test_an_episode_is_told_once(tmp_path) -> None:
    run = ask_tell(tmp_path, algorithm=offrank.ARS)
    first = run.ask()[0]
    run.tell(first, **perform(first))
    with pytest.raises(UsageError, match=f"episode {first.id} was told before"):
        run.tell(first, [0.0] * HORIZON, np.zeros((HORIZON, 2)))
    for episode in run.ask():
        run.tell(episode, **perform(episode))
    with pytest.raises(UsageError, match=f"episode {first.id} is not being asked for: it was told before"):
        run.tell(first, **perform(first))
    assert told_files(tmp_path) == set()
    assert finish(run).policy.sha256 == finish(ask_tell(algorithm=offrank.ARS)).policy.sha256


def test_only_an_episode_that_was_asked_for_is_told() -> None:
    with pytest.raises(UsageError, match="episode = 'abc': give one of the episodes that ask returned"):
        ask_tell().tell("abc", [0.0] * HORIZON, np.zeros((HORIZON, 2)))  # type: ignore[arg-type]


def test_an_episode_of_another_run_is_refused(tmp_path) -> None:
    run, other = ask_tell(tmp_path, algorithm=offrank.ARS), ask_tell(algorithm=offrank.ARS, seed=1)
    foreign = other.ask()[0]
    assert foreign.id == run.ask()[0].id
    with pytest.raises(UsageError, match="is of another run: its policy differs"):
        run.tell(foreign, **perform(foreign))
    strange = dataclasses.replace(foreign, id="000009-plus-0000")
    with pytest.raises(UsageError, match="000009-plus-0000 is not being asked for"):
        run.tell(strange, **perform(strange))
    assert told_files(tmp_path) == set()
    assert len(run.ask()) == 2 * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"obs_dim": 0}, "obs_dim = 0"),
        ({"act_dim": 0}, "act_dim = 0"),
        ({"horizon": 0}, "horizon = 0"),
        ({"iterations": 0}, "iterations = 0"),
        ({"seed": -1}, "seed = -1"),
        ({"low": -1.0}, "both low and high"),
        ({"low": [-1.0, -1.0, -1.0], "high": 1.0}, "two lists of 2"),
        ({"low": 1.0, "high": -1.0}, "low <= high"),
        ({"N": 4}, "'n_directions'"),
        ({"n_top": 9}, "b <= N"),
        ({"algorithm": "op-ars"}, "give the class"),
        ({"obs_dim": "a"}, "obs_dim = 'a': must be a whole number"),
        ({"obs_dim": 2.7}, r"obs_dim = 2\.7: must be a whole number"),
        ({"horizon": None}, "horizon = None: must be a whole number"),
        ({"horizon": 10**20}, "horizon = 1.*: must be at most"),
        ({"seed": 1.5}, r"seed = 1\.5: must be a whole number"),
        ({"journal": 5}, "journal = 5: must be a path"),
        ({"threshold": "high"}, "threshold = 'high': must be none or a number"),
        ({"low": 1j, "high": 2}, "low are not an array of numbers: they are of type complex128"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_arguments_get_a_clear_error(options, message) -> None:
    given: dict[str, Any] = {"algorithm": offrank.OPARS, "obs_dim": 2, "act_dim": 2, "iterations": 1}
    with pytest.raises(UsageError, match=message):
        AskTell(**(given | options))


def test_sizes_may_be_numpy_integers(tmp_path) -> None:
    shape = np.array([2, 2])
    for _ in range(2):
        run = AskTell(offrank.OPARS, shape[0], shape[1], horizon=np.int64(6), seed=np.int64(3), journal=tmp_path)
        assert run.ask()[0].policy.M.shape == (2, 2)


def test_bounds_clip_the_actions() -> None:
    run = ask_tell(low=[-1.0, -0.5], high=[1.0, 0.5], noise_std=10.0, algorithm=offrank.ARS)
    actions = run.ask()[0].policy.predict(100 * np.random.default_rng(0).normal(size=(50, 2)))
    assert actions.max(axis=0).tolist() == [1.0, 0.5]
    assert actions.min(axis=0).tolist() == [-1.0, -0.5]


# --- the example


def robot(journal: Path, iterations: int, **options: Any) -> subprocess.Popen[str]:
    words = ["--journal", journal, "--iterations", iterations, "--horizon", 5]
    return subprocess.Popen(
        [sys.executable, ROBOT, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def said(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    return out


def test_the_robot_example_survives_being_killed(tmp_path) -> None:
    process = robot(tmp_path / "run", 1000, start_new_session=True)
    assert process.stdout is not None
    printed = [process.stdout.readline() for _ in range(12)]
    if os.name == "posix":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    printed += process.communicate()[0].splitlines()
    before = [line.split(":")[0] for line in printed if ": return " in line]
    iterations = int(before[-1].split("-")[0]) + 2

    after = said(robot(tmp_path / "run", iterations))
    said(robot(tmp_path / "whole", iterations))
    asked = [line.split(":")[0] for line in after.splitlines() if ": return " in line]
    assert len(before) >= 12
    assert not set(before) & set(asked)
    assert f"{iterations} iterations" in after
    policies = [offrank.load(tmp_path / name / "final.offrank").policy.sha256 for name in ("run", "whole")]
    assert policies[0] == policies[1]


def test_any_policy_is_asked_for_and_learned_from(tmp_path: Path) -> None:
    learner = offrank.OPARS("toy_envs:Point-v0", workers=0, horizon=HORIZON, policy="skip:3", **SMALL)
    learner.learn(iterations=3, eval_every=0)
    run = ask_tell(tmp_path / "journal", policy="skip:3")
    assert run.ask()[0].policy.kind.name == "skip:3"
    for episode in run.ask()[:1]:
        run.tell(episode, **perform(episode))
    run.close()
    assert finish(ask_tell(tmp_path / "journal", policy="skip:3")).policy.sha256 == learner.policy.sha256
    with pytest.raises(UsageError, match="policy"):
        ask_tell(tmp_path / "journal")


def test_a_critic_learns_between_what_is_asked() -> None:
    """Its lessons are carried out in place, and nobody is asked for anything meanwhile."""
    small = {"n_directions": 6, "n_top": 2, "warmup": 1, "probe_share": 0.0}
    learner = offrank.QARS("toy_envs:Point-v0", workers=0, horizon=HORIZON, policy="skip:3", **small)
    learner.learn(iterations=4, eval_every=0)
    run = AskTell(offrank.QARS, 2, 2, low=-2.0, high=2.0, horizon=HORIZON, iterations=4, policy="skip:3", **small)
    assert finish(run).policy.sha256 == learner.policy.sha256


def test_a_journal_is_the_same_by_another_name(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "j")
    first = AskTell(offrank.ARS, 2, 2, journal=tmp_path / "j", horizon=5)
    second = AskTell(offrank.ARS, 2, 2, journal=tmp_path / "link", horizon=5)
    assert second.ask()
    with pytest.raises(UsageError, match="another AskTell goes on with"):
        first.ask()
    second.close()


def test_one_that_is_closed_takes_no_episode(tmp_path: Path) -> None:
    run = AskTell(offrank.ARS, 2, 2, journal=tmp_path / "j", horizon=5)
    episode = run.ask()[0]
    run.close()
    with pytest.raises(UsageError, match="this AskTell is closed"):
        run.tell(episode, rewards=np.ones(5), observations=np.ones((6, 2)))


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_says_that_it_cannot_be_copied(way: Any) -> None:
    with pytest.raises(TypeError, match="an AskTell holds files, so it cannot be pickled or copied"):
        way(AskTell(offrank.ARS, 2, 2))


@pytest.mark.parametrize(
    ("told", "error", "line"),
    [
        ({"observations": np.full((6, 2), 1e40)}, EpisodeError, r"observation of 1e\+40, too large to learn from"),
        ({"rewards": np.full(5, 1e99)}, EpisodeError, r"reward of 1e\+99, too large to learn from"),
        ({"rewards": [10**400] * 5}, UsageError, "rewards are not an array of numbers"),
        ({"actions": np.full((5, 2), 1e60)}, UsageError, r"actions are not finite, or beyond 1e\+30"),
        ({"terminated": "False"}, UsageError, "terminated = 'False': must be True or False"),
        ({"truncated": np.array([True, False])}, UsageError, "truncated = .*: must be True or False"),
    ],
)
def test_what_critics_cannot_learn_from_is_refused(
    told: dict[str, Any], error: type[Exception], line: str, tmp_path: Path
) -> None:
    """Critics compute in single precision: what they cannot hold would make the journal useless."""
    good: dict[str, Any] = {"rewards": np.ones(5), "observations": np.ones((6, 2))}
    settings: dict[str, Any] = {"horizon": 5, "low": -1.0, "high": 1.0, "journal": tmp_path / "j"}
    run = AskTell(offrank.Guided, 2, 2, **settings)
    episode = run.ask()[0]
    with pytest.raises(error, match=line):
        run.tell(episode, **(good | told))
    run.tell(episode, **good)  # nothing of it was stored


def test_the_newer_of_two_objects_goes_on_with_a_journal(tmp_path: Path) -> None:
    """In a notebook a cell may be run twice. The older object must neither write nor unlock the folder."""
    first = AskTell(offrank.ARS, 2, 2, journal=tmp_path / "j", horizon=5)
    episode = first.ask()[0]
    told = {"rewards": np.ones(5), "observations": np.ones((6, 2))}
    first.tell(episode, **told)
    second = AskTell(offrank.ARS, 2, 2, journal=tmp_path / "j", horizon=5)
    assert episode.id not in [other.id for other in second.ask()]
    for use in (first.ask, lambda: first.tell(episode, **told)):
        with pytest.raises(UsageError, match="another AskTell goes on with"):
            use()
    first.close()
    other = f"import offrank; offrank.AskTell(offrank.ARS, 2, 2, journal={str(tmp_path / 'j')!r}, horizon=5)"
    beside = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True)
    assert "BusyError" in beside.stderr  # still locked
    second.tell(second.ask()[0], **told)
    second.close()
