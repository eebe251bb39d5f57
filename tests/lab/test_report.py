"""The report: a self-contained page with the numbers of the statistics, which works in a browser."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tomllib
from dataclasses import asdict
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import offrank
from browser import Browser, find_browser
from offrank.algorithms.rankers import RANKERS
from offrank.cli import build_parser, main
from offrank.cli.options import seeds
from offrank.core.errors import UsageError
from offrank.core.files import read_json, write_json
from offrank.lab.rank_quality.figure import rank_quality
from offrank.lab.report import clips
from offrank.lab.report.commands import training
from offrank.lab.report.page import build
from offrank.lab.report.sources import LQR, STEPS, find
from offrank.lab.statistics import censored_median, success_interval, survival
from offrank.lab.studies import figures, lqr
from offrank.lab.studies.outcomes import Row, groups, write_rows
from offrank.lab.studies.tables import seconds_table, sensitivity_tables, summarise
from test_cli import can_render
from test_studies import row, small_plan, work

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "rank_quality" / "Swimmer-v3" / "rank-quality.json"
VOID = {"meta", "input", "br", "img", "link"}


def some_rows(task: str = "Swimmer-v3") -> list[Row]:
    """Both baselines and OP-ARS, with seeds that did not reach the threshold."""
    steps = {"ars": (200_000, None, 240_000), "random": (120_000, 160_000, None), "op-ars": (80_000, 320_000, None)}
    rows = [
        row(seed, reached, "ars" if name == "random" else name, "random" if name == "random" else None)
        for name, outcomes in steps.items()
        for seed, reached in enumerate(outcomes)
    ]
    versions = {"python": "3.12.0", "platform": "Linux-6", "offrank": "0.1.0"}
    return [r | {"task": task, "versions": versions} for r in rows]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every kind of result."""
    folder = tmp_path_factory.mktemp("study")
    write_rows(folder / "table1.json", some_rows())
    write_rows(folder / "walltime.json", some_rows())
    write_rows(folder / "seeds.json", [row(seed, 80_000 * (seed + 1), "op-ars") for seed in range(3)])
    grid = [row(seed, 200_000, "op-ars", bandwidth=h) for seed in range(2) for h in (0.1, 0.5)]
    write_rows(folder / "sensitivity.json", grid)
    committed = json.loads((ROOT / "results" / "lqr.json").read_text(encoding="utf-8"))
    write_rows(folder / "lqr.json", [r for r in committed if r["seed"] < 4])
    (folder / "quality").mkdir()
    shutil.copy(RECORD, folder / "quality")
    write_json(folder / "unrelated.json", {"speed": 1})
    return folder


@pytest.fixture(scope="module")
def page(study: Path) -> Path:
    assert main(["report", str(study), "--out", str(study / "report.html")]) == 0
    return study / "report.html"


