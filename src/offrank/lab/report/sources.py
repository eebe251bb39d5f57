"""Finds what a report shows in a folder: rows of results, run folders, records of rank quality."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offrank.core.errors import FileFormatError, UsageError
from offrank.core.files import read_json
from offrank.lab.studies import lqr, outcomes
from offrank.lab.studies.outcomes import Row
from offrank.runs.folder import CONFIG, RESULT

RECORD = "rank-quality.json"
APART = ("seeds", "sensitivity", "walltime")  # studies with their own section; the others show the same runs
SHOWN = {"sensitivity": ("n_behaviour", "bandwidth"), "walltime": ("wall_s",)}  # what rows of these must have
STEPS, LQR = "steps", "lqr"
MEASURED = {"task", "algo", "ranker", "seed", "iteration", "rankers", "noise", "overlap_by_chance"}  # of a checkpoint


@dataclass
class Sources:
    """Everything found, rows by the section that shows them."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)  # of rows
    records: list[dict[str, Any]] = field(default_factory=list)  # of rank quality
    folders: list[Path] = field(default_factory=list)  # finished runs
    unfinished: list[Path] = field(default_factory=list)

    @property
    def every_row(self) -> list[Row]:
        return [row for rows in self.rows.values() for row in rows]


def find(directory: Path, rank_quality: Sequence[Path] = (), without: Sequence[str] = ()) -> Sources:
    """Search a study folder, or any folder with rows or run folders, at any depth.

    Of equal runs in several files one that has ended counts, of several such the one with the largest budget. A
    finished run folder is read if no file of rows holds its run.

    Args:
        directory: to search.
        rank_quality: files and folders with more records of rank quality.
        without: patterns of paths inside the directory to leave out, with everything inside them.

    Raises:
        UsageError: there is no such folder, nothing to report in it, or a pattern matches nothing.
        FileFormatError: a file in it is damaged.
    """
    for path in (directory, *rank_quality):
        if not path.exists():
            raise UsageError(f"there is no {path}")
    if not directory.is_dir():
        raise UsageError(f"{directory} is a file: give the folder it is in")
    found = Sources()
    left_out = _left_out(directory, without)
    runs = sorted(path.parent for path in _files(directory, CONFIG, left_out))
    found.folders = [folder for folder in runs if (folder / RESULT).is_file()]
    found.unfinished = [folder for folder in runs if not (folder / RESULT).is_file()]
    inside = set(runs)
    for path in _files(directory, "*.json", left_out):
        if path.parent not in inside and (rows := outcomes.rows_of(path)):
            found.files.append(path)
            kind = path.stem if path.stem in APART else STEPS
            _check_study(path, kind, rows)
            for row in rows:
                found.rows.setdefault(LQR if "curve" in row else kind, []).append(row)
    known = {outcomes.identity(row) for row in found.every_row}
    for folder in found.folders:
        result = outcomes.result_of(folder)
        if outcomes.identity(result) not in known:
            study = lqr if result["task"] == "LQR" else outcomes
            found.rows.setdefault(LQR if study is lqr else STEPS, []).append(study.gather(folder))
    found.rows = {kind: outcomes.distinct(rows) for kind, rows in found.rows.items()}
    records = {path.resolve(): path for path in (*_files(directory, RECORD, left_out), *_given(rank_quality))}
    found.records = [_record(path) for path in records.values()]
    if not found.rows and not found.records:
        raise UsageError(
            f"{directory} holds nothing to report: no rows of runs (STUDY.json, as offrank reproduce writes them), "
            f"no finished run folders, no {RECORD}" + (f"; {len(runs)} runs are unfinished" if runs else "")
        )
    return found


def _check_study(path: Path, study: str, rows: Iterable[Row]) -> None:
    """Raise FileFormatError if a row lacks what the section of the study, named by the file, shows."""
    for row in rows:
        lacking = [name for name in SHOWN.get(study, ()) if name not in row and name not in row["hyperparameters"]]
        if lacking:
            about = f"the row of {row['task']} {row['algo']} seed {row['seed']} has no {', '.join(lacking)}"
            raise FileFormatError(f"{path} is not of the study {study}: {about}; rename it or leave it out")


def _files(directory: Path, pattern: str, left_out: Collection[Path] = ()) -> list[Path]:
    """Files inside a folder, at any depth, except hidden ones."""
    paths = sorted(directory.rglob(pattern))
    paths = [p for p in paths if not any(part.startswith(".") for part in p.relative_to(directory).parts)]
    return [p for p in paths if p not in left_out and not any(parent in left_out for parent in p.parents)]


def _left_out(directory: Path, patterns: Sequence[str]) -> set[Path]:
    found: set[Path] = set()
    for pattern in patterns:
        matched = set(directory.glob(pattern)) if pattern and not Path(pattern).is_absolute() else set()
        if not matched:
            raise UsageError(f"--without {pattern}: no path in {directory} matches (example: 'drafts/*.json')")
        found |= matched
    return found


def _given(paths: Iterable[Path]) -> list[Path]:
    found = []
    for path in paths:
        inside = _files(path, RECORD) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"{path} holds no {RECORD}: offrank rank-quality TASK --out {path} writes it")
        found += inside
    return found


def _record(path: Path) -> dict[str, Any]:
    record = read_json(path)
    checkpoints = record.get("checkpoints")
    whole = isinstance(checkpoints, list) and all(isinstance(c, dict) and set(c) >= MEASURED for c in checkpoints)
    if "task" not in record or not checkpoints or not whole:
        raise FileFormatError(f"{path} is not a record of offrank rank-quality")
    return record
