"""Train TD3, SAC or CrossQ of Stable-Baselines3 on our tasks up to the same thresholds, for comparison.

    python -m offrank.lab.experiments.deep HalfCheetah-v3 td3 --seed 0 --steps 300k --out runs/deep
    python -m offrank.lab.experiments.deep --table runs/deep --out results/deep.json

Hyperparameters are those of RL Baselines3 Zoo for these tasks. TD3 and SAC: 10,000 random steps first, then one update
per step, on Swimmer a discount of 0.9999, networks of Stable-Baselines3's default sizes. CrossQ: 5,000 random steps, on
Swimmer a discount of 0.999, critics of 2048 units. Every 10,000 steps the deterministic policy is evaluated over
`--episodes` fresh episodes (100) as in `offrank train`; the first mean at or above the threshold counts. Seconds are
those of training alone. An interrupted run continues from its last evaluation: what it learned since is lost.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from offrank.cli.options import count, natural
from offrank.core.errors import UsageError, require
from offrank.core.files import read_json, write_atomically, write_json
from offrank.core.noise import Role, episode_seeds
from offrank.core.version import versions
from offrank.lab.script import make_parser, run_script, threshold_of

EVERY = 10_000  # steps between evaluations
TD3_NOISE = 0.1  # deviation of the noise on every action, in half ranges
DISCOUNTS = {("td3", "Swimmer-v3"): 0.9999, ("sac", "Swimmer-v3"): 0.9999, ("crossq", "Swimmer-v3"): 0.999}


def settings(task: str, algo: str) -> dict[str, Any]:
    """Hyperparameters, by the names that both libraries have for them."""
    given: dict[str, Any] = {"gamma": DISCOUNTS.get((algo, task), 0.99), "learning_starts": 10_000, "batch_size": 256}
    if algo == "crossq":
        sizes = {"net_arch": {"pi": [256, 256], "qf": [2048, 2048]}}
        given |= {"learning_starts": 5_000, "learning_rate": 1e-3, "policy_delay": 3, "policy_kwargs": sizes}
    elif algo == "td3":
        given["learning_rate"] = 1e-3
    return given


def make(task: str, algo: str, env: gym.Env[Any, Any], seed: int, steps: int, device: str) -> Any:
    """A new learner."""
    sb3 = require("stable_baselines3", "bench")
    noises = require("stable_baselines3.common.noise", "bench")
    given = settings(task, algo) | {"train_freq": 1, "gradient_steps": 1, "seed": seed, "device": device}
    given["buffer_size"] = min(steps, 1_000_000)
    if algo == "crossq":
        return require("sb3_contrib", "bench").CrossQ("MlpPolicy", env, **given)
    if algo == "sac":
        return sb3.SAC("MlpPolicy", env, **given)
    size = env.action_space.shape or ()
    noise = noises.NormalActionNoise(np.zeros(size), TD3_NOISE * np.ones(size))
    return sb3.TD3("MlpPolicy", env, action_noise=noise, **given)


def evaluate(model: Any, envs: list[gym.Env[Any, Any]], seed: int, number: int) -> tuple[float, float]:
    """Mean and standard deviation of the returns of fresh episodes, all side by side."""
    seeds = episode_seeds(seed, number, Role.EVALUATION, np.arange(len(envs)))
    seen = np.array([env.reset(seed=int(s))[0] for env, s in zip(envs, seeds, strict=True)])
    totals, running = np.zeros(len(envs)), np.arange(len(envs))
    while len(running):
        actions, _ = model.predict(seen[running], deterministic=True)
        still = []
        for i, action in zip(running, actions, strict=True):
            seen[i], reward, terminated, truncated, _ = envs[i].step(action)
            totals[i] += reward
            if not terminated and not truncated:
                still.append(i)
        running = np.array(still, dtype=np.int64)
    return float(totals.mean()), float(totals.std())


def train(task: str, algo: str, seed: int, steps: int, episodes: int, device: str, out: Path) -> dict[str, Any]:
    """Train to the threshold or the budget; returns the result, which is also written to the folder."""
    torch = require("torch", "torch")
    torch.set_num_threads(1)
    threshold = threshold_of(task)
    folder = out / f"{task}-{algo}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    result_file, model_file = folder / "result.json", folder / "model.pkl"
    env = gym.make(f"offrank/{task}")
    model = make(task, algo, env, seed, steps, device)
    result: dict[str, Any] = {
        "task": task,
        "algo": algo,
        "seed": seed,
        "threshold": threshold,
        "steps_to_threshold": None,
        "seconds_to_threshold": None,
        "seconds": 0.0,
        "steps": 0,
        "evaluations": [],  # of each: steps, mean, standard deviation, seconds of training
        "eval_episodes": episodes,
        "device": device if device == "cpu" else torch.cuda.get_device_name(),
        "versions": versions() | {"torch": torch.__version__},
    }
    if model_file.is_file():
        result = read_json(result_file)
        if (before := result.get("eval_episodes", 100)) != episodes:
            raise UsageError(f"{folder} holds a run with --episodes {before}, not {episodes}: that cannot change")
        parameters, replay, model.num_timesteps, model._n_updates = pickle.loads(model_file.read_bytes())
        model.set_parameters(parameters)
        model.replay_buffer = replay
    envs = [gym.make(f"offrank/{task}") for _ in range(episodes)]
    while result["steps_to_threshold"] is None and result["steps"] < steps:
        began = time.perf_counter()
        model.learn(EVERY, reset_num_timesteps=False, log_interval=None)
        result["seconds"] += time.perf_counter() - began
        result["steps"] = model.num_timesteps
        mean, std = evaluate(model, envs, seed, len(result["evaluations"]))
        result["evaluations"].append([result["steps"], round(mean, 2), round(std, 2), round(result["seconds"], 1)])
        if mean >= threshold:
            result |= {"steps_to_threshold": model.num_timesteps, "seconds_to_threshold": result["seconds"]}
        state = (model.get_parameters(), model.replay_buffer, model.num_timesteps, model._n_updates)
        temporary = model_file.with_suffix(".new")
        temporary.write_bytes(pickle.dumps(state, protocol=5))
        temporary.replace(model_file)
        write_json(result_file, result)
        done = f"{result['steps']:,} steps, {result['seconds']:,.0f} s"
        print(f"{task} {algo} seed {seed}: {done}, {mean:.1f} ± {std:.1f}", flush=True)
    return result


def table(folder: Path, out: Path) -> None:
    """Gather the results of runs in a file, and print them."""
    rows = [read_json(file) for file in sorted(folder.glob("*/result.json"))]
    if not rows:
        raise UsageError(f"{folder} holds no results of runs")
    write_atomically(out, (json.dumps(rows, indent=2) + "\n").encode())
    for row in rows:
        steps, took = row["steps_to_threshold"], row["seconds_to_threshold"]
        end = f"> {row['steps']:,} steps" if steps is None else f"{steps:,} steps, {took:,.0f} s of training"
        print(f"{row['task']} {row['algo']} seed {row['seed']}: {end}")


def compare(args: argparse.Namespace) -> None:
    if args.table is not None:
        table(args.table, args.out)
    elif args.task is None or args.algo is None:
        raise UsageError("give a task and an algorithm, or --table DIR")
    else:
        train(args.task, args.algo, args.seed, args.steps, args.episodes, args.device, args.out)


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("deep", __doc__)
    parser.add_argument("task", nargs="?", metavar="TASK")
    parser.add_argument("algo", nargs="?", choices=["td3", "sac", "crossq"])
    parser.add_argument("--seed", type=natural, default=0)
    parser.add_argument("--steps", type=count, default=300_000)
    parser.add_argument("--episodes", type=count, default=100, help="per evaluation (100)")
    parser.add_argument("--device", default="cpu", help="cuda for a GPU")
    parser.add_argument("--table", type=Path, metavar="DIR", help="train nothing: gather the results of runs")
    parser.add_argument("--out", type=Path, required=True)
    return run_script(parser, compare, argv)


if __name__ == "__main__":
    sys.exit(main())
