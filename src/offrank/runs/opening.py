"""Opening run folders: a new run in an empty one, or the continuation of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from offrank.core.checks import check_seconds
from offrank.core.errors import FileFormatError, FleetError, RunFailed, UsageError
from offrank.core.files import read_json
from offrank.core.space import Space
from offrank.policies.trained import TrainedPolicy
from offrank.runs.callback import OnRecord
from offrank.runs.config import RunConfig
from offrank.runs.folder import CHECKPOINT, CONFIG
from offrank.runs.run import Run


def holds_run(folder: Path) -> bool:
    return (folder / CONFIG).exists() or (folder / CHECKPOINT).exists()


def make_folder(folder: Path) -> None:
    """Make a folder, if it does not exist.

    Raises:
        UsageError: it is a file, or cannot be made.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, not a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror or error}") from error


def read_config(path: Path) -> RunConfig:
    """The configuration of a run, from its folder or the file in it.

    Raises:
        UsageError: it cannot be read, or is no configuration.
    """
    file = path / CONFIG if path.is_dir() else path
    data = read_json(file)
    try:
        return RunConfig.from_json(data)
    except UsageError as error:
        raise FileFormatError(f"{file}: {error}") from error


def stored_config(folder: Path, task: str, limits: Mapping[str, Any], given: Mapping[str, Any]) -> RunConfig | None:
    """The configuration of the run in a folder, with new limits; None if the folder holds no run.

    Args:
        folder: the run folder.
        task: must be the task of the run.
        limits: new values of steps, iterations and threshold.
        given: other settings that the user gave; they must be those of the run.

    Raises:
        UsageError: the folder holds another run.
    """
    if not (folder / CONFIG).is_file():
        return None
    config = read_config(folder)
    if config.task != task:
        raise UsageError(f"{folder} holds a run of {config.task}, not of {task}")
    for name, value in given.items():
        stored = config.hyperparameters.get(name, getattr(config, name, None))
        if stored != json.loads(json.dumps(value)):  # converted as in the file, where a tuple is a list
            raise UsageError(f"{folder} holds a run with {name} = {stored}, not {value}: that cannot change")
    return replace(config, **limits)


def open_runs(opening: Mapping[str, Callable[[], Run]]) -> tuple[list[Run], list[RunFailed]]:
    """Open several runs, given by the names of their folders. Returns the opened runs, and the failures of those whose
    files are damaged.

    Raises:
        UsageError: a folder holds another run, or is in use. All runs are closed again.
        FleetError: all of them are damaged.
    """
    runs: list[Run] = []
    damaged: list[RunFailed] = []
    try:
        for name, open_one in opening.items():
            try:
                runs.append(open_one())
            except FileFormatError as error:
                damaged.append(RunFailed(name, error))
    except BaseException:
        for run in runs:
            run.close()
        raise
    if damaged and not runs:
        raise FleetError(damaged) if len(opening) > 1 else damaged[0].__cause__ or damaged[0]
    return runs, damaged


def open_run(
    config: RunConfig,
    space: Space,
    folder: Path | None,
    resume: bool = False,
    callbacks: tuple[OnRecord, ...] = (),
    checkpoint_seconds: float = 30.0,
    init: TrainedPolicy | None = None,
) -> Run:
    """Open a run and lock its folder against other processes. `init` is the policy that a new one starts from.

    Raises:
        UsageError: the folder holds a run and `resume` is false, or holds another run.
        BusyError: another process is writing to the folder.
    """
    check_seconds("checkpoint_seconds", checkpoint_seconds)
    run = Run(config, space, folder, callbacks, checkpoint_seconds, init)
    if folder is None:
        return run
    make_folder(folder)
    run.claim()  # before anything is read, so that no other process changes it
    try:
        if not resume and holds_run(folder):
            raise UsageError(f"{folder} already holds a run: add --resume to continue it, or choose another --out")
        if resume and (folder / CHECKPOINT).is_file():
            run.restore(folder / CHECKPOINT)
        elif config.init is not None and init is None:
            raise UsageError(f"{folder} has no checkpoint yet: give the initial policy again (--init)")
    except BaseException:
        run.close()
        raise
    return run
