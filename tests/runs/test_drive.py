"""Which lessons are carried out together, and when; and what is left of runs that were driven."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import pytest

import offrank
from offrank.core import noise
from offrank.core.arrays import Memory
from offrank.core.work import Lesson
from offrank.runs import drive as module
from offrank.runs.drive import LessonQueue, Signals

NOW, TOOK = [100.0], 2.0  # seconds on the clock, and of a batch


class Noted(Lesson):
    """A lesson that notes its batch."""

    batches: list[list[object]]

    def __init__(self, key: Hashable = 0):
        self.key = key

    @property
    def batch_key(self) -> Hashable:
        return self.key

    def carry_out(self) -> Memory:
        raise AssertionError("lessons of a queue are carried out together")

    @classmethod
    def carry_out_together(cls, lessons: Sequence[Any], owners: Sequence[object], device: str) -> list[Any]:
        assert device == "gpu" and len({lesson.key for lesson in lessons}) == 1
        cls.batches.append(list(owners))
        NOW[0] += TOOK
        return [{"learned": owner} for owner in owners]


class Other(Noted): ...


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> LessonQueue:
    """A queue in which four runs have had lessons of key 0, at a time that stands still but for lessons."""
    Noted.batches = []
    monkeypatch.setattr(module.time, "monotonic", lambda: NOW[0])
    queue = LessonQueue("gpu")
    add(queue, "abcd")
    assert len(queue.due(list("abcd"), idle=False)) == 4
    Noted.batches.clear()
    return queue


def add(queue: LessonQueue, runs: str, key: Hashable = 0, kind: type[Noted] = Noted) -> None:
    for run in runs:
        queue.add(run, kind(key))  # type: ignore[arg-type]


def batches(queue: LessonQueue, active: str = "abcd", idle: bool = False) -> list[str]:
    done = queue.due(list(active), idle)  # type: ignore[arg-type]
    assert all(outcome == {"learned": run} for run, _, outcome in done)
    found, Noted.batches[:] = ["".join(map(str, batch)) for batch in Noted.batches], []
    assert sorted(run for run, _, _ in done) == sorted("".join(found))  # type: ignore[type-var]
    return found


def test_a_batch_waits_until_all_runs_of_its_key_are_there(queue: LessonQueue) -> None:
    add(queue, "abc")
    assert batches(queue) == []
    add(queue, "d")
    assert batches(queue) == ["abcd"]
    assert batches(queue, idle=True) == []  # and is carried out once


def test_a_batch_waits_no_longer_than_the_last_one_took(queue: LessonQueue) -> None:
    add(queue, "a")
    NOW[0] += TOOK - 0.01
    add(queue, "b")  # the time counts from the first
    assert batches(queue) == []
    NOW[0] += 0.01
    assert batches(queue) == ["ab"]
    add(queue, "a")
    assert batches(queue) == []  # and anew for the next
    first = LessonQueue("gpu")
    add(first, "ab")
    assert batches(first) == ["ab"]  # of a key that nobody else has had


def test_a_batch_does_not_wait_if_there_is_nothing_else_to_do(queue: LessonQueue) -> None:
    add(queue, "d")
    assert batches(queue, idle=True) == ["d"]


def test_runs_that_have_ended_are_neither_waited_for_nor_taught(queue: LessonQueue) -> None:
    add(queue, "ab")
    assert batches(queue, "acd") == []
    assert batches(queue, "a") == ["a"]
    add(queue, "b")
    assert batches(queue, "a", idle=True) == []


def test_lessons_of_another_key_or_kind_are_batches_of_their_own(queue: LessonQueue) -> None:
    add(queue, "ab", key=1)
    add(queue, "cd", key=1, kind=Other)
    assert batches(queue) == ["ab", "cd"]  # all runs of their kind are there
    add(queue, "a", key=0)
    add(queue, "b", key=1)
    assert batches(queue) == ["a", "b"]


def test_a_signal_is_stored_and_a_second_one_or_one_in_a_hung_environment_interrupts() -> None:
    signals = Signals(None)
    signals(15, None)
    assert signals.caught == 15
    with pytest.raises(KeyboardInterrupt):
        signals(2, None)
    engine = offrank.engines.make_engine("LQR")
    calm, hung = Signals(engine), Signals(engine)
    calm(2, None)
    engine.interruptible = True
    with pytest.raises(KeyboardInterrupt):
        hung(2, None)
    engine.close()


@pytest.mark.parametrize(
    ("algorithm", "settings", "blocks"),
    [
        (offrank.Guided, {"hidden": 8, "batch": 4, "warmup_steps": 100}, 1),  # which reads its directions once
        (offrank.ARS, {"n_directions": 40, "n_top": 4}, 4),  # two blocks of each of two iterations
    ],
)
def test_directions_of_earlier_iterations_are_not_kept(algorithm: Any, settings: dict[str, Any], blocks: int) -> None:
    agent = algorithm("Swimmer-v3", horizon=20, threads=1, **settings)
    agent.learn(iterations=6, eval_every=0)
    agent.close()
    assert len(noise._cache._blocks) <= blocks
