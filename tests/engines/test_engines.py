from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import offrank
from helpers import pair_request, request_of, same_rollouts
from offrank.core.candidates import These
from offrank.core.errors import EngineError, EpisodeError, UsageError
from offrank.core.noise import Role, action_noise
from offrank.core.normalizer import Whitening
from offrank.core.rollouts import Request, Rollouts
from offrank.engines import make_engine, resolve_engine
from offrank.engines.base import Engine
from offrank.engines.gymnasium.engine import GymnasiumEngine
from offrank.engines.gymnasium.env_runner import EnvRunner, registered
from offrank.engines.native.compiled import Actor
from offrank.engines.native.engine import MujocoEngine
from offrank.engines.native.simulation import Simulation
from offrank.policies import make_policy
from offrank.tasks import TASKS, Task


def collect(engine: Engine, tickets: list[int]) -> dict[int, Rollouts]:
    found: dict[int, Rollouts] = {}
    while len(found) < len(tickets):
        found |= dict(engine.completed(timeout=0.05))
    return found


# --- mujoco


@pytest.mark.parametrize("name", TASKS)
def test_same_bits_at_any_thread_count(name: str) -> None:
    task = TASKS[name]
    request = pair_request(MujocoEngine(task).space, 4, horizon=120)
    reference = MujocoEngine(task, threads=1).run(request)
    for threads in (2, 3, 8):
        assert same_rollouts(MujocoEngine(task, threads).run(request), reference), threads


def test_same_bits_alone_or_beside_other_requests() -> None:
    task = TASKS["Hopper-v3"]
    info = MujocoEngine(task).space
    requests = [
        pair_request(info, pairs, horizon=horizon, seed=s)
        for pairs, horizon, s in ((3, 50, 0), (5, 90, 40), (1, 9, 80))
    ]
    alone = [MujocoEngine(task, 2).run(request) for request in requests]
    engine = MujocoEngine(task, 2)
    tickets = [engine.submit(request) for request in requests]
    together = collect(engine, tickets)
    assert all(same_rollouts(together[ticket], reference) for ticket, reference in zip(tickets, alone, strict=True))


@pytest.mark.parametrize(("patience", "order"), [(100.0, [0, 2, 3, 1]), (0.0, [0, 1, 2, 3])])
def test_evaluations_give_way_for_a_while_to_the_episodes_that_runs_wait_for(monkeypatch, patience, order) -> None:
    monkeypatch.setattr("offrank.engines.native.engine.PATIENCE", patience)
    engine = MujocoEngine(TASKS["Swimmer-v3"], threads=1)
    training = pair_request(engine.space, 2, horizon=200)
    evaluation = replace(training, roles=np.full(len(training), Role.EVALUATION, dtype=np.int64))
    tickets = [engine.submit(request) for request in (training, evaluation, training, training)]
    assert list(collect(engine, tickets)) == [tickets[k] for k in order]


def test_a_request_may_join_while_others_run() -> None:
    task = TASKS["Swimmer-v3"]
    engine = MujocoEngine(task, 2)
    first = pair_request(engine.space, 4, horizon=200)
    second = pair_request(engine.space, 2, horizon=300, seed=50)
    tickets = [engine.submit(first)]
    assert engine.completed(timeout=0.0) == []
    tickets.append(engine.submit(second))
    found = collect(engine, tickets)
    assert same_rollouts(found[tickets[0]], MujocoEngine(task, 1).run(first))
    assert same_rollouts(found[tickets[1]], MujocoEngine(task, 1).run(second))


