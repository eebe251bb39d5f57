"""Episodes that cannot be trusted are named by their first bad step."""

from __future__ import annotations

import numpy as np
import pytest

from offrank.core.errors import EpisodeError
from offrank.core.rollouts import Episode, Rollouts, Trajectory, check_finite


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        ("rewards", np.nan, r"non-finite reward \(nan\)"),
        ("observations", -np.inf, r"non-finite observation \(-inf\)"),
        ("rewards", 1.1e30, r"reward of 1.1e\+30, too large to learn from \(at most 1e\+30\)"),
        ("observations", -1e200, r"observation of -1e\+200, too large"),
    ],
)
def test_the_first_bad_value_is_named(where: str, value: float, says: str) -> None:
    episode = {"observations": np.zeros((6, 3)), "rewards": np.full(6, 1e30)}
    check_finite(episode["observations"], episode["rewards"], 8)
    episode[where][2] = value
    episode[where][4] = 3 * value if np.isfinite(value) else np.inf
    if where == "observations":
        episode[where][2, [0, 2]] = 5.0
    with pytest.raises(EpisodeError, match=says) as caught:
        check_finite(episode["observations"], episode["rewards"], 8)
    assert (caught.value.seed, caught.value.step) == (8, 2)


def test_an_unknown_last_observation_is_the_one_before_it() -> None:
    seen = np.arange(8.0).reshape(4, 2)
    assert Trajectory(seen, np.zeros(4), False).last.tolist() == [6.0, 7.0]
    assert Trajectory(seen, np.zeros(4), False, np.array([9.0, 9.0])).last.tolist() == [9.0, 9.0]


@pytest.mark.parametrize("keep", [True, False])
def test_rollouts_are_made_of_episodes_and_give_them_back(keep: bool) -> None:
    trajectory = Trajectory(np.ones((3, 2)), np.ones(3), True) if keep else None
    made = [Episode(1.5 * k, 3, np.full(2, k), np.full(2, 2.0 * k), trajectory) for k in range(2)]
    found = Rollouts.of(made)
    assert found.steps == 6 and len(found.trajectories) == 2 * keep
    for before, after in zip(made, found.episodes(), strict=True):
        assert (before.total, before.length, before.trajectory) == (after.total, after.length, after.trajectory)
        assert before.mean.tolist() == after.mean.tolist() and before.m2.tolist() == after.m2.tolist()
