"""The studies by name: which runs each of them plans, and which table and figure it makes from their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from offrank.algorithms import ALGORITHMS
from offrank.core.errors import UsageError
from offrank.core.files import write_atomically
from offrank.display.figures import Figure, save
from offrank.lab.studies import figures, guided, hybrids, lqr
from offrank.lab.studies.outcomes import Row, gather, groups, left_out
from offrank.lab.studies.paper import about, paper
from offrank.lab.studies.plan import Planned, Variant, plan_runs
from offrank.lab.studies.tables import interactions_markdown, seconds_table, sensitivity_tables, summarise
from offrank.runs.config import EVAL_EVERY, task_default
from offrank.runs.recipe import resolve
from offrank.tasks import TASKS

THREE = ("Swimmer-v3", "Hopper-v3", "HalfCheetah-v3")
REACHING = ("threshold", "steps_to_threshold")  # keys of a row that tell when the threshold was reached
CURVE = (*REACHING, "evaluations")


@dataclass(frozen=True)
class StudyOptions:
    """What the user asked for; None stands for the study's default."""

    tasks: tuple[str, ...] | None = None
    algos: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    budget: int | None = None


def compared(task: str, algos: Sequence[str], asked: bool) -> list[Variant]:
    """The variants that names stand for.

    A name is the algorithm of that name; an on-policy algorithm's name stands for both baselines. `algo/ranker` is any
    combination.

    Args:
        task: to run on.
        algos: names.
        asked: whether the user chose the algorithms; if not, only those that the paper has on the task are returned.
    """
    out: list[Variant] = []
    for word in algos:
        algo, _, ranker = word.partition("/")
        resolve(task, algo, ranker or None)  # raises UsageError for an unknown name
        if ranker:
            out.append(Variant.of(task, algo, ranker))
        elif asked or algo in (about(task, "interactions") or algos):
            out.append(Variant(algo))
            out += [Variant(algo, "random")] if ALGORITHMS[algo].ranker == "on-policy" else []
    return list(dict.fromkeys(out))


def grid(task: str, algos: Sequence[str], asked: bool) -> list[Variant]:
    """Every combination of n_b and h that the paper tried; the preset's own is the plain variant."""
    axes: Mapping[str, list[Any]] = paper()["grid"]
    combinations = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    return [Variant.of(task, algo, None, settings) for algo in algos for settings in combinations]


def _save(figure: Figure, stem: Path) -> None:
    save(figure, stem.with_name(f"{stem.name}.png"))


def present_table(rows: list[Row], stem: Path) -> str:
    summaries = summarise(rows)
    write_atomically(stem.with_name(f"{stem.name}-summary.json"), (json.dumps(summaries, indent=1) + "\n").encode())
    parts = ["Thousands of environment steps to the threshold.", left_out(rows), interactions_markdown(summaries)]
    return "\n\n".join(filter(None, parts))


def present_boxes(rows: list[Row], stem: Path) -> str:
    _save(figures.box_plots(rows), stem)
    return present_table(rows, stem)


def present_curves(rows: list[Row], stem: Path) -> str:
    _save(figures.seed_curves(rows, by_strategy=True), stem)
    return present_table(rows, stem)


def present_seeds(rows: list[Row], stem: Path) -> str:
    _save(figures.seed_bands(rows), stem)
    return present_table(rows, stem)


def present_sensitivity(rows: list[Row], stem: Path) -> str:
    _save(figures.seed_bands(rows, combinations=True), stem)
    tables = [table.markdown() for table in sensitivity_tables(rows)]
    return "\n\n".join(tables) + "\n\n" + present_table(rows, stem)


def present_walltime(rows: list[Row], stem: Path) -> str:
    return seconds_table(groups(rows)).markdown() + "\n\n" + present_table(rows, stem)