@pytest.mark.parametrize("name", TASKS)
def test_compiled_step_equals_the_plain_one_from_equal_states(name: str) -> None:
    """The compiled loop against the registered environment: only the order of summation may differ."""
    task = TASKS[name]
    native, env = MujocoEngine(task, threads=2), gym.make(f"offrank/{name}").unwrapped
    rng = np.random.default_rng(0)
    whitening = Whitening(rng.normal(size=task.obs_dim), rng.uniform(0, 1, size=task.obs_dim).round(1))
    request = replace(pair_request(native.space, 4, horizon=200, keep=True), whitening=whitening)
    found = native.run(request)
    steps = 0
    for i, trajectory in enumerate(found.trajectories):
        observation, _ = env.reset(seed=int(request.seeds[i]))
        assert np.array_equal(observation, trajectory.observations[0])
        following = [*trajectory.observations[1:], trajectory.last_observation]
        for t, expected in enumerate(following):
            action = request.policy.act(request.theta(i), whitening(trajectory.observations[t]))
            observation, reward, terminated, _, _ = env.step(action)
            np.testing.assert_allclose(observation, expected, rtol=1e-7, atol=1e-7)
            assert reward == pytest.approx(trajectory.rewards[t], rel=1e-6, abs=1e-6)
            last = t == len(following) - 1
            assert terminated == (last and trajectory.terminated)
            steps += 1
            if t == 12:
                break  # rounding errors grow in a chaotic system; twelve steps are few enough
    assert steps > 60


@pytest.mark.parametrize("policy", ["linear", "affine", "skip:5", "mlp:6,9,4"])
@pytest.mark.parametrize("name", TASKS)
def test_one_compiled_step_is_the_plain_one_to_ten_digits(name: str, policy: str) -> None:
    """From equal states, so that rounding errors have not grown."""
    task, env = TASKS[name], gym.make(f"offrank/{name}").unwrapped
    native = MujocoEngine(task, threads=2)
    request = pair_request(native.space, 20, scale=0.5, horizon=1, keep=True, policy=policy)
    for i, trajectory in enumerate(native.run(request).trajectories):
        observation, _ = env.reset(seed=int(request.seeds[i]))
        action = request.policy.act(request.theta(i), observation)
        observation, reward, terminated, _, _ = env.step(action)
        np.testing.assert_allclose(trajectory.last_observation, observation, rtol=1e-10, atol=1e-10)
        assert trajectory.rewards[0] == pytest.approx(reward, rel=1e-10, abs=1e-10)
        assert trajectory.terminated == terminated
    native.close()


