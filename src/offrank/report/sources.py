"""What a folder holds to report on: outcomes, run folders, records of rank quality."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offrank.checkpoint import parse_json, read_json
from offrank.config import ALGORITHMS
from offrank.errors import FileFormatError, UsageError
from offrank.runfolder import CONFIG, RESULT
from offrank.studies import lqr, outcomes
from offrank.studies.outcomes import NEEDED, Row
from offrank.studies.plan import Variant

RECORD = "rank-quality.json"
APART = ("seeds", "sensitivity", "walltime")  # studies with a section of their own; the others are about the same runs
STEPS, LQR = "steps", "lqr"
JUDGED = {"algo", "seed", "iteration", "rankers", "noise", "overlap_by_chance"}  # of a checkpoint


@dataclass
class Sources:
    """Everything found, rows by the section that shows them."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)  # of outcomes
    records: list[dict[str, Any]] = field(default_factory=list)  # of rank quality
    folders: list[Path] = field(default_factory=list)  # finished runs
    unfinished: list[Path] = field(default_factory=list)

    @property
    def every_row(self) -> list[Row]:
        return [row for rows in self.rows.values() for row in rows]


def find(directory: Path, rank_quality: Sequence[Path] = (), without: Sequence[str] = ()) -> Sources:
    """Look through a study folder, or any folder of outcomes, with all that lies inside.

    Of equal runs in several files one that has ended counts, of several such the one with the larger budget. A finished
    run folder whose run no file of outcomes holds is read itself.

    Args:
        directory: to look through.
        rank_quality: files and folders of it elsewhere.
        without: patterns of paths inside the directory that are not to be read, with all that lies inside them.

    Raises:
        UsageError: there is no such folder, nothing in it, or nothing that a pattern matches.
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
        if path.parent not in inside and (rows := _rows(path)):
            found.files.append(path)
            kind = path.stem if path.stem in APART else STEPS
            for row in rows:
                found.rows.setdefault(LQR if "curve" in row else kind, []).append(row)
    known = {_identity(row) for row in found.every_row}
    for folder in found.folders:
        result = read_json(folder / RESULT)
        if _identity(result) not in known:
            study = lqr if result["task"] == "LQR" else outcomes
            found.rows.setdefault(LQR if study is lqr else STEPS, []).append(study.gather(folder))
    found.rows = {kind: _distinct(rows) for kind, rows in found.rows.items()}
    records = {path.resolve(): path for path in (*_files(directory, RECORD, left_out), *_given(rank_quality))}
    found.records = [_record(path) for path in records.values()]
    if not found.rows and not found.records:
        raise UsageError(
            f"{directory} holds nothing to report: no outcomes of runs (STUDY.json, as offrank reproduce writes them), "
            f"no finished run folders, no {RECORD}" + (f"; {len(runs)} runs are unfinished" if runs else "")
        )
    return found


def _files(directory: Path, pattern: str, left_out: Collection[Path] = ()) -> list[Path]:
    """Files inside a folder, at any depth; hidden ones are not ours."""
    paths = sorted(directory.rglob(pattern))
    paths = [p for p in paths if not any(part.startswith(".") for part in p.relative_to(directory).parts)]
    return [p for p in paths if p not in left_out and not any(parent in left_out for parent in p.parents)]


def _left_out(directory: Path, patterns: Sequence[str]) -> set[Path]:
    found: set[Path] = set()
    for pattern in patterns:
        matched = set(directory.glob(pattern)) if pattern and not Path(pattern).is_absolute() else set()
        if not matched:
            raise UsageError(f"--without {pattern}: nothing in {directory} is called that, such as 'drafts/*.json'")
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


def _rows(path: Path) -> list[Row]:
    """The outcomes in a file; none if it holds something else."""
    data = parse_json(path)
    if not isinstance(data, list) or not all(isinstance(row, dict) and set(row) >= NEEDED for row in data):
        return []
    for row in data:
        if row.get("threshold") is not None and "steps_to_threshold" not in row:
            raise FileFormatError(f"{path}: {row['task']} seed {row['seed']} has a threshold but no steps_to_threshold")
    return data


def _record(path: Path) -> dict[str, Any]:
    record = read_json(path)
    checkpoints = record.get("checkpoints")
    if "task" not in record or not checkpoints or not all(set(c) >= JUDGED for c in checkpoints):
        raise FileFormatError(f"{path} is not a record of offrank rank-quality")
    return record


def _identity(row: Row) -> tuple[Any, ...]:
    """What makes a run the same run, however far it went: a setting that is the task's own may be named or not."""
    what: Any = row["algo"]
    if what in ALGORITHMS:
        what = Variant.of(row["task"], what, row.get("ranker"), row.get("hyperparameters")).label
    return row["task"], what, row.get("engine"), row["seed"]


def _distinct(rows: Iterable[Row]) -> list[Row]:
    """Of equal runs one that has ended, with the larger budget. Not the one that took more steps: a run that got there
    stops, and one that did not, on another machine, would always be preferred."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = _identity(row)
        if key not in found or _meant_to_go(row) > _meant_to_go(found[key]):
            found[key] = row
    return list(found.values())


def _meant_to_go(row: Row) -> tuple[bool, float]:
    """Whether the run has ended, and how far it might have gone."""
    ended = row.get("stop_reason", "unknown") is not None
    return ended, math.inf if ended and row.get("budget") is None else row["budget"]
