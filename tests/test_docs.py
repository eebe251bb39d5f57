"""What the documentation says holds: links, Python blocks, commands, tables of settings, metrics and files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import offrank
from offrank.algorithms import ALGORITHMS, RECOMMENDED
from offrank.algorithms.base import Episodes
from offrank.algorithms.cem_rl import CEMRLSettings, CEMSettings, OPCEMRLSettings
from offrank.algorithms.distilled import DistilledSettings
from offrank.algorithms.faded import FadedSettings
from offrank.algorithms.guided import GuidedSettings
from offrank.algorithms.rankers import MEMBER_RANKERS, RANKERS
from offrank.algorithms.strategies import ARS, ES, TRES
from offrank.cli import VERBS, build_parser
from offrank.cli import cluster as cluster_flags
from offrank.cli import gpu as gpu_flags
from offrank.cli.options import Parser
from offrank.lab.studies.catalogue import STUDIES
from offrank.runs.config import RunConfig
from offrank.runs.recipe import clipping, resolve

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NOTEBOOK = DOCS / "notebook"
WRITTEN = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md", *sorted(DOCS.rglob("*.md"))]
ENTRIES = [page for page in WRITTEN if page.parent == NOTEBOOK and page.name != "README.md"]
PAGES = [page for page in WRITTEN if page not in ENTRIES]  # which are kept up to date, as entries are not

SKIP = "<!-- not run"
REPLACE = re.compile(r"<!-- tested with (\S+) as (\S+) -->")
PYTHON = re.compile(r"(?:^(<!--.*-->)\n)?^```python\n(.*?)^```", re.M | re.S)
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.M)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """The text of a page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site makes them."""
    plain = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading) for heading in HEADING.findall(prose(page)))
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in plain}


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists() and there.is_relative_to(ROOT), f"{name_of(page)} links to {target}"
        if anchor:
            assert anchor in anchors(there), f"{name_of(page)} links to {target}"


def test_every_page_is_in_the_navigation_once() -> None:
    shown = re.findall(r"([\w./-]+\.md)(?: #.*)?$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    notebooks = {name_of(page.with_suffix(".md")) for page in (ROOT / "examples").glob("*.ipynb")}
    pages = {name_of(page) for page in PAGES} - {"examples/README.md"}
    assert sorted(shown) == sorted(pages | notebooks)


def test_notebook_lists_every_entry() -> None:
    listed = set(LINK.findall((NOTEBOOK / "README.md").read_text(encoding="utf-8")))
    assert {page.name for page in ENTRIES} <= listed


def python_blocks(page: Path) -> list[str]:
    """The Python blocks of a page that are run, with the replacements that its comments ask for."""
    blocks = []
    for comment, code in PYTHON.findall(page.read_text(encoding="utf-8")):
        if comment.startswith(SKIP):
            continue
        for old, new in REPLACE.findall(comment):
            assert old in code, f"{name_of(page)}: {old} is not in the block below {comment}"
            code = code.replace(old, new)
        blocks.append(code)
    return blocks


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=name_of)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(RANKERS, "first-action", None)  # registered by a page, and not by the end of this test
    namespace = {"__name__": "__main__"}  # so that its classes are sent to workers by value
    for code in python_blocks(page):
        lines = page.read_text(encoding="utf-8")[: page.read_text(encoding="utf-8").find(code)].count("\n")
        exec(compile("\n" * max(lines, 0) + code, name_of(page), "exec", dont_inherit=True), namespace)


# --- commands


def commands(page: Path) -> list[str]:
    """The offrank commands in a page's blocks, without comments and what is said beside them."""
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))  # a command goes on after a backslash
    fenced = "\n".join(FENCE.findall(text))
    lines = re.findall(r"^ {4}(offrank .*)$", text, re.M) + re.findall(r"^(offrank .*)$", fenced, re.M)
    return [re.split(r" {2,}| #| > ", line)[0] for line in lines]


