"""Executing a plan of runs: only missing runs are started, and a run that another process is running is skipped.

A process locks the folder of a run while it runs it, so any number of processes, on any machines that share the folder,
may work on one study. A run that one of them leaves unfinished when it dies is continued by the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from offrank.core.errors import BusyError
from offrank.display.progress import GrowingDisplay
from offrank.engines import Cluster, Engine, Gpu, make_engine, resolve_engine
from offrank.lab.requests import around_start
from offrank.lab.studies.plan import Planned
from offrank.policies import make_policy
from offrank.runs.config import EVAL_EVERY
from offrank.runs.drive import drive
from offrank.runs.opening import open_run
from offrank.runs.run import Run

SIDE_BY_SIDE = {"warp": 100, "numpy": 100, "ray": 100}  # engines that serve a hundred runs almost as fast as one
A_FEW = 4  # the others: enough that no core waits for the end of a run's iteration


@dataclass(frozen=True)
class ExecutionSettings:
    """Where run folders are kept, and the engine that runs them."""

    pool: Path  # folder of the run folders
    engine: str | None = None  # None: the task's default
    threads: int = 0
    workers: int | None = None
    side_by_side: int | None = None  # runs at a time; None: what suits the engine
    timed: bool = False  # one run at a time, which does not go on during its evaluations
    gpu: Gpu | None = None  # of the warp engine
    cluster: Cluster | None = None  # that runs the episodes; None: this machine
    lessons: str | None = None  # where critics are trained; None: where the engine is

    def open_engine(self, task: str, clip_actions: bool | None = None) -> Engine:
        return make_engine(
            task,
            self.engine_name(task),
            clip_actions=clip_actions,
            threads=self.threads,
            workers=self.workers,
            gpu=self.gpu,
            cluster=self.cluster,
        )

    def engine_name(self, task: str) -> str:
        return resolve_engine(task, self.engine or "auto")


@dataclass
class Progress:
    """The runs of a plan that this process has run, and those it has skipped."""

    done: list[Planned] = field(default_factory=list)  # run by this process, to their end
    skipped: list[Planned] = field(default_factory=list)  # being run by another process


def missing(plan: Sequence[Planned], pool: Path) -> list[Planned]:
    return [run for run in plan if not run.progress(pool / run.name)[1]]


def carry_out(plan: Sequence[Planned], settings: ExecutionSettings, display: GrowingDisplay) -> Progress:
    """Run the missing runs of a plan, task by task; those that clip actions apart from those that do not.

    Raises:
        Interrupted: by a signal; everything was saved, and the same plan continues from there.
        OffrankError: a run failed; the other runs of its task were run to their end first.
    """
    progress = Progress()
    places: dict[tuple[str, bool | None], list[Planned]] = {}
    for run in plan:
        places.setdefault((run.task, run.clip_actions(settings.engine_name(run.task))), []).append(run)
    for place, runs in places.items():
        while todo := [run for run in missing(runs, settings.pool) if run not in progress.done]:
            before = len(progress.done)
            engine = settings.open_engine(*place)
            try:
                batched = settings.lessons not in (None, "cpu")  # the lessons of many runs are one computation
                usual = 1 if settings.timed else SIDE_BY_SIDE.get("warp" if batched else engine.name, A_FEW)
                width = settings.side_by_side or usual
                busy: list[Planned] = []
                runs_claimed = _claimed(todo, settings, engine, display, progress.done, busy)
                drive(runs_claimed, engine, display.tick, width, lessons=settings.lessons)
            finally:
                engine.close()
            if len(progress.done) == before:  # all that is left is being run by other processes
                progress.skipped += busy
                break
    return progress


def _claimed(
    todo: Sequence[Planned],
    settings: ExecutionSettings,
    engine: Engine,
    display: GrowingDisplay,
    done: list[Planned],
    busy: list[Planned],
) -> Iterator[Run]:
    """Open, one by one, the runs that are unfinished and that no other process is running."""
    for planned in todo:
        folder = settings.pool / planned.name
        try:
            run = open_run(
                planned.config(settings.engine_name(planned.task), engine.space, folder), engine.space, folder, True
            )
        except BusyError:
            busy.append(planned)
            continue
        if planned.progress(folder)[1]:  # finished by another process since the list was made
            run.close()
            continue
        run.callbacks, run.overlaps = (display.on_record,), not settings.timed
        display.add(run)
        done.append(planned)
        yield run


# --- time estimates


def seconds_per_step(engine: Engine, episodes: int = 16, horizon: int = 100) -> float:
    """Wall-clock time per environment step on this machine, from a short trial of the zero policy."""
    policy = make_policy("linear", engine.space.obs_dim, engine.space.act_dim)
    requests = [around_start(policy, episodes, horizon, scale=0.0, first_seed=k * episodes) for k in range(4)]
    engine.run(requests[0])  # threads and processes start with the first
    begin = time.perf_counter()
    steps = sum(engine.run(request).steps for request in requests[1:])
    return (time.perf_counter() - begin) / steps


def evaluation_share(run: Planned, horizon: int = 1000) -> float:
    """Evaluation steps per training step, if all episodes are equally long."""
    episodes, every = run.evaluation.get("eval_episodes", 100), run.evaluation.get("eval_every", EVAL_EVERY)
    if "eval_steps" in run.evaluation:
        return episodes * horizon / run.evaluation["eval_steps"]
    if every == 0:
        return 0.0
    recipe = run.recipe
    h, ranker = recipe.hyperparameters, recipe.ranker.name
    if "population" in h:
        return episodes / (every * int(h["population"]))
    behaviour = int(h.get("n_behaviour", 0))
    pairs = int(h["n_directions"] if ranker == "on-policy" else h["n_top"])
    return episodes / (every * (2 * pairs + behaviour))


def estimate(
    plan: Sequence[Planned], settings: ExecutionSettings, calibrate: Callable[[Engine], float] = seconds_per_step
) -> list[tuple[Planned, int, bool, float]]:
    """For each run: steps done, whether it is finished, and an upper bound of the seconds left on this machine."""
    rows = []
    pace: dict[str, float] = {}
    for run in plan:
        steps, finished = run.progress(settings.pool / run.name)
        left = 0 if finished else max(run.steps - steps, 0)
        if left and run.task not in pace:
            engine = settings.open_engine(run.task)
            try:
                pace[run.task] = calibrate(engine)
            finally:
                engine.close()
        rows.append((run, steps, finished, left * (1 + evaluation_share(run)) * pace.get(run.task, 0.0)))
    return rows
