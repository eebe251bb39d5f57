"""Train a fleet, and say where the time goes: physics, lessons, both, or neither.

python -m offrank.lab.bench.fleet HalfCheetah-v3 --seeds 1000-1099 --steps 100k --engine mujoco --lessons cuda \
    --processes 8 --threads 2 --folder runs/fleet --out results/speed/fleet-HalfCheetah-v3.json

With `--processes` the seeds are shared between as many processes, and shares of time are means over them.

A thread looks 200 times per second at what the other threads do. Physics runs while an episode is in compiled code, or
while a GPU engine has control steps under way; lessons run while a batch is carried out. The main thread's time is
given by what it does. Evaluations are those of `offrank reproduce guided`; unless there is a `--threshold`, every run
goes on to the end of its steps.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from types import FrameType
from typing import Any

from offrank.cli.options import count, natural, seeds
from offrank.core.errors import OffrankError
from offrank.core.files import read_json, write_json
from offrank.engines import ENGINES, Gpu
from offrank.fleet import Fleet
from offrank.lab.bench.rounds import machine
from offrank.lab.script import make_parser, run_script
from offrank.lab.studies.guided import EVALUATION

PERIOD = 0.005  # seconds between two looks
NEVER = 1e9  # a threshold that no run reaches
LESSONS = {"carry_out", "carry_out_together"}
MAIN = {  # functions by which the main thread's time is told apart, the innermost first
    "checkpoint": "checkpoints",
    "_finish_evaluation": "evaluations",
    "_advance": "iterations",
    "due": "lessons",
    "_work": "waiting",
    "completed": "waiting",
}


class Sampler(threading.Thread):
    """Counts what the threads of this process do."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(daemon=True)
        self.counts: Counter[tuple[str, str]] = Counter()
        self.main: Counter[str] = Counter()
        self.episodes = self.looks = 0
        self._fleet, self._ended = fleet, threading.Event()

    def run(self) -> None:
        me, main = threading.get_ident(), threading.main_thread().ident
        while not self._ended.wait(PERIOD):
            stacks = {ident: _names(frame) for ident, frame in sys._current_frames().items() if ident != me}
            worlds: Any = getattr(self._fleet.engine, "_worlds", None)
            episodes = sum("simulate" in names for names in stacks.values())
            episodes += worlds is not None and worlds.busy
            lessons = any(not LESSONS.isdisjoint(names) for names in stacks.values())
            self.counts["physics" if episodes else "", "lessons" if lessons else ""] += 1
            doing = stacks.get(main or 0, [])
            self.main[next((MAIN[name] for name in doing if name in MAIN), "other")] += 1
            self.episodes, self.looks = self.episodes + episodes, self.looks + 1

    def end(self) -> dict[str, Any]:
        self._ended.set()
        self.join()
        both, neither = self.counts["physics", "lessons"], self.counts["", ""]
        physics, lessons = self.counts["physics", ""] + both, self.counts["", "lessons"] + both
        shares = {"physics": physics, "lessons": lessons, "both": both, "neither": neither}
        return {
            "shares": {name: round(number / self.looks, 3) for name, number in shares.items()},
            "episodes_at_once": round(self.episodes / self.looks, 1),
            "main_thread": {name: round(number / self.looks, 3) for name, number in self.main.most_common()},
        }


def _names(frame: FrameType | None) -> list[str]:
    """The functions of a stack, the innermost first."""
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Train in this process."""
    gpu = Gpu(worlds=args.worlds) if args.engine == "warp" else None
    how = {"engine": args.engine, "threads": args.threads, "gpu": gpu, "lessons": args.lessons}
    fleet = Fleet(args.task, args.algo, args.seeds, policy=args.policy, **how)
    sampler, begin = Sampler(fleet), time.perf_counter()
    sampler.start()
    limits: dict[str, Any] = {"total_steps": args.steps, "threshold": args.threshold, **EVALUATION}
    results = fleet.learn(out=args.folder, resume=True, **limits)
    seconds = time.perf_counter() - begin
    steps = {name: sum(result[name] for result in results) for name in ("steps", "evaluation_steps")}
    return {"runs": len(results), "seconds": seconds} | steps | sampler.end()


def train_in_processes(args: argparse.Namespace, argv: Sequence[str]) -> dict[str, Any]:
    """Train in several processes, and add up what they measured."""
    shares = [args.seeds[k :: args.processes] for k in range(args.processes)]
    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch) / f"{k}.json" for k in range(args.processes)]
        same = [sys.executable, "-m", "offrank.lab.bench.fleet", *argv, "--processes", "1"]
        begin = time.perf_counter()
        children = [
            subprocess.Popen(
                [*same, "--seeds", ",".join(map(str, share)), "--out", str(file)], stdout=subprocess.DEVNULL
            )
            for share, file in zip(shares, files, strict=True)
        ]
        failed = sum(child.wait() != 0 for child in children)
        seconds = time.perf_counter() - begin
        if failed:
            raise OffrankError(f"{failed} of {args.processes} processes failed")
        rows = [read_json(file) for file in files]
    total: dict[str, Any] = {name: sum(row[name] for row in rows) for name in ("runs", "steps", "evaluation_steps")}
    total["seconds"] = seconds
    total["episodes_at_once"] = round(sum(row["episodes_at_once"] for row in rows), 1)
    for name in ("shares", "main_thread"):
        keys = dict.fromkeys(key for row in rows for key in row[name])
        total[name] = {key: round(mean(row[name].get(key, 0.0) for row in rows), 3) for key in keys}
    return total


def measure(argv: Sequence[str], args: argparse.Namespace) -> None:
    how = {"task": args.task, "algo": args.algo, "engine": args.engine, "processes": args.processes}
    row = how | (train(args) if args.processes == 1 else train_in_processes(args, argv)) | machine()
    if args.out:
        write_json(args.out, row)
    for name in ("runs", "seconds", "steps", "evaluation_steps", "shares", "episodes_at_once", "main_thread"):
        print(f"{name}: {row[name]}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("fleet", __doc__)
    parser.add_argument("task", metavar="TASK")
    parser.add_argument("--algo", default="guided")
    parser.add_argument("--policy")
    parser.add_argument("--seeds", type=seeds, required=True, metavar="A-B")
    parser.add_argument("--steps", type=count, required=True)
    parser.add_argument("--threshold", type=float, default=NEVER, metavar="X", help="a run stops where it is reached")
    parser.add_argument("--engine", choices=ENGINES, default="auto")
    parser.add_argument("--threads", type=natural, default=0, help="of each process")
    parser.add_argument("--processes", type=count, default=1, metavar="P")
    parser.add_argument("--worlds", type=count, default=2048)
    parser.add_argument("--lessons", metavar="cpu|cuda")
    parser.add_argument("--folder", type=Path, help="of the run folders; default: none")
    parser.add_argument("--out", type=Path, help="where the figures go")
    return run_script(parser, partial(measure, sys.argv[1:] if argv is None else argv), argv)


if __name__ == "__main__":
    sys.exit(main())