def parse(command: str) -> tuple[str, Any]:
    words = shlex.split(command)[1:]
    parser, verbs = build_parser(words[0])
    assert words[0] in verbs, f"{command}: there is no such verb"
    args, rest = parser.parse_known_args(words)
    assert not rest, f"{command}: unrecognised {rest}"
    return words[0], args


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name_of)
def test_commands_are_accepted(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands(page):
        if "[flags]" in command:
            continue
        try:
            verb, args = parse(command)
        except SystemExit:
            pytest.fail(f"{name_of(page)}: {command}\n{capsys.readouterr().err}")
        if verb == "train":  # names of algorithms, rankers, settings and policies, and algorithms that go together
            algos = (args.algo or RECOMMENDED).split(",")
            recipes = [resolve(args.task, algo, args.ranker, dict(args.set), args.policy) for algo in algos]
            clipping(args.task, "auto", recipes, args.clip_actions)
        if verb == "reproduce":
            assert args.study in STUDIES, command


def test_fleets_in_sentences_can_be_made() -> None:
    fleets = [code for page in PAGES for code in re.findall(r"`(offrank\.Fleet\(\"[^`]+)`", prose(page))]
    assert fleets
    for code in fleets:
        eval(code, {"offrank": offrank}).close()


def test_commands_in_sentences_have_verbs_and_flags_that_exist() -> None:
    for page in PAGES:
        for command in re.findall(r"`(offrank [^`]+)`", prose(page)):
            verb, *words = command.split()[1:]
            if verb in ("VERB", "--help") or re.fullmatch(r"[A-Z]+", verb):
                continue
            assert verb in VERBS, f"{name_of(page)}: {command}"
            known = build_parser(verb)[1][verb].known_flags()
            unknown = [word for word in words if word.startswith("--") and word not in known]
            assert not unknown, f"{name_of(page)}: {command}"


def section(page: Path, heading: str) -> str:
    """The part of a page below a heading, up to the next one of its level."""
    text = page.read_text(encoding="utf-8")
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.M | re.S)
    assert found, f"{name_of(page)} has no section {heading}"
    return found[2]


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"`(--[a-z-]+)", text)) | set(re.findall(r"(?<=, )(--[a-z-]+)`", text))


@pytest.mark.parametrize("verb", VERBS)
def test_reference_has_every_flag_of_a_verb_and_no_other(verb: str) -> None:
    pages = [DOCS / "reference" / "command-line.md", DOCS / "reference" / "studies.md"]
    (page,) = (page for page in pages if f"## offrank {verb}\n" in page.read_text(encoding="utf-8"))
    shown, known = flags_in(section(page, f"offrank {verb}")), set(build_parser(verb)[1][verb].known_flags())
    elsewhere = flags_in(section(pages[0], "On a GPU")) | flags_in(section(pages[0], "On a cluster"))
    of_train = set(build_parser("train")[1]["train"].known_flags())  # a sentence may mention them
    assert known - shown - elsewhere == {"-h", "--help"}
    assert shown <= known | of_train


@pytest.mark.parametrize(("heading", "part"), [("On a GPU", gpu_flags), ("On a cluster", cluster_flags)])
def test_reference_has_the_flags_of_gpus_and_clusters(heading: str, part: Any) -> None:
    parser = Parser()
    part.add_flags(parser)
    shown = flags_in(section(DOCS / "reference" / "command-line.md", heading)) - {"--engine"}
    assert shown == set(parser.known_flags()) - {"-h", "--help"}


# --- tables


def tables(text: str) -> Iterator[list[list[str]]]:
    """The tables of a text, as rows of cells; the first row is the header."""
    for block in re.findall(r"(?:^\|.*\n)+", text + "\n", re.M):
        rows = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in block.strip().split("\n")]
        yield [[cell.strip() for cell in row] for i, row in enumerate(rows) if i != 1]


def value(cell: str) -> Any:
    """The value that a cell shows."""
    if cell in ("true", "false"):
        return cell == "true"
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return cell.strip("`")


def defaults(*classes: type[Any]) -> dict[str, Any]:
    return {f.name: f.default for cls in classes for f in fields(cls) if f.name != "horizon"}


def beside(settings: type[Any], base: type[Any]) -> dict[str, Any]:
    """The settings of a class that its base does not have, or has with another default."""
    return {name: default for name, default in defaults(settings).items() if defaults(base).get(name) != default}


