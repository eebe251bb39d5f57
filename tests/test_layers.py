"""Nothing imports upward: the order of docs/architecture.md, checked."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import offrank

ROOT = Path(offrank.__file__).parent
LAYERS = [  # a module may import from its own layer and from those before it
    {"arrays", "errors", "headless", "runfolder"},
    {"arithmetic", "noise", "normalizer", "lock"},
    {"rollouts"},
    {"candidates", "state"},
    {"rankers", "starts"},
    {"horizon"},
    {"strategies"},
    {"tasks", "presets"},
    {"engines", "checkpoint"},
    {"config", "policy", "metrics"},
    {"record"},
    {"run", "tensorboard"},
    {"fleet", "launch", "saved", "evaluation", "plotting", "progress"},
    {"agents", "grid", "studies", "bench", "showing"},
    {"asktell", "report"},
    {"cli"},
    {"__init__", "__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}


def imports(path: Path) -> set[str]:
    """Rooms of offrank that a module imports, late imports included."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "offrank":
            parts = node.module.split(".")
            rooms |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            rooms |= {a.name.split(".")[1] for a in node.names if a.name.startswith("offrank.")}
    return rooms


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_imports_upward(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    upward = {other for other in imports(path) if LEVEL[other] > LEVEL[room]}
    assert not upward, f"{path.name} imports {upward}"


@pytest.mark.parametrize("room", ["strategies", "rankers"])
def test_algorithms_know_no_engine_and_no_task(room: str) -> None:
    for path in (ROOT / room).glob("*.py"):
        assert not imports(path) & {"engines", "tasks", "run", "checkpoint", "progress"}
