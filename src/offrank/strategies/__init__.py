"""Strategies by name. One file, one published algorithm."""

from offrank.strategies.ars import ARS
from offrank.strategies.base import Strategy

STRATEGIES: dict[str, type[Strategy]] = {strategy.name: strategy for strategy in (ARS,)}

__all__ = ["ARS", "STRATEGIES", "Strategy"]
