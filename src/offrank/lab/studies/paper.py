"""The paper's numbers, and the budgets we give its tasks, as data (`paper.toml`)."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from importlib.resources import files
from typing import Any


@lru_cache(maxsize=1)
def paper() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "paper.toml").read_text(encoding="utf-8"))


def about(task: str, what: str) -> Any:
    """What is known of a task: `interactions` or `seconds` by variant, `budget`, `fixed`; {} where nothing is."""
    return paper()["tasks"].get(task, {}).get(what, {})
