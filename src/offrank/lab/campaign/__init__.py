"""Campaigns for reliability: what users, files and machines do wrong, many thousands of times."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def one_thread() -> dict[str, str]:
    """The environment of a process that computes in one thread."""
    return dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")


def children(pid: int) -> list[int]:
    """The processes that a process has started, as far as they are alive (Linux)."""
    try:
        return [
            int(word)
            for thread in Path(f"/proc/{pid}/task").iterdir()
            for word in (thread / "children").read_text().split()
        ]
    except OSError:
        return []


def show(summary: Mapping[str, Any], *without: str) -> None:
    """Print a summary, without versions and some other parts."""
    print(json.dumps({key: value for key, value in summary.items() if key not in ("versions", *without)}, indent=1))
