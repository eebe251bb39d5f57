"""Microseconds of the parts of an update of `guided`'s critics on a device, each alone.

python -m offrank.lab.bench.update_parts --tasks HalfCheetah-v3 Humanoid-v3 --runs 4 16 64

On a GPU each part is recorded as a graph of twenty, so that launching it costs nothing. `NVIDIA_TF32_OVERRIDE=1` in the
environment lets products take factors of 10 bits.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from offrank.cli.options import count
from offrank.core.errors import require
from offrank.lab.bench.rounds import alternate
from offrank.lab.script import make_parser, run_script
from offrank.runs.recipe import resolve
from offrank.tasks import TASKS

REPEATS = 20  # of a part between two looks at the clock


def repeated(work: Callable[[], Any], device: str) -> Callable[[], None]:
    """The work REPEATS times, recorded where it can be, up to its end."""
    torch: Any = require("torch", "torch")
    from offrank.algorithms.learning.device import recorder

    def several() -> None:
        for _ in range(REPEATS):
            work()

    recorded = recorder(device)(several)

    def to_its_end() -> None:
        recorded()
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    return to_its_end


def parts(task: str, runs: int, device: str) -> dict[str, float]:
    """Microseconds of the whole update and of its parts, by name."""
    torch: Any = require("torch", "torch")
    from offrank.algorithms.learning.batched_networks import CriticBatch, Layout, adam

    space, settings = TASKS[task].space(clip_actions=True), resolve(task, "guided").settings
    hidden = settings.hidden
    layout = Layout(space.obs_dim + space.act_dim, hidden, standardised=True)
    batch, twins = CriticBatch(layout, runs, settings.batch, 1, device), 2 * runs
    for array in (batch.values, batch.inputs):
        array.copy_(0.1 * torch.randn_like(array))
    x, (w1, w2, w3) = batch.inputs[:, :, :, 0].flatten(0, 2), layout.matrices(batch.values.flatten(0, 2))
    y1, h1, h2 = torch.bmm(x, w1), batch.h1, batch.h1.clone()
    kept1 = layout.rectify(y1, h1)
    y2 = torch.bmm(h1, w2)
    kept2 = layout.rectify(y2, h2)
    d3 = torch.randn(twins, settings.batch, 1, device=device)
    d2 = layout.back(d3 * w3[:twins, :hidden].mT, kept2)
    before = torch.bmm(d2, w2[:twins, :hidden].mT)
    d1 = layout.back(before, kept1)
    gradient = torch.zeros(twins, layout.size, device=device)
    q, slow = batch.values.flatten(1, 2)
    places = layout.matrices(gradient)
    works: dict[str, Callable[[], Any]] = {
        "whole update": partial(batch.update, 0),
        "first product": lambda: torch.bmm(x, w1),
        "first layer": lambda: layout.rectify(y1, h1),
        "second product": lambda: torch.bmm(h1, w2),
        "second layer": lambda: layout.rectify(y2, h2),
        "third product": lambda: torch.bmm(h2, w3),
        "back to the second layer": lambda: layout.back(d3 * w3[:twins, :hidden].mT, kept2),
        "back product": lambda: torch.bmm(d2, w2[:twins, :hidden].mT),
        "back to the first layer": lambda: layout.back(before, kept1),
        "first gradient": lambda: places[0].baddbmm_(x[:twins].mT, d1, beta=0),
        "second gradient": lambda: places[1].baddbmm_(h1[:twins].mT, d2, beta=0),
        "third gradient": lambda: places[2].baddbmm_(h2[:twins].mT, d3, beta=0),
        "Adam and slow copies": lambda: adam(q, gradient, batch.first, batch.second, batch.rates[0], slow),
    }
    times = alternate({name: repeated(work, device) for name, work in works.items()}, 1)
    return {name: 1e6 * seconds / REPEATS for name, (seconds,) in times.items()}


def measure(args: argparse.Namespace) -> None:
    for task in args.tasks:
        for runs in args.runs:
            found = parts(task, runs, args.device)
            print(f"{task}, {runs} runs: " + ", ".join(f"{name} {value:.0f}" for name, value in found.items()))


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("update_parts", __doc__)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=["HalfCheetah-v3", "Humanoid-v3"])
    parser.add_argument("--runs", nargs="+", type=count, default=[4, 16, 64])
    parser.add_argument("--device", default="cuda")
    return run_script(parser, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
