"""Record several policies side by side, each at the speed of its task, as one video.

    python -m offrank.lab.experiments.six_policies examples/policies/*.offrank --out results/six-policies.mp4

A policy whose episode ends early stays where it fell. Needs `pip install 'offrank[video]'`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import repeat
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from offrank.cli.options import count, natural
from offrank.core.errors import UsageError, require
from offrank.lab.script import make_parser, run_script
from offrank.runs.saved import Saved

RATE = 25  # frames per second
COLUMNS = 3


def frame_steps(steps_per_second: float, seconds: int) -> list[int]:
    """The step that each frame shows; one is shown twice where the task has fewer steps than the video has frames."""
    return [int(frame * steps_per_second / RATE) for frame in range(seconds * RATE)]


def frames(saved: Saved, seconds: int, size: tuple[int, int], seed: int) -> Iterator[Any]:
    """Pictures (height, width, 3) of one episode, with the task's name, and the last of them for ever."""
    from PIL import Image, ImageDraw

    from offrank.display.video import frame_rate, open_rendered, play_episodes, showing

    runner = open_rendered(saved, "rgb_array", size)
    shown = frame_steps(frame_rate(runner), seconds)
    picture: Any = None
    with showing(saved):
        for step, _ in enumerate(play_episodes(runner, saved, seed, steps=shown[-1])):
            if times := shown.count(step):
                rendered: Any = runner.env.render()
                image = Image.fromarray(rendered)
                ImageDraw.Draw(image).text(
                    (8, 6), saved.config.task, "white", font_size=16, stroke_width=2, stroke_fill="black"
                )
                picture = np.asarray(image)
                yield from repeat(picture, times)
    runner.env.close()
    yield from repeat(picture)


def tiled(pictures: Sequence[Any]) -> Any:
    """Pictures of one size in rows of COLUMNS; a place that is left is black."""
    places = ceil(len(pictures) / COLUMNS) * COLUMNS if len(pictures) > COLUMNS else len(pictures)
    filled = [*pictures, *repeat(np.zeros_like(pictures[0]), places - len(pictures))]
    rows = [filled[at : at + COLUMNS] for at in range(0, places, COLUMNS)]
    return np.vstack([np.hstack(row) for row in rows])


def _record(args: argparse.Namespace) -> None:
    if args.out.suffix not in (".mp4", ".gif"):
        raise UsageError(f"{args.out}: a video ends in .mp4 or .gif")
    require("imageio_ffmpeg", "video")
    import imageio.v2 as imageio

    saved = [Saved.find(path) for path in args.policies]
    playing = [frames(one, args.seconds, (args.width, args.height), args.seed) for one in saved]
    make_writer: Any = imageio.get_writer  # its type lacks append_data
    with make_writer(args.out, fps=RATE, macro_block_size=8) as writer:
        for number, pictures in enumerate(zip(*playing, strict=True)):
            if number == args.seconds * RATE:
                break
            writer.append_data(tiled(pictures))
    print(f"{args.out}: {len(saved)} policies, {args.seconds} seconds")


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("six_policies", __doc__)
    parser.add_argument("policies", type=Path, nargs="+", metavar="PATH", help="policy files or run folders")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .mp4 or .gif")
    parser.add_argument("--seconds", type=count, default=8)
    parser.add_argument("--seed", type=natural, default=0, help="of the start states")
    parser.add_argument("--width", type=count, default=320, help="of each policy's picture")
    parser.add_argument("--height", type=count, default=240)
    return run_script(parser, _record, argv)


if __name__ == "__main__":
    sys.exit(main())
