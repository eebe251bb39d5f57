"""offrank evaluate, offrank plot"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from offrank.cli import gpu
from offrank.cli.options import count, natural
from offrank.cli.saved import add_saved, saved_of
from offrank.runs.evaluation import evaluate_policy


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "evaluate",
        help="measure a saved policy",
        description="Run new episodes of a saved policy.",
        epilog="example:\n  offrank evaluate runs/HalfCheetah-v3-guided-0 --episodes 100 --json",
    )
    add_saved(parser)
    parser.add_argument("--episodes", type=count, default=100)
    parser.add_argument("--seed", type=natural, default=0, help="seed of the start states")
    parser.add_argument("--engine", help="instead of the one it was trained with")
    parser.add_argument("--threads", type=natural, default=0, help="of the mujoco engine (0: one per CPU)")
    parser.add_argument("--workers", type=natural, help="processes of the gymnasium engine (default: one per CPU)")
    parser.add_argument("--episode-seconds", type=float, metavar="S", help="replace a worker that takes longer")
    gpu.add_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=evaluate)

    parser = verbs.add_parser(
        "plot",
        help="draw learning curves",
        description="Draw the learning curves of runs: a panel per task, a colour per algorithm, a line per seed.",
        epilog="example:\n  offrank plot runs/HalfCheetah-v3-* --out curves.png",
    )
    parser.add_argument("paths", type=Path, nargs="+", metavar="RUN", help="run folders, or folders of run folders")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .png, .svg or .pdf")
    parser.set_defaults(run=plot)


def evaluate(args: argparse.Namespace) -> int:
    saved = saved_of(args)
    device = gpu.gpu_of(args, args.engine or saved.config.engine)
    pool = {"threads": args.threads, "workers": args.workers, "gpu": device}
    engine = saved.engine(args.engine, **pool, episode_seconds=args.episode_seconds)
    try:
        found = evaluate_policy(saved.policy, engine, args.episodes, args.seed, saved.config.horizon)
    finally:
        engine.close()
    if args.json:
        head = {"path": str(saved.path), "task": saved.config.task, "policy_sha256": saved.policy.sha256}
        print(json.dumps(head | found, indent=2))
        return 0
    lengths = found["lengths"]
    print(
        f"{saved.path}: {saved.config.task}, mean return {found['mean']:.1f} ± {found['std']:.1f} "
        f"over {args.episodes} episodes of {min(lengths)} to {max(lengths)} steps"
    )
    return 0


def plot(args: argparse.Namespace) -> int:
    from offrank.display.plots import plot_runs, run_folders

    folders = run_folders(args.paths)
    plot_runs(folders, args.out)
    print(f"{args.out}: {len(folders)} run{'s' if len(folders) > 1 else ''}")
    return 0
