"""Timing contestants in alternation, and ratios of their times."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from offrank.core.version import versions

SHORTEST = 0.2  # seconds that a measurement should last at least


def alternate(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds per call of each contestant, one number per round; quick ones are repeated within a round."""
    repeats = {}
    for name, call in contestants.items():  # also warms up
        begin = time.perf_counter()
        call()
        repeats[name] = max(1, round(SHORTEST / max(time.perf_counter() - begin, 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            begin = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - begin) / repeats[name])
    return times


def ratio(numerator: list[float], denominator: list[float]) -> dict[str, float]:
    """Median, smallest and largest of the ratios of two contestants' times, round by round."""
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    return {"median": median(ratios), "low": min(ratios), "high": max(ratios)}


def machine() -> dict[str, Any]:
    """The machine and the versions that the numbers were measured with."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {"cpu": model, "cores": os.cpu_count(), "versions": versions()}
