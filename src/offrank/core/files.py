"""Files of arrays and metadata: written atomically, checksummed, and read without executing code.

A file is a NumPy `.npz` archive of the arrays, a JSON document `meta`, and a SHA-256 hash of all of them. The comment
of the archive, which ends the file, is a SHA-256 hash of all bytes before it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
import zipfile
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
MAX_BYTES = 1 << 32  # of a file: the arrays of one are in memory together
MAX_META = 1 << 26  # bytes of the metadata
_META, _DIGEST, _SEALED = "meta", "sha256", "sealed"
_READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_SEAL = 64  # bytes of the hash at the end, in hexadecimal


def write_atomically(path: Path, content: bytes | Callable[[IO[bytes]], None]) -> None:
    """Replace the content of a file. A concurrent reader sees the old content or the new, never a part of it.

    Args:
        path: the file.
        content: bytes, or a function that writes them to an open file.

    Raises:
        OffrankError: the file cannot be written; the old content is intact.
    """
    part = path.with_name(f".{path.name}.part")  # a fixed name: leftovers of a crash are removed the next time
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        with part.open("x+b") as file:  # a new file: a link of that name would lead elsewhere
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


def check_regular(path: Path) -> None:
    """Raise UsageError for a device or a pipe, which may have no end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UsageError(f"cannot read {path}: it is not a file")


def parse_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        UsageError: the file cannot be read.
        FileFormatError: it is not JSON.
    """
    check_regular(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
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
    text = json.dumps({"offrank": format, "kind": kind, _SEALED: True, **meta}, default=_plain).encode()
    named: dict[str, NDArray[Any]] = {**arrays, _META: np.frombuffer(text, dtype=np.uint8)}
    named[_DIGEST] = np.frombuffer(digest(named), dtype=np.uint8)

    def write(file: IO[bytes]) -> None:
        np.savez(file, allow_pickle=False, **named)
        file.seek(-2, os.SEEK_END)  # the last two bytes of an archive without a comment are the comment's length
        file.write(_SEAL.to_bytes(2, "little"))
        file.seek(0)
        seal = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        file.write(seal.encode())

    write_atomically(path, write)


def load_arrays(path: Path, *kinds: str) -> tuple[str, Memory, dict[str, Any]]:
    """Read a file of one of the given kinds. Returns its kind, arrays and metadata.

    Raises:
        UsageError: there is no such file.
        FileFormatError: it is truncated, damaged, altered, too large, or not written by offrank.
    """
    check_regular(path)
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    with file:
        try:
            with zipfile.ZipFile(file) as archive, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                members = _members(archive)
                arrays = {name: _read_array(archive, member) for name, member in members.items()}
        except Exception as error:  # NumPy and zipfile raise almost anything for a file that is damaged or malicious
            raise FileFormatError(f"{path} is truncated, damaged, or not an offrank file") from error
        if not {_META, _DIGEST} <= set(arrays):
            raise FileFormatError(f"{path} is not an offrank file")
        stored = arrays.pop(_DIGEST).tobytes()
        if stored != digest(arrays):
            raise FileFormatError(f"{path} is damaged or was altered: its checksum does not match")
        meta = _parse_meta(path, arrays.pop(_META).tobytes())
        if meta.pop(_SEALED, False) and not _seal_holds(file):  # files of earlier versions have no seal
            raise FileFormatError(f"{path} is truncated, damaged or was altered: its last checksum does not match")
    kind, format = meta.get("kind"), meta.get("offrank")
    if format not in (1, FORMAT, IN_SEGMENTS):
        raise FileFormatError(f"{path} is of format {format}, this version reads 1 to {IN_SEGMENTS}")
    if kind not in kinds:
        raise FileFormatError(f"{path} holds a {kind}, not a {' or a '.join(kinds)}")
    return kind, arrays, meta


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The arrays of an archive by name. Nothing is compressed, so together they are no larger than the file.

    Raises:
        ValueError: it is none of ours, or its own sizes do not agree.
    """
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    total = 0
    for info in members.values():
        total += info.file_size
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise ValueError("an array is compressed")
    assert archive.fp is not None
    if len(members) != len(archive.infolist()) or total > min(archive.fp.seek(0, os.SEEK_END), MAX_BYTES):
        raise ValueError("arrays overlap, or are too large")
    if _META in members and members[_META].file_size > MAX_META:
        raise ValueError("the metadata are too large")
    return members


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """An array of numbers. Its header is compared with the size of the member before anything is allocated.

    Raises:
        ValueError: they do not agree, or it is not of numbers.
    """
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        shape, _, dtype = _READ_HEADER[version](stream)
        if dtype.kind not in "biuf" or min(shape, default=0) < 0:
            raise ValueError("not an array of numbers")
        if math.prod(shape) * dtype.itemsize != member.file_size - stream.tell():
            raise ValueError("the shape is not that of the data")
    with archive.open(member) as stream:
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
        return array


def _parse_meta(path: Path, text: bytes) -> dict[str, Any]:
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is damaged: its metadata are not JSON") from error
    if not isinstance(meta, dict):
        raise FileFormatError(f"{path} is not an offrank file: its metadata are not a JSON object")
    return meta


def _seal_holds(file: IO[bytes]) -> bool:
    """Whether the last bytes of a file are the hash of all before them."""
    left, hasher = file.seek(0, os.SEEK_END) - _SEAL, hashlib.sha256()
    file.seek(0)
    while left > 0 and (block := file.read(min(left, 1 << 20))):
        hasher.update(block)
        left -= len(block)
    return file.read() == hasher.hexdigest().encode()


def digest(arrays: Memory) -> bytes:
    """SHA-256 of the names, types, shapes and contents of arrays."""
    hasher = hashlib.sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        hasher.update(f"{name}|{value.dtype.str}|{arrays[name].shape}|".encode())
        hasher.update(value.reshape(-1).view(np.uint8).data)
    return hasher.digest()
