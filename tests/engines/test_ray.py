"""The ray engine on a local Ray cluster of several nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster as Nodes  # noqa: E402

import offrank  # noqa: E402
from helpers import pair_request, same_rollouts  # noqa: E402
from offrank.cli import main  # noqa: E402
from offrank.core.candidates import Around, These  # noqa: E402
from offrank.core.errors import EngineError, EpisodeError, UsageError  # noqa: E402
from offrank.core.rollouts import Request, Rollouts  # noqa: E402
from offrank.engines import Cluster, make_engine, resolve_engine  # noqa: E402
from offrank.engines.ray import pool  # noqa: E402
from offrank.engines.ray.engine import RayEngine  # noqa: E402
from offrank.engines.ray.fingerprint import differences, fingerprint  # noqa: E402
from offrank.lab.bench import cluster as bench  # noqa: E402

POINT = "toy_envs:Point-v0"
SLOW = "toy_envs:Slow-v0"


NODE = {"num_cpus": 2, "resources": {"robot": 1}, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Two nodes of two CPUs and one robot each."""
    nodes = Nodes(initialize_head=True, head_node_args={"include_dashboard": False, **NODE})
    nodes.add_node(**NODE)
    ray.init(nodes.address, log_to_driver=False, logging_level="ERROR")
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def on_cluster(task: str, workers: int | None = 2, env_args: dict[str, Any] | None = None, **cluster: Any) -> RayEngine:
    engine = make_engine(task, "ray", workers=workers, env_args=env_args, cluster=Cluster(**cluster))
    assert isinstance(engine, RayEngine)
    return engine


def here(task: str, request: Request, env_args: dict[str, Any] | None = None) -> Rollouts:
    engine = make_engine(task, threads=1, workers=0, env_args=env_args)
    found = engine.run(request)
    engine.close()
    return found


def finish(engine: RayEngine, ticket: int) -> Rollouts | EpisodeError:
    while True:
        for finished, outcome in engine.completed(timeout=0.1):
            if finished == ticket:
                return outcome


def until_ready(engine: RayEngine, workers: int) -> None:
    """Run episodes of other seeds until `workers` workers have started."""
    while sum(worker.ready for worker in engine._pool.workers) < workers:
        engine.run(pair_request(engine.space, 1, seed=100))


def until_busy(engine: RayEngine, workers: int) -> None:
    """Wait until `workers` workers are busy; the episodes must be long enough to observe that."""
    while sum(bool(worker.pieces) for worker in engine._pool.workers) < workers:
        assert engine.completed(timeout=0.0) == []


# --- bits


def test_native_episodes_have_the_bits_of_the_local_engine(nodes: Nodes) -> None:
    for workers, cpus in ((3, 1.0), (1, 2.0)):  # single threads on both nodes; two threads in one process
        engine = on_cluster("Hopper-v3", workers, cpus_per_worker=cpus)
        request = pair_request(engine.space, 8, horizon=200, keep=True)
        found, expected = engine.run(request), here("Hopper-v3", request)
        engine.close()
        assert same_rollouts(found, expected)
        for mine, other in zip(found.trajectories, expected.trajectories, strict=True):
            assert np.array_equal(mine.observations, other.observations) and np.array_equal(mine.rewards, other.rewards)
            assert mine.terminated == other.terminated


def test_any_policy_runs_on_a_cluster_to_the_same_bits(nodes: Nodes) -> None:
    for task in ("Hopper-v3", POINT):
        engine = on_cluster(task, 2)
        request = pair_request(engine.space, 4, horizon=50, scale=0.3, policy="skip:3")
        given = replace(request, candidates=These(np.stack([request.theta(i) for i in range(len(request))])))
        found = [engine.run(request), engine.run(given)]
        engine.close()
        assert all(same_rollouts(one, here(task, request)) for one in found)


