"""The page's explanations of its tables and figures."""

from __future__ import annotations

TABLE = """\
A seed that did not reach the threshold is censored at its last step. N/b samples N directions and uses the best b; b
of b samples b and uses all: the paper's bracketed numbers. The paper's medians are over the seeds that reached it."""

CURVES = """\
Mean return of evaluation episodes against training steps, one line per seed. A mark: the first evaluation at or above
the threshold. A star on the threshold: the censored median. Point at a line, or move into a figure with Tab and along
it with the arrow keys, for a point's numbers; all of them are in the table under the figure."""

BOXES = """\
Steps to the threshold. Boxes are over the seeds that reached it, as in the paper; dots are seeds, open triangles seeds
that did not reach it, at the steps they were run. An open star: the paper's median."""

ARRIVALS = """\
Share of runs that had reached the threshold (Kaplan-Meier), and its 95% interval; ticks are runs that ended before.
Where a curve is first at or above one half is the censored median."""

SEEDS = "Mean return against training steps, over all seeds, up to the end of the shortest run."

GRID = "Censored medians in thousands of steps, and how many runs reached the threshold."

SETTINGS = "Medians of each setting over its seeds; bands over all runs of the task."

REGULATORS = """\
Medians over the trials, and 2 to 98 percentiles; a line is missing where its controller has infinite cost."""

RANKING = """\
Spearman correlation of scores with true scores at each iteration, one mark per seed, with 95% intervals over
candidates. Dashed: what exact scores would reach, given the noise of the true ones.
Rankings by one episode are a ceiling for rankings that run no candidate; random, smallest-change and largest-change
(and signed-change, in older records) are null controls."""

RUNS = """\
On the same engine and platform these give the same bits. They are derived from the rows; where a row does not hold
its horizon, evaluation episodes and environment arguments, the defaults are assumed."""

READING = {
    "Censored median": """\
The smallest number of steps at which the Kaplan-Meier curve of runs still short of the threshold is at or under one
half; "> X" if it never is, where at least half of the runs are known not to have reached the threshold at X.""",
    "Its interval": "95%, percentile bootstrap over the seeds, the same rule in each resample; none if none arrived.",
    "Reached": "Runs that reached the threshold within their budget, with Wilson's 95% interval of the rate.",
    "Median of successes": """\
The paper's definition: the median over the seeds that reached the threshold, ignoring the others.""",
    "Share of the steps": """\
Of censored medians, where both exist; the paper's divides its medians of the successes.""",
    "Reached before": """\
The probability that a run reaches the threshold before one of the baseline, ties one half, with a bootstrap interval;
then wins and losses on equal seeds. "not decided" where no pair of runs tells which was first.""",
}
