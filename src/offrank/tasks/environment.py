"""The tasks as Gymnasium environments, such as `gym.make("offrank/HalfCheetah-v3")`, for use with other libraries."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import NDArray

from offrank.core.arrays import FloatArray
from offrank.core.errors import EpisodeError, UsageError
from offrank.tasks.locomotion import TASKS, Fields
from offrank.tasks.lqr import LQR
from offrank.tasks.models import DIVERGED, quiet_mujoco


class LocomotionEnv(gym.Env[FloatArray, NDArray[Any]]):
    """One of the six tasks. `reset(seed=s)` gives the start state of the episode with seed s in every engine.

    Without a seed, the start state is drawn from `np_random`, as usual in Gymnasium.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012 (Gymnasium's convention)

    def __init__(self, task: str, render_mode: str | None = None, width: int = 480, height: int = 480):
        self.task = TASKS[task]
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UsageError(f"render_mode {render_mode!r}: one of {', '.join(self.metadata['render_modes'])}")
        self.model = self.task.model
        self.data = mujoco.MjData(self.model)
        self.metadata = {**self.metadata, "render_fps": round(1 / self.task.dt)}
        self.render_mode, self._size = render_mode, (width, height)
        self._viewer: Any = None
        self._renderer: Any = None
        self._seed, self._step = 0, 0
        bound = np.full(self.task.obs_dim, np.inf)
        self.observation_space = gym.spaces.Box(-bound, bound, dtype=np.float64)
        low, high = self.model.actuator_ctrlrange.T
        self.action_space = gym.spaces.Box(low, high, dtype=np.float64)  # actions are not rounded

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        super().reset(seed=seed)
        self._seed = int(self.np_random.integers(2**31)) if seed is None else seed
        self._step = 0
        qpos, qvel = self.task.start(self._seed)
        self.set_state(qpos, qvel)
        if self.render_mode == "human":
            self.render()
        return self._observation(), {}

    def set_state(self, qpos: FloatArray, qvel: FloatArray) -> None:
        """Reset the simulation and set its state."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:], self.data.qvel[:] = qpos, qvel
        mujoco.mj_forward(self.model, self.data)

    def step(self, action: NDArray[Any]) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        actions = np.asarray(action, dtype=np.float64).reshape(1, -1)
        if actions.shape[1] != self.task.act_dim:
            raise UsageError(f"{self.task.name} takes {self.task.act_dim} actions, not {actions.shape[1]}")
        before = self.task.positions(self._state())
        self.data.ctrl[:] = actions[0]
        with quiet_mujoco():
            mujoco.mj_step(self.model, self.data, nstep=self.task.frame_skip)
        if any(self.data.warning[w].number for w in range(DIVERGED.start, DIVERGED.stop)):
            raise EpisodeError("the simulation diverged", self._seed, self._step)
        self._step += 1
        state = self._state()
        after = self.task.positions(state)
        reward = float(self.task.reward(before, after, actions)[0])
        terminated = not bool(self.task.healthy(state)[0])
        if self.render_mode == "human":
            self.render()
        info = {"x_position": float(after[0]), "x_velocity": float(after[0] - before[0]) / self.task.dt}
        return self._observation(), reward, terminated, False, info

    def render(self) -> Any:
        if self.render_mode is None:
            raise UsageError("to render, make the environment with render_mode='human' or 'rgb_array'")
        if self.render_mode == "human":
            if self._viewer is None:
                from mujoco import viewer

                self._viewer = viewer.launch_passive(self.model, self.data)
                self._aim(self._viewer.cam)
            self._viewer.sync()
            return None
        if self._renderer is None:
            self._renderer, self._camera = self._open_renderer()
        self._renderer.update_scene(self.data, self._camera)
        return self._renderer.render()

    def close(self) -> None:
        for window in (self._viewer, self._renderer):
            if window is not None:
                window.close()
        self._viewer = self._renderer = None

    def _open_renderer(self) -> tuple[Any, Any]:
        width, height = self._size
        buffer = self.model.vis.global_
        buffer.offwidth, buffer.offheight = max(buffer.offwidth, width), max(buffer.offheight, height)
        try:
            renderer = mujoco.Renderer(self.model, height, width)
        except (mujoco.FatalError, ImportError, AttributeError, RuntimeError) as error:
            raise UsageError(
                "cannot render: MuJoCo found no OpenGL; install EGL or OSMesa and set MUJOCO_GL=egl or osmesa "
                "before MuJoCo is imported"
            ) from error
        camera = mujoco.MjvCamera()
        mujoco.mjv_defaultFreeCamera(self.model, camera)
        self._aim(camera)
        return renderer, camera

    def _aim(self, camera: Any) -> None:
        if "trackbodyid" in self.task.camera:
            camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
        for name, value in self.task.camera.items():
            setattr(camera, name, value)

    def _state(self) -> Fields:
        return {name: getattr(self.data, name)[None] for name in ("qpos", *self.task.fields)}

    def _observation(self) -> FloatArray:
        observation: FloatArray = self.task.observe(self._state())[0]
        return observation


class LQREnv(gym.Env[FloatArray, NDArray[Any]]):
    """The regulator, as the numpy engine runs it: if the state explodes, the episode ends and the remaining steps are
    charged the worst cost."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium's convention)

    def __init__(self) -> None:
        self.task = LQR()
        self.render_mode = None
        n, p = self.task.B.shape
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (n,), dtype=np.float64)
        self.action_space = gym.spaces.Box(-np.inf, np.inf, (p,), dtype=np.float64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        super().reset(seed=seed)
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        self._noise = self.task.disturbances(seed, self.task.horizon)
        self._state, self._step = self.task.start(1), 0
        return self._state[0], {}

    def step(self, action: NDArray[Any]) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        u = np.asarray(action, dtype=np.float64).reshape(1, -1)
        after, cost, exploded = self.task.step(self._state, u, self._noise[None, self._step])
        self._state, self._step = after, self._step + 1
        reward = -float(cost[0])
        if exploded[0]:
            reward -= self.task.rest(self.task.horizon - self._step)
            self._state = self.task.hold(after)
        return self._state[0], reward, bool(exploded[0]), False, {}


def register() -> None:
    """Register the tasks in Gymnasium as `offrank/<name>`."""
    known: list[tuple[str, str, dict[str, Any], int]] = [
        (task.name, "LocomotionEnv", {"task": task.name}, task.horizon) for task in TASKS.values()
    ]
    known.append((LQR.name, "LQREnv", {}, LQR.horizon))
    for name, environment, arguments, horizon in known:
        if (id := f"offrank/{name}") not in gym.registry:
            gym.register(
                id=id,
                entry_point=f"offrank.tasks.environment:{environment}",
                kwargs=arguments,
                max_episode_steps=horizon,
                disable_env_checker=True,
            )
