"""Tasks that nobody tuned: what is compared, and its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offrank.lab.experiments import untuned

WORDS = ["Pendulum-v1", "guided", "--seeds", "1-2", "--steps", "400"]


def test_runs_are_added_to_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, ran = tmp_path / "untuned.json", list[tuple[str, int, int]]()

    def learn(task: str, seed: int, steps: int) -> list[list[float]]:
        ran.append((task, seed, steps))
        return [[80 * k, -100.0 + k + seed / 3, 1.0] for k in range(1, 6)]

    monkeypatch.setitem(untuned.LEARNERS, "guided", learn)
    assert untuned.main([*WORDS, "--out", str(out)]) == 0
    assert untuned.main([*WORDS[:3], "2-3", *WORDS[4:], "--out", str(out)]) == 0
    assert ran == [("Pendulum-v1", seed, 400) for seed in (1, 2, 3)]
    rows = json.loads(out.read_text())
    assert [row["seed"] for row in rows] == [1, 2, 3] and rows[0]["evaluations"][0] == [80, -98.67, 1.0]


def test_guided_is_evaluated_at_the_five_steps_of_the_comparison() -> None:
    found = untuned.run_guided("Pendulum-v1", seed=1, steps=2000)  # without an update: it is still warming up
    assert [steps for steps, _, _ in found] == [400, 800, 1200, 1600, 2000]
    assert all(-2000 < mean < -500 for _, mean, _ in found)


def test_the_table_has_medians_and_what_was_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def row(task: str, algo: str, seed: int, last: float) -> dict[str, object]:
        return {
            "task": task,
            "algo": algo,
            "seed": seed,
            "budget": 10_000,
            "evaluations": [[2000 * k, last * k / 5, 0] for k in range(1, 6)],
        }

    rows = [row("A", "guided", seed, 100 + seed) for seed in range(3)] + [
        row("A", "sac", seed, 50) for seed in range(2)
    ]
    out = tmp_path / "untuned.json"
    out.write_text(json.dumps([*rows, row("B", "guided", 0, 10)]))
    assert untuned.main(["--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == [
        "| A | 2k, 4k, 6k, 8k, 10k | 20, 40, 61, 81, 101 (3 seeds) | 10, 20, 30, 40, 50 (2 seeds) | 1.00 (1.00-1.00) |",
        "| B | 2k, 4k, 6k, 8k, 10k | 2, 4, 6, 8, 10 (1 seeds) | not run |  |",
    ]


def test_what_is_missing_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert untuned.main([*WORDS[:2], "--out", str(tmp_path / "a.json")]) == 2
    assert "give TASK, the algorithm, --seeds and --steps" in capsys.readouterr().err
