from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offrank.core.noise import BLOCK, Directions, Purpose, Role, _BlockCache, episode_seeds, size_cache

SIZE = 15


@given(seed=st.integers(0, 2**63 - 1), iteration=st.integers(0, 2**40))
@settings(max_examples=25, deadline=None)
def test_first_directions_do_not_depend_on_how_many_are_drawn(seed: int, iteration: int) -> None:
    few, many = (Directions(seed, iteration, count, SIZE) for count in (3, 2 * BLOCK + 1))
    assert np.array_equal(few.take(np.arange(3)), many.take(np.arange(3)))


def test_a_direction_is_the_same_alone_or_taken_with_others() -> None:
    directions = Directions(7, 2, 100, SIZE)
    everything = directions.take(np.arange(100))
    for index in ([99], [0, 40, 41], [64, 3, 64]):
        assert np.array_equal(directions.take(np.array(index)), everything[index])


def test_directions_are_the_same_after_leaving_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    directions = Directions(7, 2, 100, SIZE)
    before = directions.take(np.arange(100))
    monkeypatch.setattr("offrank.core.noise._cache", _BlockCache(limit=1))
    assert np.array_equal(directions.take(np.arange(100)), before)
    assert all(np.array_equal(directions.one(k), before[k]) for k in (99, 0, 50))


def test_cached_blocks_are_bounded() -> None:
    cache = _BlockCache(limit=3 * BLOCK * 15 * 8)
    for block in range(10):
        cache.get((0, 0, block, BLOCK, SIZE))
    assert cache._bytes <= cache.limit and len(cache._blocks) == 3


def test_directions_differ_by_seed_iteration_and_index() -> None:
    drawn = [Directions(seed, it, 2, SIZE).take(np.arange(2)) for seed in (0, 1) for it in (0, 1)]
    flat = np.concatenate(drawn).reshape(8, -1)
    assert len({row.tobytes() for row in flat}) == 8


def test_directions_are_standard_normal() -> None:
    from scipy.stats import kstest

    values = Directions(0, 0, 2000, SIZE).take(np.arange(2000)).ravel()
    assert kstest(values, "norm").pvalue > 0.001


def test_episode_seeds_are_a_function_of_seed_iteration_role_and_index() -> None:
    index = np.arange(50)
    seen = {(s, i, r): episode_seeds(s, i, r, index) for s in (0, 1) for i in (0, 5) for r in Role}
    assert np.array_equal(seen[0, 5, Role.PLUS][[3, 7]], episode_seeds(0, 5, Role.PLUS, np.array([3, 7])))
    every = np.concatenate(list(seen.values()))
    assert len(np.unique(every)) == len(every)
    assert every.min() >= 0 and every.max() < 2**31  # what any environment's reset accepts


def test_the_numbers_of_streams_and_roles_are_those_of_every_run_so_far() -> None:
    """Another number is another stream: no run would be resumed to the same bits."""
    roles = {"BEHAVIOUR": 0, "PLUS": 1, "MINUS": 2, "EVALUATION": 3, "MEMBER": 4, "RACE": 5}
    assert {role.name: role.value for role in Role} == roles
    purposes = "DIRECTIONS EPISODE_SEEDS START_STATE PROCESS_NOISE EXPLORATION CRITIC POLICY RANKING ACTIONS"
    assert {purpose.name: purpose.value for purpose in Purpose} == {n: i for i, n in enumerate(purposes.split(), 1)}
    assert episode_seeds(3, 4, Role.RACE, np.arange(3)).tolist() == [117232813, 1651390564, 1411376339]


def test_no_episodes_have_no_seeds() -> None:
    assert len(episode_seeds(0, 0, Role.PLUS, np.zeros(0, dtype=np.int64))) == 0


def test_the_cache_holds_the_directions_of_all_active_runs() -> None:
    blocks = 42
    many = Directions(seed=11, iteration=0, count=blocks * BLOCK, size=17 * 376)  # 69 MB

    def still_there_after_all() -> bool:
        first = many.one(0)
        for block in range(1, blocks):
            many.one(block * BLOCK)
        return np.shares_memory(many.one(0), first)

    try:
        size_cache(8 * many.count * 17 * 376)
        assert still_there_after_all()
    finally:
        size_cache(0)
    assert not still_there_after_all()


def test_a_cache_without_room_keeps_the_latest_block_alone() -> None:
    size_cache(0)
    first, second = (Directions(seed=12, iteration=i, count=2, size=3) for i in range(2))
    kept = second.one(0)
    assert np.shares_memory(second.one(1).base, kept.base)
    first.one(0)
    assert not np.shares_memory(second.one(0), kept)


def test_blocks_are_all_directions_in_order() -> None:
    directions = Directions(3, 7, 70, 10)
    blocks = list(directions.blocks())
    assert [len(block) for block in blocks] == [32, 32, 6]
    assert np.array_equal(np.concatenate(blocks), directions.take(np.arange(70)))
