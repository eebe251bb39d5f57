"""What the page says of its tables and figures."""

from __future__ import annotations

TABLE = """\
A seed that did not get there counts as longer than it was run. N/b samples N directions and uses the best b; b of b
samples b and uses all: the paper's bracketed numbers. The paper's medians are over the seeds that got there."""

CURVES = """\
Mean return of evaluation episodes against training steps, a line a seed. A mark: the first evaluation at or over the
threshold. A star on the threshold: the censored median. Point at a line, or move into a figure with Tab and along it
with the arrow keys, for the numbers."""

BOXES = """\
Steps to the threshold. Boxes are over the seeds that got there, as in the paper; dots are seeds, open triangles seeds
that did not get there, at the steps they were run. A white star: the paper's median."""

SURVIVAL = """\
Share of runs still short of the threshold (Kaplan-Meier); ticks are runs that were given up. Where a curve is first
at or under one half is the censored median."""

SEEDS = "Mean return against training steps, over all seeds, as far as every run goes."

GRID = "Censored medians in thousands of steps, and how many runs got there."

SETTINGS = "Medians of each setting over its seeds; bands over all runs of the task."

REGULATORS = """\
Medians over the trials, and 2 to 98 percentiles; a line is missing where its controller has infinite cost."""

RANKING = """\
Spearman correlation of scores with true scores at each checkpoint (algorithm and seed of the policy, iteration under
it), with 95% intervals over candidates. Dashed: what exact scores would reach, given the noise of the true ones.
Rankings by one episode are a ceiling for rankings that run no candidate; random, smallest-change, largest-change and
signed-change are null controls."""

RUNS = """\
On the same engine and platform these give the same bits. They are read off the outcomes; where one does not keep its
horizon, evaluation episodes and environment arguments, those are taken to be the defaults."""

READING = {
    "Censored median": """\
The smallest number of steps at which the Kaplan-Meier curve of runs still short of the threshold is at or under one
half; "> X" if it never is, where at least half of the runs are known to be short at X.""",
    "Its interval": "95%, percentile bootstrap over the seeds, the same rule in each resample.",
    "Reached": "Runs that got there within their budget, with Wilson's 95% interval of the rate.",
    "Median of successes": """\
The paper's own reading: the median over the seeds that got there, whatever became of the others.""",
    "Share of the steps": """\
Of censored medians, where both exist; the paper's divides its medians of the successes.""",
    "There before": """\
The probability that a run is at the threshold before one of the baseline, ties one half, with a bootstrap interval;
then wins and losses on equal seeds.""",
}
