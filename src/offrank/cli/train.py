"""offrank train"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from offrank.algorithms import ALGORITHMS, RECOMMENDED
from offrank.algorithms.learning.device import check_lessons
from offrank.cli import cluster, gpu, processes
from offrank.cli.config_file import with_file
from offrank.cli.options import Parser, count, literal, natural, seconds, seeds, setting, threshold
from offrank.core.errors import FileFormatError, FleetError, RunFailed, UsageError, did_you_mean
from offrank.core.files import read_json
from offrank.display.loggers import LOGGERS
from offrank.display.plots import plot_ended
from offrank.display.progress import drive_shown
from offrank.engines import ENGINES, NOT_BUILT, Engine, is_built, make_engine, native_name, resolve_engine
from offrank.policies import POLICIES, canonical
from offrank.policies.trained import TrainedPolicy
from offrank.runs.config import EVALUATION, RunConfig, configure, evaluation_given, task_default
from offrank.runs.folder import CONFIG, RESULT, folder_name
from offrank.runs.opening import holds_run, open_run, open_runs, read_config, stored_config
from offrank.runs.recipe import Recipe, clipping, convert, resolve
from offrank.runs.run import Run
from offrank.runs.saved import initial_policy

DEFAULT_BUDGET = 1_000_000  # steps, for a task without presets when no limit is given
CHECKPOINT_SECONDS = 30.0

EPILOG = """\
examples:
  offrank train HalfCheetah-v3 --seed 0 --steps 100k
  offrank train Hopper-v3 --algo ars --ranker random --seeds 0-7 --out runs/hopper
  offrank train Pendulum-v1 --algo op-ars --set n_directions=16 --set bandwidth=0.25 --steps 500k
  offrank train my_robots:Arm-v0 --env-arg payload=1.5 --workers 4
  offrank train HalfCheetah-v3 --algo ars --seeds 0-99 --engine warp    a hundred seeds in parallel on a GPU
  offrank train Humanoid-v3 --algo ars --engine ray --address auto      on a Ray cluster, with the same bits
  offrank train HalfCheetah-v3 --steps 1M --resume                      continue with a larger budget
  offrank train my_robots:Arm-v0 --init runs/arm                        start from the best policy of another run
  offrank train --config hopper.toml --seeds 0-7                        flags and settings from a file

