"""Kill runs with SIGKILL at random moments, resume them, and compare their policies with those of undisturbed runs.

    python -m offrank.lab.campaign.kill --kills 1000 --workers 2 --out results/campaign/kill.json

A run is killed several times: after a random time; in the middle of writing a file (before it is synced, before it
replaces the old one, just after); or only one of its worker processes is. Then it is resumed until it ends. Its policy
must have the hash of a run that nobody disturbed, and no process may be left. The phase of every kill is what the run
was doing: running episodes, learning, evaluating, or writing.
"""

from __future__ import annotations

import argparse
import hashlib
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from offrank.cli.options import count, natural
from offrank.core.errors import UsageError
from offrank.core.files import read_json, write_json
from offrank.core.version import versions
from offrank.lab.campaign import children, one_thread, show
from offrank.lab.script import make_parser, run_script

Job = tuple[str, str, int, str]  # engine, algorithm, iterations, settings

PHASES = ("starting", "between", "episodes", "evaluation", "lesson", "writing")
WAYS = ("time", "before sync", "before replacing", "after replacing", "worker")
MOST = 4  # kills of one run
LESSONS = "hidden=16 batch=8 replay=2000 warmup_steps=200"
CRITIC = "hidden=16 replay=2000"
TASKS: dict[str, list[tuple[str, int, str]]] = {  # engine: (algorithm, iterations, settings)
    "mujoco": [
        ("ars", 40, ""),
        ("op-ars", 40, ""),
        ("op-tres", 30, ""),
        ("q-ars", 6, CRITIC),
        ("cem-rl", 8, "hidden=16 batch=8 replay=2000"),
        ("guided", 20, LESSONS),
    ],
    "gymnasium": [("ars", 10, ""), ("op-ars", 10, ""), ("guided", 8, LESSONS)],
    "ask-tell": [("ARS", 8, ""), ("OPARS", 8, ""), ("Guided", 10, LESSONS)],
}


# --- the run that is killed, in a process of its own


class Phase:
    """What the process does, in a byte that others can read; and its end at a given write."""

    def __init__(self, path: Path, way: str, at: int):
        self._byte = mmap.mmap(os.open(path, os.O_RDWR), 1)
        self._way, self._left = way, at
        self._before: list[int] = []

    def __call__(self, name: str) -> Phase:
        self._before.append(self._byte[0])
        self._byte[0] = PHASES.index(name)
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self._byte[0] = self._before.pop()

    def may_end(self, moment: str) -> None:
        if moment == self._way:
            self._left -= 1
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)


def _instrument(phase: Phase) -> None:
    """Make the parts of a run say when they are at work."""
    from offrank.core import files, work
    from offrank.engines.base import Engine
    from offrank.runs.run import Run

    def inside(owner: Any, name: str, what: str) -> None:
        plain = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with phase(what):
                return plain(*args, **kwargs)

        setattr(owner, name, wrapped)

    inside(work.Lesson, "attempt", "lesson")
    inside(Run, "checkpoint", "writing")
    completed, sync, replace = Engine.completed, os.fsync, Path.replace

    def waiting(engine: Engine, *args: Any) -> Any:
        roles = {int(role) for request, _, _ in engine._open.values() for role in request.roles}
        with phase("evaluation" if roles == {3} else "episodes"):
            return completed(engine, *args)

    def syncing(descriptor: int) -> None:
        phase.may_end("before sync")
        sync(descriptor)

    def replacing(path: Path, target: Path) -> Path:
        phase.may_end("before replacing")
        done = replace(path, target)
        phase.may_end("after replacing")
        return done

    Engine.completed = waiting  # type: ignore[method-assign, assignment]
    files.os.fsync = syncing  # type: ignore[attr-defined]
    Path.replace = replacing  # type: ignore[method-assign, assignment]


def _child(job: Job, folder: Path, phase_file: Path, way: str, at: int) -> int:
    """Run a job to its end."""
    import offrank
    from offrank.cli import main

    engine, algo, iterations, settings = job
    phase = Phase(phase_file, way, at)
    _instrument(phase)
    phase("between")
    given = [word for pair in settings.split() for word in ("--set", pair)]
    if engine != "ask-tell":
        task = "Swimmer-v3" if engine == "mujoco" else "Pendulum-v1"
        words = ["train", task, "--algo", algo, "--engine", engine, "--iterations", str(iterations), "--horizon", "60"]
        words += ["--eval-every", "3", "--eval-episodes", "4", "--threshold", "none", "--checkpoint-seconds", "0"]
        return main([*words, *given, "--workers", "1", "--quiet", "--resume", "--out", str(folder)])
    values: dict[str, Any] = {name: float(value) for name, value in (pair.split("=") for pair in settings.split())}
    values = {name: int(value) if value == int(value) else value for name, value in values.items()}
    how: dict[str, Any] = {"horizon": 60, "iterations": iterations, "eval_every": 3, "eval_episodes": 2}
    run = offrank.AskTell(getattr(offrank, algo), 3, 2, low=-1, high=1, journal=folder, **how, **values)
    while not run.done:
        for episode in run.ask():
            with phase("evaluation" if episode.role == "evaluation" else "episodes"):
                rewards, observations = _point(episode)
            run.tell(episode, rewards, observations)
    (folder / "ended").write_text(run.policy.sha256)
    return 0


def _point(episode: Any) -> tuple[Any, Any]:
    """An episode of a point that is pushed about."""
    random = np.random.default_rng(episode.seed)
    x, rewards = random.normal(size=3), []
    seen = [x]
    for step in range(episode.horizon):
        action = np.asarray(episode.act(x, step))
        x = 0.9 * x + 0.3 * np.append(action, action.sum()) + 0.05 * random.normal(size=3)
        rewards.append(-float(x @ x))
        seen.append(x)
    return np.array(rewards), np.array(seen)


