"""offrank rank-quality"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from offrank.algorithms import ALGORITHMS
from offrank.cli import cluster, gpu
from offrank.cli.options import Parser, count, literal, natural, seeds, setting
from offrank.core.errors import Interrupted, UsageError, require
from offrank.core.files import write_json
from offrank.core.version import versions
from offrank.display.progress import drive_shown
from offrank.engines import ENGINES, Engine, make_engine, native_name, resolve_engine
from offrank.lab.rank_quality.analysis import analyse, summary
from offrank.lab.rank_quality.checkpoints import Checkpoint, train_to
from offrank.lab.rank_quality.measure import Measurements, check_names, gather, rankers_for
from offrank.runs.config import configure
from offrank.runs.recipe import clipping, resolve

ITERATIONS = [30, 100, 250]
RECORD, FIGURE = "rank-quality.json", "rank-quality.png"
MEANING = {"max": "max(r+, r-)", "gap": "|r+ - r-|", "mean": "(r+ + r-)/2", "return": "mean return"}

EPILOG = """\
examples:
  offrank rank-quality HalfCheetah-v3 --iterations 30,100,250 --out quality/cheetah
  offrank rank-quality Hopper-v3 --algo op-ars,ars --seeds 0-2 --candidates 200 --episodes 16 --json
  offrank rank-quality Swimmer-v3 --run runs/Swimmer-v3-op-ars-0 runs/Swimmer-v3-op-ars-1

Draws fresh candidates around the policy, gets every ranker's scores for them, runs each candidate for many episodes and
prints how well the two orders agree: rank correlation with max(r+, r-), which on-policy ranking orders by; with
|r+ - r-|, which carries the gradient; and with the mean of the two signs. "one-episode max" ranks by a single episode
per sign, as on-policy ranking does: a ceiling for rankings that run no candidate. Runs of cem-rl and op-cem-rl have
members instead of pairs, the first of them after gradient steps: their order is compared with the mean return.

