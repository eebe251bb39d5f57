"""An agent: an algorithm and an environment, with `learn`, `predict`, `evaluate` and `save`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

from numpy.typing import ArrayLike

from offrank.core.arrays import FloatArray, IntArray
from offrank.core.checks import check_flag, check_path, check_seconds
from offrank.core.errors import UsageError
from offrank.display.plots import plot_runs
from offrank.display.progress import drive_shown
from offrank.engines import Cluster, Engine, Env, Gpu, check_pool, make_engine, on_cluster, own_engine
from offrank.policies.trained import TrainedPolicy
from offrank.runs.callback import OnRecord, as_callbacks
from offrank.runs.config import RunConfig, as_stored, configure, evaluation_given
from offrank.runs.evaluation import check_sizes, evaluate_policy
from offrank.runs.folder import CHECKPOINT, CURVE
from offrank.runs.opening import holds_run, make_folder, open_run, stored_config
from offrank.runs.recipe import clipping, resolve
from offrank.runs.run import Run
from offrank.runs.saved import ASK_TELL, Saved, foreign_module, initial_policy


class Agent:
    """Base class of the agents.

    Args:
        env: one of our tasks, any Gymnasium id, an environment, or a function that makes one. An environment object is
            run in this process; the others can use all cores.
        seed: determines the whole run.
        ranker: instead of the default ranker of the algorithm.
        policy: the kind of policy, such as linear, affine, skip:32 or mlp:64,64; by default that of the algorithm.
        init: a policy to start from: one in memory, a policy file, a checkpoint, or a run folder (its best one). Its
            kind is the default of `policy`.
        engine, threads, workers, env_args, clip_actions, episode_seconds: see `offrank.engines.make_engine`. env_args
            are only for an environment given by its name.
        gpu: device and settings of the engine `warp`; see `offrank.Gpu`.
        cluster: the cluster of the engine `ray`; see `offrank.Cluster`.
        horizon: maximum number of steps per episode; by default that of the environment.
        hyperparameters: by name; the others are taken from the task's presets.

    Raises:
        UsageError: an argument is invalid.
    """

    algo: ClassVar[str]

    def __init__(
        self,
        env: Env,
        *,
        seed: int = 0,
        ranker: str | None = None,
        policy: str | None = None,
        init: str | Path | TrainedPolicy | None = None,
        engine: str = "auto",
        threads: int = 0,
        workers: int | None = None,
        env_args: dict[str, Any] | None = None,
        clip_actions: bool | None = None,
        gpu: Gpu | None = None,
        cluster: Cluster | None = None,
        episode_seconds: float | None = None,
        horizon: int | None = None,
        **hyperparameters: Any,
    ):
        check_pool(threads, workers, gpu, cluster, episode_seconds)
        check_flag("clip_actions", clip_actions, optional=True)
        task = env if isinstance(env, str) else _name_of(env)
        known, init = task if isinstance(env, str) else None, initial_policy(init)
        recipe = resolve(known, self.algo, ranker, hyperparameters, policy, init)
        if isinstance(env, str):
            clip_actions = clipping(env, engine, [recipe], clip_actions)
        stored_args = as_stored(env_args or {})
        if cluster is None and on_cluster(engine):
            cluster = Cluster()
        self._pool: dict[str, Any] = {"threads": threads, "workers": workers, "gpu": gpu}
        self._pool |= {"cluster": cluster, "episode_seconds": episode_seconds}
        self._engine: Engine | None
        if isinstance(env, str):
            self._engine = make_engine(env, engine, env_args=env_args, clip_actions=clip_actions, **self._pool)
        else:
            if env_args:
                raise UsageError("env_args are for an environment given by its name: make yours with them")
            self._engine = own_engine(env, workers, clip_actions, cluster, episode_seconds, threads)
            engine, clip_actions = "gymnasium", clip_actions is not False
        self._config: RunConfig = configure(
            task,
            recipe,
            self._engine.space,
            seed=seed,
            engine=engine,
            horizon=horizon,
            init=init,
            env_args=stored_args,
            clip_actions=clip_actions,
        )
        self._run: Run | None = Run(self._config, self._engine.space, init=init)
        self._policy: TrainedPolicy | None = None

    @classmethod
    def of(cls, saved: Saved, env: Env | None, pool: dict[str, Any]) -> Self:
        """An agent that goes on from what was saved.

        Args:
            saved: what was read.
            env: as for `offrank.load`.
            pool: threads, workers, gpu, cluster and episode_seconds, as there.
        """
        agent = cls.__new__(cls)
        agent._config, agent._policy, agent._run = saved.config, saved.policy, None
        agent._pool, agent._engine = pool, None
        if isinstance(env, str):
            agent._engine = _engine_of(saved.config, env, pool)
        elif env is not None:
            where = pool["cluster"], pool["episode_seconds"], pool["threads"]
            agent._engine = own_engine(env, pool["workers"], saved.config.clip_actions, *where)
        if saved.complete and saved.config.engine != ASK_TELL:
            check_sizes(saved.policy, agent.engine.space)
            agent._run = Run(saved.config, agent.engine.space)
            agent._run.restore(saved.path)
        return agent

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
        callback: OnRecord | Sequence[OnRecord] | None = None,
        checkpoint_seconds: float = 30.0,
    ) -> Self:
        """Train until a limit is reached. Another call continues the training.

        Args:
            total_steps: environment steps since the agent was made; the iteration that exceeds them is completed.
            iterations: iterations since the agent was made.
            threshold: stop at the first evaluation whose mean return reaches it.
            eval_every: iterations between evaluations, whose steps are not counted; 0 for none. Default 10.
            eval_steps: training steps between evaluations, instead of eval_every. By default CEM and
                CEMRL 10,000, Guided, Faded and Distilled 5,000.
            eval_episodes: episodes per evaluation. Default 100.
            confirm_episodes: if an evaluation reaches the threshold, evaluate again over so many other episodes, which
                decide. Default 0: do not.
            out: a run folder for metrics, checkpoints and policies.
            resume: continue the run in `out`.
            progress: show progress on stderr.
            callback: called as callback(run, record) with every line of the log; returning False stops the run. Or one
                of `offrank.callbacks`, or a list of callbacks.
            checkpoint_seconds: maximum time between checkpoints.

        Raises:
            Interrupted: by Ctrl-C or SIGTERM; the agent and `out` are in the state after the last whole iteration.
            OffrankError: an episode failed, or a file cannot be written.
        """
        callbacks = as_callbacks(callback)
        if self._run is None:
            raise UsageError("this agent was loaded from a policy file: load the run folder or checkpoint to train it")
        run, engine = self._run, self.engine
        limits: dict[str, Any] = {"steps": total_steps, "iterations": iterations, "threshold": threshold}
        given = evaluation_given(
            eval_every=eval_every,
            eval_steps=eval_steps,
            eval_episodes=eval_episodes,
            confirm_episodes=confirm_episodes,
        )
        config = replace(run.config, **given, **limits)
        if total_steps is None and iterations is None and (threshold is None or not config.evaluates):
            raise UsageError("say when to stop: total_steps, iterations, or threshold with evaluations")
        if out is not None and (folder := check_path("out", out)) != run.folder:
            if holds_run(folder) and not resume:
                raise UsageError(
                    f"{folder} already holds a run: pass resume=True to continue it, or choose another out"
                )
            stored = stored_config(folder, config.task, {}, given)
            if stored is not None and (folder / CHECKPOINT).is_file():
                config = replace(config, **stored.evaluation)
                self._run = run = open_run(config, engine.space, folder, resume=True)
            else:
                make_folder(folder)
                run.move_to(folder)
        check_seconds("checkpoint_seconds", checkpoint_seconds)
        run.config, run.checkpoint_seconds = config, checkpoint_seconds
        run.callbacks = callbacks
        drive_shown([run], engine, sys.stderr, progress)
        if run.folder is not None:
            plot_runs([run.folder], run.folder / CURVE)
        return self

    def predict(
        self, observation: ArrayLike, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[FloatArray | IntArray, None]:
        """Action at an observation (n,), or actions at observations (E, n). The second value is always None.

        The action is in the environment's shape, type and bounds; where actions are not clipped in training, it is the
        float64 output of the policy. `state`, `episode_start` and `deterministic` are ignored: policies here have no
        state and no noise. They exist for compatibility with `predict` of Stable-Baselines3.
        """
        try:
            return self.policy.predict(observation), None
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(
                f"an observation of type {type(observation).__name__}: give numbers, or flatten it as training does, "
                "by gymnasium.spaces.utils.flatten(env.observation_space, observation)"
            ) from error

    def evaluate(self, episodes: int = 100, seed: int = 0) -> dict[str, Any]:
        """Mean, std, returns and lengths of new episodes of the current policy."""
        return evaluate_policy(self.policy, self.engine, episodes, seed, self._config.horizon)

    def save(self, path: str | Path) -> None:
        """Write the agent to one file. After `offrank.load`, training continues to the same bits."""
        path = check_path("path", path)
        if self._run is None:
            self.policy.save(path, {"config": self._config.to_json(), "evaluation": None})
        else:
            self._run.save(path)

    def close(self) -> None:
        """Release the engine's threads, processes and memory."""
        if self._engine is not None:
            self._engine.close()

    @property
    def policy(self) -> TrainedPolicy:
        """The current policy."""
        if self._run is not None:
            return self._run.policy
        assert self._policy is not None
        return self._policy

    @property
    def best_policy(self) -> TrainedPolicy:
        """The policy of the best evaluation, that at the end included; the current policy before the first one."""
        return self.policy if self._run is None else self._run.best_of_all[1]

    @property
    def result(self) -> dict[str, Any]:
        """The result of `learn` so far, as in `result.json`."""
        if self._run is None:
            raise UsageError("this agent was loaded from a policy file: it has no run")
        return self._run.result

    @property
    def hyperparameters(self) -> dict[str, Any]:
        return dict(self._config.hyperparameters)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        what = "an agent holds threads and files, so it cannot be pickled or copied"
        raise TypeError(f"{what}: use agent.save and offrank.load")

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            if module := foreign_module(self._config.task):
                raise UsageError(
                    f"the agent was trained on {self._config.task}: this would import the module {module!r} because "
                    f"its file names it; import it yourself, or pass env={self._config.task!r} to offrank.load"
                )
            self._engine = _engine_of(self._config, self._config.task, self._pool)
        return self._engine


def _engine_of(config: RunConfig, env: str, pool: dict[str, Any]) -> Engine:
    try:
        return make_engine(env, config.engine, env_args=config.env_args, clip_actions=config.clip_actions, **pool)
    except UsageError as error:
        raise UsageError(
            f"{error} (if it was trained on your own environment, pass that to offrank.load as env)"
        ) from error


def _name_of(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return str(spec.id if spec else getattr(env, "__name__", type(env).__name__))
