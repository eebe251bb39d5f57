"""Many runs of one task from Python: seeds x algorithms x hyperparameters, concurrently on one engine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

from offrank.algorithms import RECOMMENDED
from offrank.algorithms.learning.device import check_lessons
from offrank.core.checks import check_path, check_whole
from offrank.core.errors import UsageError
from offrank.display.plots import plot_ended
from offrank.display.progress import drive_shown
from offrank.engines import Cluster, Gpu, make_engine
from offrank.policies.trained import TrainedPolicy
from offrank.runs.callback import Callback, OnRecord, as_callbacks
from offrank.runs.config import RunConfig, as_stored, configure, evaluation_given, task_default
from offrank.runs.folder import folder_name
from offrank.runs.opening import open_run, open_runs, stored_config
from offrank.runs.recipe import clipping, resolve
from offrank.runs.run import Run
from offrank.runs.saved import initial_policy


class Fleet:
    """Runs of one task that are trained together.

    Args:
        task: one of our tasks, or a Gymnasium id.
        algos: names of algorithms, such as guided.
        seeds: of the runs.
        ranker: instead of the default rankers of the algorithms.
        policy: the kind of policy, such as linear or skip:32; by default those of the algorithms.
        init: a policy that every run starts from; see `offrank.agents.Agent`.
        grid: lists of values of hyperparameters and of `policy`, by name; every combination is a run of each algorithm
            and seed.
        engine, threads, workers, env_args, clip_actions, gpu, cluster, episode_seconds: see
            `offrank.engines.make_engine`.
        lessons: where critics and actors are trained: `cpu`, or `cuda` for a GPU, whichever engine runs the episodes.
            By default on the warp engine's GPU, and elsewhere on the CPU.
        horizon: maximum number of steps per episode; by default that of the environment.
        hyperparameters: by name, the same for every run; the others are taken from the task's presets.

    A run in a fleet has the same bits as alone, except on the warp engine without `deterministic`, and with lessons on
    a GPU, whose sums are in another order.
    """

    def __init__(
        self,
        task: str,
        algos: str | Sequence[str] = RECOMMENDED,
        seeds: Iterable[int] = range(8),
        *,
        ranker: str | None = None,
        policy: str | None = None,
        init: str | Path | TrainedPolicy | None = None,
        grid: Mapping[str, Sequence[Any]] | None = None,
        engine: str = "auto",
        threads: int = 0,
        workers: int | None = None,
        env_args: dict[str, Any] | None = None,
        clip_actions: bool | None = None,
        gpu: Gpu | None = None,
        cluster: Cluster | None = None,
        episode_seconds: float | None = None,
        lessons: str | None = None,
        horizon: int | None = None,
        **hyperparameters: Any,
    ):
        if not isinstance(task, str):
            raise UsageError(
                f"task = {task!r}: a fleet takes a task's name or a Gymnasium id; for an environment use an agent"
            )
        if not isinstance(seeds, Iterable):
            raise UsageError(f"seeds = {seeds!r}: must be a list of numbers, such as range(8)")
        if not isinstance(algos, Iterable):
            raise UsageError(f"algos = {algos!r}: must be the name of an algorithm, or several")
        algos, seeds, grid = [algos] if isinstance(algos, str) else list(algos), list(seeds), dict(grid or {})
        for name, values in grid.items():
            if isinstance(values, str) or not isinstance(values, Iterable):
                raise UsageError(f"grid: {name} = {values!r} must be a list of values to try, such as [{values!r}]")
        if policy is not None:
            hyperparameters["policy"] = policy
        if twice := [name for name in grid if name in hyperparameters]:
            raise UsageError(f"{twice[0]} is given both in the grid and for every run")
        variants = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
        if not (algos and seeds and variants):
            raise UsageError("a fleet needs at least one algorithm, one seed and one value of each setting in its grid")
        check_lessons(lessons)
        self._lessons = lessons
        self._init = initial_policy(init)
        stored_args = as_stored(env_args or {})
        recipes = []
        for algo, variant in product(algos, variants):
            given = hyperparameters | variant
            kind = given.pop("policy", None)
            recipes.append((variant, resolve(task, algo, ranker, given, kind, self._init)))
        clip_actions = clipping(task, engine, [recipe for _, recipe in recipes], clip_actions)
        self.engine = make_engine(
            task,
            engine,
            threads=threads,
            workers=workers,
            env_args=env_args,
            clip_actions=clip_actions,
            gpu=gpu,
            cluster=cluster,
            episode_seconds=episode_seconds,
        )
        settings: dict[str, Any] = {"engine": engine, "horizon": horizon, "clip_actions": clip_actions}
        settings |= {"env_args": stored_args, "init": self._init}
        self._configs: dict[str, RunConfig] = {}  # by the name of the run's folder
        for (variant, recipe), seed in product(recipes, seeds):
            config = configure(task, recipe, self.engine.space, seed=seed, **settings)
            label = "-".join([recipe.algo, *(f"{name}{value}" for name, value in variant.items())])
            folder = folder_name(config.task, label, seed)
            if folder in self._configs:
                raise UsageError(f"the fleet has {folder} twice: name every algorithm, seed and value once")
            self._configs[folder] = config
        self.runs: list[Run] = []  # of the last `learn`

    def learn(
        self,
        total_steps: int | None = None,
        *,
        iterations: int | None = None,
        threshold: float | None = None,
        eval_every: int | None = None,
        eval_steps: int | None = None,
        eval_episodes: int | None = None,
        confirm_episodes: int | None = None,
        out: str | Path | None = None,
        resume: bool = False,
        progress: bool = False,
        side_by_side: int | None = None,
        callback: Callable[[], OnRecord | Sequence[OnRecord] | None] | None = None,
        checkpoint_seconds: float = 30.0,
    ) -> list[dict[str, Any]]:
        """Train every run until a limit is reached. Returns their results, in the order of algorithms, grid and seeds.

        Args:
            total_steps: environment steps of each run; the iteration that exceeds them is completed.
            iterations: iterations of each run.
            threshold: a run stops at its first evaluation whose mean return reaches it; by default that of the task.
            eval_every, eval_steps, eval_episodes, confirm_episodes: when and how to evaluate; see `Agent.learn`.
            out: a folder for the run folders.
            resume: continue the runs in `out`.
            progress: show progress on stderr.
            side_by_side: maximum number of runs at a time; None for all.
            callback: a class or function that makes the callbacks of one run when called without arguments.
            checkpoint_seconds: maximum time between checkpoints of a run.

        Raises:
            Interrupted: by Ctrl-C or SIGTERM; the runs in `out` can be continued with resume=True, to the same bits.
            FleetError: some runs failed, or their folders are damaged; the others were completed, and are in `runs`.
        """
        if total_steps is None and iterations is None:
            raise UsageError("say when to stop: total_steps or iterations")
        if side_by_side is not None:
            check_whole("side_by_side", side_by_side, 1)
        if callback is not None and (not callable(callback) or isinstance(callback, Callback)):
            raise UsageError(f"callback = {callback!r}: must be a class or function that makes those of one run")
        callbacks = {name: as_callbacks(callback() if callback else None) for name in self._configs}
        root = None if out is None else check_path("out", out)
        limits: dict[str, Any] = {"steps": total_steps, "iterations": iterations}
        given = evaluation_given(
            eval_every=eval_every,
            eval_steps=eval_steps,
            eval_episodes=eval_episodes,
            confirm_episodes=confirm_episodes,
        )

        def open_one(name: str, config: RunConfig) -> Run:
            goal = threshold if threshold is not None else task_default(config.task, "threshold")
            wanted = replace(config, **given, **limits, threshold=goal)
            folder = None if root is None else root / name
            if folder is not None and resume:
                stored = stored_config(folder, config.task, {}, given)  # raises if it holds another run
                wanted = wanted if stored is None else replace(wanted, **stored.evaluation)
            return open_run(wanted, self.engine.space, folder, resume, callbacks[name], checkpoint_seconds, self._init)

        opening = {name: partial(open_one, name, config) for name, config in self._configs.items()}
        self.runs, failures = open_runs(opening)
        try:
            drive_shown(self.runs, self.engine, sys.stderr, progress, side_by_side, failures, self._lessons)
        finally:
            plot_ended(self.runs)
        return [run.result for run in self.runs]

    @property
    def best_policies(self) -> list[TrainedPolicy]:
        """The best policy of each run, by its evaluations."""
        return [run.best_of_all[1] for run in self.runs]

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a fleet holds threads and files, so it cannot be pickled or copied: train with out=")

    def close(self) -> None:
        """Release the engine's threads, processes and memory."""
        self.engine.close()
