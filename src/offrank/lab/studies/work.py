"""Carrying out a plan: whatever is missing is run, whatever another process has in hand is left to it.

Every run is taken by the lock on its folder, so any number of processes, on any machines that share the folder, may
work on one study; what one of them leaves unfinished when it dies, the next goes on with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from offrank.core.errors import BusyError
from offrank.core.noise import Role, episode_seeds
from offrank.core.normalizer import Whitening
from offrank.core.rollouts import Request
from offrank.display.progress import GrowingDisplay
from offrank.engines import Cluster, Engine, Gpu, make_engine, resolve_engine
from offrank.lab.studies.plan import Planned
from offrank.runs.config import resolve
from offrank.runs.drive import drive
from offrank.runs.opening import open_run
from offrank.runs.run import Run

SIDE_BY_SIDE = {"warp": 100, "numpy": 100, "ray": 100}  # engines that serve a hundred runs almost as fast as one
A_FEW = 4  # the others: enough that no core waits for the end of a run's iteration


@dataclass(frozen=True)
class Workshop:
    """Where runs are kept and on what they are run."""

    pool: Path  # holds a run folder a run
    engine: str | None = None  # None: the task's own
    threads: int = 0
    workers: int | None = None
    side_by_side: int | None = None  # runs at a time; None: what suits the engine
    gpu: Gpu | None = None  # of the warp engine
    cluster: Cluster | None = None  # where the episodes run, if not here

    def open_engine(self, task: str) -> Engine:
        return make_engine(
            task,
            self.engine_name(task),
            threads=self.threads,
            workers=self.workers,
            gpu=self.gpu,
            cluster=self.cluster,
        )

    def engine_name(self, task: str) -> str:
        return resolve_engine(task, self.engine or "auto")


@dataclass
class Tally:
    """What became of a plan in this process."""

    done: list[Planned] = field(default_factory=list)  # run here, to their end
    elsewhere: list[Planned] = field(default_factory=list)  # in the hands of another process at the end


def missing(plan: Sequence[Planned], pool: Path) -> list[Planned]:
    return [run for run in plan if not run.progress(pool / run.name)[1]]


def carry_out(plan: Sequence[Planned], shop: Workshop, display: GrowingDisplay) -> Tally:
    """Run what is missing of a plan, task by task.

    Raises:
        Interrupted: by a signal; everything was saved, and the same plan goes on from there.
        OffrankError: a run failed, after the others of its task came to their end.
    """
    tally = Tally()
    for task in dict.fromkeys(run.task for run in plan):
        runs = [run for run in plan if run.task == task]
        while todo := [run for run in missing(runs, shop.pool) if run not in tally.done]:
            before = len(tally.done)
            engine = shop.open_engine(task)
            try:
                width = shop.side_by_side or SIDE_BY_SIDE.get(engine.name, A_FEW)
                busy: list[Planned] = []
                drive(_claimed(todo, shop, engine, display, tally.done, busy), engine, display.tick, width)
            finally:
                engine.close()
            if len(tally.done) == before:  # all that is left is in other hands
                tally.elsewhere += busy
                break
    return tally


def _claimed(
    todo: Sequence[Planned],
    shop: Workshop,
    engine: Engine,
    display: GrowingDisplay,
    done: list[Planned],
    busy: list[Planned],
) -> Iterator[Run]:
    """The runs that are free and unfinished at the moment they are asked for, one by one."""
    for planned in todo:
        folder = shop.pool / planned.name
        try:
            run = open_run(
                planned.config(shop.engine_name(planned.task), engine.info, folder), engine.info, folder, True
            )
        except BusyError:
            busy.append(planned)
            continue
        if planned.progress(folder)[1]:  # by another process, since the list was made
            run.close()
            continue
        run.callbacks = (display.on_record,)
        display.add(run)
        done.append(planned)
        yield run


# --- how long will it take?


def seconds_a_step(engine: Engine, episodes: int = 16, horizon: int = 100) -> float:
    """Wall-clock time of an environment step on this machine, from a short trial of the zero policy."""
    p, n = engine.info.act_dim, engine.info.obs_dim
    index = np.arange(episodes)

    def request(round: int) -> Request:
        return Request(
            base=np.zeros((p, n)),
            whitening=Whitening.identity(n),
            seeds=episode_seeds(0, round, Role.EVALUATION, index),
            roles=np.full(episodes, Role.EVALUATION, dtype=np.int64),
            index=index,
            horizon=horizon,
        )

    engine.run(request(0))  # threads and processes start with the first
    begin = time.perf_counter()
    steps = sum(engine.run(request(round)).steps for round in range(1, 4))
    return (time.perf_counter() - begin) / steps


def evaluation_share(run: Planned, eval_episodes: int = 100) -> float:
    """Evaluation steps for each training step, where every episode is equally long."""
    if run.eval_every == 0:
        return 0.0
    recipe = resolve(run.task, run.variant.algo, run.variant.ranker, dict(run.variant.settings))
    h, ranker = recipe.hyperparameters, recipe.ranker.name
    behaviour = int(h.get("n_behaviour", 0))
    pairs = int(h["n_directions"] if ranker == "on-policy" else h["n_top"])
    return eval_episodes / (run.eval_every * (2 * pairs + behaviour))


def estimate(
    plan: Sequence[Planned], shop: Workshop, calibrate: Callable[[Engine], float] = seconds_a_step
) -> list[tuple[Planned, int, bool, float]]:
    """For each run: steps done, whether it is finished, and the most seconds it may still take on this machine."""
    rows = []
    pace: dict[str, float] = {}
    for run in plan:
        steps, finished = run.progress(shop.pool / run.name)
        left = 0 if finished else max(run.steps - steps, 0)
        if left and run.task not in pace:
            engine = shop.open_engine(run.task)
            try:
                pace[run.task] = calibrate(engine)
            finally:
                engine.close()
        rows.append((run, steps, finished, left * (1 + evaluation_share(run)) * pace.get(run.task, 0.0)))
    return rows
