"""Performances of a saved policy: a stage that can be looked at, episodes on it, and videos of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offrank.core.errors import OffrankError, require
from offrank.engines import native_name
from offrank.engines.gymnasium.stage import Stage, one_line, registered
from offrank.runs.saved import Saved


def open_stage(saved: Saved, render_mode: str, size: tuple[int, int] | None = None) -> Stage:
    """The environment a policy was trained on, made to be seen; `size` is the width and height of our tasks' frames."""
    saved.require_environment()
    config = saved.config
    native = native_name(config.task)
    options = dict(config.env_args, render_mode=render_mode)
    if native and size:
        options |= {"width": size[0], "height": size[1]}
    clip = native is None if config.clip_actions is None else config.clip_actions
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what cannot be shown is said below, in one line
        return Stage(registered(config.task, options)(), clip)


@contextmanager
def showing(saved: Saved) -> Iterator[None]:
    """Whatever goes wrong in an environment or in drawing it becomes one line."""
    try:
        yield
    except OffrankError:
        raise
    except Exception as error:
        raise OffrankError(f"cannot show {saved.config.task}: {one_line(error)}") from error


def perform(
    stage: Stage, saved: Saved, seed: int, episodes: int = 1, steps: int | None = None
) -> Iterator[tuple[float, int]]:
    """Run episodes; after the start and after every step, the return so far and the steps taken."""
    horizon = min(steps or saved.config.horizon, saved.config.horizon)
    for episode in range(episodes):
        raw, _ = stage.env.reset(seed=seed + episode)
        total, length, over = 0.0, 0, False
        yield total, length
        while not over and length < horizon:
            output = saved.policy.raw(stage.observation(raw))
            raw, reward, terminated, truncated, _ = stage.env.step(stage.action(output))
            total, length, over = total + float(reward), length + 1, bool(terminated or truncated)
            yield total, length


def frame_rate(stage: Stage) -> float:
    """Steps a second, as the environment has it."""
    return float(stage.env.metadata.get("render_fps") or 30)


def write_video(
    out: Path, stage: Stage, saved: Saved, performance: Iterator[tuple[float, int]], every: int = 1
) -> tuple[int, float, int]:
    """Draw every so many steps of a performance to a .mp4 or .gif, and close the stage.

    Returns:
        Frames written, and return and length of the last episode.
    """
    imageio = require("imageio.v2", "video")
    require("imageio_ffmpeg", "video")
    options: dict[str, Any] = {"fps": frame_rate(stage) / every}
    options |= {} if out.suffix == ".gif" else {"macro_block_size": 8}
    out.parent.mkdir(parents=True, exist_ok=True)
    frames, last = 0, (0.0, 0)
    try:
        with showing(saved), imageio.get_writer(out, **options) as writer:
            for number, reached in enumerate(performance):
                last = reached
                if number % every == 0:
                    writer.append_data(stage.env.render())
                    frames += 1
    except BaseException:
        out.unlink(missing_ok=True)  # the part that was written is no video
        raise
    finally:
        stage.env.close()
    return frames, *last