@dataclass(frozen=True)
class Study:
    """A table or figure of the paper: its runs, and how their results are presented."""

    name: str
    help: str
    present: Callable[[list[Row], Path], str]  # writes STEM-summary.json and STEM.png; returns Markdown
    tasks: tuple[str, ...] = tuple(TASKS)
    algos: tuple[str, ...] = ("ars", "op-ars", "tres", "op-tres")
    seeds: range = range(8)
    variants: Callable[[str, Sequence[str], bool], list[Variant]] = compared
    stops: bool = True  # runs stop at the threshold; otherwise every run uses its whole budget
    steps: int | Mapping[str, int] | None = None  # budget of a run, or one per task; None: the task's
    evaluation: Mapping[str, int] = field(default_factory=lambda: {"eval_every": EVAL_EVERY})
    pool: str = "runs"  # subfolder of the study folder that holds the run folders
    timed: bool = False  # whether seconds count: one run at a time, which does not go on during its evaluations
    can_be_cut: bool = True  # whether a row can be cut at a smaller budget
    needs: tuple[str, ...] = REACHING  # keys that a row, or its hyperparameters, must have
    any_task: bool = True  # whether other tasks than its own may be chosen
    gather: Callable[[Path], Row] = gather
    other_methods: Callable[[Sequence[int], int], list[Row]] | None = None  # other methods: (seeds, budget) to rows

    def check(self, rows: Sequence[Row], parts: bool = False) -> None:
        """Raise UsageError if a row lacks what the study shows, or, with `parts`, what cutting it at a budget needs."""
        needs = (*self.needs, "evaluations") if parts else self.needs
        for row in rows:
            lacking = [name for name in needs if name not in row and name not in row["hyperparameters"]]
            if lacking:
                which = f"{row['task']} {row['algo']} seed {row['seed']}"
                raise UsageError(f"{self.name} needs {lacking[0]} in every row, and the row of {which} has none")
        if "threshold" in self.needs and rows and all(row["threshold"] is None for row in rows):
            raise UsageError(f"{self.name} is about reaching a threshold, and no row has one")

    def plan(self, options: StudyOptions) -> list[Planned]:
        tasks = options.tasks or self.tasks
        if not self.any_task and set(tasks) != set(self.tasks):
            raise UsageError(f"{self.name} runs on {', '.join(self.tasks)} only: leave out --tasks")
        seeds = self.seeds if options.seeds is None else options.seeds
        variants = {t: self.variants(t, options.algos or self.algos, options.algos is not None) for t in tasks}
        kind = "budget" if self.stops else "fixed"
        own = self.steps if isinstance(self.steps, Mapping) else dict.fromkeys(tasks, self.steps)
        steps = {t: options.budget or own.get(t) or about(t, kind) for t in tasks}
        thresholds = {t: task_default(t, "threshold") if self.stops else None for t in tasks}
        for task in tasks:
            if self.stops and thresholds[task] is None:
                raise UsageError(f"{task} has no threshold, and {self.name} is about reaching one")
        return plan_runs(tasks, variants, seeds, steps, thresholds, **self.evaluation)


STUDIES = {
    study.name: study
    for study in (
        Study("table1", "steps to the threshold and the paper's, with both baselines", present_table),
        Study("boxplots", "box plots of the same runs", present_boxes),
        Study("curves", "every seed of the same runs against steps", present_curves, needs=CURVE),
        Study(
            name="seeds",
            help="100 seeds of OP-ARS: median and percentile bands",
            present=present_seeds,
            tasks=THREE,
            algos=("op-ars",),
            seeds=range(100),
            stops=False,
            needs=CURVE,
        ),
        Study(
            name="sensitivity",
            help="the n_b x h grid of OP-ARS",
            present=present_sensitivity,
            tasks=THREE,
            algos=("op-ars",),
            seeds=range(4),
            variants=grid,
            stops=False,
            needs=(*CURVE, "n_behaviour", "bandwidth"),
        ),
        Study(
            name="walltime",
            help="seconds to the threshold, one run at a time",
            present=present_walltime,
            pool="timed",
            timed=True,
            can_be_cut=False,
            needs=(*REACHING, "wall_s"),
        ),
        Study(
            name="hybrids",
            help="CEM-RL, its off-policy form, CEM and ARS at 500,000 steps",
            present=hybrids.present,
            tasks=hybrids.TASKS,
            algos=hybrids.ALGOS,
            variants=hybrids.variants,
            stops=False,
            steps=hybrids.STEPS,
            evaluation={"eval_steps": 10_000, "eval_episodes": 10},
            pool="hybrids",
            needs=CURVE,
        ),
        Study(
            name="guided",
            help="guided (skip:32, linear), faded and distilled to the thresholds, on sixteen seeds of their own",
            present=guided.present,
            tasks=tuple(guided.BUDGETS),
            algos=tuple(guided.POLICIES),
            seeds=range(200, 216),
            variants=guided.kinds,
            steps=guided.BUDGETS,
            evaluation=guided.EVALUATION,
            pool="guided",
            needs=CURVE,
        ),
        Study(
            name="guided-parts",
            help="guided with one part changed at a time, on tuning seeds",
            present=guided.present_parts,
            tasks=tuple(guided.PARTS_STEPS),
            algos=(guided.ALGO,),
            seeds=range(1000, 1008),
            variants=guided.parts,
            stops=False,
            steps=guided.PARTS_STEPS,
            evaluation={"eval_steps": 5_000, "eval_episodes": 10},
            pool="guided",
            needs=CURVE,
        ),
        Study(
            name="lqr",
            help="nominal control, LSPI, ARS and OP-ARS on LQR",
            present=lqr.present,
            tasks=("LQR",),
            algos=("ars", "op-ars"),
            seeds=range(100),
            stops=False,
            evaluation={"eval_every": 0},
            can_be_cut=False,
            needs=("curve",),
            any_task=False,
            gather=lqr.gather,
            other_methods=lqr.other_methods,
        ),
    )
}
