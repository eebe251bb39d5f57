"""Metrics as JSON lines: one per iteration and per evaluation, readable while the run goes on."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from offrank.core.arrays import Metrics
from offrank.core.errors import FileFormatError, OffrankError


class MetricsFile:
    """An append-only file. `size` is what a checkpoint notes, and what a continued run cuts the file back to."""

    def __init__(self, path: Path, size: int = 0):
        self.path = path
        try:
            self._file = path.open("r+b" if path.exists() else "w+b")
            end = self._file.seek(0, os.SEEK_END)
            if end < size:
                self._file.close()
                raise FileFormatError(
                    f"{path} is shorter than its checkpoint says ({end} bytes of {size}): lines are missing"
                )
            self._file.truncate(size)
            self._file.seek(size)
        except OSError as error:
            raise OffrankError(f"cannot write {path}: {error.strerror or error}") from error

    @property
    def size(self) -> int:
        return self._file.tell()

    def write(self, record: Metrics) -> None:
        try:
            self._file.write((json.dumps({k: _json(v) for k, v in record.items()}) + "\n").encode())
            self._file.flush()
        except OSError as error:
            raise OffrankError(f"cannot write {self.path}: {error.strerror or error}") from error

    def sync(self) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OffrankError(f"cannot write {self.path}: {error.strerror or error}") from error

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            raise OffrankError(f"cannot write {self.path}: {error.strerror or error}") from error

    def __del__(self) -> None:  # a run that is dropped rather than closed: every line is written already
        if hasattr(self, "_file"):
            with suppress(OSError):
                self._file.close()


def _json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_metrics(path: Path) -> list[Metrics]:
    """The complete lines of a metrics file; a line that is still being written is left out."""
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        found = [json.loads(line) for line in lines if line]
    except ValueError as error:
        raise FileFormatError(f"{path} is damaged: a line is not JSON") from error
    for number, record in enumerate(found, start=1):
        if not isinstance(record, dict) or not set(record) >= {"kind", "iteration", "steps"}:
            raise FileFormatError(f"{path} is damaged: line {number} is no record of a run")
    return found
