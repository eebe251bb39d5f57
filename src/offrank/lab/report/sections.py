"""The sections of the page: a heading, an explanation, tables, and containers for figures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from offrank.lab.report import html, words
from offrank.lab.report.clips import Clip
from offrank.lab.studies import lqr
from offrank.lab.studies.outcomes import Row, engines_differ, groups, left_out
from offrank.lab.studies.paper import about
from offrank.lab.studies.plan import baselines
from offrank.lab.studies.tables import (
    Summary,
    Table,
    chances,
    middle,
    seconds_table,
    sensitivity_tables,
    shares,
    success,
    summarise,
    thousands,
)

Columns = list[tuple[str, list[str]]]
B_OF_B = "b\u00a0of\u00a0b"
COLUMNS: Columns = [
    ("", ["algorithm", "N/b"]),
    ("reached the threshold", ["ours (95%)", "paper"]),
    ("thousands of steps", ["censored median (95%)", "median of successes", "paper: median of successes"]),
    ("share of N/b's steps", ["ours", "paper"]),
    (f"of {B_OF_B}'s", ["ours", "paper"]),
    ("reached before", ["N/b", B_OF_B]),
]
STEPS_FIGURES = {
    "curves": ("Learning curves", words.CURVES),
    "boxes": ("Box plots", words.BOXES),
    "arrivals": ("Share of runs that arrived", words.ARRIVALS),
}
MEANING = {"max": "max(r⁺, r⁻)", "gap": "|r⁺ - r⁻|", "mean": "(r⁺ + r⁻) / 2", "return": "mean return"}


@dataclass(frozen=True)
class Section:
    """Inner HTML under a heading; `name` is its anchor."""

    name: str
    title: str
    body: str


def note(words: str) -> str:
    return f'<p class="note">{html.text(words)}</p>'


def _left_out(rows: Sequence[Row]) -> list[str]:
    said = left_out(rows)
    return [note(said)] if said else []


def _figures(name: str, title: str, words: str) -> str:
    return f'<h3>{title}</h3>\n{note(words)}\n<div class="panels" data-figure="{name}"></div>'


def _picker(name: str, title: str) -> str:
    return f'<div class="picker" data-picker="{name}" data-title="{title}"></div>'


def steps(rows: Sequence[Row], figures: Collection[str]) -> Section:
    """Table 1 with those of its figures that there are."""
    tables = steps_tables(rows)
    parts = [note(words.TABLE), *tables] if tables else []
    parts += [*_left_out(rows), _picker("steps", "Algorithms")]
    parts += [_figures(name, *STEPS_FIGURES[name]) for name in figures]
    return Section("steps", "Steps to the threshold" if tables else "Learning curves", "\n".join(parts))


def steps_tables(rows: Sequence[Row], what: str = "") -> list[str]:
    """One table per task that has a threshold, without columns that are empty there; `what` distinguishes its caption
    from those of other sections."""
    summaries = summarise(rows)
    several = engines_differ(groups(rows))
    tables = []
    for task in dict.fromkeys(s["task"] for s in summaries):
        members = [s for s in summaries if s["task"] == task]
        caption = f"{task}, threshold {members[0]['threshold']:g}{what}"
        table, columns = _filled([_cells(s, several) for s in members])
        tables.append(html.table(table, caption, columns))
    return tables


def _filled(rows: Sequence[Sequence[str]]) -> tuple[Table, Columns]:
    """A table of the columns that are not empty, and their titles."""
    used = [{*column} != {"-"} for column in zip(*rows, strict=True)]
    columns, first = [], 0
    for title, names in COLUMNS:
        kept = [name for name, use in zip(names, used[first:], strict=False) if use]
        columns += [(title, kept)] if kept else []
        first += len(names)
    head = [name for _, names in columns for name in names]
    return Table(head, [[cell for cell, use in zip(row, used, strict=True) if use] for row in rows]), columns


def _cells(s: Summary, several: bool) -> list[str]:
    paper = s["paper"]
    ours, theirs = shares(s), _paper_shares(s)
    return [
        s["variant"] + (f" ({s['engine']})" if several else ""),
        s["size"],
        success(s),
        "-" if paper is None else f"{paper['reached']} of {paper['seeds']}",
        middle(s),
        thousands(s["median_of_successes"]),
        "-" if paper is None else f"{paper['steps']:,}",
        *(cell for pair in zip(ours, theirs, strict=True) for cell in pair),
        *chances(s),
    ]


def _paper_shares(s: Summary) -> list[str]:
    """The paper's median as a share of those of its baselines; "-" for a baseline itself."""
    known = about(s["task"], "interactions")
    labels = [baseline.label for baseline in baselines(s["algo"])]
    return [
        f"{s['paper']['steps'] / known[label]['steps']:.0%}"
        if s["paper"] and label in known and label != s["variant"]
        else "-"
        for label in labels
    ]


