"""Metrics for TensorBoard, written with tensorboardX (`pip install 'offrank[tensorboard]'`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offrank.core.arrays import Metrics
from offrank.core.errors import require


class TensorBoard:
    """A callback that writes all numbers of every record, against training steps."""

    def __init__(self, folder: Path, steps: int = 0):
        """Write to a folder. If a run is continued, existing entries after `steps` steps are hidden."""
        library: Any = require("tensorboardX", "tensorboard")
        self._writer: Any = library.SummaryWriter(str(folder), purge_step=steps + 1 if steps else None)

    def __call__(self, run: Any, record: Metrics) -> None:
        kind, steps = record["kind"], record["steps"]
        for name, value in record.items():
            if isinstance(value, (int, float)) and name not in ("steps", "iteration"):
                self._writer.add_scalar(f"{kind}/{name}", value, steps)
        if kind == "evaluation":
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()
