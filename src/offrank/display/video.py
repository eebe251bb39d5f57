"""Rendering of a saved policy: an environment with rendering, episodes in it, and videos of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

import imageio.v2 as imageio

from offrank.core.errors import OffrankError, require
from offrank.engines import native_name
from offrank.engines.gymnasium.env_runner import EnvRunner, one_line, registered
from offrank.runs.saved import Saved

GIF_RATE = 50  # frames per second


def open_rendered(saved: Saved, render_mode: str, size: tuple[int, int] | None = None) -> EnvRunner:
    """The environment a policy was trained on, with rendering. `size` is the width and height of our tasks' frames."""
    saved.require_environment()
    config = saved.config
    native = native_name(config.task)
    options = dict(config.env_args, render_mode=render_mode)
    if native and size:
        options |= {"width": size[0], "height": size[1]}
    clip = native is None if config.clip_actions is None else config.clip_actions
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # problems are reported by `showing`, in one line
        return EnvRunner(registered(config.task, options)(), clip)


@contextmanager
def showing(saved: Saved) -> Iterator[None]:
    """Turn any error of the environment or of rendering into an OffrankError of one line."""
    try:
        yield
    except OffrankError:
        raise
    except Exception as error:
        raise OffrankError(f"cannot show {saved.config.task}: {one_line(error)}") from error


def play_episodes(
    runner: EnvRunner, saved: Saved, seed: int, episodes: int = 1, steps: int | None = None
) -> Iterator[tuple[float, int]]:
    """Run episodes. After each reset and after every step, yields the return and the number of steps so far."""
    horizon = min(steps or saved.config.horizon, saved.config.horizon)
    for episode in range(episodes):
        raw, _ = runner.env.reset(seed=seed + episode)
        total, length, over = 0.0, 0, False
        yield total, length
        while not over and length < horizon:
            output = saved.policy.raw(runner.observation(raw))
            raw, reward, terminated, truncated, _ = runner.env.step(runner.action(output))
            total, length, over = total + float(reward), length + 1, bool(terminated or truncated)
            yield total, length


def frame_rate(runner: EnvRunner) -> float:
    """Steps per second, from the environment's metadata."""
    return float(runner.env.metadata.get("render_fps") or 30)


def write_video(
    out: Path, runner: EnvRunner, saved: Saved, playing: Iterator[tuple[float, int]], every: int = 1
) -> tuple[int, float, int]:
    """Write a .mp4 or .gif of `play_episodes`, with a frame every `every` steps, and close the environment.

    A .gif has at most GIF_RATE frames per second: viewers show faster ones slowly.

    Returns:
        Frames written, and return and length of the last episode.
    """
    require("imageio_ffmpeg", "video")
    options: dict[str, Any]
    if out.suffix == ".gif":
        every = max(every, ceil(frame_rate(runner) / GIF_RATE))
        options = {"duration": 1000 * every / frame_rate(runner)}  # in ms
    else:
        options = {"fps": frame_rate(runner) / every, "macro_block_size": 8}
    out.parent.mkdir(parents=True, exist_ok=True)
    make_writer: Any = imageio.get_writer  # its type lacks append_data
    frames, last = 0, (0.0, 0)
    try:
        with showing(saved), make_writer(out, **options) as writer:
            for number, reached in enumerate(playing):
                last = reached
                if number % every == 0:
                    writer.append_data(runner.env.render())
                    frames += 1
    except BaseException:
        out.unlink(missing_ok=True)  # a partial file cannot be played
        raise
    finally:
        runner.env.close()
    return frames, *last
