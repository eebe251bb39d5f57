"""A process that ends with the process that started it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

PERIOD = 1.0  # seconds between two looks


def end_with_parent(end: Callable[[], object], parent: int | None = None) -> None:
    """Call `end`, in a thread, when the parent of this process, of the given number, is gone."""
    number = os.getppid() if parent is None else parent

    def watch() -> None:
        while os.getppid() == number:
            time.sleep(PERIOD)
        end()

    threading.Thread(target=watch, daemon=True).start()
