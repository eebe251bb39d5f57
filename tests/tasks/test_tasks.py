"""The tasks equal Gymnasium's step by step; where v3 differs from the installed version, the test says how."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import pytest

from helpers import pair_request
from offrank.core.errors import EpisodeError, UsageError
from offrank.engines.native.engine import MujocoEngine
from offrank.tasks import TASKS
from offrank.tasks.models import load_model, quiet_mujoco

CONTACT = 84  # contact-force entries of Ant's and Humanoid's observation, 0 in v3


def theirs(name: str, version: str = "v4", **options: Any) -> Any:
    """Gymnasium's own environment, without wrappers or warnings."""
    if name.startswith("Ant") and version == "v4":
        options["use_contact_forces"] = True
    with warnings.catch_warnings(), quiet_mujoco():
        warnings.simplefilter("ignore")
        return gym.make(name.replace("v3", version), **options).unwrapped


def ours(name: str) -> Any:
    return gym.make(f"offrank/{name}").unwrapped


def v3_observation(name: str, observation: np.ndarray) -> np.ndarray:
    if name in ("Ant-v3", "Humanoid-v3"):
        observation = observation.copy()
        observation[-CONTACT:] = 0.0
    return observation


def episodes(name: str) -> Iterator[tuple[int, float, int]]:
    """(seed, size of the actions, maximum number of steps): small and large actions, short and long episodes."""
    count = {"Hopper-v3": 40, "Walker2d-v3": 40, "Humanoid-v3": 40}.get(name, 4)
    for seed in range(count):
        yield seed, (0.05, 0.5, 1.0, 3.0)[seed % 4], 1000


@pytest.mark.parametrize("name", TASKS)
def test_v3_task_matches_gymnasium_step_by_step(name: str) -> None:
    mine, reference = ours(name), theirs(name)
    ant = name == "Ant-v3"
    steps = falls = 0
    for seed, size, limit in episodes(name):
        observation, _ = mine.reset(seed=seed)
        reference.reset(seed=seed)
        mujoco.mj_resetData(reference.model, reference.data)
        reference.set_state(*TASKS[name].start(seed))
        assert np.array_equal(observation, v3_observation(name, reference._get_obs()))
        rng = np.random.default_rng(seed)
        for _ in range(limit):
            action = size * rng.normal(size=mine.action_space.shape)
            observation, reward, terminated, truncated, _ = mine.step(action)
            expected, paid, fallen, _, _ = reference.step(action)
            paid += reference.contact_cost if ant else 0.0
            assert np.array_equal(observation, v3_observation(name, expected))
            assert reward == pytest.approx(paid, rel=1e-12, abs=1e-12)
            assert (terminated, truncated) == (fallen, False)
            steps += 1
            falls += terminated
            if terminated:
                break
    assert steps > 500
    assert (falls > 0) == bool(TASKS[name].bounds)


@pytest.mark.parametrize("name", TASKS)
def test_v3_task_matches_gymnasium_from_random_states(name: str) -> None:
    """States that episodes seldom reach: fast ones, where velocities are clipped, and unhealthy ones."""
    mine, reference = ours(name), theirs(name)
    mine.reset(seed=0), reference.reset(seed=0)
    rng = np.random.default_rng(0)
    speeds = [0.1, 1.0, 3.0] if name == "Swimmer-v3" else [0.1, 5.0, 15.0]  # a faster swimmer diverges
    ended = diverged = 0
    for i in range(200):
        qpos = reference.init_qpos + rng.normal(size=reference.model.nq) * rng.choice([0.01, 0.3])
        qvel = rng.normal(size=reference.model.nv) * rng.choice(speeds)
        mine.set_state(qpos, qvel)
        mujoco.mj_resetData(reference.model, reference.data)
        reference.set_state(qpos, qvel)
        action = rng.normal(size=reference.model.nu)
        try:
            observation, reward, terminated, _, _ = mine.step(action)
        except EpisodeError:
            diverged += 1
            continue
        expected, paid, fallen, _, _ = reference.step(action)
        paid += reference.contact_cost if name == "Ant-v3" else 0.0
        assert np.array_equal(observation, v3_observation(name, expected)), i
        assert reward == pytest.approx(paid, rel=1e-11, abs=1e-11)
        assert terminated == fallen
        ended += terminated
    assert ended > 0 or not TASKS[name].bounds
    assert diverged < 20


