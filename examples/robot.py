"""Train a robot that runs in another process, with interruptions.

    python examples/robot.py                         train; stop it with Ctrl-C or kill it
    python examples/robot.py                         started again, it continues with the next episode
    python examples/robot.py --iterations 50         train further; --delay 0.05 is as slow as a real robot

The "robot" is a slow pendulum that is controlled over a pipe, as a real one is over a network. Replace `robot` and
`Robot` by your own. Every told episode is written to the journal immediately, and never asked for again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import gymnasium as gym
import numpy as np

import offrank
from offrank.asktell import EpisodeToRun


def robot(pipe: Connection, delay: float) -> None:
    """The process of the robot: ("start", seed) starts an episode, ("step", torque) takes a step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C stops the training process only
    env = gym.make("Pendulum-v1")
    while True:
        try:
            command, value = pipe.recv()
        except EOFError:
            return
        if command == "start":
            pipe.send(env.reset(seed=value)[0])
        else:
            time.sleep(delay)
            observation, reward, terminated, _, _ = env.step(value)
            pipe.send((observation, reward, terminated))


class Robot:
    """The training process's end of the pipe."""

    def __init__(self, delay: float):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        context.Process(target=robot, args=(theirs, delay), daemon=True).start()

    def run(self, episode: EpisodeToRun) -> tuple[list[float], list[np.ndarray], bool]:
        """Run an episode. Returns rewards (T,), observations (T + 1, n), and whether the task ended the episode."""
        observation, terminated = self.ask("start", episode.seed), False
        rewards, observations = [], [observation]
        while len(rewards) < episode.horizon and not terminated:
            observation, reward, terminated = self.ask("step", episode.policy.predict(observation))
            rewards.append(reward)
            observations.append(observation)
        return rewards, observations, terminated

    def ask(self, command: str, value: object):
        self.pipe.send((command, value))
        return self.pipe.recv()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--journal", type=Path, default=Path("robot-run"), help="folder of told episodes and checkpoints"
    )
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--horizon", type=int, default=100, help="steps per episode")
    parser.add_argument("--delay", type=float, default=0.001, help="seconds per step")
    args = parser.parse_args()

    run = offrank.AskTell(
        offrank.OPARS,
        obs_dim=3,  # cos and sin of the angle, angular velocity
        act_dim=1,  # torque
        low=-2.0,
        high=2.0,
        horizon=args.horizon,
        iterations=args.iterations,
        journal=args.journal,
        step_size=0.1,
        noise_std=0.2,
    )
    arm = Robot(args.delay)
    while not run.done:
        for episode in run.ask():
            rewards, observations, terminated = arm.run(episode)
            run.tell(episode, rewards, observations, terminated)
            print(f"{episode.id}: return {sum(rewards):.1f}", flush=True)
    print(f"{run.result['iterations']} iterations, {run.result['steps']} steps on the robot -> {args.journal}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("interrupted; start it again to continue")
