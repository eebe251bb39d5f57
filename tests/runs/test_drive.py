"""Which lessons are carried out together or side by side, and when; and what is left of runs that were driven."""

from __future__ import annotations

import sys
import threading
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import pytest

import offrank
from offrank.core import arithmetic, noise
from offrank.core.arrays import Memory
from offrank.core.errors import EngineError, OffrankError
from offrank.core.work import Lesson, device_lock
from offrank.runs import drive as module
from offrank.runs.drive import LessonQueue, LessonThreads, Signals


class Noted(Lesson):
    """A lesson that notes its batch, and ends when the test allows it."""

    batches: list[str]
    gate: threading.Semaphore

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
        assert threading.current_thread() is not threading.main_thread() and device_lock.locked()
        cls.batches.append("".join(map(str, owners)))
        assert cls.gate.acquire(timeout=10)
        if "x" in owners:
            raise EngineError("gpu has no room")
        return [{"learned": owner} for owner in owners]


class Other(Noted): ...


@pytest.fixture
def queue() -> Iterator[LessonQueue]:
    Noted.batches, Noted.gate = [], threading.Semaphore(0)
    queue = LessonQueue("gpu")
    yield queue
    Noted.gate.release(10)
    queue.close()


def add(queue: LessonQueue, runs: str, key: Hashable = 0, kind: type[Noted] = Noted) -> None:
    for run in runs:
        queue.add(run, kind(key))  # type: ignore[arg-type]


def ended(queue: LessonQueue, active: str = "abcdx", batches: int = 0) -> str:
    """The runs whose lessons have ended, after as many batches more."""
    done: list[Any] = queue.due(list(active), idle=False)  # type: ignore[arg-type]
    for _ in range(batches):
        Noted.gate.release()
        more: list[Any] = []
        while not more and queue.poll < module.POLL:
            more = queue.due(list(active), idle=True)  # type: ignore[arg-type]
        done += more
    assert all(outcome == {"learned": run} for run, _, outcome in done)
    return "".join(run for run, _, _ in done)


def test_lessons_that_wait_when_the_gpu_is_free_are_one_batch(queue: LessonQueue) -> None:
    assert ended(queue) == "" and queue.poll == module.POLL
    add(queue, "a")
    assert ended(queue) == "" and queue.poll < module.POLL
    add(queue, "bc")
    assert ended(queue) == ""
    assert ended(queue, batches=1) == "a"
    add(queue, "ad")
    assert ended(queue, batches=1) == "bc"
    assert ended(queue, batches=1) == "ad" and queue.poll == module.POLL
    assert Noted.batches == ["a", "bc", "ad"]


def test_runs_that_have_ended_are_neither_taught_nor_told(queue: LessonQueue) -> None:
    add(queue, "ab")
    assert ended(queue, "abcd") == ""
    add(queue, "c")
    add(queue, "d", key=1)
    assert ended(queue, "ad", batches=2) == "ad" and Noted.batches == ["ab", "d"]


def test_lessons_of_another_key_or_kind_are_batches_of_their_own(queue: LessonQueue) -> None:
    add(queue, "ab", key=1)
    add(queue, "c", key=1, kind=Other)
    add(queue, "d", key=0)
    assert ended(queue, batches=3) == "abcd" and Noted.batches == ["ab", "c", "d"]


def test_what_a_batch_raises_is_raised_where_runs_are_driven(queue: LessonQueue) -> None:
    add(queue, "x")
    with pytest.raises(EngineError, match="no room"):
        ended(queue, batches=1)


def test_threads_take_turns_more_often_only_while_there_is_a_queue() -> None:
    before, queue = sys.getswitchinterval(), LessonQueue("gpu")
    assert sys.getswitchinterval() == before
    Noted.batches, Noted.gate = [], threading.Semaphore(0)
    add(queue, "a")
    assert sys.getswitchinterval() < before
    queue.close()
    assert sys.getswitchinterval() == before and Noted.batches == []


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


def test_blas_has_one_thread_while_runs_are_driven() -> None:
    found = list[set[int]]()
    with arithmetic._controller().limit(limits=2, user_api="blas"):
        agent = offrank.ARS("LQR", seed=0)
        agent.learn(iterations=2, eval_every=0, callback=lambda run, record: found.append(blas_threads()))
        assert found == [{1}, {1}] and blas_threads() == {2}


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
    for _ in range(2):  # a group of processes may get SIGTERM from several
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