With --out, states and raw data are saved, and the same command again does only what is missing.
"""


def add_parser(verbs: Any) -> None:
    parser: Parser = verbs.add_parser(
        "rank-quality",
        help="measure how good rankings are",
        description="Compare rankers' scores of candidates with their true scores, at checkpoints of a run.",
        epilog=EPILOG,
    )
    parser.add_argument("task", metavar="TASK", help="one of the six tasks, or any Gymnasium id (module:Name-v0)")
    what = parser.add_argument_group("which policies")
    what.add_argument("--run", type=Path, nargs="+", metavar="PATH", dest="paths", help="run folders or checkpoints")
    what.add_argument("--algo", metavar="NAME", help="to train: one of {}, or several".format(", ".join(ALGORITHMS)))
    what.add_argument("--ranker", metavar="NAME", help="of the training, instead of the one that the name implies")
    what.add_argument("--set", action="append", type=setting, default=[], metavar="NAME=VALUE", help="a hyperparameter")
    what.add_argument("--seed", type=natural, help="default 0")
    what.add_argument("--seeds", type=seeds, metavar="0-7", help="several runs side by side")
    what.add_argument("--iterations", type=_iterations, metavar="A,B,...", help="after which (default 30,100,250)")
    what.add_argument("--horizon", type=count, help="steps per episode (default: the environment's)")
    what.add_argument("--env-arg", action="append", type=setting, default=[], metavar="K=V", help="of the environment")
    much = parser.add_argument_group("how much")
    much.add_argument("--rankers", type=lambda text: text.split(","), metavar="A,B,...", help="default: all")
    much.add_argument("--candidates", type=count, default=200, metavar="N", help="per checkpoint (200)")
    much.add_argument("--episodes", type=count, default=16, metavar="E", help="per candidate and sign (16)")
    much.add_argument("--resamples", type=count, default=1000, metavar="R", help="of the candidates, for intervals")
    how = parser.add_argument_group("how")
    how.add_argument("--engine", help=f"one of {', '.join(ENGINES)}")
    how.add_argument("--threads", type=natural, default=0, help="of the mujoco engine (0: all CPUs)")
    how.add_argument("--workers", type=natural, help="processes of the gymnasium engine (default: one per CPU)")
    how.add_argument("--out", type=Path, metavar="DIR", help="for raw data, the record and the figure")
    how.add_argument("--json", action="store_true", help="print the record as JSON")
    how.add_argument("--quiet", action="store_true", help="no progress")
    gpu.add_flags(parser)
    cluster.add_flags(parser)
    parser.set_defaults(run=rank_quality)


def _iterations(text: str) -> list[int]:
    return sorted({count(part) for part in text.split(",")})


def rank_quality(args: argparse.Namespace) -> int:
    if args.episodes < 2:
        raise UsageError("--episodes 1: at least 2 are needed, to compare one with the others")
    if args.candidates < 3:
        raise UsageError(f"--candidates {args.candidates}: at least 3 are needed for an order to compare")
    check_names(args.rankers or ())  # before any environment is made: a mistake should not cost time
    require("scipy.stats", "studies")
    task = native_name(args.task) or args.task
    try:
        records = _given(args, task) if args.paths else _trained(args, task)
    except Interrupted as interrupted:
        kept = (
            f"what was measured is in {args.out}: the same command continues from there"
            if args.out
            else "nothing was saved"
        )
        print(f"offrank: {interrupted}; {kept}", file=sys.stderr)
        return 128 + interrupted.signum
    record = {
        "task": task,
        "resamples": args.resamples,
        "checkpoints": records,
        "summary": summary(records),
        "versions": versions(),
    }
    if args.out:
        from offrank.display.figures import save
        from offrank.lab.rank_quality.figure import rank_quality

        write_json(args.out / RECORD, record)
        save(rank_quality(records), args.out / FIGURE)
    if args.json:
        print(json.dumps(record, indent=2))
    else:
        _print(record)
    return 0


def _given(args: argparse.Namespace, task: str) -> list[dict[str, Any]]:
    """Measure at the states of existing runs."""
    for name in ("algo", "ranker", "seed", "seeds", "iterations", "horizon", "set", "env_arg"):
        if getattr(args, name) not in (None, []):
            raise UsageError(f"--{name.replace('_', '-')} is for a run to train: the runs of --run have theirs")
    checkpoints = [Checkpoint.read(path) for path in args.paths]
    first = checkpoints[0].config
    for path, checkpoint in zip(args.paths, checkpoints, strict=True):
        config = checkpoint.config
        if config.task != task:
            raise UsageError(f"{path} holds a run of {config.task}, not of {task}")
        if (config.env_args, config.clip_actions) != (first.env_args, first.clip_actions):
            raise UsageError("these runs have different environments: measure them one by one")
    checkpoints.sort(key=lambda at: (at.config.algo, at.config.ranker, at.config.seed, at.state.iteration))
    engine = _engine(args, task, args.engine or first.engine, first.env_args, first.clip_actions)
    try:
        return _measure(args, checkpoints, engine)
    finally:
        engine.close()


def _trained(args: argparse.Namespace, task: str) -> list[dict[str, Any]]:
    """Measure at states of runs that are trained here, as far as they are not saved yet."""
    if args.seed is not None and args.seeds is not None:
        raise UsageError("give --seed or --seeds, not both")
    algos = list(dict.fromkeys((args.algo or "op-ars").split(",")))
    numbers = args.seeds if args.seeds is not None else [args.seed or 0]
    wanted = args.iterations or ITERATIONS
    recipes = {algo: resolve(task, algo, args.ranker, dict(args.set)) for algo in algos}
    name = resolve_engine(task, args.engine or "auto")
    env_args = {name: literal(value) for name, value in args.env_arg}
    clip = clipping(task, name, recipes.values(), None)
    engine = _engine(args, task, name, env_args, clip)
    try:
        configs = [
            configure(
                task,
                recipes[algo],
                engine.space,
                seed=seed,
                engine=name,
                horizon=args.horizon,
                env_args=env_args,
                clip_actions=clip,
                eval_every=0,
                iterations=wanted[-1],
            )
            for algo, seed in product(algos, numbers)
        ]
        checkpoints = train_to(
            configs, wanted, engine.space, args.out, lambda runs: drive_shown(runs, engine, sys.stderr, not args.quiet)
        )
        return _measure(args, checkpoints, engine)
    finally:
        engine.close()


def _engine(
    args: argparse.Namespace, task: str, name: str, env_args: dict[str, Any], clip_actions: bool | None
) -> Engine:
    pool = {"threads": args.threads, "workers": args.workers, "gpu": gpu.gpu_of(args, name)}
    pool |= {"cluster": cluster.cluster_of(args, True), "episode_seconds": args.episode_seconds}
    return make_engine(task, name, env_args=env_args, clip_actions=clip_actions, **pool)


def _measure(args: argparse.Namespace, checkpoints: list[Checkpoint], engine: Engine) -> list[dict[str, Any]]:
    """One record per checkpoint, from saved measurements or from fresh episodes."""
    records = []
    live = not args.quiet and sys.stderr.isatty()
    with Progress(console=Console(stderr=True), disable=not live) as progress:
        for checkpoint in checkpoints:
            config, state = checkpoint.config, checkpoint.state
            rankers = rankers_for(config, args.rankers)
            bar = progress.add_task(checkpoint.name, total=args.episodes)
            if not args.quiet and not live:
                print(f"{checkpoint.name}: {args.candidates} candidates x {args.episodes} episodes", file=sys.stderr)
            asked = {
                "run": config.identity,
                "engine": engine.name,
                "iteration": state.iteration,
                "candidates": args.candidates,
                "episodes": args.episodes,
                "rankers": {ranker.name: asdict(ranker) for ranker in rankers},
            }
            path = args.out and args.out / f"{checkpoint.name}.npz"
            measured = _saved(path, asked)
            if measured is None:
                measured = gather(
                    checkpoint, rankers, engine, args.candidates, args.episodes, partial(progress.advance, bar)
                )
                if path:
                    measured.save(path, {"asked": asked})
            progress.update(bar, completed=args.episodes)
            head = {"task": config.task, "algo": config.algo, "ranker": config.ranker, "seed": config.seed}
            head |= {"iteration": state.iteration, "steps": state.steps}
            records.append(head | analyse(measured, args.resamples))
    return records


def _saved(path: Path | None, asked: dict[str, Any]) -> Measurements | None:
    """The measurements in the file, if they were made with these settings."""
    if path is None or not path.is_file():
        return None
    measured, meta = Measurements.read(path)
    return measured if meta["asked"] == json.loads(json.dumps(asked)) else None


def _print(record: dict[str, Any]) -> None:
    console = Console()
    for checkpoint in record["checkpoints"]:
        head = f"{checkpoint['algo']} seed {checkpoint['seed']}, iteration {checkpoint['iteration']}"
        by_chance = f"by chance {checkpoint['overlap_by_chance']:.2f}"
        caption = f"Spearman with 95 % interval; Kendall, share of the true top {checkpoint['top']} found ({by_chance})"
        ceilings = {target: noise["ceiling"] for target, noise in checkpoint["noise"].items()}
        console.print(_table(f"{record['task']} {head}", caption, checkpoint["rankers"], _cell, ceilings))
    if len(record["summary"]) < len(record["checkpoints"]):
        for group in record["summary"]:
            head = f"{group['algo']}, iteration {group['iteration']}, {len(group['seeds'])} seeds"
            caption = "Spearman: mean over the seeds, smallest and largest"
            console.print(_table(f"{record['task']} {head}", caption, group["rankers"], _range, group["noise_ceiling"]))


def _table(
    title: str,
    caption: str,
    rankers: dict[str, dict[str, Any]],
    cell: Callable[[dict[str, Any]], str],
    ceilings: dict[str, float],
) -> Table:
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("ranking by", no_wrap=True)
    for target in ceilings:
        table.add_column(MEANING[target], no_wrap=True)
    for name, by_target in rankers.items():
        table.add_row(name, *(cell(by_target[target]) for target in ceilings))
    table.add_row("perfect (about)", *(f"{ceiling:+.2f}" for ceiling in ceilings.values()), style="dim")
    return table


def _cell(found: dict[str, Any]) -> str:
    rho = found["spearman"]
    more = f"{found['kendall']['value']:+.2f}, {found['overlap']:.2f}"
    return f"{rho['value']:+.2f} [{rho['low']:+.2f} {rho['high']:+.2f}]\n{more}"


def _range(found: dict[str, Any]) -> str:
    return f"{found['mean']:+.2f} [{found['low']:+.2f} {found['high']:+.2f}]"
