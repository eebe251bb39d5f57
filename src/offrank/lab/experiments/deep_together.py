"""Train several seeds of SAC, TD3 or CrossQ side by side on one GPU, for comparison.

    pip install 'offrank[sbx]'
    python -m offrank.lab.experiments.deep_together HalfCheetah-v3 sac --seeds 0-4 --steps 100k --out runs/deep
    python -m offrank.lab.experiments.deep --table runs/deep --out results/deep.json

The learners are those of SBX (Stable-Baselines3 in JAX): its networks, its update and its initial state, with the
hyperparameters of `deep.py` on our tasks and its defaults on Gymnasium's. One process per seed would leave a GPU
waiting for small kernels, so the same update is vectorised over the seeds, each with its own environment and replay
buffer: one step of each, then one update of each. Every `--every` steps each policy is evaluated without noise over
`--episodes` fresh episodes, and 100 others confirm a threshold, as with `offrank train --confirm-episodes 100`. A run
ends when all seeds are there or at `--steps`; it cannot be continued.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.random import default_rng

from offrank.cli.options import count, seeds
from offrank.core.errors import require
from offrank.core.files import write_json
from offrank.core.noise import Role, episode_seeds
from offrank.core.version import versions
from offrank.lab.experiments.deep import TD3_NOISE, settings
from offrank.lab.script import make_parser, run_script, threshold_of
from offrank.tasks.locomotion import TASKS

CONFIRM = 100  # episodes that confirm a threshold


def environment(task: str) -> gym.Env[Any, Any]:
    return gym.make(f"offrank/{task}" if task in TASKS else task)


class Learners:
    """Learners of one kind with different seeds, whose updates are one computation."""

    def __init__(self, task: str, algo: str, seeds: Sequence[int]):
        self._jax: Any = require("jax", "sbx")
        sbx = require("sbx", "sbx")
        self._samples: Any = require("sbx.common.type_aliases", "sbx").ReplayBufferSamplesNp
        kind = {"sac": sbx.SAC, "td3": sbx.TD3, "crossq": sbx.CrossQ}[algo]
        given = settings(task, algo) if task in TASKS else {}
        env = environment(task)
        self._models = [kind("MlpPolicy", env, seed=seed, buffer_size=1, **given) for seed in seeds]
        self.box: Any = env.action_space
        self.model, self._random = self._models[0], default_rng(seeds)
        self._algo = algo
        states = [(m.policy.qf_state, m.policy.actor_state, getattr(m, "ent_coef_state", None)) for m in self._models]
        self._states = self._stacked(states)
        self._keys = self._jax.numpy.stack([m.key for m in self._models])
        self._updates, self._compiled = 0, dict[int, Any]()
        policy = self.model.policy
        self._select = self._jax.jit(self._jax.vmap(type(policy).select_action))
        if algo != "td3":  # whose actor is deterministic
            self._sample = self._jax.jit(self._jax.vmap(type(policy).sample_action))

    def __len__(self) -> int:
        return len(self._models)

    def _stacked(self, trees: Sequence[Any]) -> Any:
        leaves = [self._jax.tree.leaves(tree) for tree in trees]
        stacked = [self._jax.numpy.stack(parts) for parts in zip(*leaves, strict=True)]
        return self._jax.tree.unflatten(self._jax.tree.structure(trees[0]), stacked)

    def actions(self, seen: Any, noisy: bool) -> Any:
        """Actions (seeds, m, p) in [-1, 1] at observations (seeds, m, n)."""
        actor = self._states[1]
        if not noisy:
            return np.asarray(self._select(actor, seen))
        if self._algo == "td3":
            chosen = np.asarray(self._select(actor, seen))
            return np.clip(chosen + TD3_NOISE * self._random.standard_normal(chosen.shape), -1, 1)
        split = self._jax.vmap(self._jax.random.split)(self._keys)
        self._keys = split[:, 0]
        return np.asarray(self._sample(actor, seen, split[:, 1]))

    def learn(self, batches: Sequence[Any]) -> None:
        """One update of each, on a batch each: observations, actions, next ones, ends, rewards, all (seeds, B, ...)."""
        model = self.model
        data = self._samples(*batches, np.full(batches[-1].shape, model.gamma, dtype=np.float32))
        offset = (self._updates + 1) % model.policy_delay  # in SBX's words; each is compiled apart
        if offset not in self._compiled:
            self._compiled[offset] = self._jax.jit(self._jax.vmap(partial(self._one, offset)))
        self._states, self._keys = self._compiled[offset](self._states, self._keys, data)
        self._updates += 1

    def _one(self, offset: int, states: Any, key: Any, data: Any) -> Any:
        """SBX's own update of one learner."""
        model, (qf, actor, entropy) = self.model, states
        update, delays = type(model)._train, (model.policy_delay, offset)
        if self._algo == "td3":
            noise = (model.target_policy_noise, model.target_noise_clip)
            qf, actor, key, _ = update(model.tau, 1, data, *delays, *noise, qf, actor, key)
        else:
            slow = (model.tau,) if self._algo == "sac" else ()  # CrossQ has no slow copies
            qf, actor, entropy, key, _ = update(*slow, model.target_entropy, 1, data, *delays, qf, actor, entropy, key)
        return (qf, actor, entropy), key


def in_box(box: Any, actions: Any) -> Any:
    """Actions in [-1, 1] as the environment takes them."""
    return (box.low + 0.5 * (actions + 1) * (box.high - box.low)).astype(np.float32)


