"""What the documentation says holds: links, Python blocks, commands, tables of settings, metrics and files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from offrank.algorithms.rankers import RANKERS

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
    shown = re.findall(r"([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    assert sorted(shown) == sorted({name_of(page) for page in PAGES} - {"CHANGELOG.md", "examples/README.md"})


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
