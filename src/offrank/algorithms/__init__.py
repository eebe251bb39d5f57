"""Algorithms by name, and the parts each consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from offrank.algorithms.base import Algorithm
from offrank.algorithms.cem_rl import CEM, CEMRL, OPCEMRL, CEMRLSettings, CEMSettings, OPCEMRLSettings
from offrank.algorithms.distilled import Distilled, DistilledSettings
from offrank.algorithms.faded import Faded, FadedSettings
from offrank.algorithms.guided import Guided, GuidedSettings
from offrank.algorithms.rankers import MEMBER_RANKERS, RANKERS, OnPolicy
from offrank.algorithms.search import Search
from offrank.algorithms.strategies import ARS, ES, TRES


@dataclass(frozen=True)
class Entry:
    """One algorithm. It is constructed as algorithm(space, kind of policy, episodes, settings, ranker)."""

    algorithm: Callable[..., Algorithm]
    settings: type[Any]  # the dataclass of its hyperparameters; its `name` is its section of a task's preset
    ranker: str  # the default ranker
    policy: str = "linear"  # the default kind of policy
    rankers: Mapping[str, type[Any]] = field(default_factory=lambda: RANKERS)  # those it can have, by name
    goes_on: bool = True  # whether a policy to start from is trained on, and so is of the kind that is trained


EVERY_MEMBER = {OnPolicy.name: OnPolicy}  # is run: there is nothing to choose

ALGORITHMS: dict[str, Entry] = {
    "ars": Entry(Search, ARS, "on-policy"),
    "op-ars": Entry(Search, ARS, "kernel"),
    "q-ars": Entry(Search, ARS, "critic"),
    "tres": Entry(Search, TRES, "on-policy"),
    "op-tres": Entry(Search, TRES, "kernel"),
    "q-tres": Entry(Search, TRES, "critic"),
    "es": Entry(Search, ES, "on-policy"),
    "op-es": Entry(Search, ES, "kernel"),
    "cem": Entry(CEM, CEMSettings, "on-policy", "skip:32", EVERY_MEMBER),
    "cem-rl": Entry(CEMRL, CEMRLSettings, "on-policy", "skip:32", EVERY_MEMBER),
    "op-cem-rl": Entry(OPCEMRL, OPCEMRLSettings, "race", "skip:32", MEMBER_RANKERS),
    "guided": Entry(Guided, GuidedSettings, "random", "skip:32", MEMBER_RANKERS),
    "faded": Entry(Faded, FadedSettings, "random", "linear", MEMBER_RANKERS, goes_on=False),
    "distilled": Entry(Distilled, DistilledSettings, "on-policy", "linear", EVERY_MEMBER, goes_on=False),
}
RECOMMENDED = "guided"  # what is trained unless an algorithm is named

__all__ = ["ALGORITHMS", "RECOMMENDED", "Algorithm", "Entry", "Search"]
