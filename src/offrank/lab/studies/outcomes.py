"""What runs came to, a small row a run: all that the tables and figures are made from.

A row is the run's result with its scheduled evaluations, and needs no run folder any more. A file of rows is JSON, one
row a line, so that a change of one run is a change of one line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offrank.core.errors import FileFormatError
from offrank.core.files import parse_json, read_json, write_atomically
from offrank.display.plots import Curve, run_folders
from offrank.lab.studies.plan import Variant
from offrank.runs.config import ALGORITHMS, RunConfig, task_default
from offrank.runs.folder import RESULT
from offrank.tasks import TASKS

Row = dict[str, Any]
SETUP = ("horizon", "eval_every", "eval_episodes", "env_args", "clip_actions")  # what a command needs beside the rest
OF_THE_END = {"evaluation_steps", "best_return", "final_return", "stop_reason", "wall_s", "policy_sha256"}
KINDS = {"task": str, "algo": str, "seed": int, "steps": int, "engine": str, "hyperparameters": dict}
NEEDED = {*KINDS, "ranker"}


def gather(folder: Path) -> Row:
    """The row of a run. The threshold is the task's own, whether or not the run was to stop at it.

    What is known of an unfinished run is that it had not got there at its last evaluation: its budget ends there.
    """
    curve = Curve.read(folder)
    config = curve.config
    scheduled = [r for r in curve.evaluations() if not r.get("final")]
    result = result_of(folder) if (folder / RESULT).is_file() else _so_far(config, scheduled)
    threshold = task_default(config.task, "threshold")
    if threshold is None:  # a task that we know nothing of
        threshold = config.threshold
    crossing = curve.crossing(threshold)
    keys = ("iteration", "steps", "return_mean", "return_std")
    wall, training = _seconds(curve, crossing)
    return result | {
        "threshold": threshold,
        "reached": crossing is not None,
        "steps_to_threshold": None if crossing is None else crossing["steps"],
        "seconds_to_threshold": wall,
        "training_seconds_to_threshold": training,
        "evaluations": [[round(r[k], 2) for k in keys] for r in scheduled],
        "setup": setup(config),
    }


def result_of(folder: Path) -> Row:
    """What `result.json` of a finished run says."""
    result = read_json(folder / RESULT)
    if not set(result) >= NEEDED:
        raise FileFormatError(f"{folder / RESULT} is damaged: it says nothing of {_words(NEEDED - set(result))}")
    return result


def _so_far(config: RunConfig, scheduled: Sequence[Row]) -> Row:
    """What stands in for the result of an unfinished run, by its evaluations."""
    names = ("task", "algo", "ranker", "seed", "engine", "hyperparameters")
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


def _seconds(curve: Curve, crossing: dict[str, Any] | None) -> tuple[float | None, float | None]:
    """Wall-clock seconds up to the crossing, and those of them that went into training rather than evaluations."""
    if crossing is None:
        return None, None
    evaluating, before = 0.0, 0.0
    for record in curve.records:
        evaluating += record["wall_s"] - before if record["kind"] == "evaluation" else 0.0
        before = record["wall_s"]
        if record is crossing:
            break
    return round(crossing["wall_s"], 1), round(crossing["wall_s"] - evaluating, 1)


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
            raise FileFormatError(f"{path} does not hold the outcomes of runs, one a line, as reproduce writes them")
        rows += found
    return rows


def rows_of(path: Path) -> list[Row] | None:
    """The outcomes in a file; None if it holds something else.

    Raises:
        FileFormatError: it is no JSON, or an outcome in it is damaged.
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
            about = f"the outcome of {row['task']} seed {row['seed']}"
            raise FileFormatError(f"{path} is damaged: {about} has no, or no sensible, {_words(wrong)}")
    return found


def distinct(rows: Iterable[Row]) -> list[Row]:
    """Of equal runs one that has ended, with the larger budget. Not the one that took more steps: a run that got there
    stops, and one that did not, on another machine, would always be preferred."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = identity(row)
        if key not in found or _meant_to_go(row) > _meant_to_go(found[key]):
            found[key] = row
    return list(found.values())


def identity(row: Row) -> tuple[Any, ...]:
    """What makes a run the same run, however far it went: a setting that is the task's own may be named or not."""
    what: Any = row["algo"]
    if what in ALGORITHMS:
        what = Variant.of(row["task"], what, row.get("ranker"), row.get("hyperparameters")).label
    return row["task"], what, row.get("engine"), row["seed"]


