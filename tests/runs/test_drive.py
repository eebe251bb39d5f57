"""Which lessons are carried out together or side by side, and when; and what is left of runs that were driven."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest

import offrank
from offrank.core import arithmetic, noise
from offrank.core.arrays import Memory
from offrank.core.errors import OffrankError
from offrank.core.work import Lesson
from offrank.runs import drive as module
from offrank.runs.drive import LessonQueue, LessonThreads, Signals

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


class Met(Lesson):
    """A lesson that ends when as many are under way as the barrier wants, or with an error."""

    batch_key = 0

    def __init__(self, barrier: threading.Barrier | None):
        self.barrier = barrier

    def carry_out(self) -> Memory:
        if self.barrier is None:
            raise OffrankError("it diverged")
        self.barrier.wait(10)
        return {}


def test_lessons_are_carried_out_side_by_side_and_fail_alone() -> None:
    threads, barrier = LessonThreads(2), threading.Barrier(2)
    assert threads.poll == module.POLL and threads.due([], idle=True) == []
    for run in "abc":
        threads.add(run, Met(None if run == "c" else barrier))  # type: ignore[arg-type]
    assert threads.poll < module.POLL
    done: dict[Any, Any] = {}
    while len(done) < 3:
        done |= {run: outcome for run, _, outcome in threads.due(list("abc"), idle=True)}  # type: ignore[arg-type]
    assert done["a"] == done["b"] == {} and str(done["c"]) == "it diverged"
    assert threads.poll == module.POLL
    threads.close()


def test_lessons_of_runs_that_have_ended_are_dropped() -> None:
    threads, barrier = LessonThreads(1), threading.Barrier(2)
    for run in "ab":
        threads.add(run, Met(barrier))  # type: ignore[arg-type]
    assert threads.due(list("c"), idle=False) == []  # type: ignore[arg-type]
    barrier.wait(10)  # that of a, which was under way; b's does not begin
    threads.close()
    assert barrier.n_waiting == 0 and threads.due(list("abc"), idle=True) == []  # type: ignore[arg-type]


def blas_threads() -> set[int]:
    return {one["num_threads"] for one in arithmetic._controller().info() if one["user_api"] == "blas"}


class Limited(Met):
    """A lesson that begins and ends its own limit of BLAS, and then says what holds."""

    def carry_out(self) -> Memory:
        with arithmetic.one_blas_thread():
            pass
        return {"threads": np.array(sorted(blas_threads()))}


def test_blas_has_one_thread_while_lessons_are_carried_out() -> None:
    with arithmetic._controller().limit(limits=2, user_api="blas"):
        threads = LessonThreads(2)
        assert blas_threads() == {2}
        for run in "abcd":
            threads.add(run, Limited(None))  # type: ignore[arg-type]
        done: list[Any] = []
        while len(done) < 4:
            done += threads.due(list("abcd"), idle=True)  # type: ignore[arg-type]
        assert [outcome["threads"].tolist() for _, _, outcome in done] == [[1]] * 4 and blas_threads() == {1}
        threads.close()
        assert blas_threads() == {2}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_fleet_learns_in_as_many_threads_as_its_engine_has(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, plain = list[int](), module.LessonThreads
    monkeypatch.setattr(module, "LessonThreads", lambda count: asked.append(count) or plain(count))
    small = {"hidden": 8, "batch": 4, "warmup_steps": 20}
    fleet = offrank.Fleet("Swimmer-v3", "guided", [0, 1], horizon=20, threads=threads, **small)
    together = [result["policy_sha256"] for result in fleet.learn(iterations=3, eval_every=0)]
    fleet.close()
    assert asked == [threads] and len(set(together)) == 2
    for seed, sha in enumerate(together):
        agent = offrank.Guided("Swimmer-v3", seed=seed, horizon=20, **small)
        assert agent.learn(iterations=3, eval_every=0).policy.sha256 == sha


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
