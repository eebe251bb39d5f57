"""What the tuning scripts share: seeds, evaluation settings, the score of a run, and a time limit."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from typing import Any

from offrank.cli.options import Parser, count, setting
from offrank.core.errors import Interrupted, OffrankError
from offrank.engines import Engine, Gpu, make_engine
from offrank.lab.script import threshold_of
from offrank.runs.config import configure
from offrank.runs.drive import drive
from offrank.runs.recipe import Recipe
from offrank.runs.run import Run

FIRST_SEED = 1000  # tuning seeds are 1000, 1001, ...: no result is reported on them
EVALUATION = {"eval_every": 5, "eval_episodes": 10}


def add_flags(parser: Parser) -> None:
    """Flags of every tuning script."""
    parser.add_argument("task", metavar="TASK")
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="NAME=VALUE", help="for all runs")
    parser.add_argument("--engine", default="auto", help="warp for a GPU")
    parser.add_argument("--worlds", type=count, default=Gpu.worlds, help="of the warp engine")


def open_engine(args: argparse.Namespace) -> Engine:
    return make_engine(args.task, args.engine, gpu=Gpu(args.worlds))


def make_run(task: str, recipe: Recipe, engine: Engine, seed: int, steps: int) -> Run:
    """A run without a folder, up to the task's threshold or `steps`."""
    limits: dict[str, Any] = {"steps": steps, "threshold": threshold_of(task), **EVALUATION}
    return Run(configure(task, recipe, engine.space, seed=seed, engine=engine.name, **limits), engine.space)


def score(run: Run) -> float:
    """Area under the learning curve, between 0 and 1.

    The mean over the budget of return / threshold at the latest evaluation, clipped to [0, 1].
    """
    threshold, budget = run.config.threshold, run.config.steps
    assert threshold is not None and budget is not None
    area, before, level = 0.0, 0, 0.0
    for evaluation in run.evaluations:
        area += level * (min(evaluation.steps, budget) - before)
        before, level = min(evaluation.steps, budget), min(max(evaluation.mean / threshold, 0.0), 1.0)
    return (area + level * (budget - before)) / budget


def standard_error(scores: Sequence[float]) -> float:
    """Standard error of the mean; nan for a single score."""
    if len(scores) < 2:
        return math.nan
    mean = sum(scores) / len(scores)
    return math.sqrt(sum((s - mean) ** 2 for s in scores) / (len(scores) - 1) / len(scores))


class TimeUp(OffrankError):
    """The time limit of a batch has passed."""


def drive_for(runs: list[Run], engine: Engine, minutes: float) -> bool:
    """Drive runs to their end or to the time limit. Where some of them fail, the others continue.

    Returns:
        whether the time limit was reached.

    Raises:
        Interrupted: by a signal.
    """
    end = time.monotonic() + 60 * minutes

    def tick() -> None:
        if time.monotonic() > end:
            raise TimeUp

    try:
        drive(runs, engine, tick)
    except Interrupted:
        raise
    except TimeUp:
        left = [f"{run.state.steps:,}" for run in runs if not run.stop_reason]
        print(f"time limit: {len(left)} runs are unfinished, at {', '.join(left)} steps")
        return True
    except OffrankError as error:
        print(f"failed: {error}")
    return False
