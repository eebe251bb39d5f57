"""A control step of the GPU engine with the parts of a substep in order, as mujoco_warp has them, and side by side.

python benchmarks/gpu_substep.py HalfCheetah-v3 --worlds 1000 2000 --out results/gpu_substep.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median

import warp as wp

from offrank.bench.gpu import STEPS, WARM_UP, random_policies
from offrank.checkpoint import write_json
from offrank.engines import warp_worlds
from offrank.engines.mjwarp import aligned_mjwarp
from offrank.engines.warp import ROWS, choose_device
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
    steps = {"in order": aligned_mjwarp().step, "side by side": warp_worlds.substep}
    rows = []
    for count in args.worlds:
        episodes = random_policies(task, count, 0.1)
        worlds = {how: warp_worlds.Worlds(task, count, ROWS * count, device, False) for how in steps}
        times: dict[str, list[float]] = {how: [] for how in steps}
        for round in range(args.rounds + 1):
            for how, some in worlds.items():
                warp_worlds.substep = steps[how]  # what the graph is captured from, the first time
                some.clear()
                some.load(*episodes)
                some.advance(WARM_UP)
                wp.synchronize_device(device)
                begin = time.perf_counter()
                some.advance(STEPS)
                wp.synchronize_device(device)
                if round:  # the first one warms up
                    times[how].append(1000 * (time.perf_counter() - begin) / STEPS)
        rows.append({"task": args.task, "worlds": count, "device": device.name, "milliseconds": times})
        print(f"{args.task}, {count} worlds: " + ", ".join(f"{how} {median(t):.2f} ms" for how, t in times.items()))
    if args.out:
        write_json(args.out, {"rows": rows})


if __name__ == "__main__":
    main()
