"""Results of runs as small rows, one per run: all tables and figures are made from them.

A row is the run's result with its scheduled evaluations; the run folder is not needed any more. A file of rows is JSON
with one row per line, so that a change of one run is a change of one line.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offrank.core.errors import FileFormatError
from offrank.core.files import parse_json, read_json, write_atomically
from offrank.display.plots import Curve, run_folders
from offrank.lab.studies.plan import Variant
from offrank.runs.config import EVALUATION, RunConfig, task_default
from offrank.runs.folder import METRICS, RESULT
from offrank.tasks import TASKS

Row = dict[str, Any]
SETUP = ("horizon", *EVALUATION, "env_args", "clip_actions")  # what a command needs beyond the result
AT_THE_END = {
    "evaluation_steps", "best_return", "final_return", "stop_reason", "wall_s", "training_seconds", "policy_sha256"
}  # fmt: skip
KINDS = {"task": str, "algo": str, "seed": int, "steps": int, "engine": str, "hyperparameters": dict}
NEEDED = {*KINDS, "ranker"}


def gather(folder: Path) -> Row:
    """The row of a run. The threshold is the task's preset, whether or not the run was to stop at it.

    An unfinished run counts as one whose budget ended at its last evaluation.
    """
    curve = Curve.read(folder)
    config = curve.config
    scheduled = [r for r in curve.evaluations() if not r.get("final")]
    result = result_with(folder, curve) if (folder / RESULT).is_file() else _so_far(config, scheduled)
    threshold = task_default(config.task, "threshold")
    if threshold is None:  # a task without presets
        threshold = config.threshold
    crossing = curve.crossing(threshold)
    keys = ("iteration", "steps", "return_mean", "return_std")
    return result | {
        "threshold": threshold,
        "reached": crossing is not None,
        "steps_to_threshold": None if crossing is None else crossing["steps"],
        "seconds_to_threshold": None if crossing is None else round(crossing["wall_s"], 1),
        "training_seconds_to_threshold": None if crossing is None else _training_seconds(curve, crossing),
        "training_seconds": _training_seconds(curve, curve.records[-1]) if curve.records else 0.0,
        "evaluations": [[round(r[k], 2) for k in keys] for r in scheduled],
        "setup": setup(config),
    }


def result_of(folder: Path) -> Row:
    """The content of `result.json` of a finished run."""
    result = read_json(folder / RESULT)
    if not set(result) >= NEEDED:
        raise FileFormatError(f"{folder / RESULT} is damaged: it has no {_words(NEEDED - set(result))}")
    return result


def result_with(folder: Path, curve: Curve) -> Row:
    """The content of `result.json` of a finished run whose metrics are whole.

    Raises:
        FileFormatError: the metrics hold fewer iterations, steps or evaluations than the result says.
    """
    result, config = result_of(folder), curve.config
    evaluations = [r for r in curve.records if r["kind"] == "evaluation"]
    lengths = (r["length_mean"] * r.get("eval_episodes", config.eval_episodes) for r in evaluations)
    held = {
        "iterations": sum(r["kind"] == "iteration" for r in curve.records),
        "steps": max((r["steps"] for r in curve.records), default=0),
        "evaluation_steps": sum(map(round, lengths)),
    }
    # A run that goes on beyond the limit it had stopped at has dropped its final evaluation.
    goes_on = {
        "steps": config.steps != result.get("budget"),
        "iterations": config.iterations != result.get("iterations"),
    }
    if goes_on.get(result.get("stop_reason", "")):
        del held["evaluation_steps"]
    for name, count in held.items():
        if count < result.get(name, 0):
            said = f"{count:,} of {result[name]:,} {name.replace('_', ' ')}"
            raise FileFormatError(f"{folder / METRICS} is shorter than {RESULT} says ({said}): lines are missing")
    return result


def _so_far(config: RunConfig, scheduled: Sequence[Row]) -> Row:
    """The result that an unfinished run would have if it had ended at its last evaluation."""
    names = ("task", "algo", "ranker", "policy", "seed", "engine", "hyperparameters")
    last = scheduled[-1] if scheduled else {"steps": 0, "episodes": 0, "iteration": 0}
    return {name: getattr(config, name) for name in names} | {
        "steps": last["steps"],
        "budget": last["steps"],
        "episodes": last["episodes"],
        "iterations": last["iteration"],
        "stop_reason": None,
    }


def setup(config: RunConfig) -> dict[str, Any]:
    """Settings of a run that its result does not repeat."""
    return {name: getattr(config, name) for name in SETUP}


def _training_seconds(curve: Curve, end: dict[str, Any]) -> float | None:
    """Wall-clock seconds up to a record without the evaluations; None where training went on during those."""
    evaluating, before = 0.0, 0.0
    for record in curve.records:
        if record["kind"] == "evaluation":
            if not record.get("alone"):
                return None
            evaluating += record["wall_s"] - before
        before = record["wall_s"]
        if record is end:
            break
    return float(round(end["wall_s"] - evaluating, 1))


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    lines = ",\n".join(json.dumps(row) for row in rows)
    write_atomically(path, f"[\n{lines}\n]\n".encode())


def read_rows(paths: Iterable[Path], unfinished: bool = False, gather: Callable[[Path], Row] = gather) -> list[Row]:
    """Rows of files that `write_rows` wrote, and of the finished runs in folders, or of all runs there."""
    rows: list[Row] = []
    for path in paths:
        if path.is_dir():
            rows += [gather(folder) for folder in run_folders([path]) if unfinished or (folder / RESULT).is_file()]
            continue
        found = rows_of(path)
        if found is None:
            raise FileFormatError(f"{path} does not hold results of runs, one per line, as reproduce writes them")
        rows += found
    return rows


def rows_of(path: Path) -> list[Row] | None:
    """The rows in a file; None if it holds something else.

    Raises:
        FileFormatError: it is not JSON, or a row in it is damaged.
    """
    found = parse_json(path)
    if not isinstance(found, list) or not all(isinstance(row, dict) and set(row) >= NEEDED for row in found):
        return None
    for row in found:
        wrong = [name for name, kind in KINDS.items() if not isinstance(row[name], kind)]
        if row.get("threshold") is not None and "steps_to_threshold" not in row:
            wrong.append("steps_to_threshold")
        if not isinstance(row.get("evaluations", []), list):
            wrong.append("evaluations")
        if wrong:
            about = f"the row of {row['task']} seed {row['seed']}"
            raise FileFormatError(f"{path} is damaged: {about} has no, or an invalid, {_words(wrong)}")
    return found


def distinct(rows: Iterable[Row]) -> list[Row]:
    """One row per run: of equal runs one that has ended, with the largest budget.

    Not the one that took more steps: a run stops at the threshold, and one that missed it on another machine would
    always be preferred.
    """
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = identity(row)
        if key not in found or _ended_and_budget(row) > _ended_and_budget(found[key]):
            found[key] = row
    return list(found.values())


def identity(row: Row) -> tuple[Any, ...]:
    """Task, variant, engine and seed: equal for the same run, however far it went."""
    return row["task"], Variant.of_row(row).label, row.get("engine"), row["seed"]


def _ended_and_budget(row: Row) -> tuple[bool, float]:
    """Whether the run has ended, and its budget."""
    ended = row.get("stop_reason", "unknown") is not None
    return ended, math.inf if ended and row.get("budget") is None else row["budget"]


def _words(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def cut(row: Row, budget: int) -> Row:
    """The row as it would be if the run had had a smaller budget."""
    least = budget if row.get("budget") is None else min(budget, row["budget"])
    if row["steps"] <= budget:
        return row | {"budget": least}
    scheduled = [e for e in row["evaluations"] if e[1] <= budget]
    iterations = scheduled[-1][0] if scheduled else 0
    shorter = {name: value for name, value in row.items() if name not in AT_THE_END}
    shorter |= {"steps": budget, "budget": least, "iterations": iterations, "evaluations": scheduled}
    if "episodes" in row:
        shorter["episodes"] = round(row["episodes"] * iterations / row["iterations"])
    if (row["steps_to_threshold"] or 0) > budget:
        names = ("steps_to_threshold", "seconds_to_threshold", "training_seconds_to_threshold")
        shorter |= {"reached": False} | dict.fromkeys(names)
    return shorter


@dataclass(frozen=True)
class Group:
    """The runs of one variant of a task on one engine, by seed."""

    task: str
    variant: Variant
    engine: str
    rows: tuple[Row, ...]
    left_out: int = 0  # runs that ended before an evaluation was due

    @property
    def seeds(self) -> list[int]:
        return [row["seed"] for row in self.rows]

    @property
    def reached(self) -> list[int | None]:
        return [row["steps_to_threshold"] for row in self.rows]

    @property
    def spent(self) -> list[int]:
        """Steps of each run: for one that did not reach the threshold, the point at which it is censored."""
        return [row["steps"] for row in self.rows]

    @property
    def budget(self) -> int:
        """The largest budget of the runs that did not reach the threshold; if all did, of all runs."""
        short = [row for row in self.rows if row["steps_to_threshold"] is None]
        return max(given(row) for row in short or self.rows)

    @property
    def watched(self) -> int:
        """A lower bound for a median, or an end of its interval, that is not known.

        Up to here at least half of the runs, or all that never reached the threshold, are known not to have reached it.
        Where some runs were stopped early, that is less than the longest of them took.
        """
        short = [min(given(row), row["steps"]) for row in self.rows if row["steps_to_threshold"] is None]
        known = sorted([*short, *(steps for steps in self.reached if steps is not None)], reverse=True)
        half: int = known[(len(known) - 1) // 2]
        return max(half, min(short, default=0))

    @property
    def kernel(self) -> tuple[int, float]:
        """n_b and h, for runs of the kernel ranker."""
        h = self.rows[0]["hyperparameters"]
        return h["n_behaviour"], h["bandwidth"]

    @property
    def size(self) -> str:
        """The paper's N/b: directions sampled and used; a dash for algorithms without directions."""
        h = self.rows[0]["hyperparameters"]
        if "n_directions" not in h:
            return "-"
        sampled, used = h["n_directions"], h.get("n_top", "?")
        return f"{used if self.rows[0]['ranker'] == 'random' else sampled}/{used}"


