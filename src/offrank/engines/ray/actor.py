"""The actor that runs on a cluster: a process with a local engine, which runs parts of requests."""

from __future__ import annotations

import platform
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
from threadpoolctl import threadpool_limits

from offrank.core.errors import OffrankError, UsageError
from offrank.core.rollouts import Request, Rollouts
from offrank.core.space import Space
from offrank.engines.base import Engine
from offrank.engines.gymnasium.env_runner import one_line
from offrank.engines.ray.fingerprint import fingerprint


@dataclass(frozen=True)
class WorkerInfo:
    """A worker's description of itself."""

    space: Space
    host: str
    fingerprint: dict[str, str]


class Actor:
    """A Ray actor. OffrankErrors are returned, not raised, because Ray would wrap them in errors of its own.

    Args:
        make: cloudpickled function that makes the engine.
        paths: sys.path of the driver; those that exist on this node are appended to sys.path here.
    """

    def __init__(self, make: bytes, paths: list[str]):
        self._make = make
        self._engine: Engine | None = None
        sys.path.extend(path for path in paths if path not in sys.path and Path(path).exists())

    def info(self) -> WorkerInfo | OffrankError:
        """Make the engine, if this is the first call, and describe this worker."""
        warnings.simplefilter("ignore")  # they would not be shown to the user
        threadpool_limits(1)  # the other CPUs are used by other workers
        try:
            self._engine = self._engine or cloudpickle.loads(self._make)()
        except OffrankError as error:
            return error
        except Exception as error:
            return UsageError(f"a worker on {platform.node()} cannot make the environment: {one_line(error)}")
        return WorkerInfo(self._engine.space, platform.node(), fingerprint())

    def run(self, request: Request, episodes: list[int]) -> tuple[Rollouts | OffrankError, float]:
        """Run the given episodes of a request. Returns their rollouts, or an error, and the seconds it took."""
        assert self._engine is not None
        begin = time.perf_counter()
        try:
            outcome: Rollouts | OffrankError = self._engine.run(request.take(episodes))
        except OffrankError as error:
            outcome = error
        return outcome, time.perf_counter() - begin
