"""Estimate what many cores would do on Humanoid-v3: arithmetic on measurements, not a measurement itself.

    python -m offrank.lab.bench.cluster_plan [--cores 1000]

From cluster.json (`offrank bench cluster`): the driver's CPU time and bytes per piece of work, bytes per request, the
driver's part of an iteration. From iteration.json (`offrank bench iteration`): steps per second of one episode on one
core. Episodes are whole (1000 steps), as those of a trained policy are. A single run and its driver wait for each
other; a fleet overlaps both, and takes as long as the slower of the two.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from offrank.cli.options import count
from offrank.core.files import read_json
from offrank.lab.script import make_parser, run_script
from offrank.lab.studies.tables import Table
from offrank.runs.recipe import resolve
from offrank.tasks import TASKS

TASK = "Humanoid-v3"
CORES_PER_NODE = 16


def phases(algo: str) -> list[int]:
    """Episodes of an iteration, request by request: a request waits for the one before it."""
    h = resolve(TASK, algo).hyperparameters
    return [2 * h["n_directions"]] if algo == "ars" else [h["n_behaviour"], 2 * h["n_top"]]


def plan(algo: str, runs: int, cores: int, slots: int, cluster: dict[str, Any], step: float) -> dict[str, float]:
    """One iteration of `runs` runs side by side, on `cores` cores in workers of `slots`."""
    task, wire = TASKS[TASK], cluster["wire"][0]
    episode, piece = step * task.horizon, 1e-3 * median(w["driver_cpu_ms_a_piece"] for w in cluster["wire"])
    episodes = sum(phases(algo))
    messages = sum(math.ceil(e / slots) for e in phases(algo)) * piece
    alone = median(cluster["serial_s"][algo]) + messages + sum(math.ceil(e / cores) for e in phases(algo)) * episode
    driver = runs * (median(cluster["serial_s"][algo]) + messages)
    seconds = max(alone, runs * episodes * episode / cores, driver)
    results = 8 * (2 * task.obs_dim + 2)  # moments, return and length per episode
    kept = 0 if algo == "ars" else phases(algo)[0] * 8 * task.horizon * (task.obs_dim + 1)
    # a seed, a role and an index per episode
    sent = sum(wire["request_bytes"] + 24 * (e - wire["episodes"]) for e in phases(algo))
    nodes = cores / CORES_PER_NODE
    return {
        "seconds": seconds,
        "episodes_s": runs * episodes / seconds,
        "used": runs * episodes * episode / cores / seconds,
        "driver": driver / seconds,
        "out_mb_s": 1e-6 * runs * sent * nodes / seconds,
        "in_mb_s": 1e-6 * runs * (episodes * results + kept) / seconds,
    }


def estimate(args: argparse.Namespace) -> None:
    cluster = read_json(args.results / "cluster.json")
    growth = read_json(args.results / "iteration.json")["growth"]
    rate = next(median(g["steps_a_second"]) for g in growth if g["task"] == TASK and g["candidates"] == 1)
    print(f"one core: {rate:,.0f} steps per second, {1000 / rate:.3f} s per episode; ", end="")
    print(f"{args.cores} cores, nodes of {CORES_PER_NODE}\n")
    head = ["algorithm", "runs", "CPUs per worker", "s per iteration", "episodes/s", "cores busy", "driver busy"]
    lines = []
    for algo in ("ars", "op-ars"):
        for runs in (1, 8, 100):
            for slots in (1, CORES_PER_NODE):
                p = plan(algo, runs, args.cores, slots, cluster, 1 / rate)
                lines.append([algo, str(runs), str(slots), f"{p['seconds']:.2f}", f"{p['episodes_s']:,.0f}"])
                lines[-1] += [f"{100 * p['used']:.0f} %", f"{100 * p['driver']:.0f} %"]
                lines[-1] += [f"{p['out_mb_s']:.0f}", f"{p['in_mb_s']:.0f}"]
    print(Table([*head, "MB/s out", "MB/s in"], lines).markdown())


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("cluster_plan", __doc__)
    parser.add_argument("--cores", type=count, default=1000)
    parser.add_argument("--results", type=Path, default=Path("results/speed"), help="folder of the two files")
    return run_script(parser, estimate, argv)


if __name__ == "__main__":
    sys.exit(main())
