"""The configuration of a run: algorithms by name, presets, overrides, checks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, get_type_hints

from offrank.algorithms import ALGORITHMS
from offrank.algorithms.base import Algorithm, Episodes
from offrank.algorithms.rankers import MemberRanker, Ranker
from offrank.core.checks import LARGEST, MOST_COUNT, check_flag, check_whole, is_number
from offrank.core.errors import UsageError, did_you_mean
from offrank.core.space import Space
from offrank.engines import native_name, on_cluster, resolve_engine
from offrank.policies import canonical, make_policy
from offrank.policies.trained import TrainedPolicy
from offrank.presets import GENERAL, Value, lookup

# symbols of the papers, for error messages
SYMBOLS = {
    "N": ("n_directions",),
    "b": ("n_top",),
    "alpha": ("step_size", "learning_rate"),
    "nu": ("noise_std",),
    "sigma": ("noise_std",),
    "h": ("bandwidth",),
    "n_b": ("n_behaviour",),
    "K": ("epochs",),
    "lambda": ("clip",),
    "shift": ("reward_shift",),
}

GIVEN = "given"
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
class Recipe:
    """The parts of an algorithm and their hyperparameters, each with its source."""

    algo: str
    policy: str
    settings: Any  # of the algorithm: a Strategy, for a Search
    ranker: Ranker | MemberRanker
    episodes: dict[str, Any]  # fields of Episodes except the horizon
    sources: dict[str, str]  # by hyperparameter

    @property
    def hyperparameters(self) -> dict[str, Any]:
        return {**asdict(self.settings), **asdict(self.ranker), **self.episodes}

    @property
    def clips_actions(self) -> bool | None:
        """Whether actions are clipped to the environment's bounds; None: as is usual for the environment."""
        return True if getattr(self.settings, "needs_bounds", False) else None

    @property
    def eval_steps(self) -> int | None:
        """The steps between evaluations that the algorithm suggests; None: every EVAL_EVERY iterations."""
        return getattr(self.settings, "eval_steps", None)

    def algorithm(self, space: Space, horizon: int) -> Algorithm:
        """The algorithm for an environment.

        Raises:
            UsageError: it does not support the environment.
        """
        kind = make_policy(self.policy, space.obs_dim, space.act_dim)
        episodes = Episodes(horizon=horizon, **self.episodes)
        return ALGORITHMS[self.algo].algorithm(space, kind, episodes, self.settings, self.ranker)


def _settable(cls: type[Any]) -> dict[str, Any]:
    """The types of the hyperparameters of a dataclass, by name; without the horizon, which is set separately."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls) if f.name != "horizon"}


def resolve(
    task: str | None,
    algo: str,
    ranker: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    policy: str | None = None,
    init: TrainedPolicy | None = None,
) -> Recipe:
    """The recipe of an algorithm on a task. Of each hyperparameter, the last of these is used: the general default, the
    task's preset, the ranker's suggestion, the task's preset for this algorithm with this ranker, the override.

    Args:
        task: the name of the task; None, or one without presets, gets the general defaults.
        algo: a key of ALGORITHMS.
        ranker: instead of the default ranker of the algorithm.
        overrides: hyperparameters by name; strings are converted.
        policy: the kind of policy, instead of that of `init`, or else the algorithm's default.
        init: the policy to start from.

    Raises:
        UsageError: a name is unknown or a value is invalid.
    """
    if not isinstance(algo, str) or algo not in ALGORITHMS:
        raise UsageError(f"unknown algorithm {algo!r}: one of {', '.join(ALGORITHMS)}{did_you_mean(algo, ALGORITHMS)}")
    task = task and native_name(task)
    entry = ALGORITHMS[algo]
    usual = entry.policy if init is None or not entry.goes_on else init.kind.name
    policy = canonical(usual if policy is None else policy)
    preset = lookup(task, "ranker", algo)
    if ranker is None:
        ranker = preset.value if preset else entry.ranker
    if ranker not in entry.rankers:
        accepted = ", ".join(entry.rankers) + did_you_mean(str(ranker), entry.rankers)
        raise UsageError(f"unknown ranker {ranker!r} of {algo}: one of {accepted}")
    overrides = dict(overrides or {})
    own, kind = entry.settings.name, entry.rankers[ranker]
    pair, suggests = f"{own}.{ranker}", {**kind.suggests, **getattr(entry.settings, "suggests", {})}
    parts: list[tuple[type[Any], str, *tuple[str, ...]]] = [  # with the sections of the presets
        (entry.settings, own, *getattr(entry.settings, "also", ())),
        (kind, f"{own}.{kind.preset or ranker}"),
        (Episodes, "shared"),
    ]
    known = {name: hint for cls, *_ in parts for name, hint in _settable(cls).items()}
    for name in overrides:
        if name not in known:
            raise UsageError(f"unknown hyperparameter {name!r} of {algo} with the {ranker} ranker{_hint(name, known)}")

    sources: dict[str, str] = {}
    built = []
    for cls, *sections in parts:
        values = {}
        for f in fields(cls):
            if f.name == "horizon":
                continue
            preset = lookup(task, f.name, pair)
            if preset is None and f.name in suggests:
                preset = Value(suggests[f.name], GENERAL)
            preset = preset or lookup(task, f.name, *sections)
            if f.name in overrides:
                values[f.name], sources[f.name] = overrides[f.name], GIVEN
            elif preset is not None:
                values[f.name], sources[f.name] = preset.value, preset.source
            else:
                values[f.name], sources[f.name] = f.default, GENERAL
            assert values[f.name] is not MISSING
            values[f.name] = convert(f.name, values[f.name], known[f.name])
        built.append(values)
    if not str(built[0].get("form", "-t")).endswith("-t") and "n_top" not in overrides:
        built[0]["n_top"], sources["n_top"] = built[0]["n_directions"], "this form uses every direction"
    return Recipe(algo, policy, entry.settings(**built[0]), kind(**built[1]), built[2], sources)


def _hint(name: str, known: Mapping[str, Any]) -> str:
    for word in SYMBOLS.get(name, ()):
        if word in known:
            return f"; the paper's {name} is {word!r} here"
    return did_you_mean(name, known) or f"; it has {', '.join(known)}"


def convert(name: str, value: Any, to: type) -> Any:
    """Convert a value, or its text, to int, float, bool or str.

    Raises:
        UsageError: it cannot be converted.
    """
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}[to]
    text = str(value).strip()
    try:
        if to is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        if to is str:
            return text
        number = float(text)
        if not math.isfinite(number) or (to is int and number != int(number)):
            raise ValueError
    except (KeyError, ValueError):
        raise UsageError(f"{name} = {text}: must be {wanted}") from None
    if to is int and abs(number) > MOST_COUNT:
        raise UsageError(f"{name} = {text}: must be at most {MOST_COUNT:,}")
    return to(number)


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


def clipping(task: str, engine: str, recipes: Iterable[Recipe], given: bool | None) -> bool | None:
    """Whether the environment of runs of these recipes clips actions: as given, else as the algorithms need it.

    Raises:
        UsageError: they need different things.
    """
    if given is not None or resolve_engine(task, engine) == "numpy":
        return given
    wanted = {recipe.clips_actions: recipe.algo for recipe in recipes}
    if len(wanted) > 1 and native_name(task):
        raise UsageError(
            f"{wanted[True]} clips actions and {wanted[None]} does not: train them in two commands, or say for both "
            "(--clip-actions, --no-clip-actions; clip_actions=)"
        )
    return next(iter(wanted))


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
