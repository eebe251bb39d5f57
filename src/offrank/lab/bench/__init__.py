"""Speed, measured side by side on the user's machine: `offrank bench rollouts|train|iteration`.

Contestants alternate within a run, so that a noisy machine is noisy for all of them; medians and spreads are printed,
and ratios are of times from the same round.
"""
