"""Metrics as JSON lines: one per iteration and per evaluation. The file can be read during the run."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from offrank.core.arrays import Metrics
from offrank.core.errors import FileFormatError, OffrankError, UsageError

MOST = 1e120  # of a number in a record
LONGEST = 1 << 20  # bytes of a line
NUMBERS = ("iteration", "steps", "return_mean", "wall_s")  # that every record has


class MetricsFile:
    """An append-only file. A checkpoint stores its `size`; when the run is continued, the file is truncated to it.

    Raises:
        FileFormatError: the file is shorter than `size`.
        UsageError: it is a link.
        OffrankError: it cannot be written.
    """

    def __init__(self, path: Path, size: int = 0):
        self.path = path
        if path.is_symlink():
            raise UsageError(f"{path} is a link to another file: it would be cut and written to")
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

    def __del__(self) -> None:  # for a run that is deleted without `close`; its lines are already flushed
        if hasattr(self, "_file"):
            with suppress(OSError):
                self._file.close()


def _json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_record(record: Any) -> bool:
    """Whether it has a kind and numbers; None is one that was not finite."""
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return False
    needed = {*NUMBERS, "return_std"} if record["kind"] == "evaluation" else {*NUMBERS} - {"return_mean"}
    found = {name for name, value in record.items() if isinstance(value, int | float) and abs(value) <= MOST}
    empty = {name for name, value in record.items() if value is None}
    return needed <= found and {"return_mean", *record} - {"kind"} <= found | empty


def read_metrics(path: Path) -> list[Metrics]:
    """The records of a metrics file, without a last line that is still being written.

    Raises:
        FileFormatError: a line is not a record of a run.
    """
    try:
        with path.open("rb") as file:
            lines = iter(lambda: file.readline(LONGEST), b"")
            found = [
                json.loads(line) for line in lines if line != b"\n" and (line.endswith(b"\n") or len(line) == LONGEST)
            ]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is damaged: a line is not JSON") from error
    for number, record in enumerate(found, start=1):
        if not _is_record(record):
            raise FileFormatError(f"{path} is damaged: line {number} is not a record of a run")
    return found
