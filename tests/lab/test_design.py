"""Factorial designs: which runs they have, what is gathered of them, and their main effects."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from offrank.core.errors import UsageError
from offrank.lab.experiments import design
from offrank.lab.experiments.design import Factor

CROSSED = ["ratio=1,2", "hidden=4,8", "batch=4,8"]


def test_settings_are_crossed_and_the_others_follow_their_product() -> None:
    factors = [Factor.of(text) for text in (*CROSSED, "slow=0.05,0.01:ratio*hidden*batch")]
    runs = design.design(factors)
    assert len(runs) == 8 and len({tuple(run.values()) for run in runs}) == 8
    signs = [[run[f.name] == f.values[1] for f in factors] for run in runs]
    assert signs[0] == [False, False, False, False]
    assert all(last == (sum(others) % 2 == 1) for *others, last in signs)
    for a, b in combinations(range(4), 2):  # no main effect is mixed with another
        assert sum((row[a] - 0.5) * (row[b] - 0.5) for row in signs) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--factor", "ratio=1"], "must be NAME=FIRST,SECOND"),
        (["--factor", "ratio=1,2,3"], "must be NAME=FIRST,SECOND"),
        (["--share", "3/2"], "must be K/P"),
        (["--share", "0/2"], "must be K/P"),
        (["Swimmer-v3", "--steps", "1k", "--out", "x"], "give a task, --factor and --steps"),
        (["Swimmer-v3", "--factor", "ratio=1,2", "--steps", "1k"], "say with --out"),
        (["--gather", ".", "--out", "x"], "holds no runs"),
        (["Swimmer-v3", "--factor", "ration=1,2", "--steps", "1k", "--out", "x"], "did you mean 'ratio'"),
    ],
)
def test_usage_errors_are_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = design.main(words)
    except SystemExit as end:
        status = end.code
    assert status == 2 and said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("factors", [["ratio=1,2", "ratio=1,3"], ["ratio=1,2", "slow=0,1:hidden"]])
def test_a_design_that_cannot_be_is_refused(factors: list[str]) -> None:
    with pytest.raises(UsageError, match=r"given twice|follows hidden, which is none of ratio"):
        design.design([Factor.of(text) for text in factors])


def test_a_design_is_run_in_shares_gathered_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["Swimmer-v3", "--factor", "train_horizon=20,40", "--factor", "warmup_steps=500,600", "--steps", "400"]
    words += ["--eval-steps", "200", "--eval-episodes", "1", "--out", str(tmp_path / "runs")]
    for share in ("1/2", "2/2"):
        assert design.main([*words, "--share", share]) == 0
    out = tmp_path / "design.json"
    assert design.main(["--gather", str(tmp_path / "runs"), "--out", str(out)]) == 0
    rows = json.loads(out.read_text())
    assert [row["seed"] for row in rows] == [1000, 1001, 1002, 1003]
    assert [row["settings"] for row in rows] == [
        {"train_horizon": a, "warmup_steps": b} for a in (20, 40) for b in (500, 600)
    ]
    assert [[steps for steps, _ in row["evaluations"]] for row in rows] == 2 * [[200, 400]] + 2 * [[240, 400]]
    capsys.readouterr()
    assert design.main(["--table", str(out), "--between", "150-250", "5k-6k"]) == 0
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    values = [("warmup_steps", "500"), ("warmup_steps", "600"), ("train_horizon", "20"), ("train_horizon", "40")]
    assert [(line[1], line[2]) for line in lines] == values and all(line[5] == "0 of 2 |" for line in lines)
    twenty = [row["evaluations"][0][1] for row in rows if row["settings"]["train_horizon"] == 20]
    assert lines[2][3].startswith(f"{sum(twenty) / 2:,.0f} ± ") and lines[2][4] == "-"
