"""What a user would pick instead: TD3 or SAC from Stable-Baselines3 on our tasks, to the same thresholds.

    python studies/deep.py HalfCheetah-v3 td3 --seed 0 --steps 300k --out runs/deep
    python studies/deep.py --table runs/deep --out results/deep.json

Hyperparameters are those of RL Baselines3 Zoo for these tasks (10,000 random steps first, then an update a step; on
Swimmer a discount of 0.9999), networks Stable-Baselines3's own. Every 10,000 steps the deterministic policy is
evaluated over 100 fresh episodes as in `offrank train`; the first mean at or over the threshold counts. Seconds are of
training alone. A run that was interrupted goes on from its last evaluation; what was learned meanwhile is lost, what
was counted is not.
"""

from __future__ import annotations

import argparse
import pickle
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise

from offrank.cli.options import count
from offrank.core.files import read_json, write_json
from offrank.core.noise import Role, episode_seeds
from offrank.core.version import versions
from offrank.runs.config import task_default

EVERY, EPISODES = 10_000, 100  # steps between evaluations, and episodes in one
DISCOUNTS = {"Swimmer-v3": 0.9999}  # elsewhere 0.99


def make(task: str, algo: str, env: gym.Env[Any, Any], seed: int, steps: int, device: str) -> TD3 | SAC:
    """The learner, new."""
    given: dict[str, Any] = {
        "gamma": DISCOUNTS.get(task, 0.99),
        "learning_starts": 10_000,
        "train_freq": 1,
        "gradient_steps": 1,
        "batch_size": 256,
        "buffer_size": min(steps, 1_000_000),
        "seed": seed,
        "device": device,
    }
    if algo == "sac":
        return SAC("MlpPolicy", env, **given)
    size = env.action_space.shape
    noise = NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))
    return TD3("MlpPolicy", env, action_noise=noise, learning_rate=1e-3, **given)


def evaluate(model: TD3 | SAC, envs: list[gym.Env[Any, Any]], seed: int, number: int) -> tuple[float, float]:
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


def train(task: str, algo: str, seed: int, steps: int, device: str, out: Path) -> dict[str, Any]:
    """Train to the threshold or the budget; returns the outcome, which is also in the folder."""
    folder = out / f"{task}-{algo}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    outcome_file, model_file = folder / "result.json", folder / "model.pkl"
    threshold = task_default(task, "threshold")
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
        "evaluations": [],
        "device": device if device == "cpu" else torch.cuda.get_device_name(),
        "versions": versions() | {"torch": torch.__version__},
    }
    if model_file.is_file():
        result = read_json(outcome_file)
        parameters, replay, model.num_timesteps, model._n_updates = pickle.loads(model_file.read_bytes())
        model.set_parameters(parameters)
        model.replay_buffer = replay
    envs = [gym.make(f"offrank/{task}") for _ in range(EPISODES)]
    while result["steps_to_threshold"] is None and result["steps"] < steps:
        began = time.perf_counter()
        model.learn(EVERY, reset_num_timesteps=False, log_interval=None)
        result["seconds"] += time.perf_counter() - began
        result["steps"] = model.num_timesteps
        mean, std = evaluate(model, envs, seed, len(result["evaluations"]))
        result["evaluations"].append([model.num_timesteps, round(mean, 2), round(std, 2)])
        if mean >= threshold:
            result |= {"steps_to_threshold": model.num_timesteps, "seconds_to_threshold": result["seconds"]}
        state = (model.get_parameters(), model.replay_buffer, model.num_timesteps, model._n_updates)
        temporary = model_file.with_suffix(".new")
        temporary.write_bytes(pickle.dumps(state, protocol=5))
        temporary.replace(model_file)
        write_json(outcome_file, result)
        print(f"{task} {algo} seed {seed}: {result['steps']:,} steps, {mean:.1f} ± {std:.1f}", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?")
    parser.add_argument("algo", nargs="?", choices=["td3", "sac"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=count, default=300_000)
    parser.add_argument("--device", default="cpu", help="cuda for a GPU")
    parser.add_argument("--table", type=Path, metavar="DIR", help="gather the outcomes of runs instead")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.table is not None:
        rows = [read_json(file) for file in sorted(args.table.glob("*/result.json"))]
        write_json(args.out, rows)
        for row in rows:
            where, took = row["steps_to_threshold"], row["seconds_to_threshold"]
            end = f"> {row['steps']:,} steps" if where is None else f"{where:,} steps, {took:,.0f} s of training"
            print(f"{row['task']} {row['algo']} seed {row['seed']}: {end}")
        return
    if args.task is None or args.algo is None:
        parser.error("a task and an algorithm, or --table DIR")
    torch.set_num_threads(1)
    train(args.task, args.algo, args.seed, args.steps, args.device, args.out)


if __name__ == "__main__":
    main()
