"""Strategies by name. Each published algorithm is one file."""

from offrank.algorithms.strategies.ars import ARS
from offrank.algorithms.strategies.base import Strategy
from offrank.algorithms.strategies.es import ES
from offrank.algorithms.strategies.tres import TRES

STRATEGIES: dict[str, type[Strategy]] = {strategy.name: strategy for strategy in (ARS, TRES, ES)}

__all__ = ["ARS", "ES", "STRATEGIES", "TRES", "Strategy"]
