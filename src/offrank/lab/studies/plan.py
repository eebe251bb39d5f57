"""Plans of runs. A run's folder is named after its task, variant and seed: studies that need the same run share it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offrank.algorithms import ALGORITHMS
from offrank.core.errors import UsageError
from offrank.core.space import Space
from offrank.display.plots import Curve
from offrank.runs.config import REMOVED, RunConfig, configure, evaluation_given
from offrank.runs.folder import CONFIG, METRICS, RESULT, folder_name
from offrank.runs.opening import stored_config
from offrank.runs.recipe import Recipe, clipping, resolve

SHORT = {"n_behaviour": "n_b", "bandwidth": "h"}  # settings in the name of a folder


def strategy_of(algo: str) -> str:
    """The strategy of an algorithm, also of one that this version does not have."""
    return str(ALGORITHMS[algo].settings.name) if algo in ALGORITHMS else algo.rpartition("-")[2]


@dataclass(frozen=True)
class Variant:
    """An algorithm as a study runs it. Only settings that differ from the task's presets are named."""

    algo: str
    ranker: str | None = None  # None: the one that the algorithm's name and the preset imply
    settings: tuple[tuple[str, Any], ...] = ()
    policy: str | None = None  # None: the algorithm's own

    @property
    def label(self) -> str:
        settings = [f"{SHORT.get(name, name)}{value}" for name, value in self.settings]
        parts = [part for part in (self.algo, self.ranker, self.policy) if part]
        return "-".join([*parts, *settings])

    @property
    def place(self) -> tuple[int, int, str]:
        """Sort key: by strategy; within one the two baselines (N/b, b of b) before what is compared with them."""
        implied = ALGORITHMS[self.algo].ranker if self.algo in ALGORITHMS else ""
        kind = {"on-policy": 0, "random": 1}.get(self.ranker or implied, 2)
        known = list(ALGORITHMS)
        strategy = strategy_of(self.algo)
        return known.index(strategy) if strategy in known else len(known), kind, self.label

    @staticmethod
    def of(
        task: str,
        algo: str,
        ranker: str | None = None,
        settings: Mapping[str, Any] | None = None,
        policy: str | None = None,
    ) -> Variant:
        """The variant with these settings, without those that equal the task's presets.

        Raises:
            UsageError: there is no such algorithm or ranker.
        """
        usual = resolve(task, algo)
        own = ranker if ranker != usual.ranker.name else None
        preset = REMOVED | resolve(task, algo, own).hyperparameters
        given = sorted((settings or {}).items())
        differing = tuple((name, value) for name, value in given if preset.get(name) != value)
        return Variant(algo, own, differing, policy if policy != usual.policy else None)

    @staticmethod
    def of_row(row: Mapping[str, Any]) -> Variant:
        """The variant of a stored row. Names that this version does not know are taken as they are."""
        task, algo, ranker, settings = (row[name] for name in ("task", "algo", "ranker", "hyperparameters"))
        policy = row.get("policy", "linear")  # the only kind of version 0.1
        try:
            return Variant.of(task, algo, ranker, settings, policy)
        except UsageError:
            known = algo if algo in ALGORITHMS else strategy_of(algo)
            plain = Variant.of(task, known, None, settings) if known in ALGORITHMS else None
            return Variant(algo, ranker, plain.settings if plain else tuple(sorted(settings.items())))

    def is_known(self, task: str) -> bool:
        """Whether this version can run it."""
        try:
            resolve(task, self.algo, self.ranker, dict(self.settings), self.policy)
        except UsageError:
            return False
        return True


def baselines(algo: str) -> tuple[Variant, Variant]:
    """What an algorithm is compared with: N sampled and the top b used; b sampled and all used."""
    strategy = strategy_of(algo)
    return Variant(strategy), Variant(strategy, "random")


@dataclass(frozen=True)
class Planned:
    """One run of a study."""

    task: str
    variant: Variant
    seed: int
    steps: int
    threshold: float | None
    evaluation: Mapping[str, int]  # settings of evaluations, by name

    @property
    def recipe(self) -> Recipe:
        variant = self.variant
        return resolve(self.task, variant.algo, variant.ranker, dict(variant.settings), variant.policy)

    @property
    def name(self) -> str:
        return folder_name(self.task, self.variant.label, self.seed)

    def clip_actions(self, engine: str) -> bool | None:
        """Whether its environment clips actions, as in `offrank train`."""
        return clipping(self.task, engine, [self.recipe], None)

    def config(self, engine: str, info: Space, folder: Path) -> RunConfig:
        """The configuration to start the run with, or to continue it with in its folder.

        Raises:
            UsageError: the folder holds another run, or one that was started on another engine.
        """
        limits: dict[str, Any] = {"steps": self.steps, "threshold": self.threshold}
        recipe = self.recipe
        evaluation = evaluation_given(**self.evaluation)
        same = {"seed": self.seed, "engine": engine, "clip_actions": self.clip_actions(engine), **evaluation}
        stored = stored_config(folder, self.task, limits, {"algo": recipe.algo} | same | recipe.hyperparameters)
        return stored or configure(self.task, recipe, info, **same, **limits)

    def progress(self, folder: Path) -> tuple[int, bool]:
        """Training steps of the run in the folder, and whether that is all this study needs."""
        if not (folder / CONFIG).is_file() or not (folder / METRICS).is_file():
            return 0, False
        curve = Curve.read(folder)
        steps = max((int(record["steps"]) for record in curve.records), default=0)
        enough = steps >= self.steps or curve.crossing(self.threshold) is not None
        return steps, enough and (folder / RESULT).is_file()


def plan_runs(
    tasks: Iterable[str],
    variants: Mapping[str, Sequence[Variant]],
    seeds: Iterable[int],
    steps: Mapping[str, int],
    thresholds: Mapping[str, float | None],
    **evaluation: int,
) -> list[Planned]:
    """Every variant of every task with every seed, seed by seed, so that an unfinished study has comparable runs."""
    seeds = list(seeds)
    return [
        Planned(task, variant, seed, steps[task], thresholds[task], evaluation)
        for task in tasks
        for seed in seeds
        for variant in variants[task]
    ]
