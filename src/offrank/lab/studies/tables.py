"""The paper's Table 1 and its times, with the paper's numbers, as summaries for JSON and as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from offrank.lab.statistics import (
    censored_median,
    median_interval,
    median_of_successes,
    paired,
    probability_of_winning,
    success_interval,
    win_table,
)
from offrank.lab.studies.outcomes import Group, Row, groups
from offrank.lab.studies.paper import about
from offrank.lab.studies.plan import baselines

Summary = dict[str, Any]
NOT_DECIDED = "not decided"  # where no pair of runs tells which was first


@dataclass(frozen=True)
class Table:
    """Cells as text, for Markdown or HTML."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        head, *rows = ("| " + " | ".join(line) + " |" for line in (self.head, *self.rows))
        text = "\n".join([head, "|---" * len(self.head) + "|", *rows])
        return f"{self.note}\n\n{text}" if self.note else text


def probability_text(known: Summary | None) -> str:
    """A probability with its interval."""
    return NOT_DECIDED if known is None else f"{known['value']:.2f} ({known['low']:.2f}-{known['high']:.2f})"


def summarise(rows: Iterable[Row]) -> list[Summary]:
    """One entry per variant of a task: medians, success rate, the paper's numbers, comparison with both baselines."""
    rows = [row for row in rows if row.get("threshold") is not None]
    found = groups(rows)
    return [_summary(group, found) for group in found]


def _summary(group: Group, everyone: Sequence[Group]) -> Summary:
    reached, spent = group.reached, group.spent
    interval = median_interval(reached, spent)
    successes = sum(r is not None for r in reached)
    out: Summary = {
        "task": group.task,
        "algo": group.variant.algo,
        "variant": group.variant.label,
        "engine": group.engine,
        "size": group.size,
        "threshold": group.rows[0]["threshold"],
        "budget": group.budget,
        "watched": group.watched,
        "seeds": group.seeds,
        "steps_to_threshold": reached,
        "runs": len(reached),
        "left_out": group.left_out,
        "reached": successes,
        "success_rate": asdict(success_interval(successes, len(reached))),
        "median": censored_median(reached, spent),
        "median_interval": interval and asdict(interval),
        "median_of_successes": median_of_successes(reached),
        "paper": about(group.task, "interactions").get(group.variant.label),
        "against": {},
    }
    for baseline in baselines(group.variant.algo):
        other = next(
            (g for g in everyone if (g.task, g.variant, g.engine) == (group.task, baseline, group.engine)), None
        )
        if other is not None and other is not group:
            out["against"][baseline.label] = _comparison(group, other)
    return out


def _comparison(group: Group, other: Group) -> Summary:
    found = probability_of_winning(win_table(group.reached, group.spent, other.reached, other.spent))
    ours, theirs = (censored_median(g.reached, g.spent) for g in (group, other))
    by_seed = ({seed: (r, s) for seed, r, s in zip(g.seeds, g.reached, g.spent, strict=True)} for g in (group, other))
    return {
        "share_of_steps": None if ours is None or theirs is None else ours / theirs,
        "probability_of_winning": found and found[0],
        "interval": found and asdict(found[1]),
        "paired": asdict(paired(*by_seed)),
    }


def interactions_markdown(summaries: Sequence[Summary]) -> str:
    """Thousands of steps to the threshold, ours and the paper's."""
    head = ["task", "algorithm", "N/b", "reached", "censored median (95%)", "median of successes", "paper"]
    head += ["of N/b", "of b of b", "beats N/b", "beats b of b"]
    engines = {s["engine"] for s in summaries}
    rows = []
    for s in summaries:
        paper = s["paper"]
        rows.append(
            [
                s["task"],
                s["variant"] + (f" ({s['engine']})" if len(engines) > 1 else ""),
                s["size"],
                success(s),
                middle(s),
                thousands(s["median_of_successes"]),
                "-" if paper is None else f"{paper['steps']:,}, {paper['reached']} of {paper['seeds']}",
                *shares(s),
                *chances(s),
            ]
        )
    return Table(head, rows).markdown()


def success(s: Summary) -> str:
    """How many runs reached the threshold, with the interval of the rate."""
    return f"{s['reached']} of {s['runs']} ({s['success_rate']['low']:.0%}-{s['success_rate']['high']:.0%})"


