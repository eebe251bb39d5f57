"""Ask-and-tell interface: for users who run the episodes themselves, on a robot or in their own simulator.

`ask` returns the episodes of the run's current request. What `tell` is given is written to a journal before it is used,
so that after a crash or a power cut no episode has to be run again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import ArrayLike

from offrank.agent import Agent
from offrank.algorithms import ALGORITHMS
from offrank.core.arrays import FloatArray, IntArray
from offrank.core.checks import check_flag, check_path, check_whole
from offrank.core.errors import UsageError
from offrank.core.noise import Role
from offrank.core.rollouts import Episode, Request, Rollouts, Trajectory
from offrank.core.space import Space
from offrank.policies.trained import TrainedPolicy
from offrank.runs.config import RunConfig, evaluation_given
from offrank.runs.journal import Journal, checked, numbers
from offrank.runs.opening import open_run, stored_config
from offrank.runs.recipe import resolve
from offrank.runs.saved import ASK_TELL, initial_policy


@dataclass(frozen=True)
class EpisodeToRun:
    """One episode to run, until the horizon or until the task ends it. Act by `policy.predict`, or by `act`."""

    id: str  # unique in the run
    policy: TrainedPolicy
    seed: int  # for a simulator's start state; a robot may ignore it
    horizon: int
    role: str  # behaviour, plus, minus or evaluation
    index: int
    iteration: int
    noise: FloatArray | None = None  # (horizon, p) on the actions, if the algorithm was asked for it

    def act(self, observation: ArrayLike, step: int) -> FloatArray | IntArray:
        """The action at an observation, with the noise of this step, counted from 0."""
        return self.policy.predict(observation, None if self.noise is None else self.noise[step])


_owners: WeakValueDictionary[Path, AskTell] = WeakValueDictionary()  # by journal, those of this process


class AskTell:
    """Trains on episodes that the user runs.

    Args:
        algorithm: OPARS, ARS, ...
        obs_dim, act_dim: sizes of an observation and of an action.
        seed: determines the policies that are tried.
        journal: a folder in which told episodes are stored. A new AskTell with the same arguments continues from it.
        horizon: maximum number of steps per episode.
        total_steps, iterations, threshold: when to stop; never, if none is given.
        eval_every: iterations between evaluations; by default there are none. Evaluation episodes are asked for, and
            counted.
        eval_steps: steps between evaluations, instead of eval_every.
        eval_episodes: episodes per evaluation.
        confirm_episodes: if an evaluation reaches the threshold, so many more episodes decide; 0: do not ask for them.
        low, high: bounds that actions are clipped to.
        discrete: the action is the index of the largest of the act_dim outputs.
        keep_episodes: keep the files of all episodes in the journal, not only of those that are still needed.
        ranker, policy, init, hyperparameters: as for the algorithm. To continue from a journal, `init` is not needed.

    Raises:
        UsageError: an argument is invalid, or the journal is of another run.
    """

    def __init__(
        self,
        algorithm: type[Agent],
        obs_dim: int,
        act_dim: int,
        *,
        seed: int = 0,
        journal: str | Path | None = None,
        horizon: int = 1000,
        total_steps: int | None = None,
        iterations: int | None = None,
        threshold: float | None = None,
        eval_every: int | None = None,
        eval_steps: int | None = None,
        eval_episodes: int = 10,
        confirm_episodes: int = 0,
        low: ArrayLike | None = None,
        high: ArrayLike | None = None,
        discrete: bool = False,
        keep_episodes: bool = False,
        ranker: str | None = None,
        policy: str | None = None,
        init: str | Path | TrainedPolicy | None = None,
        **hyperparameters: Any,
    ):
        if not (isinstance(algorithm, type) and issubclass(algorithm, Agent) and hasattr(algorithm, "algo")):
            raise UsageError(f"algorithm = {algorithm!r}: give the class, such as offrank.OPARS or offrank.ARS")
        obs_dim, act_dim = check_whole("obs_dim", obs_dim, 1), check_whole("act_dim", act_dim, 1)
        horizon, seed = check_whole("horizon", horizon, 1), check_whole("seed", seed)
        low, high = _bounds(low, high, act_dim)
        check_flag("discrete", discrete)
        space = Space(obs_dim, act_dim, horizon, discrete, low=low, high=high)
        folder = None if journal is None else check_path("journal", journal)
        self._journal = None if folder is None else Journal(folder, keep_episodes)
        self._closed = False
        init = initial_policy(init)
        begun = None if folder is None else stored_config(folder, ASK_TELL, {}, {})
        goes_on = init is None and begun is not None and begun.init is not None  # needs the policy no more
        gentle = getattr(ALGORITHMS[algorithm.algo].settings, "on_a_robot", {})
        recipe = resolve(None, algorithm.algo, ranker, gentle | hyperparameters, policy, init, goes_on)
        evaluation = evaluation_given(
            eval_every=0 if eval_every is None and eval_steps is None else eval_every,
            eval_steps=eval_steps,
            eval_episodes=eval_episodes,
            confirm_episodes=confirm_episodes,
        )
        config = RunConfig(
            task=ASK_TELL,
            algo=recipe.algo,
            ranker=recipe.ranker.name,
            policy=recipe.policy,
            hyperparameters=recipe.hyperparameters,
            sources=recipe.sources,
            seed=seed,
            engine=ASK_TELL,
            horizon=horizon,
            **evaluation,
            env_args={
                "obs_dim": obs_dim,
                "act_dim": act_dim,
                "discrete": discrete,
                "low": None if low is None else low.tolist(),
                "high": None if high is None else high.tolist(),
            },
            count_evaluation=True,
            steps=total_steps,
            iterations=iterations,
            threshold=threshold,
            init=None if init is None else init.sha256,
        )
        self._told: dict[str, Episode] = {}
        if folder is not None:
            given = config.identity
            hyperparameters = given.pop("hyperparameters")
            if goes_on and begun is not None:
                given["init"] = begun.init
                given["policy"] = begun.policy if policy is None else recipe.policy
                config = replace(config, init=begun.init, policy=given["policy"])
            stored_config(folder, ASK_TELL, {}, given | hyperparameters)
        self._run = open_run(config, space, folder, True, (), 0.0, init)
        self._take_over()
        self._run.start()
        self._request: Request | None = None
        self._pending = self._list_pending()
        self._read_journal()

    @property
    def done(self) -> bool:
        """Whether the run has reached its threshold or a limit."""
        return self._run.done

    @property
    def policy(self) -> TrainedPolicy:
        """The current, unperturbed policy."""
        return self._run.policy

    @property
    def best_policy(self) -> TrainedPolicy:
        """The policy of the best evaluation; the current policy before the first evaluation."""
        return self.policy if self._run.best is None else self._run.best[1]

    @property
    def result(self) -> dict[str, Any]:
        return self._run.result

    def ask(self) -> list[EpisodeToRun]:
        """The episodes to run now, in any order, without those already told. When all are told, there are new ones.

        Raises:
            UsageError: another AskTell goes on with the journal.
        """
        self._check_owner()
        return [episode for episode in self._pending.values() if episode.id not in self._told]

    def tell(
        self,
        episode: EpisodeToRun,
        rewards: ArrayLike,
        observations: ArrayLike,
        terminated: bool = False,
        truncated: bool = False,
        actions: ArrayLike | None = None,
    ) -> None:
        """Report an episode that was run.

        Args:
            episode: as `ask` gave it.
            rewards: (T,).
            observations: (T, n), before each step, or (T + 1, n) with the one after the last step.
            terminated: whether the task ended the episode (the robot fell).
            truncated: whether it was cut short for another reason (the battery was empty).
            actions: (T, p), as carried out, where they may not be those of the episode's policy (a packet was lost, a
                safety limit stepped in). Critics learn from them.

        Raises:
            UsageError: it was not asked for, was told before, or the arrays do not fit; or another AskTell goes on with
                the journal.
            EpisodeError: a reward or an observation is not finite, or beyond 1e30.
        """
        if self._closed:
            raise UsageError("this AskTell is closed: make another one, with the same journal")
        self._check_owner()
        self._check_asked(episode)
        check_flag("terminated", terminated)
        check_flag("truncated", truncated)
        told = (rewards, observations, terminated, truncated, actions)
        trajectory = checked(self._run.space, episode.horizon, episode.seed, *told)
        if self._journal is not None:  # written first: from here on the episode is never asked for again
            self._journal.write(episode.id, trajectory)
        self._store(episode.id, trajectory)
        self._advance_if_complete()

    def close(self) -> None:
        """Close the journal. All told episodes are already stored in it."""
        self._closed = True
        self._run.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("an AskTell holds files, so it cannot be pickled or copied: make another one, with a journal")

    # --- the owner of the journal

    def _take_over(self) -> None:
        """From now on this object writes the journal. Another one of this process stops to do so: in a notebook, a cell
        may be run twice. (Other processes are kept out by the folder's lock.)"""
        if self._journal is None:
            return
        folder = self._journal.folder.resolve()
        before, _owners[folder] = _owners.get(folder), self
        if before is not None:
            before._run.lose_folder()

    def _check_owner(self) -> None:
        if self._journal is not None and _owners.get(self._journal.folder.resolve()) is not self:
            raise UsageError(f"another AskTell goes on with {self._journal.folder}: use that one")

    # --- pending episodes

    def _list_pending(self) -> dict[str, EpisodeToRun]:
        self._request = request = self._next_request()
        if request is None:
            return {}
        iteration, space = self._run.state.iteration, self._run.space
        pending = {}
        for i in range(len(request)):
            role, index = Role(int(request.roles[i])).name.lower(), int(request.index[i])
            id = f"{iteration:06d}-{role}-{index:04d}"
            policy = TrainedPolicy.for_space(space, request.policy, request.theta(i), request.whitening)
            seed, noise = int(request.seeds[i]), request.step_noise(i)
            pending[id] = EpisodeToRun(id, policy, seed, request.horizon, role, index, iteration, noise)
        return pending

    def _next_request(self) -> Request | None:
        """The next request of the run, after its lessons are carried out; None if the run has ended."""
        while new := self._run.take():
            (work,) = new  # with count_evaluation, iterations do not overlap evaluations
            if isinstance(work, Request):
                return work
            self._run.receive(work, work.carry_out())
        return None

    def _store(self, id: str, trajectory: Trajectory) -> None:
        assert self._request is not None
        self._told[id] = Episode.of(trajectory, self._request.keep)

    def _advance_if_complete(self) -> None:
        """Pass the rollouts of the current request to the run, once all of its episodes are told."""
        if self._request is None or len(self._told) < len(self._pending):
            return
        rollouts = Rollouts.of([self._told[id] for id in self._pending])
        used = list(self._pending)
        self._run.receive(self._request, rollouts)
        self._told = {}
        self._pending = self._list_pending()
        if self._journal is not None:
            # Episodes of an iteration are kept until it is complete: after a restart, it is repeated from them. Those
            # of the evaluation that ends the run are kept, too: the last checkpoint is older than they are.
            evaluated = self._run.last is not None and not self.done
            self._journal.delete(self._run.state.iteration, [id for id in used if evaluated and "-evaluation-" in id])

    def _read_journal(self) -> None:
        """Read the episodes that an earlier process was told, and advance the run with them."""
        if self._journal is None:
            return
        while not self.done:
            known = [id for id in self._pending if self._journal.has(id)]
            for id in known:
                episode = self._pending[id]
                self._store(id, self._journal.read(id, self._run.space, episode.horizon, episode.seed))
            if len(known) < len(self._pending):
                return
            self._advance_if_complete()

    def _check_asked(self, episode: EpisodeToRun) -> None:
        if not isinstance(episode, EpisodeToRun):
            raise UsageError(f"episode = {episode!r}: give one of the episodes that ask returned")
        if episode.id not in self._pending:
            raise UsageError(f"episode {episode.id} is not being asked for: it was told before, or is of another run")
        if episode.id in self._told:
            raise UsageError(f"episode {episode.id} was told before")
        if episode.policy.sha256 != self._pending[episode.id].policy.sha256:
            raise UsageError(f"episode {episode.id} is of another run: its policy differs")


def _bounds(low: ArrayLike | None, high: ArrayLike | None, act_dim: int) -> tuple[FloatArray | None, FloatArray | None]:
    """Both bounds as (act_dim,), or neither."""
    if low is None and high is None:
        return None, None
    if low is None or high is None:
        raise UsageError("give both low and high, or neither")
    a, b = numbers("low", low), numbers("high", high)
    if a.shape not in ((), (act_dim,)) or b.shape not in ((), (act_dim,)) or not (a <= b).all():
        raise UsageError(f"low = {a}, high = {b}: give two numbers or two lists of {act_dim}, low <= high")
    return np.full(act_dim, a), np.full(act_dim, b)