@pytest.mark.parametrize("name", ["Hopper-v3", "Walker2d-v3", "Ant-v3", "Humanoid-v3"])
def test_compiled_falls_are_the_plain_ones(name: str) -> None:
    native = MujocoEngine(TASKS[name], threads=2)
    request = pair_request(native.space, 6, scale=0.03 if name != "Ant-v3" else 0.5, horizon=40)
    plain = make_engine(name, "gymnasium", workers=0).run(request)
    mine = native.run(request)
    assert np.array_equal(mine.lengths, plain.lengths) and (mine.lengths < 40).any()
    np.testing.assert_allclose(mine.totals, plain.totals, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("engine", ["mujoco", "gymnasium"])
def test_candidates_given_one_by_one_run_as_those_rebuilt_from_directions(engine: str) -> None:
    on = make_engine("Swimmer-v3", engine, threads=2, workers=0)
    request = pair_request(on.space, 3, scale=0.3, horizon=40, policy="skip:3")
    these = These(np.stack([request.theta(i) for i in range(len(request))]))
    given = replace(request, candidates=these)
    assert same_rollouts(on.run(given), on.run(request))
    assert same_rollouts(on.run(given.take([4, 1])), on.run(request.take([4, 1])))
    on.close()


@pytest.mark.parametrize("name", ["linear", "affine", "skip:32", "skip:1", "mlp:7", "mlp:32,32", "mlp:3,40,2,5"])
def test_compiled_actions_are_those_of_python(name: str) -> None:
    n, p, draws = 19, 4, np.random.default_rng(0)
    kind = make_policy(name, n, p)
    actor, seen = Actor(kind), 3 * draws.normal(size=(50, n))
    with pytest.raises(ValueError, match="that was set"):
        actor(seen)
    for _ in range(2):  # one after the other
        theta = draws.normal(size=kind.size)
        whitening = Whitening(draws.normal(size=n), draws.uniform(-1, 2, size=n).clip(0))  # some are switched off
        found = actor.set(theta, whitening)(seen)
        np.testing.assert_allclose(found, kind.act(theta, whitening(seen)), rtol=1e-11, atol=1e-11)
        assert np.array_equal(found[7:9], actor(seen[7:9]))


def test_the_compiled_loop_is_handed_no_array_of_another_size() -> None:
    engine = MujocoEngine(TASKS["Swimmer-v3"], threads=1)
    good = pair_request(engine.space, 1, horizon=5)
    wrong = [
        replace(good, whitening=Whitening(np.zeros(7), np.ones(8))),
        replace(good, whitening=Whitening(np.zeros(8), np.ones(9))),
        replace(good, candidates=These(np.zeros((2, 15)))),
        replace(good, policy=make_policy("linear", 4, 4)),
        replace(good, policy=make_policy("skip:3", 8, 2)),
    ]
    for request in wrong:
        with pytest.raises(ValueError, match=r"is needed|observations"):
            engine.run(request)


def test_an_ended_episode_takes_no_further_steps() -> None:
    engine = MujocoEngine(TASKS["Hopper-v3"], threads=2)
    found = engine.run(pair_request(engine.space, 4, keep=True))
    assert (found.lengths < 1000).all()
    for trajectory, length in zip(found.trajectories, found.lengths, strict=True):
        assert trajectory.terminated and len(trajectory.rewards) == length
    assert found.steps == found.lengths.sum()


def test_transitions_are_kept_only_when_asked_for() -> None:
    engine = MujocoEngine(TASKS["Swimmer-v3"], threads=1)
    request = pair_request(engine.space, 1, horizon=30)
    assert engine.run(request).trajectories == ()
    kept = engine.run(replace(request, keep=True))
    assert [t.observations.shape for t in kept.trajectories] == [(30, 8)] * 2
    assert kept.totals[0] == kept.trajectories[0].rewards.sum()
    assert np.array_equal(kept.moments.mean[0], kept.trajectories[0].observations.mean(axis=0))


def test_policies_act_on_normalised_states() -> None:
    engine = MujocoEngine(TASKS["Swimmer-v3"], threads=1)
    rng = np.random.default_rng(0)
    whitening = Whitening(rng.normal(size=8), rng.uniform(0.5, 2, size=8))
    M = rng.normal(size=(2, 8))
    kind, seeds = make_policy("linear", 8, 2), [0, 1]
    request = request_of(kind, M.ravel(), whitening, seeds, 50)
    plain = Whitening(whitening.mean, np.ones(8))
    folded = request_of(kind, (M * whitening.scale).ravel(), plain, seeds, 50)
    np.testing.assert_allclose(engine.run(request).totals, engine.run(folded).totals, rtol=1e-6)


def test_divergence_names_the_episode_and_the_step() -> None:
    wild = replace(TASKS["Swimmer-v3"], start_noise=100.0)  # starts faster than the integrator can follow
    engine = MujocoEngine(wild, threads=2)
    request = pair_request(engine.space, 2, horizon=20, seed=70)
    with pytest.raises(EpisodeError, match=r"the simulation diverged \(episode seed 7[0-3], step \d+\)"):
        engine.run(request)


def test_non_finite_rewards_name_the_episode_and_the_step() -> None:
    task = TASKS["Swimmer-v3"]
    broken = replace(task, control_weight=float("nan"))
    engine = MujocoEngine(broken, threads=1)
    with pytest.raises(EpisodeError, match=r"non-finite reward \(episode seed 7[0-3], step \d+\)"):
        engine.run(pair_request(engine.space, 2, horizon=20, seed=70))


def test_an_engine_can_be_used_after_a_failure() -> None:
    task = TASKS["Swimmer-v3"]
    engine = MujocoEngine(task, threads=2)
    request = pair_request(engine.space, 2, horizon=20)
    with pytest.raises(EpisodeError):
        engine.run(replace(request, candidates=These(np.full((len(request), 16), np.nan))))
    engine.cancel()
    assert same_rollouts(engine.run(request), MujocoEngine(task, 1).run(request))


def test_a_failed_request_leaves_the_others_alone() -> None:
    task = TASKS["Swimmer-v3"]
    engine = MujocoEngine(task, threads=2)
    good = pair_request(engine.space, 3, horizon=50)
    bad = replace(pair_request(engine.space, 3, horizon=50, seed=60), candidates=These(np.full((6, 16), np.nan)))
    tickets = [engine.submit(good), engine.submit(bad), engine.submit(good)]
    found = collect(engine, tickets)
    assert isinstance(found[tickets[1]], EpisodeError)
    assert same_rollouts(found[tickets[0]], found[tickets[2]])
    engine.close()


def test_an_interrupted_wait_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    task = TASKS["Swimmer-v3"]
    engine = MujocoEngine(task, threads=2)
    short = pair_request(engine.space, 1, horizon=10)

    def interrupt(timeout: float | None = None) -> list[object]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine, "completed", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.run(pair_request(engine.space, 20))
    found = engine.run(short)
    assert len(found.totals) == 2 and found.lengths.tolist() == [10, 10]


def test_a_simulation_that_cannot_be_made_is_an_error_not_a_hang() -> None:
    def broken(task: Task) -> Simulation:
        raise EngineError("no memory for a simulation")

    engine = MujocoEngine(TASKS["Swimmer-v3"], threads=2, simulation=broken)
    with pytest.raises(EngineError, match="no memory"):
        engine.run(pair_request(engine.space, 2, horizon=5))


def test_every_episode_of_a_small_batch_gets_a_thread_of_its_own() -> None:
    engine = MujocoEngine(TASKS["Swimmer-v3"], threads=16)
    engine.run(pair_request(engine.space, 4, horizon=5))
    assert len(engine._workers) == 8
    engine.close()


def test_an_engine_that_is_dropped_ends_its_threads_and_processes() -> None:
    before = threading.active_count()
    engine = MujocoEngine(TASKS["Swimmer-v3"], threads=2)
    engine.run(pair_request(engine.space, 2, horizon=5))
    other = make_engine("Pendulum-v1", workers=1)
    assert isinstance(other, GymnasiumEngine)
    other.run(small(other, 1))
    process = other._workers[0]._process
    del engine, other
    gc.collect()
    assert process.poll() is not None
    for _ in range(100):
        if threading.active_count() <= before:
            break
        time.sleep(0.05)
    assert threading.active_count() <= before


def test_cancel_drops_what_was_submitted() -> None:
    engine = MujocoEngine(TASKS["Swimmer-v3"], threads=1)
    engine.submit(pair_request(engine.space, 2))
    engine.completed(timeout=0.0)
    engine.cancel()
    assert engine.completed(timeout=0.0) == []


# --- gymnasium


def small(engine: Engine, pairs: int = 3, horizon: int = 30, **more: object) -> Request:
    return pair_request(engine.space, pairs, scale=0.3, horizon=horizon, **more)  # type: ignore[arg-type]


def test_same_bits_at_any_number_of_workers() -> None:
    outcomes = []
    for workers in (0, 1, 3):
        engine = make_engine("Pendulum-v1", workers=workers)
        outcomes.append(engine.run(small(engine)))
        engine.close()
    assert same_rollouts(outcomes[0], outcomes[1]) and same_rollouts(outcomes[0], outcomes[2])


def test_third_party_environment_by_module_with_arguments() -> None:
    totals = {}
    for target in (0.0, 2.0):
        engine = make_engine("toy_envs:Point-v0", workers=1, env_args={"target": target})
        totals[target] = engine.run(small(engine, 1)).totals
        engine.close()
    assert not np.array_equal(totals[0.0], totals[2.0])


def test_dict_observations_are_flattened() -> None:
    import toy_envs  # noqa: F401

    engine = make_engine("toy_envs:DictPoint-v0", workers=0)
    raw = gym.make("DictPoint-v0").observation_space
    assert engine.space.obs_dim == gym.spaces.flatdim(raw)
    assert np.isfinite(engine.run(small(engine, 1)).totals).all()


def test_discrete_actions_are_the_largest_output() -> None:
    runner = EnvRunner(gym.make("CartPole-v1"), clip_actions=True)
    assert runner.space.discrete and runner.space.act_dim == 2
    assert [runner.action(np.array(output)) for output in ([0.2, 0.1], [-1.0, 3.0])] == [0, 1]


def test_third_party_actions_are_clipped_unless_told_otherwise() -> None:
    outputs = np.array([100.0])
    assert EnvRunner(gym.make("Pendulum-v1"), clip_actions=True).action(outputs) == 2.0
    assert EnvRunner(gym.make("Pendulum-v1"), clip_actions=False).action(outputs) == 100.0
    assert make_engine("Pendulum-v1", workers=0).space.high is not None
    assert make_engine("Swimmer-v3", "gymnasium", workers=0).space.high is None


def test_horizon_is_the_environments_own() -> None:
    assert make_engine("Pendulum-v1", workers=0).space.horizon == 200
    assert make_engine("Swimmer-v3", "gymnasium", workers=0).space.horizon == 1000


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("env", "env_args", "says"),
    [
        ("toy_envs:Nan-v0", {}, r"non-finite reward \(nan\).*step 5"),
        ("toy_envs:Raise-v0", {}, r"the environment raised ZeroDivisionError.*step 3"),
        ("toy_envs:Misbehaving-v0", {"how": "exit"}, r"the environment raised SystemExit: 0 .*step 2"),
        ("toy_envs:Misbehaving-v0", {"how": "base"}, r"raised BaseException: that nobody catches .*step 2"),
        ("toy_envs:Misbehaving-v0", {"how": "unprintable"}, r"the environment raised Unprintable .*step 2"),
        ("toy_envs:Misbehaving-v0", {"how": "text"}, r"a reward of type str, '5': it must be a number .*step 2"),
        ("toy_envs:Misbehaving-v0", {"how": "flag"}, r"terminated = 'False': it must be true or false .*step 2"),
        ("toy_envs:Misbehaving-v0", {"how": "complex"}, r"an observation of type complex128: it must be real .*step 2"),
        ("toy_envs:Misbehaving-v0", {"how": "glitch"}, r"observation of .*too large to learn from .*step 3"),
    ],
)
def test_a_bad_episode_stops_with_its_seed_and_step(workers: int, env: str, env_args: dict, says: str) -> None:
    engine = make_engine(env, workers=workers, env_args=env_args)
    with pytest.raises(EpisodeError, match=says) as caught:
        engine.run(small(engine, 1, seed=40))
    assert caught.value.seed in (40, 41)
    engine.close()


