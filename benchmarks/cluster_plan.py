"""What many cores would do on Humanoid-v3: arithmetic on measurements, no measurement itself.

    python benchmarks/cluster_plan.py [--cores 1000]

From `benchmarks/cluster.json` (`offrank bench cluster`): the driver's CPU time and the bytes of a piece, the bytes of a
request, the driver's part of an iteration. From `benchmarks/iteration.json` (`offrank bench iteration`): steps a second
of one episode on one core. Episodes are whole (1000 steps), as those of a trained policy are. A single run waits for
its driver, and its driver for it; a fleet does both at once, and takes as long as the slower of the two.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import median
from typing import Any

from offrank.runs.config import resolve
from offrank.tasks import TASKS

TASK = "Humanoid-v3"
HERE = Path(__file__).parent


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
    results = 8 * (2 * task.obs_dim + 2)  # moments, return and length, an episode
    kept = 0 if algo == "ars" else phases(algo)[0] * 8 * task.horizon * (task.obs_dim + 1)
    # a seed, a role and an index an episode
    sent = sum(wire["request_bytes"] + 24 * (e - wire["episodes"]) for e in phases(algo))
    nodes = cores / 16
    return {
        "seconds": seconds,
        "episodes_s": runs * episodes / seconds,
        "used": runs * episodes * episode / cores / seconds,
        "driver": driver / seconds,
        "out_mb_s": 1e-6 * runs * sent * nodes / seconds,
        "in_mb_s": 1e-6 * runs * (episodes * results + kept) / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=1000)
    args = parser.parse_args()
    cluster = json.loads((HERE / "cluster.json").read_text())
    growth = json.loads((HERE / "iteration.json").read_text())["growth"]
    rate = next(median(g["steps_a_second"]) for g in growth if g["task"] == TASK and g["candidates"] == 1)
    print(f"one core: {rate:,.0f} steps a second, {1000 / rate:.3f} s an episode; {args.cores} cores, nodes of 16\n")
    print(
        "| algorithm | runs | CPUs a worker | s an iteration | episodes/s | cores busy | driver busy | MB/s out | in |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for algo in ("ars", "op-ars"):
        for runs in (1, 8, 100):
            for slots in (1, 16):
                p = plan(algo, runs, args.cores, slots, cluster, 1 / rate)
                cells = [algo, str(runs), str(slots), f"{p['seconds']:.2f}", f"{p['episodes_s']:,.0f}"]
                cells += [f"{100 * p['used']:.0f} %", f"{100 * p['driver']:.0f} %"]
                print("| " + " | ".join([*cells, f"{p['out_mb_s']:.0f}", f"{p['in_mb_s']:.0f}"]) + " |")


if __name__ == "__main__":
    main()
