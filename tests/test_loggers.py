"""Loggers. W&B is tried with a stand-in for its package, and offline where it is installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import offrank
from offrank.callbacks import MLflowCallback, TensorBoardCallback, WandbCallback
from offrank.core.errors import UsageError
from offrank.runs.saved import Saved

BRIEF: dict[str, Any] = {"eval_every": 2, "eval_episodes": 2}


def agent() -> offrank.ARS:
    return offrank.ARS("toy_envs:Point-v0", n_directions=4, n_top=2, horizon=10, workers=0, seed=3)


def fail(run: Any, record: dict[str, Any]) -> None:
    if record["iteration"] == 3:
        raise RuntimeError("interrupted")


def logged(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(steps, value) of every metric in metrics.jsonl, by its name in the loggers."""
    found: dict[str, list[tuple[int, float]]] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for name in set(record) - {"kind", "steps", "iteration"}:
            found.setdefault(f"{record['kind']}/{name}", []).append((record["steps"], record[name]))
    return found


class FakeRun:
    """The part of a W&B run that is used."""

    def __init__(self, options: dict[str, Any]):
        self.options, self.id = options, options["id"] or f"new-{options['name']}"
        self.lines: list[dict[str, float]] = []
        self.metrics: list[tuple[str, str | None]] = []
        self.summary: dict[str, Any] = {}
        self.artifacts: list[FakeArtifact] = []
        self.exit_code: int | None = None

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.metrics.append((name, step_metric))

    def log(self, line: dict[str, float]) -> None:
        self.lines.append(line)

    def log_artifact(self, artifact: FakeArtifact) -> None:
        self.artifacts.append(artifact)

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


class FakeArtifact:
    def __init__(self, name: str, type: str):
        self.name, self.type, self.policy = name, type, ""

    def add_file(self, path: str) -> None:
        self.policy = Saved.read(Path(path)).policy.sha256


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    """The runs that were started in a stand-in for W&B."""
    runs: list[FakeRun] = []
    fake: Any = ModuleType("wandb")
    fake.init = lambda **options: runs.append(FakeRun(options)) or runs[-1]
    fake.Artifact = FakeArtifact
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return runs


def test_wandb_gets_configuration_metrics_result_and_policy(wandb: list[FakeRun], tmp_path: Path) -> None:
    learner = agent().learn(iterations=3, callback=WandbCallback(group="mine", save_policy=True), out=tmp_path, **BRIEF)
    (run,) = wandb
    wanted = {"project": "offrank", "name": "toy_envs_Point-v0-ars-3", "group": "mine", "dir": tmp_path}
    assert wanted.items() <= run.options.items()
    config = {"task": "toy_envs:Point-v0", "algo": "ars", "seed": 3, "policy": "linear", "n_directions": 4}
    assert config.items() <= run.options["config"].items()
    for name, points in logged(tmp_path).items():
        assert [(line["steps"], line[name]) for line in run.lines if name in line] == points
    assert ("*", "steps") in run.metrics
    assert run.summary["result"]["policy_sha256"] == learner.policy.sha256 and run.exit_code == 0
    assert [one.policy for one in run.artifacts] == [Saved.read(tmp_path / "best.offrank").policy.sha256]


