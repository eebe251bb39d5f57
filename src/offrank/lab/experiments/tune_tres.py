"""Search TRES's sigma, learning rate, epochs and clip on one task: none of them is published.

    python -m offrank.lab.experiments.tune_tres HalfCheetah-v3 --trials 32 --steps 800k
    python -m offrank.lab.experiments.tune_tres Hopper-v3 --set n_top=4 --trials 96 --steps 500k --engine warp
    python -m offrank.lab.experiments.tune_tres HalfCheetah-v3 --show

Tuning seeds (1000, 1001, ...) are different from those that results are reported on. Trials are run several at a time,
with the `random` ranker (b sampled, all b used), so that the numbers favour no ranker in a comparison. The score of a
run is the area under its learning curve (`tuning.score`), 1 from the first crossing of the threshold on.

The search is written to FOLDER/tres-TASK.jsonl as it goes (Optuna's journal). Started again, it continues from there.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offrank.cli.options import count
from offrank.core.errors import require
from offrank.engines import Engine
from offrank.lab.experiments.tuning import FIRST_SEED, add_flags, drive_for, make_run, open_engine, score
from offrank.lab.script import make_parser, run_script, threshold_of
from offrank.lab.studies.tables import Table
from offrank.runs.recipe import resolve

START = {"noise_std": 0.03, "step": 0.02, "epochs": 5, "clip": 0.5}  # where a single epoch is the ARS step
SHOWN = 8  # trials in the table


def suggest(trial: Any) -> dict[str, Any]:
    """Hyperparameters of a trial. `step` is the ARS step size that K unclipped epochs amount to."""
    noise_std = trial.suggest_float("noise_std", 0.005, 0.4, log=True)
    step = trial.suggest_float("step", 0.003, 0.15, log=True)
    epochs = trial.suggest_int("epochs", 1, 20, log=True)
    clip = trial.suggest_float("clip", 0.1, 2.0, log=True)
    return {"noise_std": noise_std, "learning_rate": 2 * noise_std * step / epochs, "epochs": epochs, "clip": clip}


def try_out(
    task: str, engine: Engine, trials: list[dict[str, Any]], seeds: list[int], steps: int, minutes: float
) -> list[list[float]]:
    """Scores of every seed of every trial. A run that fails scores 0; one that is unfinished at the time limit is
    scored as if its last return stayed."""
    runs = []
    for given in trials:
        recipe = resolve(task, "tres", "random", given)
        runs.append([make_run(task, recipe, engine, seed, steps) for seed in seeds])
    time_up = drive_for([run for group in runs for run in group], engine, minutes)
    return [[score(run) if time_up or run.stop_reason else 0.0 for run in group] for group in runs]


def open_study(args: argparse.Namespace) -> Any:
    """Optuna's study in the journal of the task, new or continued."""
    optuna = require("optuna", "studies")
    journal = require("optuna.storages.journal", "studies")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    logging.getLogger("optuna").setLevel(logging.WARNING)
    path = args.folder / f"tres-{args.task}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    return optuna.create_study(
        study_name=f"tres-{args.task}",
        storage=optuna.storages.JournalStorage(journal.JournalFileBackend(str(path))),
        sampler=optuna.samplers.TPESampler(seed=0, multivariate=True, constant_liar=True, n_startup_trials=8),
        direction="maximize",
        load_if_exists=True,
    )


def search(study: Any, args: argparse.Namespace) -> None:
    if not study.trials:
        study.set_user_attr("steps", args.steps)
        study.enqueue_trial(START)
    seeds = [FIRST_SEED + i for i in range(args.seeds)]
    engine = open_engine(args)
    while (done := sum(t.state.is_finished() for t in study.trials)) < args.trials:
        batch = [study.ask() for _ in range(min(args.at_once, args.trials - done))]
        given = [suggest(trial) | dict(args.set) for trial in batch]
        scores = try_out(args.task, engine, given, seeds, args.steps, args.minutes)
        for trial, values, found in zip(batch, given, scores, strict=True):
            trial.set_user_attr("hyperparameters", values)
            trial.set_user_attr("scores", dict(zip(map(str, seeds), found, strict=True)))
            study.tell(trial, sum(found) / len(found))
            print(f"trial {trial.number}: {sum(found) / len(found):.3f} {found} {values}", flush=True)


def table(study: Any) -> Table:
    """The best trials."""
    best = sorted((t for t in study.trials if t.value is not None), key=lambda t: -t.value)[:SHOWN]
    rows = []
    for t in best:
        h = t.user_attrs["hyperparameters"]
        rows.append([str(t.number), f"{t.value:.3f}", f"{h['noise_std']:.4g}", f"{h['learning_rate']:.3g}"])
        rows[-1] += [str(h["epochs"]), f"{h['clip']:.3g}"]
    return Table(["trial", "score", "noise_std", "learning_rate", "epochs", "clip"], rows)


def tune(args: argparse.Namespace) -> None:
    threshold_of(args.task)  # before a journal is created
    resolve(args.task, "tres", "random", dict(args.set))
    study = open_study(args)
    if not args.show:
        search(study, args)
    print(table(study).markdown())


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("tune_tres", __doc__)
    add_flags(parser)
    parser.add_argument("--trials", type=count, default=32, help="in all, including those already in the journal")
    parser.add_argument("--steps", type=count, default=500_000, help="budget per run")
    parser.add_argument("--seeds", type=count, default=2, help="tuning seeds per trial")
    parser.add_argument("--at-once", type=count, default=4, help="trials per batch")
    parser.add_argument("--minutes", type=float, default=math.inf, help="time limit per batch")
    parser.add_argument("--folder", type=Path, default=Path("results/tuning"), help="of the journals")
    parser.add_argument("--show", action="store_true", help="print the best trials and stop")
    return run_script(parser, tune, argv)


if __name__ == "__main__":
    sys.exit(main())
