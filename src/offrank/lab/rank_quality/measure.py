"""How good is a ranking? Measures every ranker's scores of many fresh candidates, and their true scores.

At a checkpoint of a run, the candidates are those that its next iteration would draw after its own N: same seed, same
iteration, indices from N on, so that training never saw them and they are distributed as a ranker expects. Behaviour
rollouts are those of that iteration. The true score of a candidate is its mean return over E episodes per sign, without
the survival bonus, as training sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from offrank.algorithms import ALGORITHMS
from offrank.algorithms.cem_rl import CEM, CEMRL, CEMRLSettings, CEMSettings
from offrank.algorithms.proposal import Proposal
from offrank.algorithms.rankers import MEMBER_RANKERS, RANKERS, MemberRanker, Ranker
from offrank.algorithms.rankers.interleaved import Mixed
from offrank.algorithms.rankers.on_policy import OnPolicy
from offrank.algorithms.search import Search
from offrank.core.arrays import FloatArray, Metrics, part
from offrank.core.errors import UsageError, did_you_mean
from offrank.core.files import load_arrays, save_arrays
from offrank.core.noise import Role, episode_seeds
from offrank.core.state import State
from offrank.core.work import answered
from offrank.engines.base import Engine
from offrank.lab.rank_quality.checkpoints import Checkpoint
from offrank.lab.requests import signs
from offrank.policies import make_policy
from offrank.runs.config import RunConfig
from offrank.runs.recipe import resolve

KIND = "rank-quality"
# rankers that do not run the candidates; on-policy ranking is the ceiling, and a mixture uses either
OFF_POLICY = tuple(name for name, ranker in RANKERS.items() if not issubclass(ranker, OnPolicy | Mixed))
MEASURABLE = tuple(dict.fromkeys((*OFF_POLICY, *MEMBER_RANKERS)))


@dataclass(frozen=True)
class Measurements:
    """Scores and returns of N candidates at a checkpoint."""

    scores: dict[str, FloatArray]  # by ranker, (N,), larger is better
    returns: FloatArray  # (2, N, E): of the plus and the minus sign; (1, N, E) of members, which have none
    b: int  # the same share of N as the run uses of its own candidates
    metrics: dict[str, Metrics] = field(default_factory=dict)  # logged by each ranker

    def save(self, path: Path, meta: dict[str, Any]) -> None:
        arrays = {f"scores.{name}": values for name, values in self.scores.items()}
        save_arrays(path, KIND, {**arrays, "returns": self.returns}, {**meta, "b": self.b, "metrics": self.metrics})

    @staticmethod
    def read(path: Path) -> tuple[Measurements, dict[str, Any]]:
        _, arrays, meta = load_arrays(path, KIND)
        return Measurements(part(arrays, "scores."), arrays["returns"], meta["b"], meta["metrics"]), meta


def check_names(rankers: Sequence[str]) -> None:
    """Raise UsageError if one of them is not a ranker that can be measured."""
    for name in rankers:
        if name not in MEASURABLE:
            hint = did_you_mean(name, MEASURABLE)
            raise UsageError(f"ranker {name!r} cannot be measured: one of {', '.join(MEASURABLE)}{hint}")


def rankers_for(config: RunConfig, names: Sequence[str] | None) -> list[Ranker | MemberRanker]:
    """The rankers of these names (default: all) that can be measured in a run, with those of its hyperparameters that
    they have.

    A ranker with state is measured only in a run that it ranked: elsewhere it has learned nothing. One that needs
    a critic is left out where there is none.
    """
    algorithm = ALGORITHMS[config.algo].algorithm
    if not (isinstance(algorithm, type) and issubclass(algorithm, Search | CEM)):
        raise UsageError(f"rank-quality measures rankers under ars, tres, es, cem-rl and their kin, not {config.algo}")
    members = issubclass(ALGORITHMS[config.algo].settings, CEMSettings)
    algo, accepted = ("op-cem-rl", tuple(MEMBER_RANKERS)) if members else (config.algo, OFF_POLICY)
    found: list[Ranker | MemberRanker] = []
    for name in names or accepted:
        if name not in ALGORITHMS[algo].rankers:
            raise UsageError(f"ranker {name!r} does not rank the candidates of {config.algo}: {', '.join(accepted)} do")
        known = {f.name for f in fields(ALGORITHMS[algo].rankers[name])}
        shared = {key: value for key, value in config.hyperparameters.items() if key in known}
        ranker = resolve(config.task, algo, name, shared).ranker
        if isinstance(ranker, MemberRanker):
            if not ranker.needs_critic or issubclass(ALGORITHMS[config.algo].settings, CEMRLSettings):
                found.append(ranker)
        elif name == config.ranker or not ranker.start(make_policy("linear", 1, 1), config.seed):
            found.append(ranker)
    return found


def gather(
    checkpoint: Checkpoint,
    rankers: Iterable[Any],
    engine: Engine,
    count: int,
    episodes: int,
    tick: Callable[[], None] = lambda: None,
) -> Measurements:
    """Score `count` fresh candidates by each ranker, and run each (both signs of a pair) for `episodes` episodes.

    Args:
        checkpoint: around whose policy, or from whose distribution, they are drawn.
        rankers: to measure.
        engine: of the run's environment, with nothing under way.
        count: of candidates, N.
        episodes: per candidate, or per sign, E.
        tick: called `episodes` times.
    """
    algorithm = checkpoint.config.recipe.algorithm(engine.space, checkpoint.config.horizon)
    if isinstance(algorithm, CEM):
        return _gather_members(checkpoint.state, algorithm, rankers, engine, count, episodes, tick)
    assert isinstance(algorithm, Search)
    return _gather_pairs(checkpoint, algorithm, rankers, engine, count, episodes, tick)


def _gather_members(
    state: State,
    algorithm: CEM,
    rankers: Iterable[MemberRanker],
    engine: Engine,
    count: int,
    episodes: int,
    tick: Callable[[], None],
) -> Measurements:
    """Members drawn after those of the next generation; the first of them follow the critic, as in training."""
    members, critics = algorithm.draw(state, count, first=algorithm.settings.drawn), None
    if isinstance(algorithm, CEMRL) and state.steps > algorithm.settings.warmup_steps:
        members, critics = answered(algorithm.follow(state, members), engine.run)
    generation = algorithm.generation(state, members, critics)
    b = max(1, round(count * algorithm.settings.population / algorithm.settings.drawn))
    scores = {ranker.name: answered(ranker.rank(generation, b), engine.run).scores for ranker in rankers}
    rounds = []
    for episode in range(episodes):
        index = algorithm.settings.drawn + episode * len(generation) + np.arange(len(generation))
        ran = answered(generation.run_these(generation.thetas, index, Role.MEMBER), engine.run)
        rounds.append(algorithm.episodes.returns(ran.rollouts))
        tick()
    return Measurements(scores, np.stack(rounds, axis=1)[None], b)


def _gather_pairs(
    checkpoint: Checkpoint,
    algorithm: Search,
    rankers: Iterable[Ranker],
    engine: Engine,
    count: int,
    episodes: int,
    tick: Callable[[], None],
) -> Measurements:
    """Pairs drawn after those of the next iteration."""
    config, state = checkpoint.config, checkpoint.state
    own, share = algorithm.strategy.n_directions, algorithm.strategy.n_top / algorithm.strategy.n_directions
    b = max(1, round(count * share))
    proposal = algorithm.propose(state, config.horizon)
    proposal = replace(proposal, directions=replace(proposal.directions, count=own + count), b=b)
    scores, metrics = {}, {}
    for ranker in rankers:
        ranked = ranker.name == config.ranker
        memory = part(state.memory, "ranker.") if ranked else ranker.start(algorithm.kind, state.seed)
        ranking = answered(ranker.rank(proposal, memory), engine.run)
        # a ranker without scores takes the candidates in their order
        ordered = -np.arange(proposal.N, dtype=np.float64) if ranking.scores is None else ranking.scores
        scores[ranker.name], metrics[ranker.name] = ordered[own:], ranking.metrics
    rounds = []
    for episode in range(episodes):
        rounds.append(_run_once(proposal, own, episode, engine))
        tick()
    return Measurements(scores, np.stack(rounds, axis=2), b, metrics)


def _run_once(proposal: Proposal, own: int, episode: int, engine: Engine) -> FloatArray:
    """Returns (2, N) of one episode per sign of the fresh candidates, from start states that nothing else uses."""
    directions, how = proposal.directions, proposal.episodes
    fresh = np.arange(own, directions.count)
    start = fresh + episode * directions.count
    plus, minus = (
        episode_seeds(directions.seed, directions.iteration, role, start) for role in (Role.PLUS, Role.MINUS)
    )
    return how.returns(engine.run(signs(proposal, fresh, plus, minus, how.horizon))).reshape(2, -1)
