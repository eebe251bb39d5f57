"""A control step of the GPU engine with mujoco_warp's own substep, and with the engine's.

python benchmarks/gpu_substep.py HalfCheetah-v3 --worlds 1000 2000 --out results/gpu_substep.json
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from statistics import median

import warp as wp

from offrank.core.files import write_json
from offrank.engines.warp.engine import ROWS, choose_device
from offrank.engines.warp.mjwarp import aligned_mjwarp
from offrank.engines.warp.worlds import Worlds
from offrank.lab.bench.gpu import STEPS, WARM_UP, random_policies
from offrank.tasks import TASKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=list(TASKS))
    parser.add_argument("--worlds", type=int, nargs="+", default=[1000, 2000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    task, device = TASKS[args.task], choose_device(args.device)
    how = ("mujoco_warp's", "the engine's")
    rows = []
    for count in args.worlds:
        episodes = random_policies(task, count, 0.1)
        worlds = {one: Worlds(task, count, ROWS * count, device, False) for one in how}
        other = worlds[how[0]]
        other.substep = partial(aligned_mjwarp().step, other.model, other.data)
        times: dict[str, list[float]] = {one: [] for one in how}
        for round in range(args.rounds + 1):
            for one, some in worlds.items():
                some.clear()
                some.load(*episodes)
                some.advance(WARM_UP)
                wp.synchronize_device(device)
                begin = time.perf_counter()
                some.advance(STEPS)
                wp.synchronize_device(device)
                if round:  # the first one warms up
                    times[one].append(1000 * (time.perf_counter() - begin) / STEPS)
        rows.append({"task": args.task, "worlds": count, "device": device.name, "milliseconds": times})
        print(f"{args.task}, {count} worlds: " + ", ".join(f"{one} {median(t):.2f} ms" for one, t in times.items()))
    if args.out:
        write_json(args.out, {"rows": rows})


if __name__ == "__main__":
    main()