@pytest.mark.parametrize("name", ["Swimmer-v3", "HalfCheetah-v3"])
def test_where_v5_is_the_same_task_it_agrees_too(name: str) -> None:
    mine, reference = ours(name), theirs(name, "v5")
    mine.reset(seed=3), reference.reset(seed=3)
    mujoco.mj_resetData(reference.model, reference.data)
    reference.set_state(*TASKS[name].start(3))
    rng = np.random.default_rng(0)
    for _ in range(300):
        action = rng.normal(size=mine.action_space.shape)
        observation, reward, *_ = mine.step(action)
        expected, paid, *_ = reference.step(action)
        assert np.array_equal(observation, expected) and reward == pytest.approx(paid, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", ["Hopper-v3", "Walker2d-v3", "Ant-v3", "Humanoid-v3"])
def test_the_terminal_step_pays_the_survival_bonus(name: str) -> None:
    task, env = TASKS[name], ours(name)
    env.reset(seed=0)
    terminated = False
    rng = np.random.default_rng(0)
    for _ in range(5000):
        action = 3 * rng.normal(size=task.act_dim)
        _, reward, terminated, _, info = env.step(action)
        if terminated:
            break
    assert terminated
    control = task.control_weight * np.sum(action**2)
    assert reward == pytest.approx(task.forward_weight * info["x_velocity"] + task.survival_bonus - control)


@pytest.mark.parametrize("name", TASKS)
def test_control_is_charged_raw_but_applied_clamped(name: str) -> None:
    """Beyond the actuators' range a larger action moves nothing more, and costs more."""
    task = TASKS[name]
    bound = float(task.model.actuator_ctrlrange[0, 1])
    results = []
    for size in (bound, 3 * bound):
        env = ours(name)
        env.reset(seed=0)
        observation, reward, *_ = env.step(np.full(task.act_dim, size))
        results.append((observation, reward))
    assert np.array_equal(results[0][0], results[1][0])
    cost = task.control_weight * task.act_dim * (9 - 1) * bound**2
    assert results[0][1] - results[1][1] == pytest.approx(cost)


@pytest.mark.parametrize("name", TASKS)
def test_start_states_depend_on_the_episode_seed_only(name: str) -> None:
    task, env = TASKS[name], ours(name)
    env.reset(seed=11)
    first = env.data.qpos.copy(), env.data.qvel.copy()
    assert np.array_equal(first[0], task.start(11)[0]) and np.array_equal(first[1], task.start(11)[1])
    env.reset(seed=12)
    assert not np.array_equal(env.data.qpos, first[0])
    env.reset()
    unseeded = env.data.qpos.copy()
    env.reset()
    assert not np.array_equal(env.data.qpos, unseeded)


@pytest.mark.parametrize("name", TASKS)
def test_start_states_have_gymnasiums_distribution(name: str) -> None:
    task, reference = TASKS[name], theirs(name)
    mine = np.array([np.concatenate(task.start(seed)) for seed in range(2000)])
    other = []
    for seed in range(500):
        reference.reset(seed=seed)
        other.append(reference.state_vector())
    spread = mine.std(axis=0)
    np.testing.assert_allclose(mine.mean(axis=0), np.mean(other, axis=0), atol=0.2 * spread.max())
    np.testing.assert_allclose(spread, np.std(other, axis=0), rtol=0.2)


@pytest.mark.parametrize("name", TASKS)
def test_registered_environment_passes_gymnasiums_checker(name: str) -> None:
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(ours(name), skip_render_check=True)


def test_registered_environment_ends_at_a_thousand_steps() -> None:
    env = gym.make("offrank/Swimmer-v3")
    env.reset(seed=0)
    truncations = [env.step(np.zeros(2))[3] for _ in range(1000)]
    assert truncations == [False] * 999 + [True]


def test_environment_renders() -> None:
    env = gym.make("offrank/HalfCheetah-v3", render_mode="rgb_array", width=320, height=240)
    env.reset(seed=0)
    try:
        frame = env.render()
    except UsageError as error:
        pytest.skip(str(error))
    assert frame.shape == (240, 320, 3) and frame.std() > 5
    env.close()


def test_rendering_without_a_mode_says_what_to_do() -> None:
    env = ours("Swimmer-v3")
    env.reset(seed=0)
    with pytest.raises(UsageError, match="render_mode"):
        env.render()


def test_a_diverged_simulation_is_an_error_not_a_reset() -> None:
    env = ours("HalfCheetah-v3")
    env.reset(seed=5)
    env.step(np.zeros(6))
    env.data.qvel[:] = 1e12
    with pytest.raises(EpisodeError, match=r"diverged.*episode seed 5, step 1"):
        env.step(np.zeros(6))


def test_an_action_of_the_wrong_size_is_named() -> None:
    env = ours("Swimmer-v3")
    env.reset(seed=0)
    with pytest.raises(UsageError, match="takes 2 actions, not 3"):
        env.step(np.zeros(3))


def test_models_are_checked_against_their_hash() -> None:
    with pytest.raises(UsageError, match=r"ant\.xml is not the model"):
        load_model("ant.xml", "0" * 64)


def test_mujoco_writes_no_log_and_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    load_model.cache_clear()
    for name in TASKS:
        TASKS[name].__dict__.pop("model", None)
        ours(name).reset(seed=0)
    env = ours("HalfCheetah-v3")
    env.reset(seed=0)
    env.data.qvel[:] = 1e12
    with pytest.raises(EpisodeError):
        env.step(np.zeros(6))
    engine = MujocoEngine(replace(TASKS["Swimmer-v3"], start_noise=100.0))
    with pytest.raises(EpisodeError, match="diverged"):
        engine.run(pair_request(engine.space, 32, horizon=20))  # others are still running when the first one fails
    engine.close()
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_gymnasiums_own_v3_names_are_not_ours_to_change() -> None:
    with pytest.raises(ImportError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gym.make("HalfCheetah-v3")
