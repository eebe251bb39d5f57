"""Files of arrays and metadata: written atomically, checksummed, and read without executing code.

A file is a NumPy `.npz` archive of the arrays, a JSON document `meta`, and a SHA-256 hash of all of them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from offrank.core.arrays import Memory
from offrank.core.errors import FileFormatError, OffrankError, UsageError

FORMAT = 2  # format 1 is that of version 0.1, where a policy is a matrix
IN_SEGMENTS = 3  # format 2, but rows of tables are in other files
_META, _DIGEST = "meta", "sha256"
# what NumPy and zipfile raise for a file that is truncated, damaged, of another program, or malicious
_UNREADABLE = (ValueError, TypeError, KeyError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def write_atomically(path: Path, content: bytes | Callable[[IO[bytes]], None]) -> None:
    """Replace the content of a file. A concurrent reader sees the old content or the new, never a part of it.

    Args:
        path: the file.
        content: bytes, or a function that writes them to an open file.

    Raises:
        OffrankError: the file cannot be written; the old content is intact.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")  # a fixed name: leftovers of a crash are overwritten the next time
    try:
        with part.open("wb") as file:
            content(file) if callable(content) else file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        reason = error.strerror or error
        raise OffrankError(f"cannot write {path}: {reason} (what was there before is intact)") from error
    with suppress(OSError, AttributeError):  # sync the folder too, where the platform allows it
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(data, indent=2, default=_plain) + "\n").encode())


def parse_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        UsageError: the file cannot be read.
        FileFormatError: it is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise FileFormatError(f"{path} is damaged: it is not JSON") from error


def read_json(path: Path) -> dict[str, Any]:
    data = parse_json(path)
    if not isinstance(data, dict):
        raise FileFormatError(f"{path} is not an offrank file")
    return data


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")


def save_arrays(path: Path, kind: str, arrays: Memory, meta: Mapping[str, Any], format: int = FORMAT) -> None:
    """Write arrays and JSON-serialisable metadata to a file of the given kind."""
    text = json.dumps({"offrank": format, "kind": kind, **meta}, default=_plain).encode()
    named: dict[str, NDArray[Any]] = {**arrays, _META: np.frombuffer(text, dtype=np.uint8)}
    named[_DIGEST] = np.frombuffer(digest(named), dtype=np.uint8)
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **named))


def load_arrays(path: Path, *kinds: str) -> tuple[str, Memory, dict[str, Any]]:
    """Read a file of one of the given kinds. Returns its kind, arrays and metadata.

    Raises:
        UsageError: there is no such file.
        FileFormatError: it is truncated, damaged, altered, or not written by offrank.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays: Memory = {name: archive[name] for name in archive.files}
    except _UNREADABLE as error:
        raise FileFormatError(f"{path} is truncated, damaged, or not an offrank file") from error
    if not {_META, _DIGEST} <= set(arrays):
        raise FileFormatError(f"{path} is not an offrank file")
    stored = arrays.pop(_DIGEST).tobytes()
    if stored != digest(arrays):
        raise FileFormatError(f"{path} is damaged or was altered: its checksum does not match")
    meta = json.loads(arrays.pop(_META).tobytes())
    if meta.get("offrank") not in (1, FORMAT, IN_SEGMENTS):
        raise FileFormatError(f"{path} is of format {meta.get('offrank')}, this version reads 1 to {IN_SEGMENTS}")
    if meta["kind"] not in kinds:
        raise FileFormatError(f"{path} holds a {meta['kind']}, not a {' or a '.join(kinds)}")
    return meta["kind"], arrays, meta


def digest(arrays: Memory) -> bytes:
    """SHA-256 of the names, types, shapes and contents of arrays."""
    hasher = hashlib.sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        hasher.update(f"{name}|{value.dtype.str}|{arrays[name].shape}|".encode())
        hasher.update(value.reshape(-1).view(np.uint8).data)
    return hasher.digest()
