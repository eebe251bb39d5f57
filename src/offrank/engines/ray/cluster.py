"""A Ray cluster: its address, the resources of a worker, and the number of workers it has room for."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from offrank.core.errors import UsageError, require
from offrank.engines.gymnasium.env_runner import one_line


@dataclass(frozen=True)
class Cluster:
    """Where the workers of the ray engine run, and the resources of each."""

    address: str | None = None  # of a running cluster; None: found by Ray (RAY_ADDRESS, this machine), or a new one
    cpus_per_worker: float = 1.0
    resources: Mapping[str, float] = field(default_factory=dict)  # other resources of a worker, such as {"robot": 1}
    episode_seconds: float | None = None  # an episode that takes longer has hung: its worker is replaced
    mixed_nodes: bool = False  # warn, instead of raising an error, if nodes would give different bits
    runtime_env: Mapping[str, Any] | None = None  # Ray's runtime environment of the workers: packages and files

    def __post_init__(self) -> None:
        for name, amount in self.needs.items():
            if not (0 < amount < math.inf):
                what = "cpus_per_worker" if name == "CPU" else f"resource {name}"
                raise UsageError(f"{what} = {amount}: must be a positive number")
        if self.episode_seconds is not None and not self.episode_seconds > 0:
            raise UsageError(f"episode_seconds = {self.episode_seconds}: must be positive")

    def limited(self, episode_seconds: float | None) -> Cluster:
        """The same cluster with this limit on the time of an episode; None leaves it as it is."""
        return self if episode_seconds is None else replace(self, episode_seconds=episode_seconds)

    @property
    def needs(self) -> dict[str, float]:
        """The resources of one worker, by Ray's names."""
        return {"CPU": self.cpus_per_worker, **self.resources}

    @property
    def slots(self) -> int:
        """Threads of a worker's native engine."""
        return max(1, int(self.cpus_per_worker))

    def room(self, nodes: Iterable[Mapping[str, Any]]) -> int:
        """The number of workers that fit on the live nodes, as listed by `ray.nodes`, if nothing else runs there."""
        alive = [node["Resources"] for node in nodes if node["Alive"]]
        return sum(
            min(math.floor(node.get(name, 0.0) / amount + 1e-9) for name, amount in self.needs.items())
            for node in alive
        )


class Connection:
    """The connection of this process to a Ray cluster, shared by its engines. If it was opened here, it is shut down
    when the last engine leaves."""

    def __init__(self) -> None:
        self._users = 0
        self._ours = False

    def join(self, address: str | None) -> Any:
        """Connect, unless this process is connected already. Returns the ray module.

        Raises:
            UsageError: Ray is not installed, there is no cluster at the address, or this process is connected to
                another one.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray = require("ray", "ray")
        if ray.is_initialized():
            self._check_same(ray, address)
        else:
            try:
                ray.init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            except Exception as error:
                where = "on this machine" if address in (None, "local") else f"at {address!r}"
                raise UsageError(f"cannot reach or start Ray {where}: {one_line(error)}") from error
            self._ours = True
        self._users += 1
        return ray

    def leave(self) -> None:
        self._users -= 1
        if self._users == 0 and self._ours:
            self._ours = False
            require("ray", "ray").shutdown()

    def _check_same(self, ray: Any, address: str | None) -> None:
        here = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", "local", here):
            raise UsageError(f"this process is connected to the Ray cluster at {here!r}, not {address!r}")


CONNECTION = Connection()