Stops at the task's threshold, or when the budget is used up. A run folder holds config.json, metrics.jsonl,
checkpoint.npz (with the folder replay/, where the algorithm has one), best.offrank, final.offrank, result.json and
curve.png.
"""


def add_parser(verbs: Any) -> None:
    parser: Parser = verbs.add_parser(
        "train", help="train a policy", description="Train a policy, or several in parallel.", epilog=EPILOG
    )
    parser.add_argument(
        "task", nargs="?", metavar="TASK", help="one of the six tasks, LQR, or any Gymnasium id (module:Name-v0)"
    )
    what = parser.add_argument_group("what")
    what.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="flags and settings by name, in TOML, or the config.json of a run; other flags override it",
    )
    what.add_argument("--allow-import", action="store_true", help="import the module that the task of --config names")
    what.add_argument(
        "--algo",
        default=None,
        metavar="NAME",
        help=f"one of {', '.join(ALGORITHMS)} (default {RECOMMENDED}), or several: guided,faded",
    )
    what.add_argument("--ranker", metavar="NAME", help="instead of the algorithm's default")
    what.add_argument("--policy", metavar="NAME", help=f"one of {', '.join(POLICIES)} (default: the algorithm's)")
    what.add_argument(
        "--init", type=Path, metavar="PATH", help="a policy file, checkpoint or run folder whose policy to start from"
    )
    what.add_argument("--set", action="append", type=setting, default=[], metavar="NAME=VALUE", help="a hyperparameter")
    what.add_argument("--seed", type=natural, help="default 0")
    what.add_argument("--seeds", type=seeds, metavar="0-7", help="several runs in parallel")
    what.add_argument("--horizon", type=count, help="steps per episode (default: the environment's)")
    what.add_argument(
        "--env-arg", action="append", type=setting, default=[], metavar="K=V", help="environment argument"
    )
    what.add_argument(
        "--clip-actions", action=argparse.BooleanOptionalAction, help="to the action space (default: not on our tasks)"
    )
    limits = parser.add_argument_group("when to stop and evaluate")
    limits.add_argument(
        "--steps",
        type=count,
        help="training steps; the iteration that exceeds them is completed (default: the task's budget, else 1M)",
    )
    limits.add_argument("--iterations", type=count)
    limits.add_argument(
        "--threshold", type=threshold, metavar="X|none", help="mean return at which to stop (default: the task's)"
    )
    limits.add_argument("--eval-every", type=natural, metavar="K", help="iterations between evaluations (10; 0: none)")
    limits.add_argument(
        "--eval-steps",
        type=count,
        metavar="K",
        help="steps between evaluations, instead (guided, faded, distilled 5k, cem* 10k)",
    )
    limits.add_argument("--eval-episodes", type=count, metavar="K", help="episodes per evaluation (100)")
    limits.add_argument(
        "--confirm-episodes", type=count, metavar="K", help="evaluate again if the threshold is reached: that decides"
    )
    how = parser.add_argument_group("how")
    how.add_argument("--engine", help=f"one of {', '.join(ENGINES)}")
    how.add_argument("--threads", type=natural, help="of the mujoco engine and of lessons (default 0: one per CPU)")
    how.add_argument(
        "--workers", type=natural, help="processes of the gymnasium engine (default: one per CPU), or of the ray engine"
    )
    how.add_argument(
        "--lessons",
        metavar="cpu|cuda",
        help="where critics are trained (default: on the engine's GPU, if any)",
    )
    processes.add_flag(how)
    how.add_argument("--out", type=Path, metavar="DIR", help="run folder, or folder of several (default: runs/...)")
    how.add_argument("--resume", action="store_true", help="continue the run in the run folder")
    how.add_argument("--checkpoint-seconds", type=seconds, metavar="S", help="maximum time between checkpoints (30)")
    how.add_argument(
        "--log",
        type=loggers,
        default=[],
        metavar="NAMES",
        help=f"also log elsewhere: one of {', '.join(LOGGERS)}, or several, separated by commas",
    )
    how.add_argument("--tensorboard", action="store_true", help="the same as --log tensorboard")
    how.add_argument("--json", action="store_true", help="print the results as JSON")
    how.add_argument("--quiet", action="store_true", help="no progress")
    gpu.add_flags(parser)
    cluster.add_flags(parser)
    parser.set_defaults(run=partial(train, parser))


def loggers(text: str) -> list[str]:
    """Names of loggers, separated by commas."""
    for name in text.split(","):
        if name not in LOGGERS:
            hint = did_you_mean(name, LOGGERS)
            raise argparse.ArgumentTypeError(f"unknown logger {name!r}: one of {', '.join(LOGGERS)}{hint}")
    return text.split(",")


def train(parser: Parser, args: argparse.Namespace) -> int:
    args = with_file(args, parser)
    if args.task is None:
        raise UsageError("train needs a TASK, on the command line or in the file of --config")
    if args.seed is not None and args.seeds is not None:
        raise UsageError("give --seed or --seeds, not both")
    algos = list(dict.fromkeys(_algo(args).split(",")))
    several = args.seeds is not None or len(algos) > 1
    numbers = args.seeds if args.seeds is not None else [args.seed or 0]
    task = native_name(args.task) or args.task
    place = cluster.cluster_of(args, limits_elsewhere=True)
    # checked before the environment is made, which may be slow
    init = initial_policy(args.init)
    recipes = [resolve(task, algo, args.ranker, dict(args.set), args.policy, init) for algo in algos]
    check_lessons(args.lessons)
    folders = _folders(args, task, algos, numbers, several)
    names = dict.fromkeys([*args.log, *(["tensorboard"] if args.tensorboard else [])])
    logs = {key: tuple(LOGGERS[name]() for name in names) for key in folders}
    if not args.resume:
        for folder in folders.values():
            if holds_run(folder):
                raise UsageError(f"{folder} already holds a run: add --resume to continue it, or choose another --out")

    if min(args.processes or 1, len(numbers)) > 1:
        return _train_in_processes(args, task, numbers, list(folders.values()))
    processes.end_if_abandoned()

    stored: dict[tuple[str, int], RunConfig | None] = {}
    damaged: list[RunFailed] = []
    for key, folder in list(folders.items()) if args.resume else ():
        try:
            stored[key] = _stored(args, task, *key, folder, init)
        except FileFormatError as error:
            if not several:
                raise
            damaged.append(RunFailed(folder.name, error))
            del folders[key]
    if not folders:
        raise FleetError(damaged)
    environment = _environment(args, task, recipes, [config for config in stored.values() if config is not None])
    device = gpu.gpu_of(args, environment["engine"])
    pool = {"threads": args.threads or 0, "workers": args.workers, "gpu": device, "cluster": place}
    pool["episode_seconds"] = args.episode_seconds
    pause = CHECKPOINT_SECONDS if args.checkpoint_seconds is None else args.checkpoint_seconds
    engine = make_engine(task, **pool, **environment)
    if native_name(task) and environment["engine"] == "gymnasium" and args.engine in (None, "ray") and not is_built():
        print(f"offrank: {NOT_BUILT}; using the gymnasium engine, which is slower", file=sys.stderr)
    try:

        def open_one(key: tuple[str, int], folder: Path) -> Run:
            config = stored.get(key) or _new(args, task, *key, engine, environment, init)
            return open_run(config, engine.space, folder, args.resume, logs[key], pause, init)

        opening = {folder.name: partial(open_one, key, folder) for key, folder in folders.items()}
        runs, failures = open_runs(opening)
        try:
            drive_shown(runs, engine, sys.stderr, not args.quiet, None, [*damaged, *failures], args.lessons)
        except FleetError:
            _report([run for run in runs if run.stop_reason is not None], args)
            raise
    finally:
        engine.close()
    _report(runs, args)
    return 0


def _train_in_processes(args: argparse.Namespace, task: str, numbers: list[int], folders: list[Path]) -> int:
    """The same command in several processes, each with some of the seeds."""
    shared = min(args.processes, len(numbers))
    flags = processes.flags_of_share(args, task, shared)
    commands = [[*args.words, *flags, "--seeds", ",".join(map(str, numbers[k::shared]))] for k in range(shared)]
    watch = processes.Progress(folders, args.quiet)
    status, printed = processes.run_offrank(commands, watch)
    if args.json and status < 128:  # no signal ended it
        results = [read_json(folder / RESULT) | {"folder": str(folder)} for folder in watch.ended()]
        print(json.dumps(results, indent=2))
    elif not args.json:
        print("".join(printed), end="")
    return status


def _algo(args: argparse.Namespace) -> str:
    """The algorithm that was given, or that of the run to continue in --out."""
    if args.algo is None and args.resume and args.out is not None and (args.out / CONFIG).is_file():
        return read_config(args.out).algo
    return RECOMMENDED if args.algo is None else str(args.algo)


def _folders(
    args: argparse.Namespace, task: str, algos: list[str], numbers: list[int], several: bool
) -> dict[tuple[str, int], Path]:
    pairs = list(product(algos, numbers))
    if not several:
        algo, seed = pairs[0]
        return {(algo, seed): args.out or Path("runs") / folder_name(task, algo, seed)}
    root = args.out or Path("runs")
    return {(algo, seed): root / folder_name(task, algo, seed) for algo, seed in pairs}


def _limits(args: argparse.Namespace) -> dict[str, Any]:
    """The limits that were given."""
    limits = {name: getattr(args, name) for name in ("steps", "iterations") if getattr(args, name) is not None}
    if args.threshold is not None:
        limits["threshold"] = None if args.threshold == "none" else args.threshold
    return limits


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    given = evaluation_given(**{name: getattr(args, name) for name in EVALUATION})
    return given if args.horizon is None else given | {"horizon": args.horizon}


def _stored(
    args: argparse.Namespace, task: str, algo: str, seed: int, folder: Path, init: TrainedPolicy | None
) -> RunConfig | None:
    """The configuration of the run to continue, or None. Settings that are given again must equal those of the run."""
    given = _settings(args)
    given |= {"algo": algo} if args.algo else {}
    given |= {"seed": seed} if args.seed is not None or args.seeds is not None else {}
    given |= {"ranker": args.ranker} if args.ranker else {}
    given |= {"policy": canonical(args.policy)} if args.policy else {}
    given |= {"init": init.sha256} if init is not None else {}
    given |= {"engine": resolve_engine(task, args.engine)} if args.engine and args.engine != "ray" else {}
    given |= {"env_args": {name: literal(value) for name, value in args.env_arg}} if args.env_arg else {}
    given |= {"clip_actions": args.clip_actions} if args.clip_actions is not None else {}
    known = resolve(task, algo, args.ranker).hyperparameters
    given |= {name: convert(name, value, type(known[name])) for name, value in args.set}
    return stored_config(folder, task, _limits(args), given)


def _environment(args: argparse.Namespace, task: str, recipes: list[Recipe], stored: list[RunConfig]) -> dict[str, Any]:
    """Engine and environment: those of the runs to continue, or as given."""
    found = [{"engine": c.engine, "env_args": c.env_args, "clip_actions": c.clip_actions} for c in stored]
    for other in found[1:]:
        if other != found[0]:
            raise UsageError("these runs have different engines or environments: continue them one by one")
    if found:
        return found[0]
    return {
        "engine": resolve_engine(task, args.engine or "auto"),
        "env_args": {name: literal(value) for name, value in args.env_arg},
        "clip_actions": clipping(task, args.engine or "auto", recipes, args.clip_actions),
    }


def _new(
    args: argparse.Namespace,
    task: str,
    algo: str,
    seed: int,
    engine: Engine,
    environment: dict[str, Any],
    init: TrainedPolicy | None,
) -> RunConfig:
    """The configuration of a new run."""
    limits = {"threshold": task_default(task, "threshold")} | _limits(args)
    if not {"steps", "iterations"} & set(limits):
        limits["steps"] = task_default(task, "budget") or DEFAULT_BUDGET
    recipe = resolve(task, algo, args.ranker, dict(args.set), args.policy, init)
    config = configure(task, recipe, engine.space, seed=seed, init=init, **environment, **_settings(args), **limits)
    name, least = recipe.unchanged
    if name and config.steps is not None and config.steps <= least:
        print(f"offrank: {algo} has no trained policy before {least:,} steps ({name}): give more", file=sys.stderr)
    return config


def _report(runs: list[Run], args: argparse.Namespace) -> None:
    plot_ended(runs)
    results = [run.result | {"folder": str(run.folder)} for run in runs]
    if args.json:
        print(json.dumps(results[0] if len(results) == 1 else results, indent=2))
        return
    for result in results:
        if result["reached"]:
            verdict = f"reached {result['threshold']:g} after {result['steps_to_threshold']:,} steps"
        elif result["threshold"] is not None:
            verdict = f"did not reach {result['threshold']:g} in {result['steps']:,} steps"
        else:
            verdict = f"{result['steps']:,} steps"
        best = "" if result["best_return"] is None else f", best mean return {result['best_return']:.1f}"
        head = f"{result['task']} {result['algo']} seed {result['seed']}"
        print(f"{head}: {verdict}{best}, {result['wall_s']:.0f} s -> {result['folder']}")