def test_an_environment_that_changes_the_folder_does_not_move_the_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    learner = offrank.ARS("toy_envs:Misbehaving-v0", workers=0, env_args={"how": "move"})
    learner.learn(iterations=1, eval_every=0, out="run")
    assert Path.cwd() == tmp_path and (tmp_path / "run" / "final.offrank").is_file()


def test_a_crashed_worker_is_replaced_and_its_episode_rerun_with_the_same_bits(tmp_path: Path) -> None:
    marker = tmp_path / "crashes"
    engine = make_engine("toy_envs:Crash-v0", workers=2, env_args={"marker": str(marker), "times": 2})
    found = engine.run(small(engine))
    engine.close()
    assert len(marker.read_text().splitlines()) == 2
    calm = make_engine("toy_envs:Crash-v0", workers=1, env_args={"marker": str(marker), "times": 0})
    assert same_rollouts(found, calm.run(small(calm)))
    calm.close()


def test_an_episode_that_hangs_is_run_again_with_the_same_bits(tmp_path: Path) -> None:
    marker = {"marker": str(tmp_path / "hangs"), "times": 1}
    hanging = make_engine("toy_envs:Hang-v0", workers=2, env_args=marker, episode_seconds=1.0)
    request = small(hanging)
    expected = make_engine("toy_envs:Point-v0", workers=0).run(request)
    assert same_rollouts(hanging.run(request), expected)
    assert (tmp_path / "hangs").exists()
    hanging.close()