def test_a_fleet_on_a_cluster_equals_a_local_fleet_and_can_be_resumed_locally(nodes: Nodes, tmp_path: Path) -> None:
    """Transitions of behaviour rollouts are returned too: op-ars ranks by them."""

    def train(out: str, *more: str) -> list[str]:
        command = ["train", POINT, "--algo", "op-ars", "--seeds", "0-1", "--eval-every", "3", "--eval-episodes", "4"]
        assert main([*command, "--quiet", "--out", str(tmp_path / out), *more]) == 0
        results = sorted((tmp_path / out).glob("*/result.json"))
        return [json.loads(path.read_text())["policy_sha256"] for path in results]

    expected = [train("here", "--iterations", str(k), "--workers", "0", "--resume") for k in (4, 6)]
    assert train("there", "--iterations", "4", "--engine", "ray", "--workers", "3") == expected[0]
    assert train("there", "--iterations", "6", "--workers", "0", "--resume") == expected[1]
    assert len(set(expected[0])) == 2


def test_a_request_is_as_large_with_many_directions_as_with_few(nodes: Nodes) -> None:
    engine = on_cluster(POINT, 1)
    sizes = []
    for n in (8, 8000):
        few = pair_request(engine.space, 8)
        many = pair_request(engine.space, n).take(range(16))
        assert isinstance(many.candidates, Around) and many.candidates.directions is not None
        assert many.candidates.directions.count == n and len(many) == len(few)
        ticket = engine.submit(many)
        reference = engine._requests[ticket]
        sizes.append(ray.experimental.get_object_locations([reference])[reference]["object_size"])
        assert isinstance(finish(engine, ticket), Rollouts)
        assert not engine._requests
    engine.close()
    assert abs(sizes[0] - sizes[1]) < 10 and sizes[0] < 2000


# --- scheduling


def test_a_slow_episode_does_not_idle_the_others(nodes: Nodes, tmp_path: Path) -> None:
    log = tmp_path / "log"
    engine = on_cluster("toy_envs:Uneven-v0", 2, {"log": str(log)})
    until_ready(engine, 2)
    log.write_text("")
    engine.run(pair_request(engine.space, 8))
    engine.close()
    ran = [line.split() for line in log.read_text().splitlines()]
    slow = next(pid for seed, pid in ran if seed == "0")
    assert len(ran) == 16 and sum(pid == slow for _, pid in ran) < 8


def test_room_is_counted_node_by_node() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 3.0, "robot": 1.0}},
        {"Alive": True, "Resources": {"CPU": 1.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "robot": 1.0}},
        {"Alive": True, "Resources": {"memory": 1e9}},
    ]
    assert Cluster().room(nodes) == 4
    assert Cluster(cpus_per_worker=2).room(nodes) == 1
    assert Cluster(cpus_per_worker=0.1).room(nodes) == 40
    assert Cluster(resources={"robot": 1}).room(nodes) == 1


# --- faults


def test_a_killed_worker_changes_nothing(nodes: Nodes) -> None:
    engine = on_cluster(SLOW, 2, {"delay": 0.02})  # 0.4 seconds per episode
    request = pair_request(engine.space, 5)
    until_ready(engine, 1)
    ticket = engine.submit(request)
    until_busy(engine, 1)
    ray.kill(next(worker for worker in engine._pool.workers if worker.pieces).handle)
    found = finish(engine, ticket)
    engine.close()
    assert isinstance(found, Rollouts) and same_rollouts(found, here(SLOW, request, {"delay": 0.0}))


def test_a_crashed_worker_changes_nothing(nodes: Nodes, tmp_path: Path) -> None:
    marker = {"marker": str(tmp_path / "crashes"), "times": 1}
    engine = on_cluster("toy_envs:Crash-v0", 2, marker)
    request = pair_request(engine.space, 10)
    found = engine.run(request)
    engine.close()
    assert same_rollouts(found, here("toy_envs:Crash-v0", request, marker))
    assert len((tmp_path / "crashes").read_text().splitlines()) == 1


def test_a_lost_node_changes_nothing_and_the_engine_shrinks_and_grows_with_the_cluster(nodes: Nodes) -> None:
    engine = on_cluster(SLOW, None, {"delay": 0.02}, resources={"robot": 1})  # one worker per node
    request = pair_request(engine.space, 10)
    until_ready(engine, 2)
    ticket = engine.submit(request)
    until_busy(engine, 2)
    assert len(engine._pool.workers) == 2
    nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
    found = finish(engine, ticket)
    assert isinstance(found, Rollouts) and same_rollouts(found, here(SLOW, request, {"delay": 0.0}))
    assert sum(worker.ready for worker in engine._pool.workers) == 1
    nodes.add_node(**NODE)
    while sum(worker.ready for worker in engine._pool.workers) < 2:
        assert same_rollouts(engine.run(request), found)
    engine.close()


