"""Train on a Ray cluster that loses workers and nodes all the time: the policy must be that of an undisturbed run.

    python -m offrank.lab.campaign.load --minutes 20 --out results/campaign/load.json

The cluster is several Ray nodes on this machine, with one worker each. Every 10 seconds a random worker process gets
SIGKILL; every minute all processes of a random node do, and a new node joins. When the time is over, the run ends after
its iteration, and as many iterations are run again in one process that nobody disturbs. Needs Linux and offrank[ray].
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym

import offrank
from offrank.cli.options import count, natural, seconds
from offrank.core.errors import OffrankError, require
from offrank.core.files import write_json
from offrank.core.version import versions
from offrank.lab.campaign import children, show
from offrank.lab.script import make_parser, run_script

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
SETTINGS: dict[str, Any] = {"n_directions": 16, "n_top": 8, "n_behaviour": 2, "horizon": 100}
STEP = 0.002  # seconds that a step sleeps, so that workers are in an episode nearly always


class Slow(gym.Wrapper[Any, Any, Any, Any]):
    """Sleeps at every step."""

    def __init__(self, env: gym.Env[Any, Any], seconds: float):
        super().__init__(env)
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        time.sleep(self._seconds)
        return self.env.step(action)


def make_env(seconds: float) -> gym.Env[Any, Any]:
    return Slow(gym.make("Pendulum-v1"), seconds)


class Losses(threading.Thread):
    """Kills workers and nodes until it is stopped."""

    def __init__(self, nodes: Any, worker_seconds: float, node_seconds: float, seed: int):
        super().__init__(daemon=True)
        self._nodes, self._every = nodes, (worker_seconds, node_seconds)
        self._random, self._over = random.Random(seed), threading.Event()
        self.workers: Counter[str] = Counter()  # killed, by what they did
        self.nodes_lost = self.processes_of_nodes = 0
        self.error: Exception | None = None

    def run(self) -> None:
        start = time.monotonic()
        due = [start + every for every in self._every]
        try:
            while not self._over.wait(max(min(due) - time.monotonic(), 0.0)):
                which = due.index(min(due))
                (self._kill_worker, self._lose_node)[which]()
                due[which] = max(due[which] + self._every[which], time.monotonic())
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _kill_worker(self) -> None:
        found = [
            (pid, title) for node in self._nodes.worker_nodes for pid, title in processes(node) if "Actor" in title
        ]
        if found:
            pid, title = self._random.choice(sorted(found))
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(pid, signal.SIGKILL)
                self.workers["in an episode" if title.endswith(".run") else "starting or idle"] += 1
        else:
            self.workers["none was there"] += 1

    def _lose_node(self) -> None:
        node = self._random.choice(sorted(self._nodes.worker_nodes, key=lambda node: str(node.unique_id)))
        self.processes_of_nodes += sum("Actor" in title for _, title in processes(node))
        self._nodes.remove_node(node, allow_graceful=False)
        self.nodes_lost += 1
        self._nodes.add_node(**NODE)


def processes(node: Any) -> list[tuple[int, str]]:
    """The worker processes of a node: their ids and titles, such as ray::Actor.run."""
    found = []
    for raylet in node.all_processes.get("raylet", []):
        for pid in children(raylet.process.pid):
            with suppress(OSError):
                found.append((pid, Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()))
    return found


def _load(args: argparse.Namespace) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray, utils = require("ray", "ray"), require("ray.cluster_utils", "ray")
    problems = list[str]()
    head = {**NODE, "num_cpus": 0, "include_dashboard": False}
    nodes = utils.Cluster(True, head_node_args=head, shutdown_at_exit=False)  # so that a thread may add nodes
    try:
        for _ in range(args.nodes):
            nodes.add_node(**NODE)
        ray.init(nodes.address, log_to_driver=False, logging_level="ERROR")
        where = offrank.Cluster(address=nodes.address)
        agent = offrank.OPARS(partial(make_env, STEP), engine="ray", cluster=where, **SETTINGS)
        losses = Losses(nodes, args.worker_seconds, args.node_seconds, args.seed)
        end = time.monotonic() + 60 * args.minutes

        def over(*_: Any) -> bool:
            if args.out:
                write_json(args.out, _summary(agent, losses, args, problems))
            return time.monotonic() < end and losses.error is None

        losses.start()
        try:
            agent.learn(iterations=10**9, eval_every=10, eval_episodes=10, callback=over)
        except OffrankError as error:
            problems.append(f"{type(error).__name__}: {error}")
        finally:
            losses.stop()
            agent.close()
        if losses.error is not None:
            problems.append(f"the losses ended: {type(losses.error).__name__}: {losses.error}")
    finally:
        ray.shutdown()
        nodes.shutdown()
    alone = offrank.OPARS(partial(make_env, 0.0), workers=0, **SETTINGS)
    alone.learn(iterations=agent.result["iterations"], eval_every=10, eval_episodes=10)
    alone.close()
    summary = _summary(agent, losses, args, problems) | {"reference_sha256": alone.policy.sha256}
    if alone.policy.sha256 != agent.policy.sha256:
        problems.append("the policy differs")
    if args.out:
        write_json(args.out, summary | {"problems": problems})
    show(summary | {"problems": problems})


def _summary(agent: Any, losses: Losses, args: argparse.Namespace, problems: Sequence[str]) -> dict[str, Any]:
    result = agent.result
    return {
        "minutes": args.minutes,
        "nodes": args.nodes,
        "workers_killed": sum(losses.workers.values()) - losses.workers["none was there"],
        "workers_killed_while": dict(losses.workers),
        "nodes_lost": losses.nodes_lost,
        "workers_lost_with_nodes": losses.processes_of_nodes,
        "iterations": result["iterations"],
        "episodes": result["episodes"],
        "steps": result["steps"],
        "seconds": round(result["wall_s"]),
        "policy_sha256": result["policy_sha256"],
        "problems": list(problems),
        "versions": versions(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("load", __doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--nodes", type=count, default=4)
    parser.add_argument("--worker-seconds", type=seconds, default=10.0, help="between two kills of workers")
    parser.add_argument("--node-seconds", type=seconds, default=60.0, help="between two losses of nodes")
    parser.add_argument("--seed", type=natural, default=0, help="of what is lost")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a JSON file for the summary, written as it goes")
    return run_script(parser, _load, argv)


if __name__ == "__main__":
    sys.exit(main())
