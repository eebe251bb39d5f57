"""The flags of --engine warp."""

from __future__ import annotations

import argparse

from offrank.cli.options import count
from offrank.core.errors import UsageError
from offrank.engines import Gpu

FLAGS = ("worlds", "device", "deterministic")


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("on a GPU (--engine warp)")
    group.add_argument("--worlds", type=count, metavar="W", help=f"parallel simulations ({Gpu.worlds})")
    group.add_argument(
        "--device", metavar="NAME", help="such as cuda:1, or cpu, which is slow (default: the first GPU)"
    )
    group.add_argument("--deterministic", action="store_true", default=None, help="same bits in every run; slower")


def gpu_of(args: argparse.Namespace, engine: str) -> Gpu | None:
    """The device given by the flags; None for other engines than warp.

    Raises:
        UsageError: a flag was given without --engine warp.
    """
    given = {name: getattr(args, name) for name in FLAGS if getattr(args, name) is not None}
    if engine == "warp":
        return Gpu(**given)
    if given:
        raise UsageError(f"--{next(iter(given))} is for --engine warp, not {engine}")
    return None
