from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import pytest

import offrank as package
from offrank.algorithms import ALGORITHMS
from offrank.algorithms.base import Episodes
from offrank.core.fields import meanings
from offrank.policies import make_policy
from offrank.runs.recipe import resolve
from offrank.tasks import NATIVE


def test_every_setting_has_a_meaning_of_several_words() -> None:
    classes = {cls for entry in ALGORITHMS.values() for cls in (entry.settings, *entry.rankers.values(), Episodes)}
    for cls in classes:
        for name, meaning in meanings(cls).items():
            assert name == "horizon" or len(meaning.split()) > 1, f"{cls.__name__}.{name}: {meaning!r}"


@dataclass
class Base:
    fixed: ClassVar[int] = 1  # not a field
    kept: int = 1  # what it is, in the base
    changed: str = "# no comment"  # replaced
    silent: int = 1


@dataclass
class Derived(Base):
    kept: int = 2
    changed: str = "#"  # a comment with a # in it
    long: tuple[int, ...] = (
        1,  # not this one
        2,
    )  # over several lines

    def method(self) -> None:
        silent: int = 1  # a local variable
        assert silent


def test_a_meaning_is_the_comment_of_a_field_or_of_the_field_it_overrides() -> None:
    assert meanings(Derived) == {
        "kept": "what it is, in the base",
        "changed": "a comment with a # in it",
        "silent": "",
        "long": "over several lines",
    }


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_list_settings_has_every_setting_with_every_ranker(offrank, algo: str) -> None:
    for ranker, cls in ALGORITHMS[algo].rankers.items():
        rows = offrank("list", "settings", algo, "--ranker", ranker, "--json").json
        names = {f.name for part in (ALGORITHMS[algo].settings, cls, Episodes) for f in fields(part)} - {"horizon"}
        assert {row["name"] for row in rows} == names
        assert all(row["meaning"] and row["source"] for row in rows)


def test_list_settings_of_a_task_has_what_a_run_would_use(offrank) -> None:
    rows = offrank("list", "settings", "op-ars", "--task", "offrank/HalfCheetah-v3", "--json").json
    recipe = resolve("HalfCheetah-v3", "op-ars")
    assert {row["name"]: row["default"] for row in rows} == recipe.hyperparameters
    assert {row["name"]: row["source"] for row in rows} == recipe.sources
    general = {row["name"]: row for row in offrank("list", "settings", "op-ars", "--json").json}
    assert general["n_directions"]["default"] == 8 and general["n_directions"]["source"] == "general default"


def test_the_lists_have_every_name(offrank) -> None:
    listed = {what: offrank("list", what, "--json").json for what in ("tasks", "algorithms", "rankers", "policies")}
    assert [row["name"] for row in listed["tasks"]] == list(NATIVE)
    assert listed["tasks"][2] == {
        "name": "HalfCheetah-v3",
        "observations": 17,
        "actions": 6,
        "horizon": 1000,
        "threshold": 3430,
        "budget": 18_000_000,
    }
    assert [row["name"] for row in listed["algorithms"]] == list(ALGORITHMS)
    for row in listed["algorithms"]:
        assert getattr(package, row["class"]).algo == row["name"]
        assert row["what"] and (row["ranker"], row["policy"]) == (
            ALGORITHMS[row["name"]].ranker,
            ALGORITHMS[row["name"]].policy,
        )
    pairs = {(row["name"], algo) for row in listed["rankers"] for algo in row["algorithms"]}
    assert pairs == {(ranker, algo) for algo, entry in ALGORITHMS.items() for ranker in entry.rankers}
    for row in listed["policies"]:
        assert make_policy(row["example"], 17, 6).size == row["parameters"]


def test_a_table_is_aligned_and_plain(offrank) -> None:
    lines = offrank("list", "settings", "q-ars", "--task", "Hopper-v3").out.splitlines()
    columns = [lines[0].index(name) for name in ("name", "default", "meaning", "source")]
    assert all(line[column - 1] == " " and line[column] != " " for line in lines for column in columns[1:])
    assert any(line.split()[:2] == ["tails", "true"] for line in lines)
    assert "\x1b" not in "".join(lines) and all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("taskss", ["unknown list 'taskss'", "one of tasks, algorithms", "did you mean 'tasks'"]),
        ("settings", ["needs an algorithm", "op-ars"]),
        ("settings op_ars", ["unknown algorithm 'op_ars'", "did you mean 'op-ars'"]),
        ("settings ars --ranker kernl", ["unknown ranker 'kernl'", "did you mean 'kernel'"]),
        ("settings cem --ranker kernel", ["unknown ranker 'kernel' of cem", "one of on-policy"]),
        ("settings ars --task hopper", ["unknown task 'hopper'", "one of Swimmer-v3", "did you mean 'Hopper-v3'"]),
        ("tasks ars", ["list tasks takes nothing but --json"]),
        ("tasks --jsn", ["'--jsn'", "did you mean '--json'"]),
        ("", ["WHAT"]),
    ],
)
def test_an_unknown_name_gets_one_clear_line(offrank, words: str, parts: list[str]) -> None:
    offrank("list", *words.split()).complains(*parts)