# --- the campaign


def _outcome(engine: str, folder: Path) -> str | None:
    """The hash of the final policy of a run that has ended."""
    path = folder / ("ended" if engine == "ask-tell" else "result.json")
    if not path.is_file():
        return None
    return path.read_text() if engine == "ask-tell" else str(read_json(path)["policy_sha256"])


def _start(job: Job, folder: Path, phase: Path, way: str = "", at: int = 0) -> subprocess.Popen[str]:
    phase.write_bytes(b"\x00")
    words = [sys.executable, "-m", "offrank.lab.campaign.kill", "--child", *map(str, job), str(folder), str(phase), way]
    return subprocess.Popen(
        [*words, str(at)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=one_thread()
    )


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _trial(job: Job, seed: int, reference: str, duration: float, folder: Path) -> dict[str, Any]:
    """Kill one run several times and let it end. Returns its kills, as (way, phase), and its problems."""
    engine, phase = job[0], folder / "phase"
    random, kills, problems, orphans = np.random.default_rng([seed, 9]), [], [], set()
    folder.mkdir(parents=True)
    for _ in range(int(random.integers(1, MOST + 1))):
        way = WAYS[int(random.integers(len(WAYS) if engine == "gymnasium" else len(WAYS) - 1))]
        process = _start(job, folder / "run", phase, way, int(random.integers(12)))
        until = time.monotonic() + random.uniform(0.3, 1.1) * duration
        started: list[int] = []
        while process.poll() is None and (time.monotonic() < until or way not in ("time", "worker")):
            started = children(process.pid) or started
            time.sleep(0.01)
        at = PHASES[phase.read_bytes()[0]]
        if process.poll() is None and way == "worker" and started:
            with suppress(ProcessLookupError):  # it may have ended meanwhile
                os.kill(started[int(random.integers(len(started)))], signal.SIGKILL)
                kills.append((way, at))
            process.wait()
        elif process.poll() is None:
            process.kill()
            kills.append((way, at))
        _, err = process.communicate()
        if process.returncode == -signal.SIGKILL and (not kills or way not in ("time", "worker")):
            kills.append((way, at))
        elif process.returncode not in (0, -signal.SIGKILL):
            problems.append(f"exit status {process.returncode}: {err[-300:]}")
        orphans |= set(started)
        if _outcome(engine, folder / "run") is not None:
            break
    if _outcome(engine, folder / "run") is None:
        process = _start(job, folder / "run", phase)
        _, err = process.communicate()
        if process.returncode != 0:
            problems.append(f"not resumed: exit status {process.returncode}: {err[-300:]}")
    found = _outcome(engine, folder / "run")
    if found != reference:
        problems.append(f"the policy differs: {found}, not {reference}")
    time.sleep(0.3 if orphans else 0)
    problems += [f"process {pid} was left" for pid in orphans if _alive(pid)]
    return {"job": list(job[:2]), "seed": seed, "kills": kills, "problems": problems}


def _kill(args: argparse.Namespace) -> None:
    jobs: list[Job] = [(engine, *job) for engine, some in TASKS.items() for job in some]
    done: list[dict[str, Any]] = []
    lock, start = threading.Lock(), time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(args.workers) as pool:
        root, known = Path(scratch), {}
        for job in jobs:
            folder = root / hashlib.sha256(repr(job).encode()).hexdigest()[:12]
            folder.mkdir()
            begin = time.monotonic()
            process = _start(job, folder / "run", folder / "phase")
            _, err = process.communicate()
            reference = _outcome(job[0], folder / "run")
            if process.returncode != 0 or reference is None:
                raise UsageError(f"{job[0]} {job[1]} does not run undisturbed: {err[-300:]}")
            known[job] = reference, time.monotonic() - begin

        def work(number: int) -> None:
            with lock:
                if sum(len(trial["kills"]) for trial in done) >= args.kills:
                    return
            job = jobs[number % len(jobs)]
            trial = _trial(job, args.seed + number, *known[job], root / f"trial-{number}")
            with lock:
                done.append(trial)
                if args.out:
                    write_json(args.out, _summary(done, start))

        list(pool.map(work, range(3 * args.kills)))
    show(_summary(done, start))


def _summary(done: Sequence[dict[str, Any]], start: float) -> dict[str, Any]:
    kills = [(trial["job"], *kill) for trial in done for kill in trial["kills"]]
    bad = [trial for trial in done if trial["problems"]]
    return {
        "runs": len(done),
        "kills": len(kills),
        "problems": len(bad),
        "by_phase": dict(Counter(phase for _, _, phase in kills).most_common()),
        "by_way": dict(Counter(way for _, way, _ in kills).most_common()),
        "by_run": dict(sorted(Counter(" ".join(job) for job, _, _ in kills).items())),
        "seconds": round(time.monotonic() - start),
        "bad": bad,
        "versions": versions(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--child"]:
        engine, algo, iterations, settings, folder, phase, way, at = words[1:]
        return _child((engine, algo, int(iterations), settings), Path(folder), Path(phase), way, int(at))
    parser = make_parser("kill", __doc__)
    parser.add_argument("--kills", type=count, default=100)
    parser.add_argument("--seed", type=natural, default=0, help="of the first run's kills")
    parser.add_argument("--workers", type=count, default=2, help="runs side by side")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a JSON file for the summary, written as it goes")
    return run_script(parser, _kill, words)


if __name__ == "__main__":
    sys.exit(main())
