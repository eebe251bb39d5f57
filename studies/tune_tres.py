"""Tune what is published nowhere: sigma, learning rate, epochs and clip of TRES on one task.

    python studies/tune_tres.py HalfCheetah-v3 --trials 32 --steps 800k
    python studies/tune_tres.py Hopper-v3 --set n_top=4 --trials 96 --steps 500k --engine warp
    python studies/tune_tres.py HalfCheetah-v3 --show

Seeds for tuning (1000, 1001, ...) are apart from those anything is reported on. Trials are run as a fleet, several at a
time, with the `random` ranker (b sampled, all b used): the numbers are then no ranker's advantage in a comparison.
The score of a run is the mean over its budget of its return at the evaluations so far divided by the threshold, held
between 0 and 1: the area under the learning curve, 1 from the first crossing on.

The search is written to results/tuning/tres-TASK.jsonl as it goes (Optuna's journal). Run again, it goes on from there.
"""

from __future__ import annotations

import argparse
import logging
import math
import time
import warnings
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from offrank.cli.options import count, setting
from offrank.core.errors import Interrupted, OffrankError
from offrank.engines import Engine, Gpu, make_engine
from offrank.runs.config import configure, resolve, task_default
from offrank.runs.drive import drive
from offrank.runs.run import Run

FIRST_SEED = 1000
SETTINGS = {"eval_every": 5, "eval_episodes": 10}
START = {"noise_std": 0.03, "step": 0.02, "epochs": 5, "clip": 0.5}  # where a single epoch is the ARS step


def suggest(trial: optuna.Trial) -> dict[str, Any]:
    """Hyperparameters of a trial. `step` is the ARS step size that K unclipped epochs amount to."""
    noise_std = trial.suggest_float("noise_std", 0.005, 0.4, log=True)
    step = trial.suggest_float("step", 0.003, 0.15, log=True)
    epochs = trial.suggest_int("epochs", 1, 20, log=True)
    clip = trial.suggest_float("clip", 0.1, 2.0, log=True)
    return {"noise_std": noise_std, "learning_rate": 2 * noise_std * step / epochs, "epochs": epochs, "clip": clip}


def score(run: Run) -> float:
    """Area under the learning curve, between 0 and 1."""
    threshold, budget = run.config.threshold, run.config.steps
    assert threshold is not None and budget is not None
    area, before, level = 0.0, 0, 0.0
    for evaluation in run.evaluations:
        area += level * (min(evaluation.steps, budget) - before)
        before, level = min(evaluation.steps, budget), min(max(evaluation.mean / threshold, 0.0), 1.0)
    return (area + level * (budget - before)) / budget


class TimeUp(OffrankError):
    """The minutes of a batch are over."""


def drive_for(runs: list[Run], engine: Engine, minutes: float) -> bool:
    """Drive runs to their end, or for so long; returns whether the time was up. Where some break, the others go on.

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
        print(f"time is up: {len(left)} runs stand at {', '.join(left)} steps")
        return True
    except OffrankError as error:
        print(f"broke: {error}")
    return False


def try_out(
    task: str, engine: Engine, trials: list[dict[str, Any]], seeds: list[int], steps: int, minutes: float
) -> list[list[float]]:
    """Scores of every seed of every trial. A run that breaks scores 0; one that is not done when the time is up
    scores as if its last return stayed."""
    runs = []
    for given in trials:
        recipe = resolve(task, "tres", "random", given)
        limits = {"steps": steps, "threshold": task_default(task, "threshold")}
        runs.append(
            [
                Run(configure(task, recipe, engine.info, seed=s, engine=engine.name, **SETTINGS, **limits), engine.info)
                for s in seeds
            ]
        )
    up = drive_for([run for group in runs for run in group], engine, minutes)
    return [[score(run) if up or run.stop_reason else 0.0 for run in group] for group in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--trials", type=int, default=32, help="in all, those of earlier sittings included")
    parser.add_argument("--steps", type=count, default=500_000, help="budget of a run")
    parser.add_argument("--seeds", type=int, default=2, help="tuning seeds a trial")
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="NAME=VALUE", help="for all trials")
    parser.add_argument("--engine", default="auto", help="warp for a GPU")
    parser.add_argument("--worlds", type=int, default=Gpu.worlds, help="of the warp engine")
    parser.add_argument("--at-once", type=int, default=4, help="trials asked for together")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="a batch may take; its runs count as they stand"
    )
    parser.add_argument("--folder", type=Path, default=Path("results/tuning"), help="of the journals")
    parser.add_argument("--show", action="store_true", help="print the best trials and stop")
    args = parser.parse_args()

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    logging.getLogger("optuna").setLevel(logging.WARNING)
    path = args.folder / f"tres-{args.task}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name=f"tres-{args.task}",
        storage=JournalStorage(JournalFileBackend(str(path))),
        sampler=optuna.samplers.TPESampler(seed=0, multivariate=True, constant_liar=True, n_startup_trials=8),
        direction="maximize",
        load_if_exists=True,
    )
    if not args.show:
        if not study.trials:
            study.set_user_attr("steps", args.steps)
            study.enqueue_trial(START)
        seeds = [FIRST_SEED + i for i in range(args.seeds)]
        engine = make_engine(args.task, args.engine, gpu=Gpu(args.worlds))
        while (done := sum(t.state.is_finished() for t in study.trials)) < args.trials:
            batch = [study.ask() for _ in range(min(args.at_once, args.trials - done))]
            given = [suggest(trial) | dict(args.set) for trial in batch]
            for trial, values, found in zip(
                batch, given, try_out(args.task, engine, given, seeds, args.steps, args.minutes), strict=True
            ):
                trial.set_user_attr("hyperparameters", values)
                trial.set_user_attr("scores", dict(zip(map(str, seeds), found, strict=True)))
                study.tell(trial, sum(found) / len(found))
                print(f"trial {trial.number}: {sum(found) / len(found):.3f} {found} {values}", flush=True)
    best = sorted((t for t in study.trials if t.value is not None), key=lambda t: -(t.value or 0))[:8]
    print("| trial | score | noise_std | learning_rate | epochs | clip |")
    print("|---|---|---|---|---|---|")
    for t in best:
        h = t.user_attrs["hyperparameters"]
        row = f"| {t.number} | {t.value:.3f} | {h['noise_std']:.4g} | {h['learning_rate']:.3g} "
        print(f"{row}| {h['epochs']} | {h['clip']:.3g} |")


if __name__ == "__main__":
    main()
