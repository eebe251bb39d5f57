"""Scripts of the lab: each has a help text, and a usage error is one line and exit status 2."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offrank.core.files import read_json
from offrank.lab import bench, experiments
from offrank.lab.experiments import deep_together
from offrank.lab.experiments.deep_together import environment

ROOT = Path(__file__).parents[2]


def scripts() -> dict[str, Any]:
    """Modules that can be run, by name."""
    found = {}
    for package in (bench, experiments):
        for entry in pkgutil.iter_modules(package.__path__):
            module = import_module(f"{package.__name__}.{entry.name}")
            if hasattr(module, "main"):
                found[entry.name] = module
    return found


SCRIPTS = scripts()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_help_is_the_docstring_and_names_the_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        SCRIPTS[name].main(["--help"])
    assert end.value.code == 0
    assert f"python -m {SCRIPTS[name].__name__}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("tune_ars", ["Nowhere-v3"], "unknown task 'Nowhere-v3'"),
        ("tune_ars", ["LQR"], "no preset threshold"),
        ("tune_ars", ["Hopper-v3", "--ranker", "kernal"], "did you mean 'kernel'"),
        ("tune_ars", ["Hopper-v3", "--directions", "x"], "--directions"),
        ("tune_ars", ["Hopper-v3", "--show", "nowhere.json"], "cannot read nowhere.json"),
        ("tune_tres", ["Nowhere-v3"], "no preset threshold"),
        ("tune_tres", ["Hopper-v3", "--set", "epochz=3"], "did you mean 'epochs'"),
        ("ranker_cost", ["HalfCheetah-v3", "--critic", "hiden=32", "--out", "x.json"], "did you mean 'hidden'"),
        ("short_episodes", ["Hopper-v3", "nowhere.offrank", "--out", "x.json"], "cannot read nowhere.offrank"),
        ("critic_gradient", ["nowhere", "--out", "x.json"], "nowhere"),
        ("rank_quality_table", ["nowhere.json"], "cannot read nowhere.json"),
        ("deep", ["--out", "x.json"], "give a task and an algorithm"),
        ("deep", ["Hopper-v3", "crossq", "--episodes", "0", "--out", "x.json"], "not a positive whole number"),
        ("deep", ["--table", ".", "--out", "x.json"], "holds no results"),
        ("deep_together", ["Hopper-v3", "sac", "--seeds", "x", "--out", "x"], "--seeds"),
        ("plots", ["nowhere.json"], "cannot read nowhere.json"),
        ("cluster_plan", ["--results", "nowhere"], "cannot read nowhere"),
        ("step_parity", ["--steps", "0"], "not a positive whole number"),
    ],
)
def test_a_usage_error_is_one_line_and_status_2(name, words, said, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = SCRIPTS[name].main(words)
    except SystemExit as end:  # the parser's own errors
        status = end.code
    err = capsys.readouterr().err
    assert status == 2 and said in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_grid_search_is_written_and_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "ars.json"
    words = ["Swimmer-v3", "--directions", "2/1", "--step-size", "0.02", "--horizon", "20", "--seeds", "2"]
    assert SCRIPTS["tune_ars"].main([*words, "--steps", "400", "--set", "momentum=0.5", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert [row["seed"] for row in read_json(out)["rows"]] == [1000, 1001] and "| 2/1 | 0.02 |" in shown
    assert SCRIPTS["tune_ars"].main(["Swimmer-v3", "--show", str(out)]) == 0
    assert capsys.readouterr().out == shown


def test_tables_and_figures_of_the_committed_results_are_made_again(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(ROOT)
    assert SCRIPTS["cluster_plan"].main([]) == 0
    assert "| op-ars | 100 | 16 |" in capsys.readouterr().out
    assert SCRIPTS["plots"].main(["--out", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["candidates.png", "memory.png", "scores.png"]
    capsys.readouterr()
    records = sorted(map(str, Path("results/rank_quality").glob("*/rank-quality.json")))
    assert SCRIPTS["rank_quality_table"].main(records) == 0
    shown = capsys.readouterr().out
    assert "| HalfCheetah-v3 | cem-rl | 1000 | 5 |" in shown  # members
    assert "The kernel and its controls" in shown and "| HalfCheetah-v3 | ars | 0 | 50 | 674 | memory |" in shown
    assert SCRIPTS["tune_ars"].main(["Hopper-v3", "--show", "results/tuning/ars-Hopper-v3-4-4-starts.json"]) == 0
    assert "| 4/4 |" in capsys.readouterr().out


def test_deep_learners_without_their_library_say_what_to_install(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    assert deep_together.main(["Hopper-v3", "sac", "--out", str(tmp_path)]) == 2
    assert "this needs jax: pip install 'offrank[sbx]'" in capsys.readouterr().err


class Learners:
    """Two that do nothing, for `deep_together`."""

    def __init__(self, task: str, algo: str, seeds: Sequence[int]):
        self.box = environment(task).action_space
        space = environment(task).observation_space
        self.model = SimpleNamespace(learning_starts=3, batch_size=4, key=np.zeros(1), observation_space=space)
        self.batches: list[Any] = []
        MADE.append(self)

    def __len__(self) -> int:
        return 2

    def actions(self, seen: Any, noisy: bool) -> Any:
        return np.full((*seen.shape[:2], 2), 0.5 if noisy else 0.0)

    def learn(self, batches: Sequence[Any]) -> None:
        self.batches.append(batches)


MADE: list[Learners] = []


def test_deep_learners_side_by_side_have_their_own_transitions_evaluations_and_confirmations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deep_together, "Learners", Learners)
    monkeypatch.setattr(deep_together, "CONFIRM", 3)
    monkeypatch.setattr(deep_together.metadata, "version", lambda name: "0")
    asked: list[tuple[list[int], range]] = []
    evaluate = deep_together.evaluate

    def watched(learners: Any, task: str, seeds: dict[int, int], number: int, episodes: range) -> Any:
        asked.append((list(seeds.values()), episodes))
        returns = evaluate(learners, task, seeds, number, episodes)
        return {i: total + 1000 * (seeds[i] == 7 and number == 1) for i, total in returns.items()}

    monkeypatch.setattr(deep_together, "evaluate", watched)
    words = ["Swimmer-v3", "sac", "--seeds", "7,9", "--steps", "9", "--every", "3", "--episodes", "2"]
    assert deep_together.main([*words, "--out", str(tmp_path)]) == 0
    assert asked == [([7, 9], range(2)), ([7, 9], range(2)), ([7], range(2, 5)), ([7, 9], range(2))]
    first, other = (read_json(tmp_path / f"Swimmer-v3-sac-{seed}" / "result.json") for seed in (7, 9))
    assert first["steps_to_threshold"] == 6 and other["steps_to_threshold"] is None and other["steps"] == 9
    assert [steps for steps, *_ in other["evaluations"]] == [3, 6, 9]
    batches = MADE[-1].batches
    shapes = [(2, 4, 8), (2, 4, 2), (2, 4, 8), (2, 4), (2, 4)]
    assert len(batches) == 6 and [array.shape for array in batches[-1]] == shapes
    seen, actions, after, ends, rewards = (np.concatenate(parts, axis=1) for parts in zip(*batches, strict=True))
    assert (actions == 0.5).any() and (actions != 0.5).any()  # random ones at first
    assert not np.array_equal(seen[0], seen[1]) and not np.array_equal(seen, after)
    assert not ends.any() and len(np.unique(rewards)) > 2