def seeds(rows: Sequence[Row]) -> Section:
    figures = _figures("seeds", "Median and percentile bands", words.SEEDS)
    parts = [*steps_tables(rows, ", many seeds"), *_left_out(rows), _picker("seeds", "Shown"), figures]
    return Section("seeds", "Many seeds", "\n".join(parts))


def sensitivity(rows: Sequence[Row]) -> Section:
    parts = [note(words.GRID)]
    for table in sensitivity_tables(rows):
        task, *columns = table.head
        parts.append(html.table(Table(["behaviour rollouts", *columns], table.rows), f"{task}, by n_b and h"))
    figures = _figures("sensitivity", "Returns by setting", words.SETTINGS)
    parts += [*_left_out(rows), _picker("sensitivity", "Settings"), figures]
    return Section("sensitivity", "Sensitivity to n_b and h", "\n".join(parts))


def walltime(rows: Sequence[Row]) -> Section:
    content = seconds_table(groups(rows))
    parts = [note(content.note), html.table(content, "Seconds to the threshold"), *_left_out(rows)]
    return Section("walltime", "Wall-clock time", "\n".join(parts))


def regulators(rows: Sequence[Row]) -> Section:
    content = lqr.table(rows)
    parts = [note(content.note), html.table(content, "Relative suboptimality and share stable")]
    parts += [_picker("lqr", "Methods"), _figures("lqr", "Cost and stability", words.REGULATORS)]
    return Section("lqr", "LQR", "\n".join(parts))


def rank_quality(records: Sequence[dict[str, Any]]) -> Section:
    tables = []
    for record in records:
        for targets in dict.fromkeys(tuple(checkpoint["noise"]) for checkpoint in record["checkpoints"]):
            some = [checkpoint for checkpoint in record["checkpoints"] if tuple(checkpoint["noise"]) == targets]
            rows = [row for checkpoint in some for row in _ranking_rows(checkpoint)]
            top = f"of the top b by {'max' if 'max' in targets else 'return'}"
            head = ["policy of", "ranking", *(f"with {MEANING[target]}" for target in targets), top]
            table = html.table(Table(head, rows), f"{record['task']}: Spearman correlation and 95% interval")
            tables.append(f"<details><summary>{html.text(record['task'])}, numbers</summary>\n{table}\n</details>")
    parts = [_picker("rank", "Rankings"), _figures("rank", "Agreement with true scores", words.RANKING), *tables]
    return Section("rank-quality", "Rank quality", "\n".join(parts))


def _ranking_rows(checkpoint: dict[str, Any]) -> list[list[str]]:
    policy = f"{checkpoint['algo']} seed {checkpoint['seed']}, iteration {checkpoint['iteration']}"
    rows = []
    for name, by_target in checkpoint["rankers"].items():
        found = [by["spearman"] for by in by_target.values()]
        cells = [f"{rho['value']:+.2f} ({rho['low']:+.2f} to {rho['high']:+.2f})" for rho in found]
        first = next(iter(by_target.values()))
        rows.append([policy, name, *cells, f"{first['overlap']:.2f}"])
    ceilings = [f"{noise['ceiling']:.2f}" for noise in checkpoint["noise"].values()]
    return [*rows, [policy, "perfect, about", *ceilings, f"{checkpoint['overlap_by_chance']:.2f} by chance"]]


def videos(clips: Sequence[Clip]) -> Section:
    """The best policy of each task."""
    parts = []
    for clip in clips:
        caption = f"{html.text(clip.task)}: best policy of {html.text(clip.run)}, mean return {clip.best_return:,.0f}"
        if clip.uri is None:
            parts.append(f'<p class="note">{caption}. There is no video: {html.text(clip.problem)}</p>')
            continue
        label = f"{html.text(clip.task)}, {clip.seconds:.0f} seconds"
        parts.append(
            f'<figure><video controls muted loop playsinline preload="metadata" src="{clip.uri}" aria-label="{label}">'
            f"</video><figcaption>{caption}</figcaption></figure>"
        )
    inside = "\n".join(parts) or note("No run folder here has a policy to show.")
    return Section("videos", "The best policies", f'<div class="videos">{inside}</div>')
