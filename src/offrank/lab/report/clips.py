"""Short videos of the best policies, small enough to be part of the page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

from offrank.core.errors import OffrankError, require
from offrank.core.files import read_json
from offrank.display.video import frame_rate, open_rendered, play_episodes, write_video
from offrank.runs.folder import BEST, RESULT
from offrank.runs.saved import Saved

SIZE = (320, 240)
SECONDS = 8
FRAMES_PER_SECOND = 30  # at most: Hopper has 125 steps per second


@dataclass(frozen=True)
class Clip:
    """A video of a task's best policy as a data URI, or the reason why there is none."""

    task: str
    run: str
    best_return: float
    uri: str | None = None
    seconds: float = 0.0
    problem: str = ""


def best_runs(folders: Sequence[Path]) -> dict[str, tuple[Path, float]]:
    """For every task the run folder whose best policy had the highest mean return, and that return."""
    found: dict[str, tuple[Path, float]] = {}
    for folder in folders:
        result = read_json(folder / RESULT)
        best = result.get("best_return")
        if best is not None and (folder / BEST).is_file():
            task = result["task"]
            if task not in found or best > found[task][1]:
                found[task] = folder, best
    return found


def record(folders: Sequence[Path]) -> list[Clip]:
    """One clip per task, or the reason why there is none.

    Raises:
        UsageError: the video extra is not installed.
    """
    require("imageio_ffmpeg", "video")
    return [_clip(task, folder, best) for task, (folder, best) in best_runs(folders).items()]


def _clip(task: str, folder: Path, best: float) -> Clip:
    try:
        saved = Saved.find(folder)
        runner = open_rendered(saved, "rgb_array", SIZE)
        rate = frame_rate(runner)
        playing = play_episodes(runner, saved, seed=0, steps=round(SECONDS * rate))
        with TemporaryDirectory() as scratch:
            path = Path(scratch) / "clip.mp4"
            _, _, length = write_video(path, runner, saved, playing, every=ceil(rate / FRAMES_PER_SECOND))
            content = path.read_bytes()
    except OffrankError as error:
        return Clip(task, folder.name, best, problem=str(error))
    uri = "data:video/mp4;base64," + base64.b64encode(content).decode()
    return Clip(task, folder.name, best, uri, length / rate)
