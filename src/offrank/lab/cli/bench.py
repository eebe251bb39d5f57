"""offrank bench"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from offrank.cli.options import count
from offrank.core.errors import UsageError, did_you_mean, require
from offrank.engines import NOT_BUILT, Gpu, is_built
from offrank.policies import canonical
from offrank.tasks import TASKS

EPISODES = 64  # per request of the cluster benchmark

EPILOG = """\
examples:
  offrank bench rollouts --tasks HalfCheetah-v3 Humanoid-v3
  offrank bench rollouts --peers gymnasium envpool --candidates 16 --json
  offrank bench train
  offrank bench iteration --out results/speed/iteration.json
  offrank bench gpu --tasks HalfCheetah-v3 --worlds 1000 2000 4000
  offrank bench cluster --workers 1 2 4 8 --step-ms 1 20

rollouts    closed-loop steps against bare physics and the peers (gymnasium, gymnasium-sync, gymnasium-async, envpool)
train       a whole ARS run against sb3-contrib's
iteration   time of the parts of an OP-ARS iteration; how cost grows with candidates, directions and iterations
gpu         a control step of the warp engine, and its part that is not physics
cluster     the ray engine against one process, for environments of several step times; bytes sent

Peers that are not installed are named and skipped. Contestants alternate; medians, and the spread of the rounds.
"""


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "bench", help="measure speed", description="Measure speed against peers and bare physics.", epilog=EPILOG
    )
    parser.add_argument("what", choices=list(KINDS), metavar="|".join(KINDS))
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="default: all six; for train, HalfCheetah-v3")
    parser.add_argument("--peers", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--policy", nargs="+", default=["linear"], metavar="NAME", help="of rollouts and gpu (linear)")
    parser.add_argument("--candidates", nargs="+", type=count, default=[4, 16, 64], metavar="N", help="at once")
    parser.add_argument("--worlds", nargs="+", type=count, default=[1000, 2000, 4000], metavar="W", help="of gpu")
    parser.add_argument("--device", metavar="NAME", help="of gpu, such as cuda:1 (default: the first GPU)")
    parser.add_argument("--deterministic", action="store_true", help="of gpu: equal bits from run to run")
    parser.add_argument("--step-ms", nargs="+", type=float, default=[0.05, 0.2, 1.0, 5.0, 20.0], metavar="MS")
    parser.add_argument("--workers", nargs="+", type=count, default=[1, 2, 4, 8], metavar="W", help="on the cluster")
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the raw times, as JSON")
    parser.add_argument("--json", action="store_true", help="print the raw times, as JSON, instead of tables")
    parser.set_defaults(run=bench)


def bench(args: argparse.Namespace) -> int:
    for name in args.policy:
        canonical(name)
    for task in args.tasks or []:
        if task not in TASKS:
            raise UsageError(f"unknown task {task!r}: one of {', '.join(TASKS)}{did_you_mean(task, TASKS)}")
    if args.what not in ("gpu", "cluster") and not is_built():
        raise UsageError(f"{NOT_BUILT}; there is nothing else to measure")
    from offrank.lab.bench.rounds import machine

    found, lines = KINDS[args.what](args)
    record = {"bench": args.what, "rounds": args.rounds, **machine(), **found}
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1) if args.json else "\n".join(lines))
    return 0


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _spread(r: dict[str, float]) -> str:
    return f"{r['median']:.2f} ({r['low']:.2f}-{r['high']:.2f})"


def _rollouts(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from offrank.lab.bench.rollouts import PEERS, compare, missing

    wanted = list(PEERS) if args.peers is None else args.peers
    peers = []
    for peer in wanted:
        if peer not in PEERS:
            raise UsageError(f"unknown peer {peer!r}: one of {', '.join(PEERS)}{did_you_mean(peer, PEERS)}")
        if (how := missing(peer)) is None:
            peers.append(peer)
        else:
            _log(f"{peer} is not installed and is left out: {how}")
    rows = []
    for task in args.tasks or TASKS:
        for candidates, policy in product(args.candidates, args.policy):
            _log(f"{task}, {candidates} candidates, {policy}")
            rows.append(compare(task, candidates, peers, args.rounds, policy=policy))
    head = [
        "task",
        "candidates",
        "policy",
        "µs per step",
        "share of bare physics",
        *(f"x {p} (at most)" for p in peers),
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for r in rows:
        cells = [r["task"], str(r["candidates"]), r["policy"], f"{median(r['microseconds_a_step']['offrank']):.1f}"]
        cells.append(_spread(r["share_of_bare_physics"]))
        cells += [f"{_spread(r['times_faster_than'][p])} ({r['at_most'][p]['median']:.1f})" for p in peers]
        lines.append("| " + " | ".join(cells) + " |")
    return {"rows": rows}, lines


def _train(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from importlib.util import find_spec

    from offrank.lab.bench.train import HOW, PEER, compare

    if find_spec("sb3_contrib") is None:
        raise UsageError(f"{PEER} is not installed: {HOW}")
    rows = []
    for task in args.tasks or ["HalfCheetah-v3"]:
        _log(f"{task}: ours and {PEER}'s, {args.rounds} rounds")
        rows.append(compare(task, 2, args.rounds))
    lines = ["| task | steps | contestant | seconds | times faster |", "|---|---|---|---|---|"]
    for r in rows:
        for name, seconds in r["seconds"].items():
            faster = _spread(r["times_faster"]) if name == r["fastest_setting"] else ""
            spread = f"{median(seconds):.1f} ({min(seconds):.1f}-{max(seconds):.1f})"
            lines.append(f"| {r['task']} | {r['steps']:,} | {name} | {spread} | {faster} |")
    return {"rows": rows}, lines


def _iteration(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from offrank.lab.bench import iteration as it

    tasks = args.tasks or list(TASKS)
    profiles, growth, scores, memory, scaling = [], [], [], {}, []
    for task in tasks:
        _log(f"{task}: profile, growth, memory, threads")
        profiles.append(it.profile(task, iterations=5))
        growth += it.against_candidates(task, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512], min(args.rounds, 3))
        scores += it.score_times(task, [16, 64, 256, 1024], 2000, min(args.rounds, 3))
        memory[task] = it.peak_memory(task, iterations=4)
        scaling.append(it.thread_scaling(task, 64, args.rounds))
    head = [
        "task",
        "seconds",
        "steps",
        *it.PARTS,
        "all but episodes",
        "peak memory",
        "2 threads over 1",
        "of bare physics",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for profile, scale in zip(profiles, scaling, strict=True):
        cells = [profile["task"], f"{profile['seconds']:.2f}", f"{profile['steps']:,.0f}"]
        cells += [f"{100 * share:.1f} %" for share in profile["shares"].values()]
        cells += [f"{100 * profile['everything_but_episodes']:.1f} %"]
        cells += [f"{memory[profile['task']][-1][1]:.0f} MB", _spread(scale["faster"]), _spread(scale["bare_faster"])]
        lines.append("| " + " | ".join(cells) + " |")
    found = {"profiles": profiles, "growth": growth, "scores": scores, "memory": memory, "scaling": scaling}
    return found, lines


def _gpu(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from offrank.lab.bench.gpu import control_step

    rows = []
    for task in args.tasks or TASKS:
        for worlds in args.worlds:
            _log(f"{task}, {worlds} worlds")
            rows.append(control_step(task, Gpu(worlds, args.device, args.deterministic), args.rounds, args.policy))
    head = [
        "task",
        "worlds",
        "ms per control step",
        "at rest",
        "without physics",
        "share without physics",
        "steps per second",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for r in rows:
        cells = [
            r["task"],
            f"{r['worlds']:,}",
            *(f"{median(r['milliseconds'][part]):.2f}" for part in r["milliseconds"]),
        ]
        cells += [_spread(r["share_around_physics"]), f"{r['steps_a_second']:,.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    for r in rows:
        for kind, found in r["policies"].items():
            times = f"{median(found['milliseconds']):.3f} ms, {_spread(found['of_the_first'])} of {r['policy']}"
            lines.append(f"{r['task']}, {r['worlds']:,} worlds, {kind}: {times}")
    return {"rows": rows}, lines


def _cluster(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    require("ray", "ray")
    from offrank.lab.bench import cluster as it

    if min(args.step_ms) <= 0:
        raise UsageError(f"--step-ms {min(args.step_ms):g}: must be positive")
    rows = []
    with it.local_ray(max(sum(args.workers), 2)) as ray:
        for step in args.step_ms:
            _log(f"{step:g} ms per step")
            rows.append(it.efficiency(step / 1e3, args.workers, EPISODES, args.rounds))
        _log("bytes, and the driver's time")
        wire = it.wire(ray, [32, 350, 4096], EPISODES)
        waiting = it.waiting(ray, 1000, args.rounds)
    serial = {algo: it.serial("Humanoid-v3", algo, args.rounds + 1)[1:] for algo in ("ars", "op-ars")}
    head = ["ms per step", "measured", "steps per episode"]
    head += [f"efficiency, {w} worker{'s' if w > 1 else ''} (in episodes)" for w in args.workers]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for r in rows:
        cells = [f"{r['step_ms']:g}", f"{median(r['measured_step_ms']):.2f}", str(r["steps_an_episode"])]
        cells += [f"{_spread(r['efficiency'][w])} ({median(r['in_episodes'][w]):.2f})" for w in args.workers]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "| N | request bytes | message bytes per piece | driver's CPU per piece, ms |",
        "|---|---|---|---|",
    ]
    for w in wire:
        cells = [str(w["directions"]), str(w["request_bytes"]), f"{w['message_bytes_a_piece']:.0f}"]
        lines.append("| " + " | ".join([*cells, f"{w['driver_cpu_ms_a_piece']:.2f}"]) + " |")
    lines += ["", f"one wait on 1,000 outstanding answers: {median(waiting):.2f} ms"]
    for algo, seconds in serial.items():
        lines.append(f"the driver's part of an iteration of {algo} on Humanoid-v3: {1e3 * median(seconds):.0f} ms")
    return {"rows": rows, "wire": wire, "waiting_ms": waiting, "serial_s": serial}, lines


KINDS = {"rollouts": _rollouts, "train": _train, "iteration": _iteration, "gpu": _gpu, "cluster": _cluster}
