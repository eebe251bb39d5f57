"""Strategies by name. One file, one published algorithm."""

from offrank.strategies.ars import ARS
from offrank.strategies.base import Strategy
from offrank.strategies.es import ES
from offrank.strategies.tres import TRES

STRATEGIES: dict[str, type[Strategy]] = {strategy.name: strategy for strategy in (ARS, TRES, ES)}

__all__ = ["ARS", "ES", "STRATEGIES", "TRES", "Strategy"]
