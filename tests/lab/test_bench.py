"""The benchmarks measure what they claim to; no test asserts a speed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from offrank.cli import main
from offrank.engines.native.engine import MujocoEngine
from offrank.lab.bench.iteration import PARTS, peak_memory, profile, score_times, thread_scaling
from offrank.lab.bench.rollouts import bare_physics, compare, one_environment, record, some_policies
from offrank.lab.bench.rounds import alternate, ratio
from offrank.tasks import TASKS


@pytest.mark.parametrize("name", TASKS)
def test_bare_physics_ends_in_the_states_of_the_closed_loop(name: str) -> None:
    """Otherwise the two would not be comparable."""
    task = TASKS[name]
    engine = MujocoEngine(task, 2)
    recording = record(task, some_policies(task, 4, horizon=60), engine)
    bare_physics(recording, 2)  # checks it, and raises
    engine.close()


def test_wrong_controls_would_be_noticed() -> None:
    task = TASKS["Swimmer-v3"]
    engine = MujocoEngine(task, 1)
    recording = record(task, some_policies(task, 2, horizon=30), engine)
    recording.controls[0][3] += 1e-9
    with pytest.raises(AssertionError, match="did not end in the states"):
        bare_physics(recording, 1)
    engine.close()


def test_peers_get_the_same_episodes() -> None:
    """One Gymnasium environment, given the recorded starts and controls, ends where ours ended."""
    task = TASKS["Hopper-v3"]
    engine = MujocoEngine(task, 1)
    recording = record(task, some_policies(task, 1), engine)
    loop = one_environment(recording)
    loop()
    env = next(c.cell_contents for c in loop.__closure__ or () if hasattr(c.cell_contents, "unwrapped"))
    np.testing.assert_allclose(env.unwrapped._get_obs(), recording.last_observations[0], rtol=1e-9)
    engine.close()


def test_a_comparison_has_times_for_every_contestant() -> None:
    found = compare("Hopper-v3", 2, ["gymnasium", "gymnasium-sync"], rounds=1, threads=1)
    assert set(found["microseconds_a_step"]) == {"offrank", "bare physics", "gymnasium", "gymnasium-sync"}
    assert set(found["times_faster_than"]) == {"gymnasium", "gymnasium-sync"}


def test_contestants_alternate() -> None:
    calls: list[str] = []

    def contestant(name: str) -> None:
        calls.append(name)
        sum(range(10**7))

    times = alternate({"a": lambda: contestant("a"), "b": lambda: contestant("b")}, rounds=2)
    assert [name for i, name in enumerate(calls) if i == 0 or name != calls[i - 1]] == ["a", "b"] * 3
    assert len(times["a"]) == len(times["b"]) == 2


def test_ratios_are_of_times_from_the_same_round() -> None:
    assert ratio([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == {"median": 2.0, "low": 1.0, "high": 3.0}


def test_the_parts_of_an_iteration_add_up() -> None:
    found = profile("Swimmer-v3", iterations=1, threads=1)
    assert set(found["shares"]) == set(PARTS)
    assert sum(found["shares"].values()) == pytest.approx(1.0, abs=1e-6)


def test_growth_tables_have_one_row_per_size() -> None:
    assert [row["directions"] for row in score_times("Swimmer-v3", [2, 8], 50, 1)] == [2, 8]
    assert set(thread_scaling("Swimmer-v3", 2, 1)["seconds"]) == {"one", "two"}


def test_memory_is_measured_in_a_process_of_its_own() -> None:
    memory = peak_memory("Swimmer-v3", 2)
    assert [iteration for iteration, _ in memory] == [1, 2] and 20 < memory[0][1] < 5000


def test_command_writes_raw_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rollouts.json"
    words = ["bench", "rollouts", "--tasks", "Hopper-v3", "--peers", "--candidates", "2", "--rounds", "1"]
    assert main([*words, "--out", str(out)]) == 0
    assert "share of bare physics" in capsys.readouterr().out
    record = json.loads(out.read_text())
    assert record["rows"][0]["task"] == "Hopper-v3" and record["cores"] >= 1


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--tasks", "Hoper-v3"], "did you mean 'Hopper-v3'"), (["--peers", "envpol"], "did you mean 'envpool'")],
)
def test_unknown_names_get_near_matches(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "rollouts", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_missing_peer_is_skipped_by_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("offrank.lab.bench.rollouts.find_spec", lambda module: None if module == "envpool" else True)
    words = ["--tasks", "Hopper-v3", "--peers", "envpool", "--candidates", "1", "--rounds", "1"]
    assert main(["bench", "rollouts", *words]) == 0
    assert "envpool is not installed and is left out: pip install 'offrank[bench]'" in capsys.readouterr().err
