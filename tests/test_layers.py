"""Modules import only from lower layers, in the order of docs/architecture.md."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import offrank

ROOT = Path(offrank.__file__).parent
LAYERS = [  # a module may import from its own layer and from those before it
    {"core"},
    {"policies"},
    {"algorithms", "tasks", "presets"},
    {"engines"},
    {"runs"},
    {"display"},
    {"callbacks"},
    {"agent", "agents", "fleet"},
    {"asktell"},
    {"cli"},
    {"lab"},
]
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}


def imports(path: Path) -> set[str]:
    """Parts of offrank that a module imports, late imports included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "offrank":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("offrank.")}
    return found


INSIDE = sorted(path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0][:2] != "__")


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_imports_upward(path: Path) -> None:
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    upward = {other for other in imports(path) if LEVEL[other] > LEVEL[part]}
    assert not upward, f"{path.name} imports {upward}"


def test_the_product_never_imports_the_lab() -> None:
    for path in (ROOT / "__init__.py", ROOT / "__main__.py"):
        assert "lab" not in imports(path)


def test_algorithms_import_no_engine_and_no_task() -> None:
    for path in (ROOT / "algorithms").rglob("*.py"):
        assert imports(path) <= {"core", "policies", "algorithms"}


@pytest.mark.parametrize("words", [["--version"], ["train", "--help"]], ids=" ".join)
def test_common_commands_import_neither_the_lab_nor_matplotlib(words: list[str]) -> None:
    code = (
        f"import sys; from offrank.cli import main\ntry: main({words!r})\nexcept SystemExit: pass\n"
        "print([m for m in sys.modules if m.startswith(('offrank.lab', 'matplotlib'))])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip().endswith("[]")
