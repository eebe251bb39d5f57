"""The page: sections for what was found, its data, its style and its script in one file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from string import Template

from offrank.display.figures import Figure
from offrank.lab.bench.rounds import machine
from offrank.lab.rank_quality.figure import rank_quality
from offrank.lab.report import clips, commands, html, sections, words
from offrank.lab.report.sections import Section
from offrank.lab.report.sources import LQR, STEPS, Sources
from offrank.lab.studies import figures, lqr


def build(found: Sources, directory: Path, command: Sequence[str], videos: bool = False) -> str:
    """The whole page.

    Args:
        found: what to report on.
        directory: where it was found.
        command: the arguments of the command that makes the page.
        videos: with clips of the best policies.
    """
    shown = [sections.videos(clips.record(found.folders))] if videos else []
    parts, drawn = _contents(found)
    parts += [*shown, _reading(), _origin(found, command)]
    contents = "".join(f'<li><a href="#{part.name}">{part.title}</a></li>' for part in parts)
    body = "\n".join(f'<section id="{part.name}">\n<h2>{part.title}</h2>\n{part.body}\n</section>' for part in parts)
    folder = files(__package__)
    names = ("page.html", "style.css", "charts.js", "report.js")
    page, style, charts, script = ((folder / name).read_text(encoding="utf-8") for name in names)
    return Template(page).substitute(
        title=html.text(f"offrank report: {directory.resolve().name}"),
        lead=html.text(_lead(found)),
        contents=contents,
        body=body,
        data=html.data({name: {key: asdict(figure) for key, figure in by.items()} for name, by in drawn.items()}),
        style=style,
        script=charts + script,
    )


def _contents(found: Sources) -> tuple[list[Section], dict[str, dict[str, Figure]]]:
    """The sections for everything found, and their figures by the name of their place on the page."""
    parts: list[Section] = []
    drawn: dict[str, dict[str, Figure]] = {}
    rows = found.rows
    if STEPS in rows:
        made = {
            "curves": figures.seed_curves(rows[STEPS]),
            "boxes": figures.box_plots(rows[STEPS]),
            "arrivals": figures.arrival_curves(rows[STEPS]),
        }
        drawn["steps"] = {name: figure for name, figure in made.items() if figure.panels}
        parts.append(sections.steps(rows[STEPS], drawn["steps"]))
    if "seeds" in rows:
        parts.append(sections.seeds(rows["seeds"]))
        drawn["seeds"] = {"seeds": figures.seed_bands(rows["seeds"])}
    if "sensitivity" in rows:
        parts.append(sections.sensitivity(rows["sensitivity"]))
        drawn["sensitivity"] = {"sensitivity": figures.seed_bands(rows["sensitivity"], combinations=True)}
    if "walltime" in rows:
        parts.append(sections.walltime(rows["walltime"]))
    if LQR in rows:
        parts.append(sections.regulators(rows[LQR]))
        drawn["lqr"] = {"lqr": lqr.figure(rows[LQR])}
    if found.records:
        parts.append(sections.rank_quality(found.records))
        checkpoints = [checkpoint for record in found.records for checkpoint in record["checkpoints"]]
        drawn["rank"] = {"rank": rank_quality(checkpoints)}
    return parts, drawn


def _lead(found: Sources) -> str:
    """The page's contents in one line."""
    rows = found.every_row
    tasks = dict.fromkeys([*(row["task"] for row in rows), *(record["task"] for record in found.records)])
    checkpoints = sum(len(record["checkpoints"]) for record in found.records)
    counts = [f"{len(rows):,} run{'s' * (len(rows) != 1)}"] if rows else []
    counts += [f"{checkpoints} rank-quality checkpoints"] if checkpoints else []
    counts += [f"{len(found.unfinished)} runs unfinished and left out"] if found.unfinished else []
    return f"{', '.join(tasks)}: {'; '.join(counts)}."


def _reading() -> Section:
    lines = [f"<dt>{html.text(term)}</dt><dd>{html.text(meaning)}</dd>" for term, meaning in words.READING.items()]
    return Section("reading", "How to read the tables", "<dl>\n" + "\n".join(lines) + "\n</dl>")


def _origin(found: Sources, command: Sequence[str]) -> Section:
    """Versions, machine, commands."""
    here = machine()
    platform, ours = here["versions"]["platform"], here["versions"]["offrank"]
    made = f"This page was made by offrank {ours} on {here['cpu']}, {here['cores']} cores, {platform}."
    table = html.table(commands.provenance(found.every_row, found.records), "What made the runs")
    parts = [table, sections.note(made)]
    train = commands.training(found.every_row)
    if train:
        parts += ["<h3>The runs</h3>", sections.note(words.RUNS), _code(train)]
    parts.append("<h3>Tables, figures, this page</h3>")
    parts.append(_code([*commands.tabulating(found.files), shlex.join(["offrank", *command])]))
    return Section("origin", "Versions, machine, commands", "\n".join(parts))


def _code(lines: Sequence[str]) -> str:
    return f'<pre tabindex="0"><code>{html.text(chr(10).join(lines))}</code></pre>'