def test_a_hanging_episode_is_run_again_elsewhere(nodes: Nodes, tmp_path: Path) -> None:
    marker = {"marker": str(tmp_path / "hangs"), "times": 1}
    engine = on_cluster("toy_envs:Hang-v0", 2, marker, episode_seconds=2.0)
    request = pair_request(engine.space, 4)
    found = engine.run(request)
    engine.close()
    assert same_rollouts(found, here("toy_envs:Hang-v0", request, marker))
    assert len((tmp_path / "hangs").read_text().splitlines()) == 1


def test_an_episode_that_keeps_losing_its_worker_is_named_and_leaves_the_others_alone(
    nodes: Nodes, tmp_path: Path
) -> None:
    engine = on_cluster("toy_envs:Uneven-v0", 2, {"log": str(tmp_path / "log"), "delay": 3600.0}, episode_seconds=1.0)
    tickets = [engine.submit(pair_request(engine.space, 3, seed=seed)) for seed in (0, 100)]
    found = {}
    while len(found) < 2:
        found |= dict(engine.completed(timeout=0.1))
    engine.close()
    error = found[tickets[0]]
    assert isinstance(error, EpisodeError) and error.seed == 0
    assert str(error) == "lost its worker 3 times, at last because it took more than 1 s (episode seed 0)"
    assert isinstance(found[tickets[1]], Rollouts)


def test_a_bad_episode_is_the_local_engines_error(nodes: Nodes) -> None:
    engine = on_cluster("toy_envs:Nan-v0", 1)
    with pytest.raises(EpisodeError, match=r"non-finite reward \(nan\) \(episode seed 4[01], step 5\)"):
        engine.run(pair_request(engine.space, 1, seed=40))
    engine.close()


def test_a_run_whose_driver_was_killed_resumes_to_the_same_bits(nodes: Nodes, tmp_path: Path) -> None:
    command = ["train", SLOW, "--algo", "ars", "--set", "n_directions=4", "--set", "n_top=2", "--iterations", "12"]
    command += ["--eval-every", "0", "--checkpoint-seconds", "0", "--quiet"]
    ray_flags = ["--engine", "ray", "--workers", "2", "--env-arg", "delay=0.004"]
    out = tmp_path / "killed"
    driver = subprocess.Popen(
        [sys.executable, "-m", "offrank", *command, *ray_flags, "--address", nodes.address, "--out", str(out)],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
        stderr=subprocess.PIPE,
    )
    metrics = out / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
        assert driver.poll() is None, driver.stderr and driver.stderr.read()
        time.sleep(0.02)
    driver.kill()
    driver.wait()
    assert not (out / "result.json").exists()
    assert main([*command, *ray_flags, "--out", str(out), "--resume"]) == 0
    assert main([*command, "--workers", "0", "--env-arg", "delay=0", "--out", str(tmp_path / "whole")]) == 0
    killed, whole = (json.loads((folder / "result.json").read_text()) for folder in (out, tmp_path / "whole"))
    assert killed["policy_sha256"] == whole["policy_sha256"] and killed["steps"] == whole["steps"]


# --- nodes that differ


def test_nodes_that_would_give_other_bits_are_refused_or_warned_of(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "fingerprint", lambda: fingerprint() | {"numpy": "1.0", "BLAS": "Zen"})
    with pytest.raises(EngineError, match=rf"it has numpy {np.__version__} instead of 1.0, BLAS \w+ instead of Zen"):
        on_cluster(POINT, 1)
    with pytest.warns(UserWarning, match="may give other bits than this one: it has numpy"):
        engine = on_cluster(POINT, 1, mixed_nodes=True)
    request = pair_request(engine.space, 2)
    assert same_rollouts(engine.run(request), here(POINT, request))
    engine.close()


