"""What runs on a cluster: a process that holds a local engine, and runs pieces of requests on it."""

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
from offrank.engines.gymnasium.stage import one_line
from offrank.engines.ray.fingerprint import fingerprint


@dataclass(frozen=True)
class Hello:
    """What a worker says of itself."""

    space: Space
    host: str
    fingerprint: dict[str, str]


class Actor:
    """A Ray actor. Errors that are meant for the user are returned, not raised: Ray would wrap them in its own.

    Args:
        make: cloudpickled function that makes the engine.
        paths: where the driver finds its modules; looked at last, as far as they are on this node too.
    """

    def __init__(self, make: bytes, paths: list[str]):
        self._make = make
        self._engine: Engine | None = None
        sys.path.extend(path for path in paths if path not in sys.path and Path(path).exists())

    def hello(self) -> Hello | OffrankError:
        """Make the engine, the first time; says what it found."""
        warnings.simplefilter("ignore")  # nobody reads them here
        threadpool_limits(1)  # the other CPUs belong to other workers
        try:
            self._engine = self._engine or cloudpickle.loads(self._make)()
        except OffrankError as error:
            return error
        except Exception as error:
            return UsageError(f"a worker on {platform.node()} cannot make the environment: {one_line(error)}")
        return Hello(self._engine.space, platform.node(), fingerprint())

    def run(self, request: Request, episodes: list[int]) -> tuple[Rollouts | OffrankError, float]:
        """Run some of the episodes of a request; with the seconds it took."""
        assert self._engine is not None
        begin = time.perf_counter()
        try:
            outcome: Rollouts | OffrankError = self._engine.run(request.take(episodes))
        except OffrankError as error:
            outcome = error
        return outcome, time.perf_counter() - begin
