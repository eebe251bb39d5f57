"""From what the user asked for to what is run: algorithms by name, presets, overrides, checks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from numbers import Real
from typing import Any, get_type_hints

from offrank.algorithms.rankers import RANKERS, Ranker
from offrank.algorithms.strategies import STRATEGIES, Strategy
from offrank.core.candidates import Episodes
from offrank.core.errors import UsageError, did_you_mean
from offrank.engines import native_name, resolve_engine
from offrank.engines.base import EnvInfo
from offrank.presets import GENERAL, Value, lookup

ALGORITHMS = {name: (name, "on-policy") for name in STRATEGIES}  # name: (strategy, ranker)
ALGORITHMS |= {f"op-{name}": (name, "kernel") for name in STRATEGIES}
ALGORITHMS |= {f"q-{name}": (name, "critic") for name in STRATEGIES}

# what the papers call them, for whoever types the symbol
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


@dataclass(frozen=True)
class Recipe:
    """A strategy, a ranker and how episodes are scored, with the source of every number."""

    algo: str
    strategy: Strategy
    ranker: Ranker
    episodes: dict[str, Any]  # fields of Episodes but the horizon
    sources: dict[str, str]

    @property
    def hyperparameters(self) -> dict[str, Any]:
        return {**asdict(self.strategy), **asdict(self.ranker), **self.episodes}

    def check(self, info: EnvInfo) -> None:
        if info.discrete and self.ranker.needs_continuous_actions:
            raise UsageError(
                f"the {self.ranker.name} ranker compares actions, so it needs continuous ones; this environment's are "
                "discrete: use the on-policy, memory or random ranker (--algo ars)"
            )


def _settable(cls: type[Any]) -> dict[str, Any]:
    """Hyperparameters of a dataclass by name, with their types; the horizon is a setting of its own."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls) if f.name != "horizon"}


def resolve(
    task: str | None, algo: str = "op-ars", ranker: str | None = None, overrides: Mapping[str, Any] | None = None
) -> Recipe:
    """The recipe of an algorithm on a task: general defaults, then the task's preset, then what suits the ranker, then
    the task's preset for that very pair of strategy and ranker, then what the user gave.

    Args:
        task: the name of the task; None, or one without presets, gets the general defaults.
        algo: a key of ALGORITHMS.
        ranker: overrides the one the algorithm's name implies.
        overrides: hyperparameters by name; strings are converted.
    """
    if algo not in ALGORITHMS:
        raise UsageError(f"unknown algorithm {algo!r}: one of {', '.join(ALGORITHMS)}{did_you_mean(algo, ALGORITHMS)}")
    task = task and native_name(task)
    strategy_name, implied = ALGORITHMS[algo]
    preset = lookup(task, "ranker", algo)
    ranker = ranker or (preset.value if preset else implied)
    if ranker not in RANKERS:
        raise UsageError(f"unknown ranker {ranker!r}: one of {', '.join(RANKERS)}{did_you_mean(ranker, RANKERS)}")
    overrides = dict(overrides or {})
    pair, suggests = f"{strategy_name}.{ranker}", RANKERS[ranker].suggests
    parts: list[tuple[type[Any], str]] = [
        (STRATEGIES[strategy_name], strategy_name),
        (RANKERS[ranker], f"{strategy_name}.kernel"),
        (Episodes, "shared"),
    ]
    known = {name: hint for cls, _ in parts for name, hint in _settable(cls).items()}
    for name in overrides:
        if name not in known:
            raise UsageError(f"unknown hyperparameter {name!r} of {algo} with the {ranker} ranker{_hint(name, known)}")

    sources: dict[str, str] = {}
    built = []
    for cls, section in parts:
        values = {}
        for f in fields(cls):
            if f.name == "horizon":
                continue
            preset = lookup(task, f.name, pair)
            if preset is None and f.name in suggests:
                preset = Value(suggests[f.name], GENERAL)
            preset = preset or lookup(task, f.name, section)
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
    strategy: Strategy = STRATEGIES[strategy_name](**built[0])
    return Recipe(algo, strategy, RANKERS[ranker](**built[1]), built[2], sources)


