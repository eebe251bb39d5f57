"""Checkpoints whose tables are kept in segments: files beside the checkpoint, each with some consecutive rows.

A table (`offrank.core.arrays.tables`) is only ever appended to, so a checkpoint writes the rows that are new since the
last one. It names its segments with their SHA-256. They are on disk before it is; those that it does not name are
removed when it is on disk. So whenever a process is killed, the checkpoint that is there has all of its rows.

The file of the checkpoint holds everything else, so a policy is read without any segment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offrank.core.arrays import WRITTEN, Memory, part, prefixed, tables
from offrank.core.checks import MOST_NAME
from offrank.core.errors import FileFormatError, UsageError
from offrank.core.files import FORMAT, IN_SEGMENTS, digest, load_arrays, save_arrays
from offrank.runs.folder import REPLAY

ROWS = 1 << 16  # most rows of a segment


@dataclass(frozen=True)
class Segment:
    """A file of consecutive rows of a table."""

    name: str
    first: int  # number of its first row, counted from the first ever appended
    rows: int
    sha256: str

    @property
    def end(self) -> int:
        return self.first + self.rows


Segments = dict[str, list[Segment]]  # by the prefix of their table; consecutive ones, up to the last row


def save_in_segments(path: Path, kind: str, arrays: Memory, meta: Mapping[str, Any], known: Segments) -> Segments:
    """Write arrays and metadata to a file, and the rows of their tables to segments beside it.

    Args:
        path, kind, arrays, meta: as for `save_arrays`.
        known: the segments that the file names now. Their rows are not written again, except where short ones are
            joined.

    Returns:
        The segments that the file names from now on.
    """
    folder, segments, rows = path.parent / REPLAY, {}, {}
    for table in tables(arrays):
        columns = _columns(arrays, table)
        written, rows[table] = int(arrays[table + WRITTEN]), len(next(iter(columns.values())))
        segments[table] = _write_rows(folder, table, columns, written - rows[table], written, known.get(table, []))
        arrays = arrays | prefixed(table, {name: column[:0] for name, column in columns.items()})
    if segments:
        named = {table: [asdict(segment) for segment in of_table] for table, of_table in segments.items()}
        meta = {**meta, "rows": rows, "segments": named}
    save_arrays(path, kind, arrays, meta, IN_SEGMENTS if segments else FORMAT)
    _remove_others(folder, {segment.name for of_table in segments.values() for segment in of_table})
    return segments


def load_in_segments(path: Path, *kinds: str) -> tuple[Memory, dict[str, Any]]:
    """Read what `save_in_segments` or `save_arrays` wrote. Returns arrays, with all rows of tables, and metadata.

    Raises:
        UsageError: there is no such file.
        FileFormatError: it or one of its segments is damaged; or a segment is missing, or is of another checkpoint.
    """
    _, arrays, meta = load_arrays(path, *kinds)
    while True:
        try:
            return _with_rows(path, arrays, meta), meta
        except UsageError:
            before = meta
            _, arrays, meta = load_arrays(path, *kinds)
            if meta == before:  # otherwise a running process replaced the checkpoint and its segments meanwhile
                raise


def segments_of(path: Path, meta: Mapping[str, Any]) -> Segments:
    """The segments that a checkpoint names in its metadata.

    Raises:
        FileFormatError: they are not consecutive, or fewer than the rows of their table.
    """
    try:
        named = {table: [Segment(**s) for s in segments] for table, segments in meta.get("segments", {}).items()}
        for table, segments in named.items():
            ends = [segments[0].first, *(segment.end for segment in segments)] if segments else [0]
            numbers = [meta["rows"][table], *(number for s in segments for number in (s.first, s.rows))]
            whole = all(type(number) is int for number in numbers)
            consecutive = all(segment.first == end for segment, end in zip(segments, ends, strict=False))
            if not (whole and consecutive and 0 <= meta["rows"][table] <= ends[-1] - ends[0] <= ROWS * len(segments)):
                raise ValueError(table)
            if any(Path(segment.name).name != segment.name or len(segment.name) > MOST_NAME for segment in segments):
                raise ValueError(table)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(f"{path} does not name its segments as it should") from error
    return named


def _columns(arrays: Memory, table: str) -> Memory:
    """The arrays (L, ...) of a table."""
    return {name: column for name, column in part(arrays, table).items() if name != WRITTEN}


def _write_rows(
    folder: Path, table: str, columns: Memory, oldest: int, written: int, known: list[Segment]
) -> list[Segment]:
    """Write the rows of a table, whose numbers are from `oldest` to `written`, that known segments do not hold.

    New rows are joined with the segment before them as long as that has less than twice as many: so there are few short
    segments, and a row is written again only where its segment grows by half or more.
    """
    kept = [segment for segment in known if segment.end > oldest]
    begin = kept[-1].end if kept else oldest
    while begin < written and kept and kept[-1].rows < 2 * (written - begin) and written - kept[-1].first <= ROWS:
        begin = max(kept.pop().first, oldest)
    for first in range(begin, written, ROWS):
        piece = {name: column[first - oldest : first - oldest + ROWS] for name, column in columns.items()}
        sha256 = digest(piece).hex()
        name = f"{table}{first}-{sha256[:8]}.npz"  # no two contents share a name: a named segment is never overwritten
        save_arrays(folder / name, "segment", piece, {})
        kept.append(Segment(name, first, min(ROWS, written - first), sha256))
    return kept


def _with_rows(path: Path, arrays: Memory, meta: Mapping[str, Any]) -> Memory:
    """The arrays of a checkpoint, with the rows of its segments."""
    for table, segments in segments_of(path, meta).items():
        columns = _read_rows(path, segments, _columns(arrays, table), meta["rows"][table])
        arrays = arrays | prefixed(table, columns)
    return arrays


def _read_rows(path: Path, segments: list[Segment], empty: Memory, rows: int) -> Memory:
    """The last rows of a table, whose arrays without rows are given."""
    files = [path.parent / REPLAY / segment.name for segment in segments]
    for file in files:
        if not file.is_file():
            raise FileFormatError(f"{file} is missing: {path} has rows in it")
    needed = rows * sum(like.itemsize * math.prod(like.shape[1:]) for like in empty.values())
    if needed > sum(file.stat().st_size for file in set(files)):  # before anything is allocated
        raise FileFormatError(f"{path} names {rows:,} rows, and its segments do not have as many")
    columns: Memory = {name: np.empty((rows, *like.shape[1:]), dtype=like.dtype) for name, like in empty.items()}
    oldest = segments[-1].end - rows if segments else 0
    for segment, file in zip(segments, files, strict=True):
        _, piece, _ = load_arrays(file, "segment")
        whole = piece.keys() == columns.keys() and all(
            (column.shape, column.dtype) == ((segment.rows, *empty[name].shape[1:]), empty[name].dtype)
            for name, column in piece.items()
        )
        if digest(piece).hex() != segment.sha256 or not whole:
            raise FileFormatError(f"{file} is not the one that {path} names: its checksum differs")
        skipped = max(0, oldest - segment.first)
        for name, column in columns.items():
            column[segment.first + skipped - oldest : segment.end - oldest] = piece[name][skipped:]
    return columns


def _remove_others(folder: Path, named: set[str]) -> None:
    """Remove the segments that the checkpoint does not name: of dropped rows, or of a process that was killed."""
    for file in [*folder.glob("*.npz"), *folder.glob(".*.part")]:
        if file.name not in named:
            with suppress(OSError):
                file.unlink()