def test_an_episode_that_keeps_hanging_is_named_and_leaves_no_process(tmp_path: Path) -> None:
    marker = {"marker": str(tmp_path / "hangs"), "times": 99}
    engine = make_engine("toy_envs:Hang-v0", workers=1, env_args=marker, episode_seconds=0.5)
    with pytest.raises(
        EpisodeError, match=r"lost its worker 3 times, at last because it took more than 0.5 s"
    ) as error:
        engine.run(small(engine))
    assert error.value.seed in small(engine).seeds
    assert all(worker._process.poll() is not None for worker in engine._workers)  # type: ignore[attr-defined]
    engine.close()


def test_lost_workers_are_reported_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offrank.engines.gymnasium.engine.REPORTED", (1,))
    engine = make_engine("toy_envs:Crash-v0", workers=1, env_args={"marker": str(tmp_path / "crashes"), "times": 1})
    with pytest.warns(UserWarning, match=r"1 worker was lost and replaced so far.*its process died \(exit status 3\)"):
        assert len(engine.run(small(engine)).totals) == 6
    engine.close()


@pytest.mark.parametrize(
    ("task", "how", "says"),
    [
        ("toy_envs:Point-v0", {"workers": 0, "episode_seconds": 3}, "episode_seconds needs worker processes"),
        ("Swimmer-v3", {"engine": "mujoco", "episode_seconds": 3}, "the mujoco engine runs Swimmer-v3 itself"),
        ("toy_envs:Point-v0", {"episode_seconds": 0}, "episode_seconds = 0: must be a positive number"),
        ("toy_envs:Point-v0", {"episode_seconds": "3"}, "episode_seconds = '3': must be a positive number"),
    ],
)
def test_a_limit_on_the_time_of_an_episode_where_there_cannot_be_one(task: str, how: dict, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        make_engine(task, **how)


def test_an_episode_that_keeps_crashing_is_named(tmp_path: Path) -> None:
    engine = make_engine("toy_envs:Crash-v0", workers=1, env_args={"marker": str(tmp_path / "m"), "times": 10**6})
    with pytest.raises(EpisodeError, match=r"lost its worker 3 times.*exit status 3.*\(episode seed 40\)"):
        engine.run(small(engine, 1, seed=40))
    engine.close()


def test_a_killed_worker_does_not_change_the_outcome() -> None:
    engine = make_engine("toy_envs:Slow-v0", workers=2, env_args={"delay": 0.005})
    assert isinstance(engine, GymnasiumEngine)
    request = small(engine)
    ticket = engine.submit(request)
    assert engine.completed(timeout=0.3) == []
    os.kill(engine._workers[0].pid, 9)
    found = collect(engine, [ticket])[ticket]
    engine.close()
    quick = make_engine("toy_envs:Slow-v0", workers=0, env_args={"delay": 0.0})
    assert same_rollouts(found, quick.run(request))


def test_close_ends_the_workers() -> None:
    engine = make_engine("Pendulum-v1", workers=2)
    assert isinstance(engine, GymnasiumEngine)
    engine.run(small(engine))
    processes = [worker._process for worker in engine._workers]
    engine.close()
    assert len(processes) == 2 and all(process.poll() is not None for process in processes)


def test_workers_need_no_guard_and_no_registration(tmp_path: Path) -> None:
    """A script without `if __name__ == '__main__'`, with an environment of its own, works in worker processes."""
    import subprocess
    import sys

    script = tmp_path / "script.py"
    script.write_text(
        "import gymnasium as gym, numpy as np, offrank\n"
        "class Mine(gym.Env):\n"
        "    observation_space = gym.spaces.Box(-1, 1, (2,))\n"
        "    action_space = gym.spaces.Box(-1, 1, (1,))\n"
        "    def reset(self, seed=None, options=None):\n"
        "        super().reset(seed=seed); self.x = self.np_random.uniform(-1, 1, 2); return self.x, {}\n"
        "    def step(self, a):\n"
        "        print('noise on stdout'); self.x = 0.5 * self.x; return self.x, -float(a[0] ** 2), False, False, {}\n"
        "gym.register('Mine-v0', Mine, max_episode_steps=5)\n"
        "agent = offrank.OPARS('Mine-v0', workers=2)\n"
        "agent.learn(iterations=2, eval_every=0)\n"
        "print('steps', agent.result['steps'])\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "steps 90"


def test_unknown_tasks_get_near_matches() -> None:
    with pytest.raises(UsageError, match="did you mean 'HalfCheetah-v3'"):
        make_engine("HalfCheeta-v3")
    with pytest.raises(UsageError, match="cannot import 'no_such_module'"):
        make_engine("no_such_module:Env-v0")
    with pytest.raises(UsageError, match="did you mean 'mujoco'"):
        resolve_engine("Swimmer-v3", "mujuco")
    with pytest.raises(UsageError, match="not 'Pendulum-v1'"):
        resolve_engine("Pendulum-v1", "mujoco")


def test_environment_arguments_are_refused_where_there_are_none() -> None:
    with pytest.raises(UsageError, match="takes no environment arguments"):
        make_engine("Swimmer-v3", env_args={"reset_noise_scale": 1.0})


def test_a_wrong_environment_argument_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"cannot make 'Pendulum-v1'.*unexpected keyword") as caught:
        make_engine("Pendulum-v1", env_args={"gravity": 9.8})
    assert "\n" not in str(caught.value)


def test_waiting_returns_when_the_time_is_over() -> None:
    engine = make_engine("toy_envs:Slow-v0", workers=1, env_args={"delay": 0.01})
    engine.submit(small(engine, 1))
    assert engine.completed(timeout=0.05) == []  # the two episodes take 0.4 seconds
    assert [list(found.lengths) for _, found in engine.completed()] == [[20, 20]]
    engine.close()


def test_an_unclosed_engine_prints_nothing_when_the_interpreter_exits() -> None:
    pytest.importorskip("optuna")  # an engine may be deleted after the names in its module
    code = "import optuna; from offrank.engines import make_engine; engine = make_engine('Hopper-v3', 'auto')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr == ""


@pytest.mark.parametrize("name", ["HalfCheetah-v3", "Humanoid-v3"])
def test_clipped_actions_are_those_of_the_gymnasium_engine(name: str) -> None:
    native, plain = (make_engine(name, engine, workers=0, clip_actions=True) for engine in ("mujoco", "gymnasium"))
    raw = make_engine(name, "mujoco")
    np.testing.assert_allclose(native.space.low, plain.space.low, rtol=1e-6)
    request = pair_request(native.space, 3, scale=20.0, horizon=1, keep=True)  # far out of bounds
    found, expected, unclipped = (engine.run(request) for engine in (native, plain, raw))
    np.testing.assert_allclose(found.totals, expected.totals, rtol=1e-5, atol=1e-5)
    assert (unclipped.totals < found.totals - 5).all()  # the control cost of raw actions
    for engine in (native, plain, raw):
        engine.close()


# --- noise on the actions


def noisy(engine: Engine, deviation: float = 0.3, horizon: int = 12, scale: float = 0.3) -> Request:
    request = pair_request(engine.space, 3, scale, horizon, keep=True)
    return replace(request, noise=np.full(engine.space.act_dim, deviation))


def test_noise_is_added_to_clipped_actions_which_are_clipped_again() -> None:
    engine, env = (
        make_engine("HalfCheetah-v3", "mujoco", clip_actions=True),
        gym.make("offrank/HalfCheetah-v3").unwrapped,
    )
    request = noisy(engine, deviation=0.8, scale=3.0)
    beyond = 0
    for i, trajectory in enumerate(engine.run(request).trajectories):
        noise = request.step_noise(i)
        assert noise is not None
        observation, _ = env.reset(seed=int(request.seeds[i]))
        for t in range(6):
            np.testing.assert_allclose(observation, trajectory.observations[t], rtol=1e-6, atol=1e-6)
            action = request.policy.act(request.theta(i), request.whitening(observation))
            beyond += int((np.abs(action) > 1).sum())
            observation, reward, *_ = env.step(np.clip(np.clip(action, -1, 1) + noise[t], -1, 1))
            assert reward == pytest.approx(trajectory.rewards[t], rel=1e-6, abs=1e-6)
    assert beyond > 20


@pytest.mark.parametrize("name", ["HalfCheetah-v3", "Hopper-v3", "Swimmer-v3"])
def test_noise_on_the_actions_is_the_same_in_every_engine(name: str) -> None:
    engines = [make_engine(name, "mujoco", clip_actions=True)]
    engines += [make_engine(name, "gymnasium", workers=workers, clip_actions=True) for workers in (0, 2)]
    request = noisy(engines[0])
    first, *others = (engine.run(request) for engine in engines)
    quiet = engines[0].run(replace(request, noise=None))
    for found in others:
        for a, b in zip(first.trajectories, found.trajectories, strict=True):
            np.testing.assert_allclose(a.observations[:6], b.observations[:6], rtol=1e-4, atol=1e-4)
    assert not same_rollouts(first, quiet)
    for engine in engines:
        engine.close()


def test_noise_on_the_actions_of_lqr() -> None:
    engine = make_engine("LQR")
    request = noisy(engine, scale=0.01)
    found, quiet = engine.run(request), engine.run(replace(request, noise=None))
    for i, (a, b) in enumerate(zip(found.trajectories, quiet.trajectories, strict=True)):
        noise = request.step_noise(i)
        assert noise is not None and np.array_equal(a.observations[0], b.observations[0])
        np.testing.assert_allclose(a.observations[1] - b.observations[1], engine.task.B @ noise[0])  # type: ignore[attr-defined]


def test_noise_of_a_shorter_episode_is_the_beginning_of_that_of_a_longer_one() -> None:
    assert np.array_equal(action_noise(5, 20, 3)[:7], action_noise(5, 7, 3))
    assert not np.array_equal(action_noise(5, 7, 3), action_noise(6, 7, 3))
    assert abs(action_noise(5, 4000, 3).std() - 1) < 0.05


def test_noise_is_for_episodes_to_learn_from() -> None:
    engine = make_engine("Swimmer-v3", "mujoco")
    with pytest.raises(ValueError, match="learn from"):
        replace(noisy(engine), keep=False)


def test_without_the_compiled_part_our_tasks_run_in_python_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offrank.engines.is_built", lambda: False)
    with pytest.warns(UserWarning, match="compiled part was not built.* using the gymnasium engine, which is slower"):
        assert isinstance(make_engine("Swimmer-v3", workers=0), GymnasiumEngine)


def test_warnings_of_a_gymnasium_model_do_not_reach_the_user(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    registered("HalfCheetah-v5", {})().close()
    assert capfd.readouterr().err == "" and not list(tmp_path.iterdir())
