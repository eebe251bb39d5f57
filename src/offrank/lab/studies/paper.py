"""The paper's numbers, and our budgets for its tasks, as data (`paper.toml`)."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from importlib.resources import files
from typing import Any


@lru_cache(maxsize=1)
def paper() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "paper.toml").read_text(encoding="utf-8"))


def about(task: str, what: str) -> Any:
    """An entry of a task: `interactions` or `seconds` by variant, `budget`, `fixed`; {} where there is none."""
    return paper()["tasks"].get(task, {}).get(what, {})
