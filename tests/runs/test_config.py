from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest

from offrank.algorithms import ALGORITHMS
from offrank.core.errors import UsageError
from offrank.presets import GENERAL
from offrank.runs.config import task_default
from offrank.runs.recipe import convert, resolve
from offrank.tasks import TASKS

# threshold, alpha, nu, shift, N, b, n_b, h: the paper's Tables 1 and A3, and the ARS paper's
PUBLISHED = {
    "Swimmer-v3": (325, 0.02, 0.01, 0, 2, 1, 2, 0.1),
    "Hopper-v3": (3120, 0.01, 0.025, 1, 8, 4, 2, 0.25),
    "HalfCheetah-v3": (3430, 0.02, 0.03, 0, 32, 4, 2, 1.0),
    "Walker2d-v3": (4390, 0.03, 0.025, 1, 40, 30, 2, 0.5),
    "Ant-v3": (3580, 0.015, 0.025, 1, 60, 20, 1, 0.25),
    "Humanoid-v3": (6000, 0.02, 0.0075, 5, 350, 230, 2, 0.25),
}


@pytest.mark.parametrize("task", TASKS)
def test_presets_are_the_published_numbers(task: str) -> None:
    h = resolve(task, "op-ars").hyperparameters
    names = ("step_size", "noise_std", "reward_shift", "n_directions", "n_top", "n_behaviour", "bandwidth")
    assert (task_default(task, "threshold"), *(h[name] for name in names)) == PUBLISHED[task]
    assert resolve(task, "ars").settings == resolve(task, "op-ars").settings


def entries(table: dict) -> list[dict]:
    if "value" in table:
        return [table]
    return [entry for part in table.values() for entry in entries(part)]


@pytest.mark.parametrize("task", TASKS)
def test_every_preset_number_has_a_source(task: str) -> None:
    found = entries(tomllib.loads((files("offrank.presets") / f"{task}.toml").read_text()))
    assert len(found) >= 8
    assert all(entry["source"].split(",")[0].split(":")[0] in ("paper", "ars", "zoo", "ours") for entry in found)


def test_only_ant_interleaves_by_preset() -> None:
    assert {task: resolve(task, "op-ars").ranker.name for task in TASKS if task != "Ant-v3"} == {
        task: "kernel" for task in TASKS if task != "Ant-v3"
    }
    assert resolve("Ant-v3", "op-ars").ranker.name == "interleaved"
    assert resolve("Ant-v3", "op-ars", "kernel").ranker.name == "kernel"


@pytest.mark.parametrize(("algo", "ranker"), [(algo, name) for algo in ALGORITHMS for name in ALGORITHMS[algo].rankers])
def test_every_combination_has_values_with_sources_on_every_task(algo: str, ranker: str) -> None:
    for task in (*TASKS, "Pendulum-v1", None):
        recipe = resolve(task, algo, ranker)
        assert set(recipe.sources) == set(recipe.hyperparameters)
    assert set(resolve(None, algo, ranker).sources.values()) == {GENERAL}


def test_the_change_controls_use_the_papers_number_of_behaviour_rollouts() -> None:
    assert resolve("HalfCheetah-v3", "op-ars", "smallest-change").hyperparameters["n_behaviour"] == 2


def test_an_algorithms_presets_are_those_of_its_episodes_too() -> None:
    grown = {algo: resolve("Walker2d-v3", algo).episodes["horizon_growth"] for algo in ALGORITHMS}
    longer = {algo for algo, growth in grown.items() if growth}
    assert longer == {"guided", "faded"}  # distilled has a section of its own
    given = resolve("Walker2d-v3", "guided", None, {"horizon_growth": 0})
    assert given.episodes == {"reward_shift": 0.0, "train_horizon": 250, "horizon_growth": 0.0, "probe_share": 0.0}


def test_what_is_given_wins_over_the_preset() -> None:
    recipe = resolve("HalfCheetah-v3", "op-ars", None, {"bandwidth": "0.25", "n_top": 8})
    assert recipe.hyperparameters["bandwidth"] == 0.25 and recipe.sources["bandwidth"] == "given"
    assert recipe.hyperparameters["n_top"] == 8 and isinstance(recipe.hyperparameters["n_top"], int)


def test_forms_that_use_every_direction_take_n_from_the_preset() -> None:
    assert resolve("HalfCheetah-v3", "ars", None, {"form": "V2"}).hyperparameters["n_top"] == 32


def test_words_for_true_and_false() -> None:
    assert [convert("flag", text, bool) for text in ("true", "1", "Yes", True)] == [True] * 4
    assert [convert("flag", text, bool) for text in ("false", "0", "no", False)] == [False] * 4


@pytest.mark.parametrize(
    ("name", "text", "to"),
    [("n_top", "2.5", int), ("n_top", "nan", int), ("h", "inf", float), ("h", "wide", float), ("flag", "maybe", bool)],
)
def test_values_that_are_not_of_their_type_are_named(name: str, text: str, to: type) -> None:
    with pytest.raises(UsageError, match=f"{name} = {text}: must be"):
        convert(name, text, to)