def test_a_resumed_run_goes_on_with_its_wandb_run(wandb: list[FakeRun], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        agent().learn(iterations=5, callback=[WandbCallback(), fail], out=tmp_path, **BRIEF)
    agent().learn(iterations=5, callback=WandbCallback(), out=tmp_path, resume=True, **BRIEF)
    first, second = wandb
    assert (first.options["id"], second.options["id"], second.options["resume"]) == (None, first.id, "allow")
    assert (first.exit_code, second.exit_code) == (1, 0) and not first.summary
    lines = [line["steps"] for line in first.lines + second.lines if "iteration/return_mean" in line]
    assert lines == [80 * i for i in range(1, 6)]


def test_another_call_of_learn_goes_on_and_another_agent_does_not(wandb: list[FakeRun]) -> None:
    callback = WandbCallback()
    agent().learn(iterations=1, callback=callback, eval_every=0).learn(iterations=2, callback=callback, eval_every=0)
    agent().learn(iterations=1, callback=callback, eval_every=0)
    assert [run.options["id"] for run in wandb] == [None, wandb[0].id, None]


def test_wandb_works_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb.sdk", reason="needs pip install 'offrank[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with pytest.raises(RuntimeError):
        agent().learn(iterations=4, callback=[WandbCallback(), fail], out=tmp_path, **BRIEF)
    agent().learn(iterations=4, callback=WandbCallback(save_policy=True), out=tmp_path, resume=True, **BRIEF)
    run_id = json.loads((tmp_path / "wandb.json").read_text())["id"]
    assert list((tmp_path / "wandb").glob(f"offline-run-*/run-{run_id}.wandb"))
    fleet = offrank.Fleet("Swimmer-v3", "ars", [0, 1], horizon=20)
    fleet.learn(iterations=1, eval_every=0, out=tmp_path / "fleet", callback=WandbCallback)
    fleet.close()
    assert len({path.read_text() for path in tmp_path.glob("fleet/*/wandb.json")}) == 2


def test_mlflow_gets_configuration_metrics_result_and_policy_of_one_run_also_if_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow: Any = pytest.importorskip("mlflow", reason="needs pip install 'offrank[mlflow]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    store, folder = (tmp_path / "store").as_uri(), tmp_path / "run"
    client = mlflow.MlflowClient(store)
    with pytest.raises(RuntimeError):
        agent().learn(iterations=5, callback=[MLflowCallback(tracking_uri=store), fail], out=folder, **BRIEF)
    experiment = client.get_experiment_by_name("offrank").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.info.status == "KILLED" and run.info.run_name == "toy_envs_Point-v0-ars-3"
    callback = MLflowCallback(tracking_uri=store, save_policy=True)
    learner = agent().learn(iterations=5, callback=callback, out=folder, resume=True, **BRIEF)
    (run,) = client.search_runs([experiment])
    config = {"task": "toy_envs:Point-v0", "algo": "ars", "seed": "3", "policy": "linear", "n_directions": "4"}
    assert run.info.status == "FINISHED" and config.items() <= run.data.params.items()
    for name, points in logged(folder).items():
        history = sorted(client.get_metric_history(run.info.run_id, name), key=lambda metric: metric.step)
        assert [(metric.step, metric.value) for metric in history] == points
    assert run.data.metrics["result/best_return"] == learner.result["best_return"]
    kept = Path(client.download_artifacts(run.info.run_id, "", str(tmp_path)))
    assert json.loads((kept / "result.json").read_text())["policy_sha256"] == learner.policy.sha256
    assert Saved.read(kept / "best.offrank").policy.sha256 == Saved.read(folder / "best.offrank").policy.sha256


def test_tensorboard_needs_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    with pytest.raises(UsageError, match="TensorBoardCallback needs a folder"):
        agent().learn(iterations=1, callback=TensorBoardCallback(), eval_every=0)
    agent().learn(iterations=1, callback=TensorBoardCallback(tmp_path / "board"), eval_every=0)
    assert list((tmp_path / "board").glob("events.out.tfevents.*"))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_named_before_anything_is_made(offrank, monkeypatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    offrank("train", "Swimmer-v3", "--log", name, "--out", "run").complains(f"pip install 'offrank[{name}]'")
    assert not Path("run").exists()


def test_the_command_line_logs_to_several_by_name(offrank, wandb: list[FakeRun]) -> None:
    pytest.importorskip("tensorboardX")
    short = ["train", "Swimmer-v3", "--iterations", "1", "--horizon", "20", "--eval-episodes", "2", "--quiet"]
    assert offrank(*short, "--seeds", "0-1", "--out", "runs", "--log", "wandb,tensorboard").status == 0
    assert sorted(run.options["config"]["seed"] for run in wandb) == [0, 1]
    assert len(list(Path("runs").glob("*/tensorboard/events.out.tfevents.*"))) == 2
    Path("run.toml").write_text('log = ["wandb"]\n')
    assert offrank(*short, "--config", "run.toml", "--out", "run").status == 0 and len(wandb) == 3
    offrank(*short, "--log", "wandbb").complains("unknown logger 'wandbb'", "did you mean 'wandb'?")
