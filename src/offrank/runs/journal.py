"""Episodes that a user ran: checked, and kept in a journal until a checkpoint holds what became of them."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from offrank.core.arrays import FloatArray, Memory
from offrank.core.checks import LARGEST
from offrank.core.errors import EpisodeError, FileFormatError, UsageError
from offrank.core.files import load_arrays, save_arrays
from offrank.core.rollouts import Trajectory, check_finite
from offrank.core.space import Space


@dataclass(frozen=True)
class Journal:
    """A folder with one file per episode that was told."""

    folder: Path
    keep: bool  # the files of all episodes, not only of those that are still needed

    def has(self, id: str) -> bool:
        return self._file(id).is_file()

    def write(self, id: str, trajectory: Trajectory) -> None:
        arrays: Memory = {"observations": trajectory.observations, "rewards": trajectory.rewards}
        if trajectory.last_observation is not None:
            arrays["last_observation"] = trajectory.last_observation
        if trajectory.actions is not None:
            arrays["actions"] = trajectory.actions
        save_arrays(self._file(id), "episode", arrays, {"id": id, "terminated": trajectory.terminated})

    def read(self, id: str, space: Space, horizon: int, seed: int) -> Trajectory:
        """An episode, checked as when it was told.

        Raises:
            FileFormatError: its file is damaged, or of another run.
        """
        path = self._file(id)
        try:
            _, arrays, meta = load_arrays(path, "episode")
            try:
                observations, how = arrays["observations"], (meta["terminated"], True, arrays.get("actions"))
                if "last_observation" in arrays:
                    observations = np.concatenate([observations, arrays["last_observation"][None]])
                return checked(space, horizon, seed, arrays["rewards"], observations, *how)
            except (KeyError, ValueError, EpisodeError) as error:
                what = f"it has no {error}" if isinstance(error, KeyError) else error
                raise FileFormatError(f"{path} is not an episode of this run: {what}") from error
        except FileFormatError as error:
            raise FileFormatError(f"{error}; delete it to be asked for that episode again") from error

    def delete(self, iteration: int, used: Container[str]) -> None:
        """Delete the files of the iterations before one, and those of the ids `used`."""
        if self.keep:
            return
        for path in self._folder.glob("*.npz"):
            if path.stem < f"{iteration:06d}-" or path.stem in used:
                path.unlink(missing_ok=True)

    @property
    def _folder(self) -> Path:
        return self.folder / "told"

    def _file(self, id: str) -> Path:
        return self._folder / f"{id}.npz"


def checked(
    space: Space,
    horizon: int,
    seed: int,
    rewards: ArrayLike,
    observations: ArrayLike,
    terminated: bool,
    truncated: bool,
    actions: ArrayLike | None,
) -> Trajectory:
    """What a user says of an episode of at most `horizon` steps, as a trajectory.

    Raises:
        UsageError: the arrays do not fit, or it ended early and nobody says why.
        EpisodeError: a reward or an observation is not finite, or too large.
    """
    r, o = numbers("rewards", rewards), numbers("observations", observations)
    n, T = space.obs_dim, len(r) if r.ndim == 1 else 0
    if r.ndim != 1 or not 1 <= T <= horizon:
        raise UsageError(f"rewards of shape {r.shape}: expected (T,) with 1 <= T <= {horizon}")
    if o.shape not in ((T, n), (T + 1, n)):
        raise UsageError(f"observations of shape {o.shape}: expected ({T}, {n}) or ({T + 1}, {n}) for {T} rewards")
    if horizon > T and not terminated and not truncated:
        raise UsageError(
            f"the episode ended after {T} of {horizon} steps: say terminated=True (the task ended it) or "
            "truncated=True (it was cut short)"
        )
    check_finite(o, r, seed)
    done = None if actions is None else _checked_actions(space, actions, T)
    return Trajectory(o[:T], r, bool(terminated), o[T] if len(o) > T else None, done)


def _checked_actions(space: Space, actions: ArrayLike, T: int) -> FloatArray:
    a = numbers("actions", actions)
    if space.discrete:
        raise UsageError("actions are for robots with continuous ones: the action space is discrete")
    if a.shape != (T, space.act_dim):
        raise UsageError(f"actions of shape {a.shape}: expected ({T}, {space.act_dim}) for {T} rewards")
    if not (np.abs(a) <= LARGEST).all():
        raise UsageError(f"actions are not finite, or beyond {LARGEST:g}")
    return a


def numbers(name: str, values: ArrayLike) -> FloatArray:
    """An array of numbers that a user gave, in double precision.

    Raises:
        UsageError: it is none.
    """
    try:
        given = np.asarray(values)
        if given.dtype.kind not in "biufO":
            raise TypeError(f"they are of type {given.dtype}")
        return np.array(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{name} are not an array of numbers: {error}") from error
