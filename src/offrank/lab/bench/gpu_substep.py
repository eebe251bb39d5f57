"""Milliseconds of a control step of the GPU engine with mujoco_warp's substep, and with the engine's own.

python -m offrank.lab.bench.gpu_substep HalfCheetah-v3 --worlds 1000 2000 --out results/speed/gpu_substep.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from offrank.cli.options import count
from offrank.core.errors import require
from offrank.core.files import write_json
from offrank.lab.bench.gpu import STEPS, WARM_UP, random_policies, seconds_of
from offrank.lab.script import make_parser, run_script
from offrank.tasks import TASKS

SUBSTEPS = ("mujoco_warp's", "the engine's")


def measure(task: str, number: int, device_name: str | None, rounds: int) -> dict[str, Any]:
    from offrank.engines.warp.engine import ROWS, choose_device
    from offrank.engines.warp.mjwarp import aligned_mjwarp
    from offrank.engines.warp.worlds import Worlds

    device = choose_device(device_name)
    episodes = random_policies(TASKS[task], number, 0.1)
    worlds = {name: Worlds(TASKS[task], number, ROWS * number, device, False) for name in SUBSTEPS}
    theirs: Any = worlds[SUBSTEPS[0]]
    theirs.substep = partial(aligned_mjwarp().step, theirs.model, theirs.data)
    times: dict[str, list[float]] = {name: [] for name in SUBSTEPS}
    for round in range(rounds + 1):
        for name, batch in worlds.items():
            batch.clear()
            batch.load(**episodes)
            batch.advance(WARM_UP)
            seconds = seconds_of(partial(batch.advance, STEPS), device)
            if round:  # the first one warms up
                times[name].append(1000 * seconds / STEPS)
    return {"task": task, "worlds": number, "device": device.name, "milliseconds": times}


def compare(args: argparse.Namespace) -> None:
    require("warp", "gpu")
    rows = []
    for number in args.worlds:
        rows.append(measure(args.task, number, args.device, args.rounds))
        times = rows[-1]["milliseconds"].items()
        print(f"{args.task}, {number} worlds: " + ", ".join(f"{name} {median(t):.2f} ms" for name, t in times))
    if args.out:
        write_json(args.out, {"rows": rows})


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("gpu_substep", __doc__)
    parser.add_argument("task", choices=list(TASKS), metavar="TASK")
    parser.add_argument("--worlds", type=count, nargs="+", default=[1000, 2000])
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path)
    return run_script(parser, compare, argv)


if __name__ == "__main__":
    sys.exit(main())
