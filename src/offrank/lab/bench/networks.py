"""What learns faster on a CPU, NumPy or PyTorch? An update of TD3's twin critics, and of an actor by their gradient.

    python -m offrank.lab.bench.networks --out results/speed/networks.json

Networks of the sizes of cem-rl on HalfCheetah-v3 (17 observations, 6 actions, skip:32), one and two threads, each in a
process of its own. NumPy runs the package's own functions; PyTorch autograd and its fused Adam. PyTorch is optional
(pip install 'offrank[torch]'); without it only NumPy is timed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from offrank.algorithms.learning import networks
from offrank.cli.options import count
from offrank.core.files import write_json
from offrank.core.version import versions
from offrank.lab.script import make_parser, run_script
from offrank.policies import make_policy

N, P, POLICY = 17, 6, "skip:32"
WARM_UP, UPDATES = 20, 100  # before a measurement, and in it


def numpy_updates(hidden: int, batch: int, threads: int) -> dict[str, Callable[[int], object]]:
    from threadpoolctl import threadpool_limits

    threadpool_limits(threads)
    draws = np.random.default_rng(0)
    q = networks.draw(draws, 2, N + P, hidden)
    slow, first, second = {k: v.copy() for k, v in q.items()}, networks.zeros_like(q), networks.zeros_like(q)
    x, later = (draws.normal(size=(batch, N + P)).astype(np.float32) for _ in range(2))
    reward = draws.normal(size=(batch, 1)).astype(np.float32)
    policy = make_policy(POLICY, N, P)
    theta = policy.start(0).astype(np.float32)
    actor, one, two = {"": theta}, {"": np.zeros_like(theta)}, {"": np.zeros_like(theta)}

    def critics(step: int) -> None:
        y = reward + 0.99 * networks.forward(slow, later)[2].min(axis=0)
        gradient = networks.squared_error_gradient(q, x, np.broadcast_to(y, (2, *y.shape)))
        networks.adam(q, gradient, first, second, networks.step_size(1e-3, step))
        networks.follow(slow, q, 0.005)

    def act(step: int) -> None:
        z, critic = x[:, :N], {k: v[:1] for k, v in q.items()}
        action = policy.act_together(actor[""], z)
        g = networks.input_gradient(critic, np.concatenate([z, action], axis=1))[:, N:]
        uphill = policy.pull_back(actor[""], z, g) / batch
        networks.adam(actor, {"": -uphill}, one, two, networks.step_size(1e-3, step))

    return {"critics": critics, "actor": act}


def torch_updates(hidden: int, batch: int, threads: int) -> dict[str, Callable[[int], object]]:
    import torch

    torch.set_num_threads(threads)
    nn: Any = torch.nn

    def twins() -> list[Any]:
        return [
            nn.Sequential(
                nn.Linear(N + P, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
            )
            for _ in range(2)
        ]

    q, slow = twins(), twins()
    learning, following = ([w for net in nets for w in net.parameters()] for nets in (q, slow))
    adam = torch.optim.Adam(learning, 1e-3, fused=True)
    x, later, reward = torch.randn(batch, N + P), torch.randn(batch, N + P), torch.randn(batch, 1)
    inside, across, out = nn.Linear(N, 32), nn.Linear(N, P, bias=False), nn.Linear(32, P, bias=False)
    actor_adam = torch.optim.Adam([w for layer in (inside, across, out) for w in layer.parameters()], 1e-3, fused=True)

    def critics(step: int) -> None:
        with torch.no_grad():
            y = reward + 0.99 * torch.min(slow[0](later), slow[1](later))
        loss = ((q[0](x) - y) ** 2).mean() + ((q[1](x) - y) ** 2).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        with torch.no_grad():
            torch._foreach_lerp_(following, learning, 0.005)

    def act(step: int) -> None:
        z = x[:, :N]
        action = across(z) + out(torch.tanh(inside(z)))
        loss = -q[0](torch.cat([z, action], 1)).mean()
        actor_adam.zero_grad()
        loss.backward()
        actor_adam.step()

    return {"critics": critics, "actor": act}


LIBRARIES = {"numpy": numpy_updates, "torch": torch_updates}


def measure(library: str, hidden: int, batch: int, threads: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds per update, a number per round."""
    times: dict[str, list[float]] = {}
    for name, update in LIBRARIES[library](hidden, batch, threads).items():
        for step in range(WARM_UP):
            update(step + 1)
        times[name] = []
        for _ in range(rounds):
            begin = time.perf_counter()
            for step in range(UPDATES):
                update(WARM_UP + step + 1)
            times[name].append(1000 * (time.perf_counter() - begin) / UPDATES)
    return times


def compare(args: argparse.Namespace) -> None:
    rows = []
    for batch in args.batch:
        for library in LIBRARIES if find_spec("torch") else ["numpy"]:
            for threads in (1, 2):
                how = (library, args.hidden, batch, threads, args.rounds)
                code = f"import json; from offrank.lab.bench.networks import measure; print(json.dumps(measure{how!r}))"
                out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
                rows.append({"library": library, "batch": batch, "threads": threads, "milliseconds": json.loads(out)})
                cells = ", ".join(f"{k} {np.median(v):.2f} ms" for k, v in rows[-1]["milliseconds"].items())
                print(f"{library}, batch {batch}, {threads} thread{'s' if threads > 1 else ''}: {cells}", flush=True)
    if args.out:
        write_json(args.out, {"hidden": args.hidden, "rows": rows, "versions": versions()})


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("networks", __doc__)
    parser.add_argument("--hidden", type=count, default=256)
    parser.add_argument("--batch", type=count, nargs="+", default=[100, 256])
    parser.add_argument("--rounds", type=count, default=7)
    parser.add_argument("--out", type=Path)
    return run_script(parser, compare, argv)


if __name__ == "__main__":
    sys.exit(main())