KERNEL, CRITIC = RANKERS["kernel"], RANKERS["critic"]
SETTINGS = {
    "index.md": defaults(Episodes),
    "guided.md": defaults(GuidedSettings),
    "faded.md": beside(FadedSettings, GuidedSettings),
    "distilled.md": beside(DistilledSettings, GuidedSettings),
    "ars.md": defaults(ARS),
    "op-ars.md": defaults(KERNEL),
    "q-ars.md": defaults(CRITIC),
    "tres.md": defaults(TRES),
    "es.md": defaults(ES),
    "cem.md": defaults(CEMSettings),
    "cem-rl.md": beside(CEMRLSettings, CEMSettings),
    "op-cem-rl.md": beside(OPCEMRLSettings, CEMRLSettings) | defaults(*MEMBER_RANKERS.values()),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_and_their_defaults_are_those_of_the_code(name: str) -> None:
    text = section(DOCS / "algorithms" / name, "Settings")
    table = next(table for table in tables(text) if table[0] == ["setting", "default", "meaning"])
    assert {row[0].strip("`"): value(row[1]) for row in table[1:]} == SETTINGS[name]


@pytest.mark.parametrize("name", ["interleaved", "adaptive"])
def test_settings_of_rankers_are_those_of_the_code(name: str) -> None:
    text = section(DOCS / "algorithms" / "rankers.md", "interleaved and adaptive")
    table = next(table for table in tables(text) if table[0][0] == f"setting of `{name}`")
    assert {row[0].strip("`"): value(row[1]) for row in table[1:]} == beside(RANKERS[name], KERNEL)


@pytest.mark.parametrize("algo", ["guided", "ars", "op-ars", "q-ars", "tres"])
def test_presets_are_those_of_the_code(algo: str) -> None:
    (table,) = tables(section(DOCS / "algorithms" / f"{algo}.md", "Presets"))
    if table[0][0] == "setting":  # a row per setting instead of one per task
        table = [list(column) for column in zip(*table, strict=True)]
    names = [cell.strip("`") for cell in table[0]]
    for row in table[1:]:
        known = resolve(row[0], algo).hyperparameters
        assert [value(cell) for cell in row[1:]] == [known[name] for name in names[1:]], row[0]


def test_every_algorithm_and_ranker_has_its_place() -> None:
    listed = section(DOCS / "algorithms" / "index.md", "All of them")
    assert {row[0].split("`")[1] for row in next(tables(listed))[1:]} == set(ALGORITHMS)
    rankers = next(tables((DOCS / "algorithms" / "rankers.md").read_text(encoding="utf-8")))
    assert {name for row in rankers[1:] for name in re.findall(r"`([\w-]+)`", row[0])} == set(RANKERS)
    members = next(tables(section(DOCS / "algorithms" / "op-cem-rl.md", "Formula")))
    assert {row[0].split("`")[1] for row in members[1:]} == set(MEMBER_RANKERS)


def documented(page: Path, *headings: str) -> set[str]:
    """The names in the first columns of the tables below some headings."""
    rows = [row for heading in headings for table in tables(section(page, heading)) for row in table[1:]]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}


def test_fields_of_config_and_result_are_those_of_the_code() -> None:
    page = DOCS / "reference" / "files.md"
    agent = offrank.ARS("LQR", horizon=10)
    assert documented(page, "result.json") == set(agent.result)
    assert documented(page, "config.json") == {f.name for f in fields(RunConfig)}


RUNS: list[tuple[str, dict[str, Any]]] = [
    *((algo, {}) for algo in ("ars", "tres", "es", "cem")),
    *(("ars", {"ranker": ranker}) for ranker in ("kernel", "interleaved", "adaptive")),
    ("q-ars", {"n_directions": 20, "hidden": 4, "probe_share": 0.5, "policy": "linear"}),
    ("cem-rl", {"hidden": 4, "warmup_steps": 1}),
    ("op-cem-rl", {"hidden": 4, "warmup_steps": 1, "race_steps": 3}),
    ("guided", {"hidden": 4, "warmup_steps": 1, "candidates": 4}),
    ("faded", {"hidden": 4, "warmup_steps": 1}),
    ("distilled", {"hidden": 4, "warmup_steps": 1, "teacher_steps": 1}),
]


def test_every_metric_that_a_run_logs_is_explained_and_no_other() -> None:
    logged: set[str] = set()

    def alone(run: Any, record: dict[str, Any]) -> None:
        run.overlaps = False
        logged.update(record)

    for algo, settings in RUNS:
        agent = offrank.agents.AGENTS[algo]("LQR", horizon=10, **settings)
        until: dict[str, Any] = {"eval_every": 2, "eval_episodes": 2, "confirm_episodes": 3, "threshold": -1e12}
        agent.learn(iterations=3, callback=lambda run, record: logged.update(record), **(until | {"threshold": None}))
        if algo == "ars":  # reached at once: a second evaluation confirms it
            other = offrank.ARS("LQR", horizon=10)
            other.learn(iterations=3, callback=alone, **until)
    headings = ("Of every line", "Of evaluations", "Of iterations", "Of rankers", "Of LQR")
    assert documented(DOCS / "reference" / "metrics.md", *headings) == logged


def test_the_version_is_the_same_everywhere() -> None:
    first = re.search(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert first and first[1] == offrank.__version__
    assert f"\nversion: {first[1]}\ndate-released: {first[2]}\n" in citation


# --- form

LONG = {"architecture.md", "notebook/README.md", "reference/python.md"}  # not for a user's one question


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_lists_begin_after_an_empty_line(page: Path) -> None:
    """Or the site shows them as a paragraph."""
    item = r"(?:- |\d+\. )"
    assert not re.findall(rf"^(?!{item}| |\n).+\n{item}.*", prose(page), re.M)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_are_short_and_wrapped(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").split("\n")
    if page.name != "CHANGELOG.md" and name_of(page).removeprefix("docs/") not in LONG:
        assert len(lines) <= 151
    assert not [line for line in lines if len(line) > 120 and not line.startswith("|")]
    assert not [table[0] for table in tables("\n".join(lines)) if len(table[0]) > 7]