def _meant_to_go(row: Row) -> tuple[bool, float]:
    """Whether the run has ended, and how far it might have gone."""
    ended = row.get("stop_reason", "unknown") is not None
    return ended, math.inf if ended and row.get("budget") is None else row["budget"]


def _words(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def cut(row: Row, budget: int) -> Row:
    """The row as it would be if the run had had a smaller budget: nothing counts that was learned later."""
    least = budget if row.get("budget") is None else min(budget, row["budget"])
    if row["steps"] <= budget:
        return row | {"budget": least}
    scheduled = [e for e in row["evaluations"] if e[1] <= budget]
    iterations = scheduled[-1][0] if scheduled else 0
    shorter = {name: value for name, value in row.items() if name not in OF_THE_END}
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

    @property
    def seeds(self) -> list[int]:
        return [row["seed"] for row in self.rows]

    @property
    def reached(self) -> list[int | None]:
        return [row["steps_to_threshold"] for row in self.rows]

    @property
    def spent(self) -> list[int]:
        """What is known of a run that did not get there: the steps it took."""
        return [row["steps"] for row in self.rows]

    @property
    def budget(self) -> int:
        """How far those were run that did not get there; where all did, how far they might have been."""
        short = [row for row in self.rows if row["steps_to_threshold"] is None]
        return max(given(row) for row in short or self.rows)

    @property
    def watched(self) -> int:
        """What can be said of a median, or an end of its interval, that is not known: it is more than this.

        Up to here at least half of the runs are known not to have got there, or all of those that never did: where some
        were stopped early, that is less than the longest of them took.
        """
        short = [min(given(row), row["steps"]) for row in self.rows if row["steps_to_threshold"] is None]
        known = sorted([*short, *(steps for steps in self.reached if steps is not None)], reverse=True)
        half: int = known[(len(known) - 1) // 2]
        return max(half, min(short, default=0))

    @property
    def kernel(self) -> tuple[int, float]:
        """n_b and h, of runs that the kernel ranked."""
        h = self.rows[0]["hyperparameters"]
        return h["n_behaviour"], h["bandwidth"]

    @property
    def size(self) -> str:
        """The paper's N/b: directions sampled and used."""
        h = self.rows[0]["hyperparameters"]
        sampled = h["n_top"] if self.rows[0]["ranker"] == "random" else h["n_directions"]
        return f"{sampled}/{h['n_top']}"


def given(row: Row) -> int:
    """Steps that a run might have taken."""
    return int(row["steps"] if row.get("budget") is None else row["budget"])


def groups(rows: Iterable[Row]) -> list[Group]:
    """Rows that may be taken together, tasks and variants in their usual order; within a group by seed."""
    found: dict[tuple[str, Variant, str], list[Row]] = {}
    for row in rows:
        variant = Variant.of(row["task"], row["algo"], row["ranker"], row["hyperparameters"])
        found.setdefault((row["task"], variant, row["engine"]), []).append(row)
    made = [Group(*key, tuple(sorted(members, key=lambda r: int(r["seed"])))) for key, members in found.items()]
    tasks = [*TASKS, *(g.task for g in made)]
    return sorted(made, key=lambda g: (tasks.index(g.task), g.variant.place))


def engines_differ(found: Sequence[Group]) -> bool:
    """Whether a variant of a task was run on several engines, so that its name does not say which runs are meant."""
    return len(found) > len({(g.task, g.variant) for g in found})


def name_of(group: Group, several: bool) -> str:
    """Of a variant in a table or figure; with its engine if there are several."""
    return f"{group.variant.label} ({group.engine})" if several else group.variant.label


def names(found: Sequence[Group]) -> list[str]:
    """Of all variants, whatever their task, in their usual order."""
    several = engines_differ(found)
    places = {name_of(g, several): g.variant.place for g in found}
    return sorted(places, key=lambda name: (places[name], name))
