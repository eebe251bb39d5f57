"""The configuration of a run, and its checks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any

from offrank.algorithms import ALGORITHMS
from offrank.algorithms.base import Episodes
from offrank.core.checks import LARGEST, check_flag, check_whole, is_number
from offrank.core.errors import UsageError
from offrank.core.space import Space
from offrank.engines import native_name, on_cluster, resolve_engine
from offrank.policies.trained import TrainedPolicy
from offrank.presets import lookup
from offrank.runs.recipe import Recipe, resolve

EVALUATION = ("eval_every", "eval_steps", "eval_episodes", "confirm_episodes")  # settings of evaluations
LEFT_OUT = ("steps", "iterations", "eval_steps")  # whole numbers that may be None
FROM_ZERO = ("seed", "eval_every", "confirm_episodes")  # those that may be 0; the others are at least 1
STORED: dict[str, type] = dict.fromkeys(("task", "algo", "ranker", "engine", "policy"), str) | dict.fromkeys(
    ("hyperparameters", "sources", "env_args"), dict
)  # types of what is read from a file
MAX_HORIZON = 100_000_000  # buffers for a whole episode are allocated before it begins
EVAL_EVERY = 10  # iterations between evaluations, unless something else is given or suggested
# settings of version 0.1 that were removed, with the value at which they had no effect
REMOVED: dict[str, Any] = {
    "orthogonal": False,
    "relative_bandwidth": False,
    "common_starts": False,
    "count_behaviour_states": False,
    "starts": 1,
    "start_steps": 0,
    "fallback": "random",
    "fallback_directions": 32,
}


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a run, and when it stops."""

    task: str
    algo: str
    ranker: str
    hyperparameters: dict[str, Any]
    sources: dict[str, str]
    seed: int
    engine: str
    horizon: int
    eval_every: int = EVAL_EVERY  # iterations between evaluations; 0 for none
    eval_episodes: int = 100
    clip_actions: bool | None = None
    env_args: dict[str, Any] = field(default_factory=dict)
    policy: str = "linear"
    count_evaluation: bool = False  # whether evaluation episodes count as interactions, as on a robot
    eval_steps: int | None = None  # steps between evaluations, instead of eval_every
    confirm_episodes: int = 0  # of a second evaluation where the first reaches the threshold; 0: the first counts
    init: str | None = None  # SHA-256 of the policy that it started from
    # when to stop: may change when a run is continued
    steps: int | None = None
    iterations: int | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        for name in ("seed", "horizon", "steps", "iterations", *EVALUATION):
            if (value := getattr(self, name)) is not None or name not in LEFT_OUT:
                most = MAX_HORIZON if name == "horizon" else 2**63 - 1
                whole = check_whole(name, value, 0 if name in FROM_ZERO else 1, most)
                object.__setattr__(self, name, whole)  # 5.0 is 5
        check_flag("clip_actions", self.clip_actions, optional=True)
        if self.eval_steps is not None and self.eval_every != EVAL_EVERY:
            raise UsageError("give eval_every or eval_steps, not both")
        if self.confirm_episodes != 0 and self.confirm_episodes <= self.eval_episodes:
            raise UsageError(
                f"confirm_episodes = {self.confirm_episodes}: must be more than eval_episodes = {self.eval_episodes}, "
                "or 0 for no second evaluation"
            )
        if self.threshold is not None and not (is_number(self.threshold) and abs(self.threshold) <= LARGEST):
            raise UsageError(f"threshold = {self.threshold!r}: must be none or a number of at most {LARGEST}")

    @property
    def recipe(self) -> Recipe:
        try:
            made = resolve(self.task, self.algo, self.ranker, self.hyperparameters, self.policy)
        except UsageError as error:
            what = f"a run of {self.algo} with the {self.ranker} ranker, made by another version of offrank"
            raise UsageError(f"{what}, cannot be continued: {error}") from error
        return replace(made, sources=self.sources)

    @property
    def evaluates(self) -> bool:
        """Whether there are evaluations."""
        return self.eval_steps is not None or self.eval_every > 0

    @property
    def evaluation(self) -> dict[str, Any]:
        """The settings of evaluations."""
        return {name: getattr(self, name) for name in EVALUATION}

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that the bits of a run depend on. They must not change when it is continued."""
        out = asdict(self)
        for name in ("steps", "iterations", "threshold", "sources"):
            del out[name]
        return out

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RunConfig:
        known = {f.name for f in fields(RunConfig)}
        needed = {f.name for f in fields(RunConfig) if f.default is MISSING and f.default_factory is MISSING}
        try:
            if needed <= set(data) <= known:
                config = RunConfig(**data)
                if not all(isinstance(getattr(config, name), kind) for name, kind in STORED.items()):
                    raise TypeError
                if on_cluster(config.engine):  # a run's engine is that of the cluster's workers
                    raise TypeError
                kept = {k: v for k, v in config.hyperparameters.items() if k not in REMOVED or v != REMOVED[k]}
                return replace(config, hyperparameters=_defaults(config.algo, config.ranker) | kept)
        except (KeyError, TypeError, AttributeError):
            pass
        raise UsageError("this is not the configuration of an offrank run, or of another version of offrank")


def _defaults(algo: str, ranker: str) -> dict[str, Any]:
    """The default of every setting: files written before a setting existed mean its default. Empty if the algorithm or
    ranker was removed: such runs can be shown, but not continued."""
    if algo not in ALGORITHMS or ranker not in ALGORITHMS[algo].rankers:
        return {}
    classes = (ALGORITHMS[algo].settings, ALGORITHMS[algo].rankers[ranker], Episodes)
    return {f.name: f.default for cls in classes for f in fields(cls) if f.name != "horizon"}


def configure(
    task: str,
    recipe: Recipe,
    space: Space,
    *,
    seed: int = 0,
    engine: str = "auto",
    horizon: int | None = None,
    init: TrainedPolicy | None = None,
    **settings: Any,
) -> RunConfig:
    """The configuration of a run of `recipe` on a task. It is evaluated as given, else as the algorithm suggests.

    Raises:
        UsageError: a setting is invalid, or the algorithm does not support the environment, or to start from `init`.
    """
    native = native_name(task)
    if not {"eval_every", "eval_steps"} & set(settings):
        settings["eval_steps"] = recipe.eval_steps
    config = RunConfig(
        task=native or task,
        algo=recipe.algo,
        ranker=recipe.ranker.name,
        policy=recipe.policy,
        hyperparameters=recipe.hyperparameters,
        sources=recipe.sources,
        seed=seed,
        engine=resolve_engine(task, engine),
        horizon=space.horizon if horizon is None else horizon,
        init=None if init is None else init.sha256,
        **settings,
    )
    recipe.algorithm(space, config.horizon).begin(seed, init)  # raises UsageError if they do not fit
    return config


def evaluation_given(**settings: int | None) -> dict[str, Any]:
    """The settings of evaluations, named as in EVALUATION, that are not None. One of eval_every and eval_steps replaces
    the other.

    Raises:
        UsageError: both are given.
    """
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    if {"eval_every", "eval_steps"} <= set(given):
        raise UsageError("give eval_every or eval_steps, not both")
    if "eval_every" in given:
        given["eval_steps"] = None
    elif "eval_steps" in given:
        given["eval_every"] = EVAL_EVERY
    return given


def as_stored(env_args: dict[str, Any]) -> dict[str, Any]:
    """The arguments after conversion to JSON and back, so that they compare equal to those read from a file."""
    try:
        stored: dict[str, Any] = json.loads(json.dumps(env_args))
        return stored
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"env_args = {env_args}: only numbers, text, lists and dicts can be saved; give a function that makes the "
            "environment instead"
        ) from error


def task_default(task: str, name: str) -> Any:
    """A task's preset threshold or budget, or None."""
    native = native_name(task)
    preset = lookup(native, name, "task") if native else None
    return preset.value if preset else None