def given(row: Row) -> int:
    """The budget of a run in steps; where it had none, the steps it took."""
    return int(row["steps"] if row.get("budget") is None else row["budget"])


def never_evaluated(row: Row) -> bool:
    """Whether a run ended before its first scheduled evaluation: nobody knows whether it had reached the threshold."""
    return row.get("evaluations") == []  # a row without the key is of a run whose evaluations were not stored


def groups(rows: Iterable[Row]) -> list[Group]:
    """The groups of `every_group`, without the runs that ended before an evaluation was due."""
    found = []
    for group in every_group(rows):
        known = tuple(row for row in group.rows if not never_evaluated(row))
        found += [replace(group, rows=known, left_out=len(group.rows) - len(known))] if known else []
    return found


def every_group(rows: Iterable[Row]) -> list[Group]:
    """Rows by task, variant and engine, tasks and variants in their usual order; within a group by seed."""
    found: dict[tuple[str, Variant, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["task"], Variant.of_row(row), row["engine"]), []).append(row)
    made = [Group(*key, tuple(sorted(members, key=lambda r: int(r["seed"])))) for key, members in found.items()]
    tasks = [*TASKS, *(g.task for g in made)]
    return sorted(made, key=lambda g: (tasks.index(g.task), g.variant.place))


def left_out(rows: Iterable[Row]) -> str:
    """A sentence about the runs that `groups` leaves out; empty if there are none."""
    found = Counter(f"{row['task']} {Variant.of_row(row).label}" for row in rows if never_evaluated(row))
    counts = ", ".join(f"{name} ({count})" for name, count in sorted(found.items()))
    return f"Runs left out because they ended before an evaluation was due: {counts}." if found else ""


def engines_differ(found: Sequence[Group]) -> bool:
    """Whether a variant of a task was run on several engines, so that its name is ambiguous."""
    return len(found) > len({(g.task, g.variant) for g in found})


def name_of(group: Group, several: bool) -> str:
    """The name of a variant in a table or figure, with its engine if there are several."""
    return f"{group.variant.label} ({group.engine})" if several else group.variant.label


def names(found: Sequence[Group]) -> list[str]:
    """The names of all variants, of all tasks, in their usual order."""
    several = engines_differ(found)
    places = {name_of(g, several): g.variant.place for g in found}
    return sorted(places, key=lambda name: (places[name], name))
