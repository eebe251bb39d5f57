"""offrank record, offrank play"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from offrank.cli.options import count, natural
from offrank.cli.saved import add_saved, saved_of
from offrank.core.errors import UsageError, require
from offrank.display.video import frame_rate, open_rendered, play_episodes, showing, write_video
from offrank.engines import native_name


def add_parser(verbs: Any) -> None:
    for name, help, example in (
        ("record", "write a video of a policy", "offrank record runs/HalfCheetah-v3-guided-0 --out cheetah.mp4"),
        ("play", "watch a policy in a window", "offrank play runs/HalfCheetah-v3-guided-0"),
    ):
        parser = verbs.add_parser(name, help=help, description=f"{help.capitalize()}.", epilog=f"example:\n  {example}")
        add_saved(parser)
        parser.add_argument("--episodes", type=count, default=1)
        parser.add_argument("--steps", type=count, help="maximum number of steps per episode")
        parser.add_argument("--seed", type=natural, default=0, help="seed of the first start state")
        if name == "record":
            parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .mp4 or .gif")
            parser.add_argument("--width", type=count, default=640)
            parser.add_argument("--height", type=count, default=480)
        parser.set_defaults(run=record if name == "record" else play)


def record(args: argparse.Namespace) -> int:
    if args.out.suffix not in (".mp4", ".gif"):
        raise UsageError(f"{args.out}: a video ends in .mp4 or .gif")
    require("imageio_ffmpeg", "video")  # checked first, before any slow work
    saved = saved_of(args)
    runner = open_rendered(saved, "rgb_array", (args.width, args.height))
    playing = play_episodes(runner, saved, args.seed, args.episodes, args.steps)
    if sys.stderr.isatty():
        print(f"rendering {args.out}: without a GPU about ten frames per second", file=sys.stderr)
    frames, total, length = write_video(args.out, runner, saved, playing)
    print(f"{args.out}: {frames} frames, {_last_episode(total, length)}")
    return 0


def play(args: argparse.Namespace) -> int:
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise UsageError("play opens a window, and there is no display here: use offrank record")
    saved = saved_of(args)
    runner = open_rendered(saved, "human")
    pause = 1 / frame_rate(runner)
    ours = native_name(saved.config.task) is not None  # other environments pause by themselves
    ending = ""
    with showing(saved):
        for total, length in play_episodes(runner, saved, args.seed, args.episodes, args.steps):
            ending = _last_episode(total, length)
            if ours:
                time.sleep(pause)
    runner.env.close()
    print(ending)
    return 0


def _last_episode(total: float, length: int) -> str:
    return f"return of the last episode {total:.1f} in {length} steps"
