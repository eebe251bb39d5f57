"""Callbacks that log to TensorBoard, Weights & Biases and MLflow: `<kind>/<metric>` of every line of metrics.jsonl,
against training steps."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

from offrank.core.arrays import Metrics
from offrank.core.checks import check_path
from offrank.core.errors import UsageError, require
from offrank.core.files import read_json, write_json
from offrank.runs.callback import Callback
from offrank.runs.folder import BEST
from offrank.runs.run import Run


class Logger(Callback):
    """Base class of the loggers.

    Raises:
        UsageError: the package is not installed; the text has the install command.
    """

    module: ClassVar[str]
    name: ClassVar[str]  # also of the extra that installs the package

    def __init__(self) -> None:
        self._library: Any = require(self.module, self.name)

    def __call__(self, run: Run, record: Metrics) -> None:
        self._write(_numbers(record, record["kind"]), record["steps"])

    def _write(self, values: dict[str, float], steps: int) -> None:
        raise NotImplementedError


class TensorBoardCallback(Logger):
    """Writes for TensorBoard, to `folder`; by default to `tensorboard` in the run folder. If a run is continued, what
    it repeats is hidden."""

    module, name = "tensorboardX", "tensorboard"

    def __init__(self, folder: str | Path | None = None):
        super().__init__()
        self._folder = None if folder is None else check_path("folder", folder)
        self._writer: Any = None

    def on_start(self, run: Run) -> None:
        folder = self._folder or (run.folder and run.folder / self.name)
        if folder is None:
            raise UsageError("TensorBoardCallback needs a folder: give it one, or train with out=")
        steps = run.state.steps
        self._writer = self._library.SummaryWriter(str(folder), purge_step=steps + 1 if steps else None)

    def _write(self, values: dict[str, float], steps: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, steps)
        if "evaluation/return_mean" in values:
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


class Tracker(Logger):
    """Base class of the loggers whose runs have ids. The id is kept in the run folder, so that a run that is continued
    is one run there, too; what it repeats is logged again, with the same values."""

    def __init__(self, save_policy: bool) -> None:
        super().__init__()
        self._save_policy = save_policy
        self._of: Run | None = None
        self._id: str | None = None
        self._ended = False

    def on_start(self, run: Run) -> None:
        file = run.folder and run.folder / f"{self.name}.json"
        before = self._id if self._of is run else None
        if file is not None and file.is_file():
            before = str(read_json(file).get("id"))
        self._of, self._ended = run, False
        config = run.config.identity
        self._id = self._open(run, before, config | config.pop("hyperparameters"))
        if file is not None:
            write_json(file, {"id": self._id})

    def on_end(self, run: Run) -> None:
        self._ended = True
        self._write_result(run.result, run.state.steps)
        if self._save_policy:
            evaluation, policy = run.best_of_all
            with tempfile.TemporaryDirectory() as folder:
                policy.save(Path(folder) / BEST, run.policy_meta(evaluation))
                self._write_policy(run, Path(folder) / BEST)

    def _open(self, run: Run, before: str | None, config: dict[str, Any]) -> str:
        """Start a run, or continue the one with this id. Returns its id."""
        raise NotImplementedError

    def _write_result(self, result: dict[str, Any], steps: int) -> None:
        raise NotImplementedError

    def _write_policy(self, run: Run, path: Path) -> None:
        raise NotImplementedError


class WandbCallback(Tracker):
    """Logs to Weights & Biases. Configuration and result are there as `config` and as `result` in the summary.

    Args:
        project: by default $WANDB_PROJECT, or offrank.
        save_policy: whether the best policy is kept there, too, as an artifact.
        options: of `wandb.init`, such as entity, group, tags and mode.
    """

    module = name = "wandb"

    def __init__(self, project: str | None = None, *, save_policy: bool = False, **options: Any):
        super().__init__(save_policy)
        self._options = {"project": project or os.environ.get("WANDB_PROJECT", "offrank")} | options
        self._run: Any = None

    def _open(self, run: Run, before: str | None, config: dict[str, Any]) -> str:
        ours: dict[str, Any] = {"id": before, "name": run.name, "config": config, "dir": run.folder}
        # several runs of one process are several runs there
        self._run = self._library.init(**ours | self._options, resume="allow", reinit="create_new")
        self._run.define_metric("steps")
        self._run.define_metric("*", step_metric="steps")  # its own steps cannot be repeated, as a continued run does
        return str(self._run.id)

    def _write(self, values: dict[str, float], steps: int) -> None:
        self._run.log({**values, "steps": steps})

    def _write_result(self, result: dict[str, Any], steps: int) -> None:
        self._run.summary["result"] = result

    def _write_policy(self, run: Run, path: Path) -> None:
        artifact = self._library.Artifact(run.name, type="model")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if self._ended else 1)
        self._run = None


class MLflowCallback(Tracker):
    """Logs to MLflow: the configuration as parameters, the result as `result.json` and its numbers as metrics.

    Args:
        experiment: its name; by default $MLFLOW_EXPERIMENT_NAME, or offrank.
        tracking_uri: of the server or database; by default $MLFLOW_TRACKING_URI, or what MLflow chooses.
        save_policy: whether the best policy is kept there, too, as an artifact.
    """

    module = name = "mlflow"

    def __init__(self, experiment: str | None = None, *, tracking_uri: str | None = None, save_policy: bool = False):
        super().__init__(save_policy)
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "offrank")
        self._uri = tracking_uri
        self._client: Any = None

    def _open(self, run: Run, before: str | None, config: dict[str, Any]) -> str:
        client = self._client = self._library.MlflowClient(self._uri)  # mlflow.start_run has one run per process
        if before is not None:
            client.update_run(before, status="RUNNING")
            return before
        found = client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else client.create_experiment(self._experiment)
        opened = str(client.create_run(experiment, run_name=run.name).info.run_id)
        params = [self._library.entities.Param(name, str(value)) for name, value in config.items()]
        client.log_batch(opened, params=params)
        return opened

    def _write(self, values: dict[str, float], steps: int) -> None:
        now, metric = int(time.time() * 1000), self._library.entities.Metric
        metrics = [metric(name, float(value), now, steps) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def _write_result(self, result: dict[str, Any], steps: int) -> None:
        self._write(_numbers(result, "result"), steps)
        self._client.log_dict(self._id, result, "result.json")

    def _write_policy(self, run: Run, path: Path) -> None:
        self._client.log_artifact(self._id, str(path))

    def close(self) -> None:
        if self._client is not None:
            self._client.set_terminated(self._id, "FINISHED" if self._ended else "KILLED")
        self._client = None


def _numbers(record: Metrics, kind: str) -> dict[str, float]:
    """The numbers of a record by name, except those that say where it belongs."""
    named = ((name, value) for name, value in record.items() if name not in ("steps", "iteration", "seed"))
    return {f"{kind}/{name}": value for name, value in named if isinstance(value, (int, float))}


LOGGERS: dict[str, type[TensorBoardCallback | WandbCallback | MLflowCallback]] = {
    "tensorboard": TensorBoardCallback,
    "wandb": WandbCallback,
    "mlflow": MLflowCallback,
}
