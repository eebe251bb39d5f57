"""The files of a run folder."""

from __future__ import annotations

CHECKPOINT = "checkpoint.npz"
REPLAY = "replay"  # a folder: the rows of the checkpoint's tables
CONFIG = "config.json"
METRICS = "metrics.jsonl"
RESULT = "result.json"
CURVE = "curve.png"
BEST = "best.offrank"
FINAL = "final.offrank"
LOCK = ".lock"


def folder_name(task: str, algo: str, seed: int | None = None) -> str:
    """`<task>-<algo>-<seed>`, safe as the name of a folder."""
    name = f"{task}-{algo}" if seed is None else f"{task}-{algo}-{seed}"
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
