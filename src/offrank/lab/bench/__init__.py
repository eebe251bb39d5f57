"""Benchmarks: `offrank bench rollouts|train|iteration|gpu|cluster`, and scripts (`python -m offrank.lab.bench.NAME`).

Contestants alternate within a measurement, so that a noisy machine is noisy for all of them; medians and spreads are
printed, and ratios are of times from the same round.
"""