def _hint(name: str, known: Mapping[str, Any]) -> str:
    for word in SYMBOLS.get(name, ()):
        if word in known:
            return f"; the paper's {name} is {word!r} here"
    return did_you_mean(name, known) or f"; it has {', '.join(known)}"


def convert(name: str, value: Any, to: type) -> Any:
    """A value, or its text, as a hyperparameter of type int, float, bool or str."""
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
        return to(number)
    except (KeyError, ValueError):
        raise UsageError(f"{name} = {text}: must be {wanted}") from None


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a run, and how far it is to go."""

    task: str
    algo: str
    ranker: str
    hyperparameters: dict[str, Any]
    sources: dict[str, str]
    seed: int
    engine: str
    horizon: int
    eval_every: int = 10  # iterations between evaluations; 0 for none
    eval_episodes: int = 100
    clip_actions: bool | None = None
    env_args: dict[str, Any] = field(default_factory=dict)
    count_evaluation: bool = False  # evaluation episodes count as interactions, as on a robot
    # how far to go: may change when a run is continued
    steps: int | None = None
    iterations: int | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        for name in ("seed", "horizon", "steps", "iterations", "eval_every", "eval_episodes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, Real) or value != value // 1):
                raise UsageError(f"{name} = {value!r}: must be a whole number")
        for name in ("horizon", "steps", "iterations", "eval_episodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} = {value}: must be at least 1")
        if self.eval_every < 0:
            raise UsageError(f"eval_every = {self.eval_every}: must not be negative (0 for no evaluation)")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed = {self.seed}: must be in [0, 2^63)")
        starts, each = (self.hyperparameters.get(name, 0) for name in ("starts", "start_steps"))
        if self.steps is not None and self.steps <= starts * each:
            raise UsageError(f"steps = {self.steps}: {starts} starts of {each} steps leave none to go on with")
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise UsageError(f"threshold = {self.threshold}: must be a number or none")

    @property
    def recipe(self) -> Recipe:
        made = resolve(self.task, self.algo, self.ranker, self.hyperparameters)
        return Recipe(made.algo, made.strategy, made.ranker, made.episodes, self.sources)

    @property
    def identity(self) -> dict[str, Any]:
        """What must not change when a run is continued: all that its bits depend on."""
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
                return replace(config, hyperparameters=_defaults(config.algo, config.ranker) | config.hyperparameters)
        except (KeyError, TypeError, AttributeError):
            pass
        raise UsageError("this is not the configuration of an offrank run, or of another version of offrank")


def _defaults(algo: str, ranker: str) -> dict[str, Any]:
    """Every setting at its default, which is what it was before there was such a setting."""
    classes = (STRATEGIES[ALGORITHMS[algo][0]], RANKERS[ranker], Episodes)
    return {f.name: f.default for cls in classes for f in fields(cls) if f.name != "horizon"}


def configure(
    task: str,
    recipe: Recipe,
    info: EnvInfo,
    *,
    seed: int = 0,
    engine: str = "auto",
    horizon: int | None = None,
    **settings: Any,
) -> RunConfig:
    """The configuration of a run of `recipe` on a task whose environment is `info`."""
    recipe.check(info)
    native = native_name(task)
    return RunConfig(
        task=native or task,
        algo=recipe.algo,
        ranker=recipe.ranker.name,
        hyperparameters=recipe.hyperparameters,
        sources=recipe.sources,
        seed=seed,
        engine=resolve_engine(task, engine),
        horizon=info.horizon if horizon is None else horizon,
        **settings,
    )


def as_stored(env_args: dict[str, Any]) -> dict[str, Any]:
    """The arguments as a file holds them, so that what is read compares equal to what was given."""
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
