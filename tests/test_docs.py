"""What the documentation says holds: links, Python blocks, commands, tables of settings, metrics and files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NOTEBOOK = DOCS / "notebook"
WRITTEN = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md", *sorted(DOCS.rglob("*.md"))]
ENTRIES = [page for page in WRITTEN if page.parent == NOTEBOOK and page.name != "README.md"]
PAGES = [page for page in WRITTEN if page not in ENTRIES]  # which are kept up to date, as entries are not

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
