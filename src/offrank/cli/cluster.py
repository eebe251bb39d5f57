"""The flags of --engine ray."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from offrank.cli.options import setting
from offrank.core.errors import UsageError
from offrank.core.files import parse_json
from offrank.engines import Cluster, on_cluster

FLAGS = ("address", "cpus_per_worker", "resource", "episode_seconds", "mixed_nodes", "runtime_env")


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("on a cluster (--engine ray)")
    group.add_argument("--address", metavar="HOST:PORT", help="a running cluster (default: RAY_ADDRESS, or a new one)")
    group.add_argument("--cpus-per-worker", type=float, metavar="C", help="CPUs reserved per worker (1)")
    group.add_argument(
        "--resource",
        action="append",
        type=setting,
        metavar="NAME=AMOUNT",
        help="other resources per worker (robot=1)",
    )
    group.add_argument(
        "--episode-seconds",
        type=float,
        metavar="S",
        help="replace a worker whose episode takes longer, of the gymnasium engine, too (no limit)",
    )
    group.add_argument(
        "--mixed-nodes", action="store_true", default=None, help="warn, instead of failing, if nodes give other bits"
    )
    group.add_argument("--runtime-env", type=Path, metavar="FILE", help="Ray runtime environment of the workers (JSON)")


def cluster_of(args: argparse.Namespace, limits_elsewhere: bool = False) -> Cluster | None:
    """The cluster given by the flags; None without --engine ray.

    Args:
        limits_elsewhere: whether --episode-seconds is also for other engines.

    Raises:
        UsageError: a flag is invalid, or was given without --engine ray.
    """
    given = {name: getattr(args, name) for name in FLAGS if getattr(args, name) is not None}
    if not on_cluster(args.engine or ""):
        if limits_elsewhere:
            given.pop("episode_seconds", None)
        if given:
            raise UsageError(f"--{next(iter(given)).replace('_', '-')} is for --engine ray")
        return None
    if "resource" in given:
        given["resources"] = {name: _amount(name, text) for name, text in given.pop("resource")}
    if "runtime_env" in given:
        given["runtime_env"] = _read(given["runtime_env"])
    return Cluster(**given)


def _amount(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--resource {name}={text}: must be a number") from None


def _read(path: Path) -> dict[str, Any]:
    found = parse_json(path)
    if not isinstance(found, dict):
        raise UsageError(f'{path} is not a runtime environment: it must be an object such as {{"pip": ["my-robots"]}}')
    return found