class Reader(HTMLParser):
    """Checks that elements are closed in order; collects tables as rows of text, ids, and references."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.refers: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.unscoped = 0
        self._rows: list[list[str]] = []
        self._caption = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [given["id"]] if given.get("id") else []
        self.refers += [v for k, v in attrs if k in ("src", "href", "action", "data", "poster", "srcset") and v]
        self.unscoped += tag == "th" and "scope" not in given
        if tag == "table":
            self._rows, self._caption = [], ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "table":
            assert self._caption not in self.tables
            self.tables[self._caption] = self._rows

    def handle_data(self, data: str) -> None:
        if "caption" in self.open:
            self._caption += data
        elif "td" in self.open or "th" in self.open:
            self._rows[-1][-1] += data


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found.group(1))


def items(figure: dict[str, Any], kind: str, series: str, **wanted: Any) -> list[dict[str, Any]]:
    """Items of all panels of a figure, as data."""
    found = [item for panel in figure["panels"] for item in panel["items"] if item["kind"] == kind]
    return [item for item in found if item["series"] == series and item.items() >= wanted.items()]


# --- contents


def test_the_table_holds_the_numbers_of_the_statistics_and_of_the_paper(page: Path) -> None:
    table = Reader(page.read_text(encoding="utf-8")).tables["Swimmer-v3, threshold 325"]
    assert len(table) == 2 + 3
    for line, group in zip(table[2:], groups(some_rows()), strict=True):
        reached = [r for r in group.reached if r is not None]
        wilson = success_interval(len(reached), 3)
        assert line[0] == group.variant.label
        assert line[2] == f"{len(reached)} of 3 ({wilson.low:.0%}-{wilson.high:.0%})"
        assert line[4].startswith(f"{censored_median(group.reached, group.spent) / 1000:,.0f} (")
    assert [line[6] for line in table[2:]] == ["520", "580", "440"]
    assert [line[3] for line in table[2:]] == ["5 of 8"] * 3
    op_ars = summarise(some_rows())[2]
    first, second = (op_ars["against"][name] for name in ("ars", "ars-random"))
    assert table[4][7:11] == [f"{first['share_of_steps']:.0%}", "85%", f"{second['share_of_steps']:.0%}", "76%"]
    assert table[4][11].startswith(f"{first['probability_of_winning']:.2f} (")


def test_the_figures_hold_the_numbers_of_the_statistics(page: Path) -> None:
    drawn = data_of(page.read_text(encoding="utf-8"))["steps"]
    for group in groups(some_rows()):
        name = group.variant.label
        [star] = items(drawn["curves"], "marks", name, shape="star")
        assert (star["x"], star["y"]) == ([censored_median(group.reached, group.spent)], [325])
        line = items(drawn["curves"], "line", name)[0]
        assert list(zip(line["x"], line["y"], strict=True)) == [(e[1], e[2]) for e in group.rows[0]["evaluations"]]
        x, y = survival(group.reached, group.spent)
        [arrived] = items(drawn["arrivals"], "line", name)
        assert arrived["x"] == [0, *x] and arrived["y"] == pytest.approx([0, *(1 - y)], abs=1e-3)
        marks = {shape: items(drawn["boxes"], "marks", name, shape=shape) for shape in ("circle", "triangle")}
        assert [steps for mark in marks["circle"] for steps in mark["y"]] == [r for r in group.reached if r]
        assert sum(len(mark["y"]) for mark in marks["triangle"]) == group.reached.count(None)
        assert drawn["curves"]["panels"][0]["counts"][name] == "2 of 3"
    assert items(drawn["boxes"], "box", "op-ars")[0]["median"] == 200_000
    assert items(drawn["boxes"], "marks", "op-ars", shape="star")[0]["y"] == [440_000]


def test_the_page_has_the_figures_that_are_written_as_pictures(page: Path, study: Path) -> None:
    """One definition each: what `offrank reproduce` and `offrank rank-quality` save is what the page holds."""
    rows, record = find(study).rows, read_json(RECORD)
    wanted = {
        "steps": {
            "curves": figures.seed_curves(rows[STEPS]),
            "boxes": figures.box_plots(rows[STEPS]),
            "arrivals": figures.arrival_curves(rows[STEPS]),
        },
        "seeds": {"seeds": figures.seed_bands(rows["seeds"])},
        "sensitivity": {"sensitivity": figures.seed_bands(rows["sensitivity"], combinations=True)},
        "lqr": {"lqr": lqr.figure(rows[LQR])},
        "rank": {"rank": rank_quality(record["checkpoints"])},
    }
    plain = {name: {key: asdict(figure) for key, figure in by.items()} for name, by in wanted.items()}
    assert data_of(page.read_text(encoding="utf-8")) == json.loads(json.dumps(plain))


def test_the_other_studies_are_there_with_their_numbers(page: Path, study: Path) -> None:
    text = page.read_text(encoding="utf-8")
    tables, data, rows = Reader(text).tables, data_of(text), find(study).rows
    assert tables["Relative suboptimality and share stable"][1:] == lqr.table(rows[LQR]).rows
    assert tables["Seconds to the threshold"][1:] == seconds_table(groups(some_rows())).rows
    assert tables["Swimmer-v3, by n_b and h"][1:] == sensitivity_tables(rows["sensitivity"])[0].rows
    methods = lqr.summarise(rows[LQR])["methods"]
    for name, method in methods.items():
        line = items(data["lqr"]["lqr"], "line", name)[0]
        assert line["y"] == [None if v is None else max(v, lqr.FLOOR) for v in method["median"]]
    assert data["seeds"]["seeds"]["panels"][0]["title"].endswith(": 3 runs")
    assert data["sensitivity"]["sensitivity"]["series"] == ["median of all runs", "n_b 2, h 0.1", "n_b 2, h 0.5"]


def test_rank_quality_is_there_with_its_numbers(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    record = read_json(RECORD)
    table = Reader(text).tables["Swimmer-v3: Spearman correlation and 95% interval"]
    marks = items(data_of(text)["rank"]["rank"], "marks", "kernel")
    shown = {(y, low, high) for m in marks for y, low, high in zip(m["y"], m["low"], m["high"], strict=True)}
    for at, checkpoint in enumerate(record["checkpoints"]):
        kernel = checkpoint["rankers"]["kernel"]
        assert {tuple(by["spearman"][k] for k in ("value", "low", "high")) for by in kernel.values()} <= shown
        lines = [line for line in table if line[1] == "kernel"]
        assert lines[at][2].startswith(f"{kernel['max']['spearman']['value']:+.2f} (")


def test_versions_and_commands_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    table = Reader(text).tables["What made the runs"]
    assert ["18", "0", "3.12.0", "Linux-6", "0.1.0"] in [line[:5] for line in table]
    commands = re.findall(r"^(?:<pre.*<code>)?(offrank .*?)(?:</code>.*)?$", text, re.M)
    trained = [shlex.split(line) for line in commands if line.startswith("offrank train")]
    parsed = [parse(words) for words in trained]
    on_policy = next(a for a in parsed if (a.task, a.algo, a.ranker) == ("Swimmer-v3", "ars", None))
    assert (on_policy.seeds, on_policy.steps, on_policy.engine) == (seeds("0-2"), 440_000, "mujoco")
    assert any(a.ranker == "random" for a in parsed) and any(a.set == [("bandwidth", "0.5")] for a in parsed)
    assert any(line.startswith("offrank reproduce lqr --seeds 0-3") for line in commands)
    for line in commands:
        parse(shlex.split(line))


def parse(words: list[str]) -> Any:
    """The arguments of a command `offrank VERB ...`."""
    parser, _ = build_parser(words[1])
    return parser.parse_args(words[1:])


def test_rows_of_rankers_and_settings_that_no_longer_exist_are_shown(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delitem(RANKERS, "memory", raising=False)
    old = row(0, 100_000) | {"ranker": "memory", "hyperparameters": {"orthogonal": True}}
    write_rows(tmp_path / "table1.json", [row(0, 200_000), old])
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "report.html")]) == 0
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "ars-memory-orthogonalTrue" in text
    assert "# Swimmer-v3 ars-memory-orthogonalTrue, seeds 0: this version has no such" in text


ARS_WORDS = ["--algo", "op-ars", "--set", "step_size=0.05", "--ranker", "random"]


@pytest.mark.parametrize(
    "words",
    [
        [*ARS_WORDS, "--eval-every", "1"],
        [*ARS_WORDS, "--eval-steps", "100", "--confirm-episodes", "5"],
        ["--algo", "cem"],
        ["--algo", "cem", "--eval-every", "10"],
        ["--algo", "cem", "--eval-steps", "200"],
    ],
    ids=" ".join,
)
def test_the_command_of_a_run_makes_it_again(tmp_path: Path, monkeypatch, words: list[str]) -> None:
    """Also where its setup is not the default."""
    monkeypatch.chdir(tmp_path)
    words = [*words, "--horizon", "15", "--eval-episodes", "3"]
    words += ["--env-arg", "target=2.0", "--no-clip-actions", "--workers", "0"]
    assert main(["train", "toy_envs:Point-v0", "--iterations", "3", "--out", "first/run", "--quiet", *words]) == 0
    [row] = find(Path("first")).rows[STEPS]
    [line] = training([row])
    assert main([*shlex.split(line)[1:], "--workers", "0", "--out", "second", "--quiet"]) == 0
    [again] = find(Path("second")).rows[STEPS]
    assert again["policy_sha256"] == row["policy_sha256"] and again["evaluations"] == row["evaluations"]
    assert again["setup"] == row["setup"]


def test_committed_results_make_a_page(tmp_path: Path) -> None:
    """Rows alone, no run folders."""
    shutil.copy(ROOT / "results" / "table1.json", tmp_path)
    text = build(find(tmp_path), tmp_path, ["report"])
    tables = Reader(text).tables
    found = {cells[0]: cells[4] for cells in tables["Swimmer-v3, threshold 325"]}
    assert found["ars"] == "480 (280 to > 1,200)" and found["op-ars"] == "> 1,200 (320 to > 1,200)"
    assert 'id="lqr"' not in text and 'id="rank-quality"' not in text and "<video" not in text


# --- the file


def test_the_page_is_well_formed(page: Path) -> None:
    reader = Reader(page.read_text(encoding="utf-8"))
    assert len(reader.ids) == len(set(reader.ids))
    assert reader.unscoped == 0
    assert "" not in reader.tables
    for reference in reader.refers:
        assert reference.removeprefix("#") in reader.ids


def test_the_page_refers_to_nothing_outside_itself(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert not re.search(r"https?:|//cdn|@import|url\((?!#)", text)
    assert "default-src 'none'" in text
    assert all(reference.startswith(("#", "data:")) for reference in Reader(text).refers)


def test_names_are_escaped(tmp_path: Path) -> None:
    name = "</script><img src=x onerror=alert(1)>&\u2028"
    write_rows(tmp_path / "table1.json", some_rows(name))
    text = build(find(tmp_path), tmp_path, ["report", name])
    Reader(text)
    assert "<img" not in text and text.count("</script>") == 2
    assert data_of(text)["steps"]["curves"]["panels"][0]["task"] == name


def test_equal_folders_make_equal_pages(study: Path) -> None:
    assert build(find(study), study, ["report"]) == build(find(study), study, ["report"])


def test_every_part_of_the_page_is_packaged() -> None:
    package = Path(offrank.__file__).parent
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["offrank"]
    parts = [path for path in (package / "lab/report").iterdir() if path.suffix in (".html", ".css", ".js")]
    assert len(parts) == 4
    for path in parts:
        assert any(fnmatch(path.relative_to(package).as_posix(), pattern) for pattern in patterns)


# --- sources


def test_of_equal_runs_the_one_with_the_larger_budget_counts_once(tmp_path: Path) -> None:
    def found() -> list[tuple[int, int | None, int]]:
        return sorted((r["seed"], r["steps_to_threshold"], r["steps"]) for r in find(tmp_path).rows[STEPS])

    write_rows(tmp_path / "core.json", [row(0, None) | {"steps": 100_000, "budget": 100_000}])
    write_rows(tmp_path / "curves.json", [row(0, 200_000), row(1, None)])
    write_rows(tmp_path / "table1.json", [row(0, 200_000), row(1, None)])
    assert found() == [(0, 200_000, 200_000), (1, None, 440_000)]
    named = row(0, 150_000)["hyperparameters"] | {"train_horizon": 0}  # as it is anyway
    write_rows(tmp_path / "again.json", [row(0, 150_000) | {"budget": 500_000, "hyperparameters": named}])
    assert found() == [(0, 150_000, 150_000), (1, None, 440_000)]
    # one that did not reach the threshold is not preferred for having taken more steps
    write_rows(tmp_path / "other.json", [row(0, None) | {"steps": 499_000, "budget": 499_000}])
    unfinished = row(0, None) | {"steps": 600_000, "budget": 600_000, "stop_reason": None}
    write_rows(tmp_path / "unfinished.json", [unfinished, unfinished | {"seed": 2}])
    assert found() == [(0, 150_000, 150_000), (1, None, 440_000), (2, None, 600_000)]


def test_finished_runs_that_no_file_holds_are_read_from_their_folders(tmp_path: Path) -> None:
    work(tmp_path / "runs", small_plan(range(1), steps=6_000))
    (tmp_path / "runs" / "LQR-ars-0" / "result.json").unlink()
    found = find(tmp_path)
    assert len(found.rows[LQR]) == 2 and len(found.unfinished) == 1
    text = build(found, tmp_path, ["report"])
    assert "2 runs; 1 runs unfinished and left out" in text
    write_rows(tmp_path / "lqr.json", found.rows[LQR])
    assert len(find(tmp_path).rows[LQR]) == 2


def test_paths_left_out_are_not_read(tmp_path: Path) -> None:
    for name, task in (("table1.json", "Swimmer-v3"), ("drafts/old.json", "Hopper-v3"), ("drafts/a/b.json", "Ant-v3")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_rows(tmp_path / name, some_rows(task))

    def tasks(*without: str) -> set[str]:
        return {row["task"] for row in find(tmp_path, without=without).every_row}

    assert tasks() == {"Swimmer-v3", "Hopper-v3", "Ant-v3"}
    assert tasks("drafts/*.json") == {"Swimmer-v3", "Ant-v3"}
    assert tasks("drafts/*.json", "drafts/a") == tasks("drafts") == {"Swimmer-v3"}
    with pytest.raises(UsageError, match="--without draft: no path in"):
        tasks("draft")


def test_runs_without_a_threshold_have_curves_and_no_table(tmp_path: Path) -> None:
    rows = [row(seed, None) | {"task": "Own-v0", "threshold": None} for seed in range(2)]
    write_rows(tmp_path / "own.json", rows)
    text = build(find(tmp_path), tmp_path, ["report"])
    assert 'data-figure="curves"' in text and 'data-figure="boxes"' not in text
    assert list(Reader(text).tables) == ["What made the runs"]


def test_what_nobody_reached_is_not_decided(tmp_path: Path) -> None:
    write_rows(tmp_path / "table1.json", [row(seed, None, algo) for algo in ("ars", "op-ars") for seed in range(2)])
    table = Reader(build(find(tmp_path), tmp_path, ["report"])).tables["Swimmer-v3, threshold 325"]
    assert [line[4] for line in table[2:]] == ["> 440", "> 440"] and table[3][-1] == "not decided"


def test_a_table_has_no_empty_columns(tmp_path: Path) -> None:
    rows = [row(seed, 20_000) | {"algo": "guided", "ranker": "random", "policy": "skip:32"} for seed in range(2)]
    write_rows(tmp_path / "guided.json", rows)
    (table,) = (t for name, t in Reader(build(find(tmp_path), tmp_path, ["report"])).tables.items() if "325" in name)
    assert table[1:] == [
        ["algorithm", "N/b", "ours (95%)", "censored median (95%)", "median of successes"],
        [table[2][0], table[2][1], "2 of 2 (34%-100%)", "20 (20 to 20)", "20"],
    ]


def test_a_run_that_was_never_evaluated_is_left_out(tmp_path: Path) -> None:
    rows = [row(0, 400_000, "op-ars"), row(1, None, "op-ars") | {"evaluations": []}]
    for name in ("table1", "seeds", "sensitivity", "walltime"):
        write_rows(tmp_path / f"{name}.json", rows)
    text = build(find(tmp_path), tmp_path, ["report"])
    tables, data = Reader(text).tables, data_of(text)
    assert text.count("Runs left out because they ended before an evaluation was due: Swimmer-v3 op-ars (1).") == 4
    assert tables["Swimmer-v3, threshold 325"][2][2] == "1 of 1 (21%-100%)"
    assert tables["Swimmer-v3, by n_b and h"][1][1] == "400 (1 of 1)"
    assert [line["name"] for line in items(data["steps"]["curves"], "line", "op-ars")] == ["op-ars, seed 0"]


def test_a_run_whose_evaluations_were_not_stored_is_in_the_table(tmp_path: Path) -> None:
    write_rows(tmp_path / "table1.json", [{k: v for k, v in row(0, None).items() if k != "evaluations"}])
    text = build(find(tmp_path), tmp_path, ["report"])
    assert Reader(text).tables["Swimmer-v3, threshold 325"][2][2] == "0 of 1 (0%-79%)"
    assert set(data_of(text)["steps"]) == {"boxes", "arrivals"}
    assert 'data-figure="curves"' not in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "there is no nowhere"),
        (["notes.txt"], "notes.txt is a file: give the folder it is in"),
        (["empty"], "empty holds nothing to report"),
        (["damaged"], "table1.json is damaged: it is not JSON"),
        (["strange"], "not a record of offrank rank-quality"),
        (["infinite"], "not finite"),
        (["other"], "sensitivity.json is not of the study sensitivity: the row of"),
        (["timeless"], "has no wall_s; rename it or leave it out"),
        (["good", "--out", "page.pdf"], "page.pdf: the name of a page must end in .html"),
        (["good", "--rank-quality", "empty"], "empty holds no rank-quality.json"),
        (["good", "--rank-quality", "nowhere"], "there is no nowhere"),
    ],
)
def test_a_usage_error_is_one_line(words, said, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "damaged", "strange", "good", "infinite", "other", "timeless"):
        Path(name).mkdir()
    Path("notes.txt").write_text("x")
    Path("damaged/table1.json").write_text("[{")
    write_json(Path("strange/rank-quality.json"), {"task": "x", "checkpoints": [{}]})
    write_rows(Path("other/sensitivity.json"), [row(0, None) | {"hyperparameters": {}}])
    write_rows(Path("timeless/walltime.json"), [{k: v for k, v in row(0, None).items() if k != "wall_s"}])
    write_rows(Path("good/table1.json"), [row(0, None)])
    write_rows(Path("infinite/table1.json"), [row(0, None) | {"evaluations": [[10, 40_000, float("nan"), 1.0]]}])
    assert main(["report", *words]) == 2
    said_all = capsys.readouterr()
    assert said in said_all.err
    assert said_all.err.count("\n") == 1 and said_all.out == ""
    assert not list(tmp_path.rglob("*.html")) and not list(tmp_path.rglob("*.pdf"))


# --- videos


def test_videos_need_their_extra_and_say_so(tmp_path, monkeypatch, capsys) -> None:
    write_rows(tmp_path / "table1.json", [row(0, None)])
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert main(["report", str(tmp_path), "--videos"]) == 2
    assert "pip install 'offrank[video]'" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_rows_alone_have_no_videos_to_show(tmp_path: Path) -> None:
    write_rows(tmp_path / "table1.json", [row(0, None)])
    assert "No run folder here has a policy to show" in build(find(tmp_path), tmp_path, ["report"], videos=True)


def test_the_best_policy_of_a_task_is_shown(tmp_path, monkeypatch) -> None:
    if not can_render():
        pytest.skip("no OpenGL context can be made here")
    words = ["train", "Swimmer-v3", "--seeds", "0-1", "--horizon", "20", "--iterations", "2", "--eval-every", "1"]
    assert main([*words, "--eval-episodes", "2", "--out", str(tmp_path / "runs"), "--quiet"]) == 0
    monkeypatch.setattr(clips, "SIZE", (64, 48))
    found = find(tmp_path)
    best = max(found.folders, key=lambda folder: read_json(folder / "result.json")["best_return"])
    text = build(found, tmp_path, ["report"], videos=True)
    reader = Reader(text)
    [video] = [reference for reference in reader.refers if reference.startswith("data:video/mp4;base64,")]
    assert len(video) > 500 and f"best policy of {best.name}" in text


def test_a_task_that_cannot_be_shown_says_why(tmp_path: Path) -> None:
    words = ["train", "toy_envs:Point-v0", "--workers", "0", "--iterations", "2", "--eval-every", "1"]
    assert main([*words, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    text = build(find(tmp_path), tmp_path, ["report"], videos=True)
    assert "There is no video: " in text and "<video" not in text


# --- in a browser


@pytest.fixture(scope="module")
def browser(page: Path):
    if find_browser() is None:
        pytest.skip("no Chromium here")
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def opened(browser: Browser, page: Path) -> Browser:
    browser.resize(1280)
    browser.problems.clear()
    browser.open(page)
    return browser


def count(browser: Browser, selector: str) -> int:
    return browser.ask(f"document.querySelectorAll({json.dumps(selector)}).length")


def place_of(browser: Browser, selector: str) -> tuple[float, float]:
    """The middle of an element, scrolled into view."""
    expression = f"""(() => {{
        const element = document.querySelector({json.dumps(selector)});
        element.scrollIntoView({{block: "center"}});
        const box = element.getBoundingClientRect();
        return [box.left + box.width / 2, box.top + box.height / 2];
    }})()"""
    x, y = browser.ask(expression)
    return x, y


def tip(browser: Browser) -> str:
    return browser.ask("document.querySelector('.tip:not([hidden])')?.textContent ?? ''")


def test_the_browser_draws_every_figure_without_errors(opened: Browser) -> None:
    wanted = {"curves": 1, "boxes": 1, "arrivals": 1, "seeds": 1, "sensitivity": 1, "lqr": 3, "rank": 6}
    for name, panels in wanted.items():
        assert count(opened, f"[data-figure={name}] svg") == panels
    assert count(opened, "[data-figure=curves] .curve") == len(some_rows())
    assert count(opened, "[data-figure=curves] .mark.star") == 3
    assert count(opened, "[data-figure=curves] .rule") == 1
    assert count(opened, "[data-figure=boxes] .mark.triangle.open") == 3
    outlines = opened.ask("[...document.querySelectorAll('svg path')].map(p => p.getAttribute('d')).join()")
    assert not re.search("NaN|Infinity|undefined", outlines)
    assert opened.problems == []


def test_pointing_at_a_star_tells_the_censored_median(opened: Browser) -> None:
    opened.point(*place_of(opened, "[data-figure=curves] .mark.star.s0"))
    opened.settle()
    middle = censored_median(groups(some_rows())[0].reached, groups(some_rows())[0].spent)
    at = f"environment steps of training: {middle:,.0f}\nmean return of an episode: 325"
    assert tip(opened) == f"ars, censored median\n{at}"


def test_arrow_keys_move_along_a_curve_and_to_the_next(opened: Browser) -> None:
    opened.ask("document.querySelector('[data-figure=curves] svg').focus()")
    opened.press("ArrowRight")
    assert tip(opened) == "ars, seed 0\nenvironment steps of training: 40,000\nmean return of an episode: 30"
    opened.press("ArrowRight")
    assert tip(opened).startswith("ars, seed 0\nenvironment steps of training: 80,000\n")
    opened.press("ArrowDown")
    assert tip(opened).startswith("ars, seed 1\nenvironment steps of training: 80,000\n")
    opened.press("Escape")
    assert tip(opened) == ""


def test_algorithms_can_be_picked(opened: Browser) -> None:
    opened.ask("document.querySelector('[data-picker=steps] input[value=\"op-ars\"]').click()")
    assert count(opened, "[data-figure=curves] .curve") == 6
    assert count(opened, "[data-figure=boxes] .box") == 2
    assert "op-ars" not in opened.ask("document.querySelector('[data-figure=boxes] svg').textContent")
    assert count(opened, "[data-figure=arrivals] .curve") == 2
    opened.ask("document.querySelector('[data-picker=steps] .names button:last-of-type').click()")
    assert count(opened, "[data-figure=curves] svg") == 0
    opened.ask("document.querySelector('[data-picker=steps] .names button').click()")
    assert count(opened, "[data-figure=curves] .curve") == 9
    assert opened.problems == []


def test_tasks_can_be_picked(browser: Browser, tmp_path: Path) -> None:
    write_rows(tmp_path / "table1.json", [*some_rows(), *some_rows("Other-v0")])
    (tmp_path / "two.html").write_text(build(find(tmp_path), tmp_path, ["report"]), encoding="utf-8")
    browser.open(tmp_path / "two.html")
    assert count(browser, "[data-figure=curves] svg") == 2
    browser.ask("document.querySelector('[data-picker=steps] .tasks input').click()")
    assert (
        browser.ask("document.querySelector('[data-figure=curves] figcaption').textContent")
        == "Other-v0, threshold 325"
    )
    assert count(browser, "[data-figure=arrivals] svg") == 1


def test_one_task_has_the_whole_width(opened: Browser) -> None:
    whole = opened.ask("document.querySelector('[data-figure=curves]').clientWidth")
    assert whole > 1100
    for name in ("curves", "boxes", "arrivals", "seeds"):
        assert opened.ask(f"document.querySelector('[data-figure={name}] svg').getBoundingClientRect().width") == whole


def test_the_legend_is_outside_the_picture(opened: Browser) -> None:
    """Series are named above all panels, and so is what stars and dashes mean."""
    assert count(opened, "[data-picker=steps] .names .swatch") == 3 and count(opened, ".panels .swatch") == 0
    keys = opened.ask("[...document.querySelectorAll('.keys')][0].textContent")
    assert keys == "thresholdcensored median"


def test_the_numbers_of_a_panel_are_a_table(opened: Browser) -> None:
    opened.ask("document.querySelector('[data-figure=curves] details.numbers').open = true")
    opened.settle()
    table = "document.querySelector('[data-figure=curves] .numbers table')"
    assert opened.ask(f"[...{table}.tHead.rows[0].cells].every(cell => cell.scope === 'col')")
    first = opened.ask(f"[...{table}.tBodies[0].rows[0].cells].map(cell => cell.textContent)")
    assert first == ["ars, seed 0", "40,000", "30", ""]
    assert opened.ask(f"{table}.tBodies[0].rows.length") > 9 * 3


def test_a_phone_shows_it_without_scrolling_sideways(opened: Browser) -> None:
    opened.resize(390, 800)
    assert opened.ask("document.documentElement.scrollWidth") == 390
    assert opened.ask("document.querySelector('[data-figure=curves] svg').getBoundingClientRect().width") > 300
    assert opened.ask("document.querySelector('[data-figure=curves] svg').viewBox.baseVal.width") < 390


def test_dark_mode_is_dark(opened: Browser) -> None:
    def brightness(what: str) -> int:
        colour = opened.ask(f"getComputedStyle(document.body).{what}")
        return sum(int(part) for part in re.findall(r"\d+", colour)[:3])

    assert brightness("backgroundColor") > 700 > 300 > brightness("color")
    opened.resize(1280, dark=True)
    assert brightness("backgroundColor") < 150 < 600 < brightness("color")


def test_print_hides_the_controls_and_keeps_the_legend(opened: Browser) -> None:
    opened.ask("document.querySelector('[data-picker=steps] input[value=\"op-ars\"]').click()")
    opened.resize(720, dark=True, media="print")
    shown = "[...document.querySelectorAll('{}')].filter(e => e.getClientRects().length).length"
    assert opened.ask(shown.format("input, button, nav")) == 0
    assert opened.ask(shown.format("[data-picker=steps] .names .swatch")) == 2
    assert opened.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_names_are_text_in_the_browser_too(browser: Browser, tmp_path: Path) -> None:
    name = "</script><img src=x onerror=alert(1)>"
    write_rows(tmp_path / "table1.json", some_rows(name))
    (tmp_path / "odd.html").write_text(build(find(tmp_path), tmp_path, ["report"]), encoding="utf-8")
    browser.problems.clear()
    browser.open(tmp_path / "odd.html")
    assert (
        browser.ask("document.querySelector('[data-figure=curves] figcaption').textContent") == f"{name}, threshold 325"
    )
    assert count(browser, "img") == 0
    assert browser.problems == []
