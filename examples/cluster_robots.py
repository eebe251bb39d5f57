"""One robot per node: the machine of each robot runs one episode at a time, and the cluster distributes the episodes.

On the machine of every robot, with this file and offrank installed:

    ray start --address=HEAD:6379 --resources='{"robot": 1}'        # on the first: ray start --head --resources=...

and then, on any node of the cluster:

    offrank train cluster_robots:Arm-v0 --algo ars --engine ray --address auto --resource robot=1 --episode-seconds 60

A worker needs one `robot`, so each node has one worker, and a worker runs one episode at a time. If a robot is switched
off, its episode is run by another one; a robot that is switched on is used as soon as its node joins. The machine that
trains needs no robot and no robot driver.

Here the arm is simulated by one line; replace it by your hardware.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Arm(gym.Env[Any, Any]):
    """Moves to the origin: the state is its position, the action a force."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = self.np_random.normal(size=3)  # replace: move the arm to a start position drawn from the seed
        return self.position.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position = 0.95 * self.position + 0.1 * np.asarray(action)  # replace: send it, read the sensors
        return self.position.copy(), -float(self.position @ self.position), False, False, {}


gym.register("Arm-v0", entry_point=Arm, max_episode_steps=50)
