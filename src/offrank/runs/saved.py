"""The content of a saved file or a run folder: a policy and the configuration of its run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offrank.core.errors import FileFormatError, UsageError
from offrank.core.files import load_arrays
from offrank.engines import Engine, make_engine
from offrank.policies.trained import TrainedPolicy
from offrank.runs.config import RunConfig
from offrank.runs.folder import BEST, CHECKPOINT, FINAL

ASK_TELL = "ask-tell"  # engine name of a run whose episodes the user runs
WHICH = {"best": BEST, "final": FINAL}


@dataclass(frozen=True)
class Saved:
    """A policy with its configuration. `complete` if the file also holds the state of the run."""

    path: Path
    policy: TrainedPolicy
    config: RunConfig
    meta: dict[str, Any]
    complete: bool
    trusted: bool = False  # whether the module that its task names may be imported

    @staticmethod
    def read(path: Path) -> Saved:
        """Read a policy file or a checkpoint."""
        kind, arrays, meta = load_arrays(path, "policy", "run")
        try:
            config = RunConfig.from_json(meta.get("config", {}))
        except UsageError as error:
            raise FileFormatError(f"{path}: {error}") from error
        try:
            policy = TrainedPolicy.from_arrays(arrays)
        except FileFormatError as error:
            raise FileFormatError(f"{path}: {error}") from error
        return Saved(path, policy, config, meta, kind == "run")

    @staticmethod
    def find(path: Path, which: str = "best") -> Saved:
        """Read a file, or the best or final policy of a run folder; its checkpoint if the run has not ended."""
        if not path.is_dir():
            if not path.exists():
                raise UsageError(f"there is no {path}")
            return Saved.read(path)
        for name in (WHICH[which], CHECKPOINT):
            if (path / name).is_file():
                return Saved.read(path / name)
        raise UsageError(f"{path} is not a run folder: it has neither {WHICH[which]} nor {CHECKPOINT}")

    def require_environment(self) -> None:
        """Raise UsageError if the policy was trained by AskTell, without an environment to run it in, or if a module
        would have to be imported that only the file names."""
        if self.config.engine == ASK_TELL:
            raise UsageError(f"{self.path} was trained by ask and tell: there is no environment to run it in")
        if not self.trusted and (module := foreign_module(self.config.task)):
            raise UsageError(
                f"{self.path} was trained on {self.config.task}: this would import the module {module!r} because the "
                "file names it; add --allow-import if you trust it"
            )

    def engine(self, engine: str | None = None, **pool: Any) -> Engine:
        """An engine for the environment that the policy was trained on.

        Args:
            engine: instead of the one it was trained with.
            pool: threads, workers, gpu: see `offrank.engines.make_engine`.
        """
        config = self.config
        self.require_environment()
        return make_engine(
            config.task,
            engine or config.engine,
            **pool,
            env_args=config.env_args,
            clip_actions=config.clip_actions,
        )


def foreign_module(task: str) -> str | None:
    """The module that makes a task, if it has one that is not imported yet."""
    module = task.rpartition(":")[0]
    return module if module and module not in sys.modules else None


def initial_policy(source: str | Path | TrainedPolicy | None) -> TrainedPolicy | None:
    """A policy to start from: given itself, or by its file, or by a run folder, whose best one it is.

    Raises:
        UsageError: there is none.
    """
    if source is None or isinstance(source, TrainedPolicy):
        return source
    if not isinstance(source, str | Path):
        raise UsageError(f"init = {source!r}: give a policy, or the path of a file or run folder")
    return Saved.find(Path(source)).policy
