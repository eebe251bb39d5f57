"""A study is a plan of runs. A run's folder is named after what it is, so studies that need the same run share it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offrank.display.plots import Curve
from offrank.engines import EnvInfo
from offrank.runs.config import ALGORITHMS, RunConfig, configure, resolve
from offrank.runs.folder import CONFIG, METRICS, RESULT
from offrank.runs.opening import folder_name, stored_config

SHORT = {"n_behaviour": "n_b", "bandwidth": "h"}  # settings in the name of a folder


@dataclass(frozen=True)
class Variant:
    """An algorithm as a study runs it. Only what differs from the task's presets is named."""

    algo: str
    ranker: str | None = None  # None: the one the name and the preset imply
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        settings = [f"{SHORT.get(name, name)}{value}" for name, value in self.settings]
        return "-".join([self.algo, *([self.ranker] if self.ranker else []), *settings])

    @property
    def place(self) -> tuple[int, int, str]:
        """Where it stands among others: strategies apart, N/b and b of b before what is compared with them."""
        strategy, implied = ALGORITHMS[self.algo]
        kind = {"on-policy": 0, "random": 1}.get(self.ranker or implied, 2)
        return list(ALGORITHMS).index(strategy), kind, self.label

    @staticmethod
    def of(task: str, algo: str, ranker: str | None = None, settings: Mapping[str, Any] | None = None) -> Variant:
        """The variant with these settings; those that are the task's own are left out."""
        usual = resolve(task, algo)
        own = ranker if ranker != usual.ranker.name else None
        preset = resolve(task, algo, own).hyperparameters
        given = sorted((settings or {}).items())
        return Variant(algo, own, tuple((name, value) for name, value in given if preset.get(name) != value))


def baselines(algo: str) -> tuple[Variant, Variant]:
    """What an algorithm is compared with: N sampled and the top b used; b sampled and all used."""
    strategy = ALGORITHMS[algo][0]
    return Variant(strategy), Variant(strategy, "random")


@dataclass(frozen=True)
class Planned:
    """One run of a study."""

    task: str
    variant: Variant
    seed: int
    steps: int
    threshold: float | None
    eval_every: int = 10

    @property
    def name(self) -> str:
        return folder_name(self.task, self.variant.label, self.seed)

    def config(self, engine: str, info: EnvInfo, folder: Path) -> RunConfig:
        """The configuration to begin the run with, or to go on with in its folder.

        Raises:
            UsageError: the folder holds another run, or one that was begun on another engine.
        """
        limits: dict[str, Any] = {"steps": self.steps, "threshold": self.threshold}
        recipe = resolve(self.task, self.variant.algo, self.variant.ranker, dict(self.variant.settings))
        same = {"algo": self.variant.algo, "seed": self.seed, "engine": engine, "eval_every": self.eval_every}
        stored = stored_config(folder, self.task, limits, same | recipe.hyperparameters)
        return stored or configure(
            self.task, recipe, info, seed=self.seed, engine=engine, eval_every=self.eval_every, **limits
        )

    def progress(self, folder: Path) -> tuple[int, bool]:
        """Training steps of what the folder holds, and whether that is all this study needs."""
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
    eval_every: int = 10,
) -> list[Planned]:
    """Every variant of every task with every seed: all variants of a seed first, so that half a study compares too."""
    seeds = list(seeds)
    return [
        Planned(task, variant, seed, steps[task], thresholds[task], eval_every)
        for task in tasks
        for seed in seeds
        for variant in variants[task]
    ]
