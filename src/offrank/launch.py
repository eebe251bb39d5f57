"""Opening run folders: a new run in a free one, or the continuation of what is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from offrank.checkpoint import read_json
from offrank.config import RunConfig
from offrank.engines.base import EnvInfo
from offrank.errors import UsageError
from offrank.run import CHECKPOINT, CONFIG, Callback, Run


def folder_name(task: str, algo: str, seed: int | None = None) -> str:
    """`<task>-<algo>-<seed>`, safe as the name of a folder."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in task)
    return f"{safe}-{algo}" if seed is None else f"{safe}-{algo}-{seed}"


def holds_run(folder: Path) -> bool:
    return (folder / CONFIG).exists() or (folder / CHECKPOINT).exists()


def stored_config(folder: Path, task: str, limits: Mapping[str, Any], given: Mapping[str, Any]) -> RunConfig | None:
    """The configuration to continue with what a folder holds; None if it holds nothing yet.

    Args:
        folder: the run's.
        task: must be the task of the run.
        limits: steps, iterations and threshold where they were given anew.
        given: other settings that were given; they must be what they were.
    """
    if not (folder / CONFIG).is_file():
        return None
    config = RunConfig.from_json(read_json(folder / CONFIG))
    if config.task != task:
        raise UsageError(f"{folder} holds a run of {config.task}, not of {task}")
    for name, value in given.items():
        stored = config.hyperparameters.get(name, getattr(config, name, None))
        if stored != value:
            raise UsageError(f"{folder} holds a run with {name} = {stored}, not {value}: it cannot change on --resume")
    return replace(config, **limits)


def open_run(
    config: RunConfig,
    info: EnvInfo,
    folder: Path | None,
    resume: bool = False,
    callbacks: tuple[Callback, ...] = (),
    checkpoint_seconds: float = 30.0,
) -> Run:
    """A run ready to be driven.

    Raises:
        UsageError: the folder holds a run and `resume` is false, or holds another run.
    """
    if folder is not None and not resume and holds_run(folder):
        raise UsageError(f"{folder} already holds a run: add --resume to continue it, or choose another --out")
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, not a folder")
    run = Run(config, info, folder, callbacks, checkpoint_seconds)
    if folder is not None and resume and (folder / CHECKPOINT).is_file():
        run.restore(folder / CHECKPOINT)
    return run
