"""Writing figures to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offrank.core.errors import OffrankError


def save_figure(figure: Any, path: Path, dpi: int = 130) -> Path:
    """Write a matplotlib figure as PNG; the same figure gives the same bytes.

    Raises:
        OffrankError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=dpi)
    except OSError as error:
        raise OffrankError(f"cannot write {path}: {error.strerror or error}") from error
    return path
