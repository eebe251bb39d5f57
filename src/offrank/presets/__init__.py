"""Hyperparameters per task, as data: every number with its source."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

GENERAL = "general default"


@dataclass(frozen=True)
class Value:
    """A value and its source."""

    value: Any
    source: str


@lru_cache(maxsize=32)
def _read(task: str) -> dict[str, Any]:
    path = files(__name__) / f"{task}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def lookup(task: str | None, name: str, *sections: str) -> Value | None:
    """The preset of a hyperparameter, from the first of the (dotted) sections that has it; None if none has."""
    for section in sections:
        table = _read(task) if task else {}
        for part in section.split("."):
            table = table.get(part, {})
        entry = table.get(name)
        if isinstance(entry, dict) and "source" in entry:
            return Value(entry["value"], entry["source"])
    return None
