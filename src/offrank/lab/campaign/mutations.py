"""Random changes to bytes, arrays, JSON documents and files."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from offrank.core.files import load_arrays, save_arrays

EVIL = "evil_module"  # a module that files name, and that must not be imported
JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**15, 10**30, 0.5, -1e308, 1e160, float("nan"), float("inf"), "", "x" * 3000,
    "\x00", "../../etc/passwd", f"{EVIL}:Env-v0", "Hopper-v3", "linear", "mlp:99999,99999", [], [1, "a"], {}, {"a": {}},
)  # fmt: skip


def junk(random: Generator) -> Any:
    """One of them, which may be changed further."""
    return deepcopy(JUNK[int(random.integers(len(JUNK)))])


def mutate_json(data: Any, random: Generator) -> Any:
    """A copy of a JSON document with one or more values replaced, removed or added."""
    data = json.loads(json.dumps(data))
    for _ in range(int(random.integers(1, 4))):
        at: Any = data
        while isinstance(at, dict | list) and len(at):
            key = list(at)[int(random.integers(len(at)))] if isinstance(at, dict) else int(random.integers(len(at)))
            if isinstance(at[key], dict | list) and len(at[key]) and random.random() < 0.7:
                at = at[key]
                continue
            change = random.random()
            if change < 0.2 and isinstance(at, dict):
                del at[key]
            elif change < 0.3 and isinstance(at, dict):
                at[f"{key}x"] = at[key]
            else:
                at[key] = junk(random)
            break
    return data if random.random() < 0.97 else junk(random)


def mutate_array(array: Any, random: Generator) -> Any:
    """An array of another size, type or content; None to remove it."""
    kind = int(random.integers(10))
    if kind == 0:
        return None
    if kind == 1:
        return array.astype([np.float32, np.float64, np.int8, np.int64, np.uint64, bool][int(random.integers(6))])
    if kind == 2:
        return array[None]
    if kind == 3:
        return array.ravel()[: int(random.integers(array.size + 1))]
    if kind == 4:
        return np.concatenate([array.ravel(), array.ravel()])
    if kind == 5:
        return np.array(["text"])
    if kind == 6 or not array.size:
        return np.zeros((0,) * int(random.integers(4)), dtype=array.dtype)
    changed = array.astype(np.float64) if kind == 7 else array.copy()  # whole numbers that are none
    values = [np.nan, np.inf, 1e308, -1e308, 1e160, 1e40, -1, 0, 0.5, 2**62, 255]
    with np.errstate(all="ignore"):
        some = np.array(values[int(random.integers(len(values)))]).astype(changed.dtype)
    first = int(random.integers(array.size))
    changed.reshape(-1)[first : first + 1 if random.random() < 0.5 else None] = some  # one number, or all from there on
    return changed


def mutate_bytes(content: bytes, random: Generator) -> bytes:
    """Bytes changed, cut off, repeated or inserted."""
    data = bytearray(content or b" ")
    at, kind = int(random.integers(len(data) + 1)), int(random.integers(5))
    if kind == 0:
        for _ in range(int(random.integers(1, 9))):
            data[int(random.integers(len(data)))] ^= int(random.integers(1, 256))
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at:at] = data[at : at + int(random.integers(1, 500))]
    elif kind == 3:
        data[at:at] = b"[" * 100_000
    else:
        data[at:at] = random.bytes(int(random.integers(1, 50)))
    return bytes(data)


def mutate_file(path: Path, random: Generator) -> str:
    """Change a file in place. Returns how."""
    if path.suffix in (".npz", ".offrank") and random.random() < 0.5:
        kind, arrays, meta = load_arrays(path, "policy", "run", "episode", "segment")
        if random.random() < 0.5:
            name = sorted(arrays)[int(random.integers(len(arrays)))]
            changed = mutate_array(arrays.pop(name), random)
            if changed is not None:
                arrays[name] = changed
            how = f"array {name}"
        else:
            found = mutate_json(meta, random)
            meta, how = found if isinstance(found, dict) else {"kind": found}, "metadata"
        format = meta.pop("offrank", 2)
        meta.pop("kind", None)
        save_arrays(path, kind, arrays, meta, format)
        return f"{path.name}: {how}"
    if path.suffix == ".json" and random.random() < 0.7:
        path.write_text(json.dumps(mutate_json(json.loads(path.read_text()), random)))
        return f"{path.name}: JSON"
    path.write_bytes(mutate_bytes(path.read_bytes(), random))
    return f"{path.name}: bytes"