def middle(s: Summary) -> str:
    """The censored median in thousands, with its interval if any run reached the threshold."""
    middle, interval = thousands(s["median"], s["watched"]), s["median_interval"]
    if interval is None:
        return middle
    low, high = (thousands(interval[end], s["watched"]) for end in ("low", "high"))
    return f"{middle} ({low} to {high})"


def shares(s: Summary) -> list[str]:
    """The share of each baseline's steps that this variant needs."""
    found = [None if a is None else a["share_of_steps"] for a in _against(s)]
    return ["-" if share is None else f"{share:.0%}" for share in found]


def chances(s: Summary) -> list[str]:
    """The probability of reaching the threshold before each baseline, and wins and losses on equal seeds."""
    return ["-" if a is None else _chance(a) for a in _against(s)]


def _chance(against: Summary) -> str:
    chance, interval, by_seed = (against[name] for name in ("probability_of_winning", "interval", "paired"))
    if chance is None:
        return NOT_DECIDED
    return f"{chance:.2f} ({interval['low']:.2f}-{interval['high']:.2f}), {by_seed['wins']}:{by_seed['losses']} by seed"


def _against(s: Summary) -> list[Summary | None]:
    return [s["against"].get(baseline.label) for baseline in baselines(s["algo"])]


def thousands(steps: float | None, watched: int | None = None) -> str:
    """Steps in thousands, or `> watched` where they are unknown."""
    if steps is None:
        return "-" if watched is None else f"> {watched / 1000:,.0f}"
    return f"{steps / 1000:,.0f}"


def seconds_table(found: Sequence[Group]) -> Table:
    """Median seconds to the threshold, censored like the steps, and the paper's times."""
    rows = []
    for group in found:
        cells = [_seconds(group.rows, *names) for names in (("seconds", "wall_s"), ("training_seconds",) * 2)]
        count = sum(row["reached"] for row in group.rows)
        paper = str(about(group.task, "seconds").get(group.variant.label, "-"))
        rows.append([group.task, group.variant.label, *cells, f"{count} of {len(group.rows)}", paper])
    for task in dict.fromkeys(group.task for group in found):
        if "cem-rl" in about(task, "seconds"):
            rows.append([task, "CEM-RL (the paper's)", "-", "-", "-", str(about(task, "seconds")["cem-rl"])])
    note = (
        "Seconds to the threshold, one run at a time on the machine that ran them; the paper's on its own (64 cores; "
    )
    note += "CEM-RL on a GPU)."
    return Table(["task", "algorithm", "with evaluations", "training alone", "reached", "paper"], rows, note)


def _seconds(rows: Sequence[Row], name: str, whole: str) -> str:
    """The censored median of the seconds to the threshold; a dash where those of a run are not known.

    Args:
        name, whole: the columns of the seconds to the threshold, and of those of the whole run.
    """
    reached = [row[f"{name}_to_threshold"] for row in rows]
    spent = [row.get(whole) if seconds is None else seconds for row, seconds in zip(rows, reached, strict=True)]
    known = [seconds for seconds in spent if seconds is not None]
    if len(known) < len(rows) or any(row["reached"] and row[f"{name}_to_threshold"] is None for row in rows):
        return "-"
    median = censored_median(reached, known)
    return f"> {max(known):,.0f}" if median is None else f"{median:,.0f}"


def sensitivity_tables(rows: Iterable[Row]) -> list[Table]:
    """Censored median of the thousands of steps to the threshold for every n_b and h, one table per task."""
    found = groups(rows)
    tables = []
    for task in dict.fromkeys(group.task for group in found):
        cells: dict[tuple[float, float], str] = {}
        for group in (g for g in found if g.task == task):
            median = thousands(censored_median(group.reached, group.spent), group.watched)
            count = sum(r is not None for r in group.reached)
            cells[group.kernel] = f"{median} ({count} of {len(group.rows)})"
        across, down = (sorted({key[axis] for key in cells}) for axis in (1, 0))
        lines = [[f"n_b {n}", *(cells.get((n, h), "-") for h in across)] for n in down]
        tables.append(Table([task, *(f"h {h:g}" for h in across)], lines))
    return tables
