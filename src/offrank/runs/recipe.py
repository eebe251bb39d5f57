"""The parts of an algorithm, and where each of its settings comes from: general defaults, presets, overrides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, get_type_hints

from offrank.algorithms import ALGORITHMS
from offrank.algorithms.base import Algorithm, Episodes
from offrank.algorithms.rankers import MemberRanker, Ranker
from offrank.core.checks import MOST_COUNT
from offrank.core.errors import UsageError, did_you_mean
from offrank.core.space import Space
from offrank.engines import native_name, resolve_engine
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
FROM_A_POLICY = "ours: to start from a policy, docs/notebook/2026-11-19-starting-from-a-policy.md"


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

    @property
    def unchanged(self) -> tuple[str, int]:
        """The setting that says for how many training steps the policy does not change, and its value; "" and 0 if the
        algorithm has none."""
        name = getattr(self.settings, "unchanged", "")
        return name, getattr(self.settings, name) if name else 0

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
    goes_on: bool = False,
) -> Recipe:
    """The recipe of an algorithm on a task. Of each hyperparameter, the last of these is used: the general default, the
    task's preset, the suggestion of ranker or algorithm (of the latter another one to start from a policy), the task's
    preset for this algorithm with this ranker, the override.

    Args:
        task: the name of the task; None, or one without presets, gets the general defaults.
        algo: a key of ALGORITHMS.
        ranker: instead of the default ranker of the algorithm.
        overrides: hyperparameters by name; strings are converted.
        policy: the kind of policy, instead of that of `init`, or else the algorithm's default.
        init: the policy to start from.
        goes_on: whether the run has started from a policy, which is not needed any more.

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
    suggested = {name: Value(value, GENERAL) for name, value in suggests.items()}
    if init is not None or goes_on:
        others = getattr(entry.settings, "from_a_policy", {})
        suggested |= {name: Value(value, FROM_A_POLICY) for name, value in others.items()}
    sections = (own, *getattr(entry.settings, "also", ()))
    parts: list[tuple[type[Any], str, *tuple[str, ...]]] = [  # with the sections of the presets
        (entry.settings, *sections),
        (kind, f"{own}.{kind.preset or ranker}"),
        (Episodes, *sections, "shared"),
    ]
    known = {name: hint for cls, *_ in parts for name, hint in _settable(cls).items()}
    for name in overrides:
        if name not in known:
            raise UsageError(f"unknown hyperparameter {name!r} of {algo} with the {ranker} ranker{_hint(name, known)}")

    sources: dict[str, str] = {}
    built = []
    for cls, *where in parts:
        values = {}
        for f in fields(cls):
            if f.name == "horizon":
                continue
            preset = lookup(task, f.name, pair)
            preset = preset or suggested.get(f.name) or lookup(task, f.name, *where)
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
