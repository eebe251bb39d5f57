"""Time of the parts of an OP-ARS iteration, and how it grows."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from offrank.algorithms.base import Episodes
from offrank.algorithms.proposal import Proposal
from offrank.algorithms.rankers.kernel import kernel_scores
from offrank.core.arithmetic import usable_cpus
from offrank.core.errors import UsageError
from offrank.core.noise import Directions
from offrank.core.normalizer import Whitening
from offrank.core.rollouts import Episode, Request
from offrank.engines.native.engine import MujocoEngine
from offrank.engines.native.simulation import Simulation
from offrank.lab.bench.rollouts import bare_physics, record, some_policies
from offrank.lab.bench.rounds import alternate, ratio
from offrank.policies import make_policy
from offrank.runs.config import configure
from offrank.runs.recipe import resolve
from offrank.runs.run import Run
from offrank.tasks import TASKS

PARTS = ("episodes", "statistics", "idle threads", "ranking and update", "checkpoint")


class Stopwatch:
    """Seconds that all threads together spent inside compiled episodes, and in `Simulation.run` as a whole."""

    def __init__(self) -> None:
        self.inside = self.whole = 0.0
        self.lock = threading.Lock()


class TimedSimulation(Simulation):
    """A simulation that adds its times to a stopwatch."""

    watch: Stopwatch

    def run(self, request: Request, index: int, over: Any = None) -> Episode:
        begin = time.perf_counter()
        episode = super().run(request, index, over)
        with self.watch.lock:
            self.watch.whole += time.perf_counter() - begin
        return episode

    def simulate(self, *args: Any) -> tuple[int, int]:
        begin = time.perf_counter()
        found = super().simulate(*args)
        with self.watch.lock:
            self.watch.inside += time.perf_counter() - begin
        return found


def profile(name: str, iterations: int, threads: int = 0) -> dict[str, Any]:
    """Shares of an iteration's time by part; a checkpoint is counted once in every ten iterations."""
    watch = Stopwatch()
    engine = MujocoEngine(TASKS[name], threads, type("Timed", (TimedSimulation,), {"watch": watch}))
    threads = threads or usable_cpus()
    recipe = resolve(name, "op-ars", "kernel")
    config = configure(name, recipe, engine.space, iterations=10**9, eval_every=0)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        run = Run(config, engine.space)
        run.start()
        while run.state.iteration <= iterations:
            before, steps = run.state.iteration, run.state.steps
            begin, waited = time.perf_counter(), 0.0
            watch.inside = watch.whole = 0.0
            while run.state.iteration == before:
                (request,) = run.take()
                assert isinstance(request, Request)  # the kernel learns nothing
                submitted = time.perf_counter()
                rollouts = engine.run(request)
                waited += time.perf_counter() - submitted
                run.receive(request, rollouts)
            wall = time.perf_counter() - begin
            saving = time.perf_counter()
            run.save(Path(folder) / "checkpoint.npz")
            saved = (time.perf_counter() - saving) / 10
            inside, around = watch.inside / threads, (watch.whole - watch.inside) / threads
            parts = (inside, around, waited - watch.whole / threads, wall - waited, saved)
            if before > 0:  # the first one warms up
                rows.append([*(p / (wall + saved) for p in parts), wall + saved, run.state.steps - steps])
    engine.close()
    table = np.array(rows)
    shares = dict(zip(PARTS, np.median(table[:, : len(PARTS)], axis=0).tolist(), strict=True))
    return {
        "task": name,
        "threads": threads,
        "iterations": iterations,
        "seconds": float(np.median(table[:, -2])),
        "steps": float(np.median(table[:, -1])),
        "shares": shares,
        "everything_but_episodes": 1.0 - shares["episodes"] - shares["idle threads"],
    }


def against_candidates(name: str, counts: list[int], rounds: int, threads: int = 0) -> list[dict[str, Any]]:
    """Steps per second for several numbers of candidates at once."""
    engine = MujocoEngine(TASKS[name], threads)
    rows = []
    for count in counts:
        request = some_policies(TASKS[name], count, horizon=200)
        rates = []
        for _ in range(rounds):
            begin = time.perf_counter()
            steps = engine.run(request).steps
            rates.append(steps / (time.perf_counter() - begin))
        rows.append({"task": name, "candidates": count, "steps_a_second": rates})
    engine.close()
    return rows


def score_times(name: str, counts: list[int], states: int, rounds: int) -> list[dict[str, Any]]:
    """Seconds to score N directions on `states` behaviour states."""
    task = TASKS[name]
    policy = make_policy("linear", task.obs_dim, task.act_dim)
    rng = np.random.default_rng(0)
    z, Q = rng.normal(size=(states, policy.n)), rng.normal(size=states)
    rows = []
    for count in counts:
        directions = Directions(0, 0, count, policy.size)
        whitening, episodes = Whitening.identity(policy.n), Episodes(1000)
        proposal = Proposal(policy, policy.start(0), whitening, directions, 0.03, 1, episodes, 1000)
        seconds = []
        for _ in range(rounds):
            begin = time.perf_counter()
            kernel_scores(proposal, z, Q, 1.0)
            seconds.append(time.perf_counter() - begin)
        rows.append({"task": name, "directions": count, "states": states, "seconds": seconds})
    return rows


_MEMORY = """
import json, resource, sys, tempfile
from offrank import OPARS
seen = []
def record_memory(run, record):
    if record["kind"] == "iteration":
        seen.append((record["iteration"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
with tempfile.TemporaryDirectory() as out:
    agent = OPARS(sys.argv[1], ranker="kernel")
    agent.learn(iterations=int(sys.argv[2]), eval_every=2, eval_episodes=10, out=out + "/run", callback=record_memory)
print(json.dumps(seen))
"""


def peak_memory(name: str, iterations: int) -> list[tuple[int, float]]:
    """Peak megabytes of a process that trains OP-ARS, after each iteration, with evaluations and a run folder."""
    if sys.platform == "win32":
        raise UsageError("peak memory cannot be measured on Windows")
    command = [sys.executable, "-c", _MEMORY, name, str(iterations)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return [(iteration, size / unit) for iteration, size in json.loads(done.stdout.splitlines()[-1])]


def thread_scaling(name: str, candidates: int, rounds: int) -> dict[str, Any]:
    """Speed-up of two threads over one, of the engine and of bare physics."""
    task = TASKS[name]
    request = some_policies(task, candidates)
    one, two = (MujocoEngine(task, threads) for threads in (1, 2))
    times = alternate({"one": lambda: one.run(request), "two": lambda: two.run(request)}, rounds)
    recording = record(task, request, two)
    bare = alternate({"one": bare_physics(recording, 1), "two": bare_physics(recording, 2)}, rounds)
    for engine in (one, two):
        engine.close()
    return {
        "task": name,
        "candidates": candidates,
        "seconds": times,
        "faster": ratio(times["one"], times["two"]),
        "bare_seconds": bare,
        "bare_faster": ratio(bare["one"], bare["two"]),
    }
