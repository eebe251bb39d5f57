"""Mutate policy files, checkpoints, run folders, journals and command lines, and use them as a user would.

    python -m offrank.lab.campaign.fuzz --cases 100000 --workers 2 --out results/campaign/fuzz.json

Half of the mutated archives are damaged bytes; the others are whole, with right checksums, and lie: arrays of another
size or type, numbers that are not finite or enormous, metadata of any kind. Every use must end with success or with one
line and exit status 1 or 2: no traceback, no warning, no more than `--seconds` of computing, no growth of memory by
more than 1 GB, no import of a module that a file names, and no file outside of the case's folder, but for compiled
kernels. What does not is written to `--out` with the number of its case: `--case N` repeats that one alone.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

import offrank
from offrank.cli import main as offrank_main
from offrank.cli.options import count, natural
from offrank.core.errors import OffrankError
from offrank.core.files import write_json
from offrank.core.version import versions
from offrank.lab.campaign import show
from offrank.lab.campaign.mutations import EVIL, mutate_file
from offrank.lab.script import make_parser, run_script

CHUNK = 250  # cases per process
ASLEEP = 10  # times the limit of computing time that a case may take by the clock, on a machine that is busy
MEMORY = 1 << 30  # bytes by which a case may make the process grow
TRAIN = [
    "--iterations",
    "2",
    "--horizon",
    "8",
    "--eval-every",
    "1",
    "--eval-episodes",
    "2",
    "--quiet",
    "--threads",
    "1",
]
SMALL = ["--set", "warmup_steps=8", "--set", "hidden=8", "--set", "batch=4"]


# --- what is mutated (by `mutations.py`)


def make_corpus(folder: Path) -> None:
    """Whole files of every kind, from short runs."""
    for algo, more in (("op-ars", []), ("guided", SMALL)):
        out = folder / algo
        words = ["train", "Swimmer-v3", "--algo", algo, *TRAIN, *more, "--checkpoint-seconds", "0", "--out", str(out)]
        with contextlib.redirect_stdout(io.StringIO()):
            assert offrank_main(words) == 0
    run = _ask_tell(folder / "journal")
    for episode in run.ask()[:3]:
        run.tell(episode, np.ones(8), np.ones((9, 3)))
    run.close()


def _ask_tell(journal: Path) -> offrank.AskTell:
    return offrank.AskTell(offrank.ARS, 3, 2, journal=journal, horizon=8, keep_episodes=True)


# --- how it is used


def use_policy(corpus: Path, here: Path, random: Generator) -> tuple[str, Callable[[], int]]:
    algo = ("op-ars", "guided")[int(random.integers(2))]
    path = here / "p.offrank"
    shutil.copy(corpus / algo / ("best.offrank" if random.random() < 0.7 else "checkpoint.npz"), path)
    if (corpus / algo / "replay").is_dir():
        shutil.copytree(corpus / algo / "replay", here / "replay")
    how = mutate_file(path, random)
    words = ["evaluate", str(path), "--episodes", "2", "--threads", "1"]
    return f"{algo} policy, {how}", lambda: offrank_main(words)


def use_run(corpus: Path, here: Path, random: Generator) -> tuple[str, Callable[[], int]]:
    algo = ("op-ars", "guided")[int(random.integers(2))]
    shutil.copytree(corpus / algo, here / "run")
    files = sorted(path for path in (here / "run").rglob("*") if path.is_file() and path.suffix in SUFFIXES)
    how = mutate_file(files[int(random.integers(len(files)))], random)
    words = ["train", "Swimmer-v3", "--algo", algo, *TRAIN, "--iterations", "3", "--out", str(here / "run"), "--resume"]
    if random.random() < 0.2:
        words = ["plot", str(here / "run"), "--out", str(here / "c.png")]
    return f"{algo} run, {how}", lambda: offrank_main(words)


def use_journal(corpus: Path, here: Path, random: Generator) -> tuple[str, Callable[[], int]]:
    shutil.copytree(corpus / "journal", here / "journal")
    files = sorted(p for p in (here / "journal").rglob("*") if p.is_file() and p.suffix in SUFFIXES)
    how = mutate_file(files[int(random.integers(len(files)))], random)

    def use() -> int:
        try:
            run = _ask_tell(here / "journal")
            for episode in run.ask()[:2]:
                run.tell(episode, np.ones(8), np.ones((9, 3)))
            run.close()
        except OffrankError as error:
            print(f"offrank: {error}", file=sys.stderr)
            return 2
        return 0

    return f"journal, {how}", use


def use_command_line(corpus: Path, here: Path, random: Generator) -> tuple[str, Callable[[], int]]:
    words = ["train", "Swimmer-v3", *TRAIN, "--out", str(here / "new")]
    flags = ["--algo", "--ranker", "--policy", "--seed", "--seeds", "--set", "--steps", "--threshold", "--horizon"]
    flags += ["--eval-steps", "--confirm-episodes", "--engine", "--workers", "--lessons", "--init", "--env-arg"]
    flags += ["--checkpoint-seconds", "--episode-seconds", "--worlds", "--address", "--unknown", "--resume", "-h"]
    values = ["op-ars", "guided", "cem", "tres", "kernel", "skip:4", "0", "-1", "1e300", "nan", "3-1", "0-2", "", "a=b"]
    values += [
        "step_size=-1",
        "n_directions=0",
        "discount=2",
        "none",
        "mujoco",
        "warp",
        "nowhere",
        "\x00",
        "🤖",
        "9" * 40,
    ]
    for _ in range(int(random.integers(1, 4))):
        if random.random() < 0.15:
            words[int(random.integers(len(words) - 1))] = values[int(random.integers(len(values)))]
        else:
            words += [flags[int(random.integers(len(flags)))], values[int(random.integers(len(values)))]]
    return "command line, " + " ".join(word for word in words if str(here) not in word), lambda: offrank_main(words)


SUFFIXES = (".npz", ".json", ".jsonl", ".offrank")
USES = {"policy": use_policy, "run": use_run, "journal": use_journal, "command line": use_command_line}


# --- one case


class _TimeOut(BaseException):
    """A case takes too long. No `except Exception` catches it."""


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(signum: int, frame: Any) -> None:
        raise _TimeOut

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, 1), signal.SIGALRM: (signal.ITIMER_REAL, ASLEEP)}
    for number, (timer, factor) in timers.items():
        signal.signal(number, stop)
        signal.setitimer(timer, factor * seconds)
    try:
        yield
    finally:
        for timer, _ in timers.values():
            signal.setitimer(timer, 0)


class Watch:
    """Notes files that are opened for writing outside of a folder, and of another that is always allowed."""

    def __init__(self, allowed: str) -> None:
        self.folder: str | None = None
        self._allowed = (allowed, "/dev/", "/proc/")
        self.outside: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.folder is None or event not in ("open", "os.mkdir", "os.rename", "os.remove"):
            return
        if event == "open" and not (isinstance(args[1], str) and set(args[1]) & set("wax+")):
            return
        path = args[0]
        if isinstance(path, str | bytes | os.PathLike):
            text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - `resolve` would open files
            if not text.startswith((self.folder, *self._allowed)):
                self.outside.append(f"{event} {text}")


def run_case(number: int, corpus: Path, here: Path, seconds: float, watch: Watch) -> dict[str, Any]:
    """Do one case. The result has its `problems`, which should be none."""
    random = np.random.default_rng([number, 22])
    name = list(USES)[number % len(USES)]
    os.chdir(here.parent)
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    os.chdir(here)
    what, use = USES[name](corpus, here, random)
    problems, out, err, status = [], io.StringIO(), io.StringIO(), -1
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    watch.folder, watch.outside = str(here), []
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(record=True) as warned,
            _limited(seconds),
        ):
            warnings.simplefilter("always")
            try:
                status = use()
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else 1
        problems += [f"warning: {w.message}" for w in warned if "workers were" not in str(w.message)]
    except _TimeOut:
        problems.append(f"took more than {seconds:g} s")
    except BaseException as error:
        problems.append(f"{type(error).__name__}: {error}"[:300])
    finally:
        watch.folder = None
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if grown > MEMORY:
        problems.append(f"memory grew by {grown / 1e9:.1f} GB")
    if EVIL in sys.modules or (here / "imported").exists():
        problems.append(f"{EVIL} was imported")
    problems += [f"wrote outside: {path}" for path in watch.outside]
    if not problems:
        if status not in (0, 1, 2):
            problems.append(f"exit status {status}")
        elif status != 0 and not re.fullmatch(r"[^\n]*: [^\n]+\n", err.getvalue()):
            problems.append(f"not one line: {err.getvalue()[-300:]!r}")
    took = round(time.perf_counter() - start, 3)
    return {"case": number, "use": name, "what": what, "status": status, "seconds": took, "problems": problems}


def _work(first: int, last: int, corpus: Path, seconds: float, results: Path) -> None:
    """Cases first ... last - 1, in a process of their own, each result as a line of a file."""
    with tempfile.TemporaryDirectory() as scratch, results.open("a") as file:
        (Path(scratch) / f"{EVIL}.py").write_text("import pathlib; pathlib.Path('imported').touch()\n")
        sys.path.insert(0, scratch)
        os.environ["WARP_CACHE_PATH"] = kernels = f"{scratch}/kernels"
        watch = Watch(kernels)
        for number in range(first, last):
            file.write(json.dumps({"begin": number}) + "\n")
            file.flush()
            file.write(json.dumps(run_case(number, corpus, Path(scratch) / "case", seconds, watch)) + "\n")
        file.flush()


def run_all(cases: Sequence[int], workers: int, seconds: float, folder: Path) -> Iterator[dict[str, Any]]:
    """The result of every case. A process that dies is the problem of its last case, and the others go on."""
    corpus = folder / "corpus"
    make_corpus(corpus)
    context = multiprocessing.get_context("fork")
    chunks = [(at, min(at + CHUNK, cases[-1] + 1)) for at in range(cases[0], cases[-1] + 1, CHUNK)]
    going: list[tuple[Any, int, int, Path]] = []
    while chunks or going:
        while chunks and len(going) < workers:
            first, last = chunks.pop(0)
            results = folder / f"{first}.jsonl"
            process = context.Process(target=_work, args=(first, last, corpus, seconds, results))
            process.start()
            going.append((process, first, last, results))
        for entry in list(going):
            process, _, last, results = entry
            process.join(0.1)
            if process.is_alive():
                continue
            going.remove(entry)
            lines = [json.loads(line) for line in results.read_text().splitlines()]
            yield from (line for line in lines if "case" in line)
            begun = max(line["begin"] for line in lines if "begin" in line)
            if process.exitcode != 0:
                problem = f"the process died (exit status {process.exitcode})"
                yield {"case": begun, "use": list(USES)[begun % len(USES)], "status": -1, "problems": [problem]}
                if begun + 1 < last:
                    chunks.append((begun + 1, last))
            results.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("fuzz", __doc__)
    parser.add_argument("--cases", type=count, default=1000)
    parser.add_argument("--case", type=natural, help="only this one")
    parser.add_argument("--first", type=natural, default=0, help="number of the first case")
    parser.add_argument("--workers", type=count, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="of computing that a case may take")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a JSON file for the summary, written as it goes")
    return run_script(parser, _fuzz, argv)


def _summary(found: Sequence[dict[str, Any]], first: int, seconds: float) -> dict[str, Any]:
    bad = [case for case in found if case["problems"]]
    statuses = {name: Counter(str(c["status"]) for c in found if c["use"] == name) for name in USES}
    return {
        "cases": len(found),
        "first": first,
        "problems": len(bad),
        "statuses": {name: dict(sorted(counts.items())) for name, counts in statuses.items()},
        "slowest_seconds": max((c.get("seconds", 0.0) for c in found), default=0.0),
        "seconds": round(seconds),
        "bad": bad[:200],
        "versions": versions(),
    }


def _fuzz(args: argparse.Namespace) -> None:
    first, number = (args.first, args.cases) if args.case is None else (args.case, 1)
    start, found = time.perf_counter(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        for case in run_all(range(first, first + number), args.workers, args.seconds, Path(folder)):
            found.append(case)
            if args.out and len(found) % CHUNK == 0:
                write_json(args.out, _summary(found, first, time.perf_counter() - start))
    summary = _summary(found, first, time.perf_counter() - start)
    if args.out:
        write_json(args.out, summary)
    show(summary, "bad")
    bad = [case for case in found if case["problems"]]
    for kind, times in Counter(re.sub(r"\d+", "N", c["problems"][0])[:110] for c in bad).most_common(20):
        print(f"{times:6d}  {kind}")
    for case in bad[:10]:
        print(case["case"], case.get("what", "")[:150], "->", case["problems"][0][:250])


if __name__ == "__main__":
    sys.exit(main())
