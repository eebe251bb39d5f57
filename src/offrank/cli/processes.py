"""--processes: the runs of a command are shared between several processes.

A process runs Python in one thread at a time: where many runs learn, iterations, checkpoints and the launching of
lessons wait for each other.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from offrank.cli.options import count
from offrank.core.arithmetic import usable_cpus
from offrank.core.errors import UsageError
from offrank.core.parent import end_with_parent
from offrank.engines import on_cluster, resolve_engine
from offrank.runs.drive import catching_signals
from offrank.runs.folder import METRICS, RESULT

PARENT = "OFFRANK_PARENT"  # environment variable: the process whose end interrupts this one
POLL, PROGRESS = 0.1, 30.0  # seconds between two looks at the processes, and between two lines of progress
TAIL = 4096  # bytes; a line of metrics is shorter


def add_flag(parser: Any) -> None:
    parser.add_argument(
        "--processes",
        type=count,
        metavar="P",
        help="share the runs and the cores between P processes, for many runs that learn (default 1)",
    )


def end_if_abandoned() -> bool:
    """Whether this is one of several processes: then it is interrupted, and so saves, when the process that started it
    is gone."""
    parent = os.environ.pop(PARENT, "")  # what this process starts has another parent
    if not parent.isdecimal():
        return False
    end_with_parent(partial(os.kill, os.getpid(), signal.SIGTERM), int(parent))
    return True


def flags_of_share(args: argparse.Namespace, task: str, processes: int) -> list[str]:
    """Flags by which one of several processes says nothing and has its share of the cores, unless these were given.

    Raises:
        UsageError: the engine is a cluster.
    """
    if on_cluster(args.engine) or args.address is not None:
        raise UsageError("--processes does not go with a cluster, which has processes of its own")
    share = str(max(1, usable_cpus() // processes))
    flags = ["--processes", "1", "--quiet"]
    flags += [] if args.threads else ["--threads", share]
    needs_workers = args.workers is None and resolve_engine(task, args.engine or "auto") == "gymnasium"
    return [*flags, "--workers", share] if needs_workers else flags


def run_offrank(
    commands: Sequence[Sequence[str]], tick: Callable[[], None], again: str = "add --resume to continue"
) -> tuple[int, list[str]]:
    """Run `offrank` with some words each, side by side. A signal is passed on to all of them.

    Args:
        commands: the words of each.
        tick: called several times per second.
        again: what to do where some were killed.

    Returns:
        The exit status: 128 + signal, or that of the first that failed, or 0. What each printed on stdout.
    """
    environment = os.environ | {PARENT: str(os.getpid())}
    with catching_signals() as signals, ExitStack() as closing:
        outs = [closing.enter_context(TemporaryFile("w+")) for _ in commands]
        children = [
            subprocess.Popen(
                [sys.executable, "-m", "offrank", *words], env=environment, stdout=out, start_new_session=True
            )
            for words, out in zip(commands, outs, strict=True)
        ]
        told = False
        while any(child.poll() is None for child in children):
            if signals.caught is not None and not told:
                told = True
                for child in children:
                    child.terminate()
            tick()
            time.sleep(POLL)
        printed = []
        for out in outs:
            out.seek(0)
            printed.append(out.read())
    killed = sum(child.returncode < 0 for child in children)
    if killed and signals.caught is None:
        print(f"offrank: {killed} of {len(children)} processes were killed: {again}", file=sys.stderr)
    if signals.caught is not None:
        return 128 + signals.caught, printed
    return next((max(child.returncode, 1) for child in children if child.returncode != 0), 0), printed


class Ended:
    """Which of some runs have ended since this was made: those that have written a result."""

    def __init__(self, folders: Sequence[Path]):
        self._before = {folder: _written(folder / RESULT) for folder in folders}

    def __call__(self) -> list[Path]:
        return [folder for folder, before in self._before.items() if _written(folder / RESULT) != before]


def _written(file: Path) -> int | None:
    """When a file was written; None if it is not there."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return None


class Progress:
    """A line on stderr every PROGRESS seconds: how many runs have ended, and the training steps of all."""

    def __init__(self, folders: Sequence[Path], quiet: bool):
        self._folders, self._quiet, self._next = folders, quiet, time.monotonic() + PROGRESS
        self.ended = Ended(folders)

    def __call__(self) -> None:
        if self._quiet or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PROGRESS
        steps, count = sum(_steps(folder / METRICS) for folder in self._folders), len(self._folders)
        print(f"{len(self.ended())} of {count} runs have ended; {steps:,} steps of all", file=sys.stderr, flush=True)


def _steps(metrics: Path) -> int:
    """The training steps in the last whole line of a file that another process writes."""
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().split(b"\n")
        return int(json.loads(lines[-2])["steps"])
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        return 0
