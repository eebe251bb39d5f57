"""Figures as data, and the pictures drawn of them: legends cover nothing, equal figures give equal bytes."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import get_args

import pytest

from offrank.cli import main
from offrank.core.errors import UsageError
from offrank.core.files import read_json
from offrank.display.figures import (
    COLOURS,
    DASHES,
    SHAPES,
    Axis,
    Band,
    Box,
    Figure,
    Item,
    Line,
    Marks,
    Panel,
    Rule,
    drawn,
    save,
)
from offrank.display.plots import Curve, learning_curves
from offrank.lab.rank_quality.figure import rank_quality
from offrank.lab.studies import figures, lqr

RESULTS = Path(__file__).parents[2] / "results"


def rows(name: str) -> list[dict]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def checkpoints(name: str) -> list[dict]:
    return read_json(RESULTS / "rank_quality" / name / "rank-quality.json")["checkpoints"]


def test_a_line_of_one_point_is_a_dot() -> None:
    lines = [Line("one", [5, 6], [None, 2]), Line("two", [5, 6], [1, 2])]
    axes = drawn(Figure(["one", "two"], [Panel("", Axis("x"), Axis("y"), lines)])).axes[0]
    assert [line.get_marker() for line in axes.lines] == ["o", "None"]


COMMITTED: dict[str, Callable[[], Figure]] = {
    "boxes": lambda: figures.box_plots(rows("table1")),
    "curves": lambda: figures.seed_curves(rows("table1"), by_strategy=True),
    "arrivals": lambda: figures.arrival_curves(rows("guided")),
    "quartiles": lambda: figures.quartile_curves(rows("hybrids")),
    "seeds": lambda: figures.seed_bands(rows("seeds")),
    "sensitivity": lambda: figures.seed_bands(rows("sensitivity"), combinations=True),
    "lqr": lambda: lqr.figure(rows("lqr")),
    "ranks": lambda: rank_quality(checkpoints("Hopper-v3")),
}


def small() -> Figure:
    """Every kind of item, in two panels."""
    x = [1, 2, 3]
    items = [
        Rule(2.5),
        Band("a", x, [0, 1, 2], [2, 3, 4], "quartiles"),
        Line("a", x, [1, None, 3], marked=True),
        Line("b", x, [3, 2, 1], look="dense", step=True),
        Marks("b", [2], [2], ["middle"], shape="star", low=[1], high=[3]),
    ]
    boxes = [Box("a", 0, 1, 2, 3, 4, 5), Marks("a", [0], [6], ["far"], shape="circle", open=True)]
    second = Panel("second", Axis("", -0.5, 0.5, places=["a\n1 of 2"]), Axis("y", low=0), boxes)
    return Figure(["a", "b"], [Panel("first", Axis("x"), Axis("y", log=True), items), second], {"rule": "threshold"})


def test_the_page_has_the_looks_of_the_pictures() -> None:
    script, style = (
        (files("offrank.lab.report") / name).read_text(encoding="utf-8") for name in ("charts.js", "style.css")
    )
    assert json.loads(re.search(r"SHAPES = (\[.*?\])", script)[1]) == list(SHAPES)
    assert len(json.loads(re.search(r"DASHES = (\[.*?\])", script)[1])) == len(DASHES)
    assert f"COLOURS = {len(COLOURS)};" in script and len(re.findall(r"\.s\d \{", style)) == len(COLOURS)
    assert set(re.search(r"ORDER = (\[.*?\])", script)[1].split('"')[1::2]) == {cls.kind for cls in get_args(Item)}


@pytest.mark.parametrize("name", COMMITTED)
def test_no_legend_covers_a_panel(name: str) -> None:
    canvas = drawn(COMMITTED[name]())
    canvas.draw_without_rendering()
    legends = [*canvas.legends, *(axes.get_legend() for axes in canvas.axes if axes.get_legend())]
    assert legends
    for legend in legends:
        box = legend.get_window_extent()
        assert not any(box.overlaps(axes.get_window_extent()) for axes in canvas.axes)
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= canvas.bbox.x1


def test_a_legend_names_every_series_that_has_a_look_once() -> None:
    [legend] = drawn(small()).legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "threshold"]


def test_counts_are_in_the_legend_of_their_panel() -> None:
    panels = [
        Panel(f"{n} runs", Axis("x"), Axis("y"), [Line("a", [1], [1])], counts={"a": f"{n} runs"}) for n in (1, 2)
    ]
    canvas = drawn(Figure(["a"], panels))
    assert [axes.get_legend().get_texts()[0].get_text() for axes in canvas.axes] == ["a, 1 runs", "a, 2 runs"]


@pytest.mark.parametrize("name", ["a.png", "a.svg", "a.pdf"])
def test_equal_figures_give_equal_bytes(name: str, tmp_path: Path) -> None:
    for folder in ("first", "second"):
        save(small(), tmp_path / folder / name)
    assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_a_character_without_a_glyph_is_drawn_as_a_box(tmp_path: Path) -> None:
    figure = Figure(["a"], [Panel("\N{ROBOT FACE}", Axis("x"), Axis("y"), [Line("a", [1, 2], [1, 2])])], {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(figure, tmp_path / "a.png")


def test_a_logarithmic_axis_without_anything_on_it_is_drawn(tmp_path: Path) -> None:
    nowhere = Line("a", [1, 2], [None, None])
    for panel in (Panel("", Axis("x", log=True), Axis("y", log=True), items) for items in ([], [nowhere])):
        save(Figure(["a"], [panel]), tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 1000


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.jpg: a picture ends in \.png, \.svg, \.pdf"):
        save(small(), tmp_path / "a.jpg")


def test_a_box_has_whiskers_to_the_last_value_inside() -> None:
    box = figures.box("a", 0, [10, 11, 12, 13, 40])
    assert (box.low, box.q1, box.median, box.q3, box.high) == (10, 11, 12, 13, 13)


def test_a_run_alone_is_shown_with_its_training_and_its_ranker(tmp_path: Path) -> None:
    words = ["--iterations", "3", "--horizon", "15", "--eval-every", "1", "--eval-episodes", "2", "--quiet"]
    for algo in ("q-ars", "ars"):
        assert main(["train", "LQR", "--algo", algo, *words, "--out", str(tmp_path / algo)]) == 0
    learned, plain = (Curve.read(tmp_path / algo) for algo in ("q-ars", "ars"))
    alone = learning_curves([learned])
    assert [panel.title for panel in alone.panels] == ["LQR, seed 0", "Trust in the ranker"]
    assert alone.series[:2] == [learned.label, "training episodes, some of them cut"] and alone.keys == {
        "band": "± one standard deviation"
    }
    for setting, said in (({}, "cut at 8 steps"), ({"horizon_growth": 0.5}, "some of them cut")):
        config = replace(plain.config, hyperparameters=plain.config.hyperparameters | {"train_horizon": 8} | setting)
        assert learning_curves([replace(plain, config=config)]).series[1] == f"training episodes, {said}"
    together = learning_curves([learned, plain])
    assert together.series == [learned.label, plain.label] and not together.keys
    [panel] = together.panels
    assert [line.y for line in panel.items] == [[r["return_mean"] for r in c.evaluations()] for c in (learned, plain)]


def test_records_without_a_metric_are_left_out_of_its_line(tmp_path: Path) -> None:
    words = ["--iterations", "3", "--horizon", "15", "--eval-every", "1", "--eval-episodes", "2", "--quiet"]
    assert main(["train", "LQR", "--algo", "cem", *words, "--out", str(tmp_path)]) == 0
    curve = Curve.read(tmp_path)
    iterations = [r for r in curve.records if r["kind"] == "iteration"]
    del iterations[0]["return_best"]
    items = learning_curves([curve]).panels[0].items
    best = next(item for item in items if isinstance(item, Line) and item.series == "best training episode")
    assert best.y == [r["return_best"] for r in iterations[1:]]