def test_a_fingerprint_is_equal_to_itself_and_names_what_differs() -> None:
    mine = fingerprint()
    assert differences(mine, dict(mine)) == "" and all(mine.values())
    assert differences(mine, mine | {"mujoco": "9.9"}) == f"mujoco 9.9 instead of {mine['mujoco']}"
    assert "python unknown instead of" in differences(mine, {k: v for k, v in mine.items() if k != "python"})


# --- environments


def test_an_environment_may_exist_on_the_workers_alone(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "only_there.py").write_text(
        "import gymnasium, toy_envs\ngymnasium.register('There-v0', toy_envs.Point, max_episode_steps=20)\n"
    )
    paths = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    engine = on_cluster("only_there:There-v0", 1, runtime_env={"env_vars": {"PYTHONPATH": paths}})
    assert "only_there" not in sys.modules and engine.space.obs_dim == 2
    request = pair_request(engine.space, 2)
    assert same_rollouts(engine.run(request), here(POINT, request))
    engine.close()


def test_an_environment_of_the_callers_script_is_sent_to_the_workers(nodes: Nodes) -> None:
    import toy_envs

    def make() -> toy_envs.Point:
        return toy_envs.Point(target=1.5)

    agents = [
        offrank.ARS(make, engine="ray", workers=1, n_directions=2, n_top=1, horizon=15),
        offrank.ARS(make, workers=0, n_directions=2, n_top=1, horizon=15),
    ]
    hashes = [agent.learn(iterations=2, eval_every=0).policy.sha256 for agent in agents]
    for agent in agents:
        agent.close()
    assert hashes[0] == hashes[1]
    with pytest.raises(UsageError, match="an environment object stays in this process"):
        offrank.ARS(make(), engine="ray")


def test_what_a_worker_cannot_do_is_one_line_here(nodes: Nodes) -> None:
    with pytest.raises(UsageError, match="cannot import 'no_such_module' for task"):
        on_cluster("no_such_module:Arm-v0", 1)
    with pytest.raises(UsageError, match="no node of the cluster has what one worker needs: 64 CPU"):
        on_cluster(POINT, None, cpus_per_worker=64)
    with pytest.raises(UsageError, match="connected to the Ray cluster at"):
        on_cluster(POINT, 1, address="10.0.0.1:6379")


# --- names and flags


def test_ray_stands_for_the_engine_of_its_workers() -> None:
    for task in ("Hopper-v3", "Pendulum-v1"):
        assert resolve_engine(task, "ray") == resolve_engine(task, "auto")
    assert resolve_engine("Hopper-v3", "ray:gymnasium") == "gymnasium"
    with pytest.raises(UsageError, match="unknown engine 'ray:warp': workers hold mujoco, gymnasium or numpy"):
        resolve_engine("Hopper-v3", "ray:warp")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--address", "auto"], "--address is for --engine ray"),
        (["--engine", "ray", "--cpus-per-worker", "0"], "cpus_per_worker = 0.0: must be a positive number"),
        (["--engine", "ray", "--resource", "robot=one"], "--resource robot=one: must be a number"),
        (["--engine", "ray", "--episode-seconds", "-1"], "episode_seconds = -1.0: must be positive"),
        (["--engine", "ray", "--runtime-env", "no.json"], "cannot read no.json"),
        (["--engine", "ray", "--workers", "0"], "workers = 0: the ray engine needs at least one"),
    ],
)
def test_wrong_flags_are_one_line(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["train", POINT, "--out", str(tmp_path / "run"), *flags]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_the_benchmark_measures_every_number_of_workers_and_the_bytes(nodes: Nodes) -> None:
    found = bench.efficiency(0.0005, [2], episodes=4, rounds=1)
    assert set(found["seconds"]) == {"one process", "2 workers"} and set(found["efficiency"]) == {2}
    few, many = bench.wire(ray, [32, 4096], episodes=4, requests=1)
    assert abs(few["request_bytes"] - many["request_bytes"]) < 10 and few["request_bytes"] > 17 * 376 * 8
    assert len(bench.waiting(ray, 10, rounds=3)) == 3
