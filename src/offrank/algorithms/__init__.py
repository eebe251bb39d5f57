"""Algorithms by name, and the parts each consists of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from offrank.algorithms.base import Algorithm
from offrank.algorithms.cem_rl import CEM, CEMRL, CEMRLSettings, CEMSettings
from offrank.algorithms.search import Search
from offrank.algorithms.strategies import ARS, ES, TRES


@dataclass(frozen=True)
class Entry:
    """One algorithm. It is constructed as algorithm(space, kind of policy, episodes, settings, ranker)."""

    algorithm: Callable[..., Algorithm]
    settings: type[Any]  # the dataclass of its hyperparameters; its `name` is its section of a task's preset
    ranker: str  # the default ranker
    policy: str = "linear"  # the default kind of policy


ALGORITHMS: dict[str, Entry] = {
    "ars": Entry(Search, ARS, "on-policy"),
    "op-ars": Entry(Search, ARS, "kernel"),
    "q-ars": Entry(Search, ARS, "critic"),
    "tres": Entry(Search, TRES, "on-policy"),
    "op-tres": Entry(Search, TRES, "kernel"),
    "q-tres": Entry(Search, TRES, "critic"),
    "es": Entry(Search, ES, "on-policy"),
    "op-es": Entry(Search, ES, "kernel"),
    "cem": Entry(CEM, CEMSettings, "on-policy", "skip:32"),
    "cem-rl": Entry(CEMRL, CEMRLSettings, "on-policy", "skip:32"),
}

__all__ = ["ALGORITHMS", "Algorithm", "Entry", "Search"]
