"""States of runs between two iterations: read from files, or trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from offrank.algorithms import ALGORITHMS
from offrank.core.arrays import Metrics, part
from offrank.core.space import Space
from offrank.core.state import State
from offrank.runs.config import RunConfig
from offrank.runs.folder import CHECKPOINT, folder_name
from offrank.runs.record import check_format
from offrank.runs.run import Run
from offrank.runs.segments import load_in_segments


@dataclass(frozen=True)
class Checkpoint:
    """A run between two iterations."""

    config: RunConfig
    state: State

    @staticmethod
    def read(path: Path) -> Checkpoint:
        """From a run folder, or from a file that `Run.save` wrote."""
        path = path / CHECKPOINT if path.is_dir() else path
        arrays, meta = load_in_segments(path, "run")
        check_format(path, meta)
        return Checkpoint(RunConfig.from_json(meta["config"]), State.from_arrays(part(arrays, "state.")))

    @property
    def name(self) -> str:
        return name_at(self.config, self.state.iteration)


def name_at(config: RunConfig, iteration: int) -> str:
    """`<task>-<algo>-<seed>-at-<iteration>`, with the ranker where the algorithm's name does not imply it."""
    algo = config.algo if config.ranker == ALGORITHMS[config.algo].ranker else f"{config.algo}-{config.ranker}"
    return f"{folder_name(config.task, algo, config.seed)}-at-{iteration}"


def train_to(
    configs: Sequence[RunConfig],
    iterations: Sequence[int],
    space: Space,
    folder: Path | None,
    drive: Callable[[list[Run]], None],
) -> list[Checkpoint]:
    """The runs after each of the iterations (ascending); checkpoints that the folder holds are not trained again.

    Args:
        configs: of the runs; each ends at the last of the iterations.
        iterations: after which states are taken.
        space: of the environment.
        folder: where each state is saved as `<name>.state.npz`; None saves none.
        drive: drives runs to their end.
    """
    found: dict[str, Checkpoint] = {}
    to_train = []
    for config in configs:
        run = Run(config, space, callbacks=(_keeper(iterations, folder, found),))
        there = [path for at in iterations if (path := _path(folder, config, at)) is not None and path.is_file()]
        for path in there:
            run.restore(path)  # refuses the state of another run
            found[name_at(config, run.state.iteration)] = Checkpoint(config, run.state)
        if len(there) < len(iterations):
            to_train.append(run)
    if to_train:
        drive(to_train)
    return [found[name_at(config, at)] for config in configs for at in iterations]


def _path(folder: Path | None, config: RunConfig, iteration: int) -> Path | None:
    return None if folder is None else folder / f"{name_at(config, iteration)}.state.npz"


def _keeper(
    iterations: Sequence[int], folder: Path | None, found: dict[str, Checkpoint]
) -> Callable[[Run, Metrics], None]:
    """A callback that keeps the run's state after the iterations."""

    def keep(run: Run, record: Metrics) -> None:
        at = run.state.iteration
        if record["kind"] != "iteration" or at not in iterations:
            return
        found[name_at(run.config, at)] = Checkpoint(run.config, run.state)
        if (path := _path(folder, run.config, at)) is not None:
            run.save(path)

    return keep