def evaluate(learners: Learners, task: str, seeds: dict[int, int], number: int, episodes: range) -> dict[int, Any]:
    """The returns of fresh episodes of some learners, all side by side.

    Args:
        seeds: by the number of their learner.
    """
    envs = {(i, j): environment(task) for i in seeds for j in range(len(episodes))}
    n, count = (learners.model.observation_space.shape or (0,))[0], len(learners)
    seen, totals = np.zeros((count, len(episodes), n), dtype=np.float32), np.zeros((count, len(episodes)))
    for i, seed in seeds.items():
        for j, chosen in enumerate(episode_seeds(seed, number, Role.EVALUATION, np.array(episodes))):
            seen[i, j], _ = envs[i, j].reset(seed=int(chosen))
    while envs:
        actions = in_box(learners.box, learners.actions(seen, noisy=False))
        for at, env in list(envs.items()):
            seen[at], reward, terminated, truncated, _ = env.step(actions[at])
            totals[at] += float(reward)
            if terminated or truncated:
                del envs[at]
    return {i: totals[i] for i in seeds}


def train(args: argparse.Namespace) -> None:
    task, algo, seeds = args.task, args.algo, args.seeds
    learners = Learners(task, algo, seeds)
    envs = [environment(task) for _ in seeds]
    for env, seed in zip(envs, seeds, strict=True):
        env.action_space.seed(seed)
    seen = np.array([env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)], dtype=np.float32)
    n, p, rows = seen.shape[1], learners.box.shape[0], args.steps
    buffers = [np.zeros((len(seeds), rows, *shape), dtype=np.float32) for shape in ((n,), (p,), (n,), (), ())]
    threshold = threshold_of(task) if task in TASKS else None
    results = [
        {"task": task, "algo": algo, "library": "sbx", "seed": seed, "threshold": threshold, "steps": 0}
        | {"steps_to_threshold": None, "seconds_to_threshold": None, "seconds": 0.0, "evaluations": []}
        | {"eval_episodes": args.episodes, "confirm_episodes": CONFIRM, "device": str(learners.model.key.device)}
        | {"versions": versions() | {name: metadata.version(name) for name in ("sbx-rl", "jax")}}
        for seed in seeds
    ]
    random, began, each = default_rng(seeds), time.perf_counter(), np.arange(len(seeds))[:, None]
    for step in range(args.steps):
        if step < learners.model.learning_starts:
            taken = np.stack([env.action_space.sample() for env in envs])
            scaled = 2 * (taken - learners.box.low) / (learners.box.high - learners.box.low) - 1
        else:
            scaled = learners.actions(seen[:, None], noisy=True)[:, 0]
            taken = in_box(learners.box, scaled)
        for i, env in enumerate(envs):
            after, reward, terminated, truncated, _ = env.step(taken[i])
            for buffer, value in zip(buffers, (seen[i], scaled[i], after, terminated, reward), strict=True):
                buffer[i, step] = value
            seen[i] = env.reset()[0] if terminated or truncated else after
        if step >= learners.model.learning_starts:
            at = random.integers(step + 1, size=(len(seeds), learners.model.batch_size))
            learners.learn([buffer[each, at] for buffer in buffers])
        if (step + 1) % args.every == 0:
            _note(args, learners, results, step + 1, time.perf_counter() - began)
            if all(result["steps_to_threshold"] is not None for result in results):
                break


def _note(args: argparse.Namespace, learners: Learners, results: Sequence[Any], steps: int, seconds: float) -> None:
    """Evaluate, and write down the results."""
    number, threshold = steps // args.every - 1, results[0]["threshold"]
    returns = evaluate(learners, args.task, dict(enumerate(args.seeds)), number, range(args.episodes))
    there = {
        i: seed
        for i, seed in enumerate(args.seeds)
        if threshold is not None and results[i]["steps_to_threshold"] is None and returns[i].mean() >= threshold
    }
    if there:
        others = range(args.episodes, args.episodes + CONFIRM)
        returns |= evaluate(learners, args.task, there, number, others)
    for i, result in enumerate(results):
        mean, deviation = float(returns[i].mean()), float(returns[i].std())
        result["evaluations"].append([steps, round(mean, 2), round(deviation, 2), round(seconds, 1)])
        result |= {"steps": steps, "seconds": seconds}
        if i in there and mean >= threshold:
            result |= {"steps_to_threshold": steps, "seconds_to_threshold": seconds}
        write_json(args.out / f"{args.task}-{args.algo}-{result['seed']}" / "result.json", result)
    means = [round(float(returns[i].mean())) for i in range(len(results))]
    print(f"{args.task} {args.algo}: {steps:,} steps, {seconds:,.0f} s, {means}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("deep_together", __doc__)
    parser.add_argument("task", metavar="TASK")
    parser.add_argument("algo", choices=["td3", "sac", "crossq"])
    parser.add_argument("--seeds", type=seeds, default=list(range(5)), metavar="0-4")
    parser.add_argument("--steps", type=count, default=100_000)
    parser.add_argument("--every", type=count, default=5_000, help="steps between evaluations (5k)")
    parser.add_argument("--episodes", type=count, default=10, help="per evaluation (10)")
    parser.add_argument("--out", type=Path, required=True)
    return run_script(parser, train, argv)


if __name__ == "__main__":
    sys.exit(main())
