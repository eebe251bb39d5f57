"""The files of a run folder."""

from __future__ import annotations

CHECKPOINT = "checkpoint.npz"
CONFIG = "config.json"
METRICS = "metrics.jsonl"
RESULT = "result.json"
CURVE = "curve.png"
BEST = "best.offrank"
FINAL = "final.offrank"
LOCK = ".lock"
