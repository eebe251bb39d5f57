"""The commands that repeat the runs of the page, and the versions and machines that made them."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from offrank.algorithms import ALGORITHMS
from offrank.display.plots import ranges
from offrank.lab.studies.catalogue import STUDIES
from offrank.lab.studies.lqr import METHODS
from offrank.lab.studies.outcomes import Group, Row, every_group
from offrank.lab.studies.tables import Table
from offrank.runs.config import EVAL_EVERY


def training(rows: Iterable[Row]) -> list[str]:
    """For every variant of a task the command that gives the same bits, on the same engine and platform.

    A variant that this version does not have gets a comment instead.
    """
    rows = list(rows)
    others = [row for row in rows if row["algo"] in METHODS]
    found = every_group(row for row in rows if row["algo"] not in METHODS)
    lines = [_train(group, members) for group in found for members in _alike(group)]
    for budget in dict.fromkeys(row["steps"] for row in others):
        seeds = sorted({row["seed"] for row in others if row["steps"] == budget})
        lines.append(f"offrank reproduce lqr --seeds {_seeds(seeds)} --budget {budget}")
    return lines


def _seeds(seeds: Sequence[int]) -> str:
    return ranges(seeds).replace(" ", "")


def _alike(group: Group) -> list[list[Row]]:
    """The runs of a group by their limit and setup: one command each."""
    found: dict[str, list[Row]] = {}
    for row in group.rows:
        found.setdefault(json.dumps([_limit(row), row.get("setup")], sort_keys=True), []).append(row)
    return list(found.values())


def _limit(row: Row) -> list[str]:
    return ["--steps", str(row["budget"])] if row.get("budget") else ["--iterations", str(row.get("iterations", 1))]


def _train(group: Group, rows: Sequence[Row]) -> str:
    variant, first = group.variant, rows[0]
    seeds = _seeds(sorted({row["seed"] for row in rows}))
    if not variant.is_known(group.task):
        return f"# {group.task} {variant.label}, seeds {seeds}: this version has no such algorithm, ranker or setting"
    words = ["offrank", "train", group.task, "--algo", variant.algo]
    words += ["--ranker", variant.ranker] if variant.ranker else []
    words += ["--policy", variant.policy] if variant.policy else []
    for name, value in variant.settings:
        words += ["--set", f"{name}={value}"]
    words += ["--seeds", seeds, *_limit(first), "--engine", group.engine]
    words += _setup(first)
    ran_on = any(r["steps_to_threshold"] is not None and r["steps"] > r["steps_to_threshold"] for r in rows)
    words += ["--threshold", "none"] if ran_on else []
    return shlex.join(words)


def _setup(row: Row) -> list[str]:
    """Flags of a run's setup; older rows only tell how often the run was evaluated."""
    evaluations = row.get("evaluations") or []
    known = row.get("setup") or {"eval_every": int(evaluations[0][0]) if evaluations else 0 if "curve" in row else 10}
    suggested = getattr(ALGORITHMS[row["algo"]].settings, "eval_steps", None)
    every, steps = known.get("eval_every", EVAL_EVERY), known.get("eval_steps")
    words = []
    if steps != suggested or every != EVAL_EVERY:
        words += ["--eval-every", str(every)] if steps is None else ["--eval-steps", str(steps)]
    for name, usual in (("horizon", None), ("eval_episodes", 100), ("confirm_episodes", 0)):
        if known.get(name, usual) != usual:
            words += [f"--{name.replace('_', '-')}", str(known[name])]
    for name, value in (known.get("env_args") or {}).items():
        words += ["--env-arg", f"{name}={value}"]
    if known.get("clip_actions") is not None:
        words.append("--clip-actions" if known["clip_actions"] else "--no-clip-actions")
    return words


def tabulating(files: Iterable[Path]) -> list[str]:
    """The commands that make tables and figures from files of rows, next to each of them."""
    lines = []
    for path in files:
        known = path.stem in STUDIES
        study, out = (path.stem, path.parent) if known else ("table1", path.with_suffix(""))
        lines.append(shlex.join(["offrank", "reproduce", study, "--from", path.as_posix(), "--out", out.as_posix()]))
    return lines


def provenance(rows: Iterable[Row], records: Iterable[dict[str, Any]]) -> Table:
    """Versions and platforms, with the number of runs and checkpoints that each has made."""
    runs: Counter[tuple[tuple[str, str], ...]] = Counter()
    checkpoints: Counter[tuple[tuple[str, str], ...]] = Counter()
    for row in rows:
        runs[tuple((row.get("versions") or {}).items())] += 1
    for record in records:
        checkpoints[tuple((record.get("versions") or {}).items())] += len(record["checkpoints"])
    every = list(dict.fromkeys([*runs, *checkpoints]))
    columns = list(dict.fromkeys(name for key in every for name, _ in key))
    lines = [
        [str(runs[key]), str(checkpoints[key]), *(dict(key).get(name, "not recorded") for name in columns)]
        for key in every
    ]
    return Table(["runs", "rank-quality checkpoints", *columns], lines)
