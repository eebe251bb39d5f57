"""offrank record, offrank play"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offrank.cli.options import count, natural
from offrank.engines import native_name
from offrank.engines.environment import Stage, one_line, registered
from offrank.errors import OffrankError, UsageError, require
from offrank.saved import WHICH, Saved


def add_parser(verbs: Any) -> None:
    for name, help, example in (
        ("record", "write a video of a policy", "offrank record runs/HalfCheetah-v3-op-ars-0 --out cheetah.mp4"),
        ("play", "watch a policy in a window", "offrank play runs/HalfCheetah-v3-op-ars-0"),
    ):
        parser = verbs.add_parser(name, help=help, description=f"{help.capitalize()}.", epilog=f"example:\n  {example}")
        parser.add_argument("path", type=Path, metavar="PATH", help="a run folder or a policy file")
        parser.add_argument("--which", choices=list(WHICH), default="best")
        parser.add_argument("--episodes", type=count, default=1)
        parser.add_argument("--steps", type=count, help="steps an episode at most")
        parser.add_argument("--seed", type=natural, default=0, help="of the first start state")
        if name == "record":
            parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .mp4 or .gif")
            parser.add_argument("--width", type=count, default=640)
            parser.add_argument("--height", type=count, default=480)
        parser.set_defaults(run=record if name == "record" else play)


def record(args: argparse.Namespace) -> int:
    if args.out.suffix not in (".mp4", ".gif"):
        raise UsageError(f"{args.out}: a video ends in .mp4 or .gif")
    imageio = require("imageio.v2", "video")
    require("imageio_ffmpeg", "video")
    stage, saved = _open(args, "rgb_array")
    fps = stage.env.metadata.get("render_fps") or 30
    args.out.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"fps": fps} if args.out.suffix == ".gif" else {"fps": fps, "macro_block_size": 8}
    frames, ending = 0, ""
    try:
        with _showing(saved), imageio.get_writer(args.out, **options) as writer:
            for total, length in _perform(stage, saved, args):
                writer.append_data(stage.env.render())
                frames, ending = frames + 1, _last_episode(total, length)
    except BaseException:
        args.out.unlink(missing_ok=True)  # the part that was written is no video
        raise
    finally:
        stage.env.close()
    print(f"{args.out}: {frames} frames at {fps} a second, {ending}")
    return 0


def play(args: argparse.Namespace) -> int:
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise UsageError("play opens a window, and there is no display here: use offrank record")
    stage, saved = _open(args, "human")
    pause = 1 / (stage.env.metadata.get("render_fps") or 30)
    ours = native_name(saved.config.task) is not None  # others keep their own time
    ending = ""
    with _showing(saved):
        for total, length in _perform(stage, saved, args):
            ending = _last_episode(total, length)
            if ours:
                time.sleep(pause)
    stage.env.close()
    print(ending)
    return 0


def _last_episode(total: float, length: int) -> str:
    return f"return of the last episode {total:.1f} in {length} steps"


def _open(args: argparse.Namespace, render_mode: str) -> tuple[Stage, Saved]:
    saved = Saved.find(args.path, args.which)
    saved.require_environment()
    config = saved.config
    native = native_name(config.task)
    options = dict(config.env_args, render_mode=render_mode)
    if native and render_mode == "rgb_array":
        options |= {"width": args.width, "height": args.height}
    clip = native is None if config.clip_actions is None else config.clip_actions
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what cannot be shown is said below, in one line
        return Stage(registered(config.task, options)(), clip), saved


@contextmanager
def _showing(saved: Saved) -> Iterator[None]:
    """Whatever goes wrong in an environment or in drawing it becomes one line."""
    try:
        yield
    except OffrankError:
        raise
    except Exception as error:
        raise OffrankError(f"cannot show {saved.config.task}: {one_line(error)}") from error


def _perform(stage: Stage, saved: Saved, args: argparse.Namespace) -> Iterator[tuple[float, int]]:
    """Run episodes; after the start and after every step, the return so far and the steps taken."""
    horizon = min(args.steps or saved.config.horizon, saved.config.horizon)
    for episode in range(args.episodes):
        raw, _ = stage.env.reset(seed=args.seed + episode)
        total, length, over = 0.0, 0, False
        yield total, length
        while not over and length < horizon:
            output = saved.policy.raw(stage.observation(raw))
            raw, reward, terminated, truncated, _ = stage.env.step(stage.action(output))
            total, length, over = total + float(reward), length + 1, bool(terminated or truncated)
            yield total, length
