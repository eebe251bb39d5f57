"""The TD3 lessons of many runs, carried out in one batched computation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from learners import BOX, LIMIT, N_ACT, N_OBS, SMALL, Living, Owner, assert_close, devices
from offrank.algorithms.cem_rl import CEMRLSettings
from offrank.algorithms.learning import td3
from offrank.algorithms.learning.td3 import TD3Lesson
from offrank.core.arrays import FloatArray, Memory
from offrank.core.errors import EngineError, OffrankError
from offrank.core.space import Space

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from offrank.algorithms.learning import batched_td3  # noqa: E402
from offrank.algorithms.learning.batched_td3 import UNROLLED, TD3Trainer  # noqa: E402
from offrank.algorithms.learning.device import DeviceReplay, recorder  # noqa: E402


class SameDraws:
    """The rows and the noise that `carry_out` draws."""

    def __init__(self, lesson: TD3Lesson, device: str):
        self._starts = np.flatnonzero(lesson.replay["ahead"])
        random = lesson.stream(0)
        self._critics = [self._all(lesson, random, share, True) for share in lesson.shares]
        streams = [lesson.stream(1 + member) for member in range(len(lesson.thetas))]
        self._actors = [self._all(lesson, stream, lesson.actor_updates, False)[0] for stream in streams]
        self._deviation = lesson.settings.target_noise

    def _all(self, lesson: TD3Lesson, random: Any, updates: int, noisy: bool) -> tuple[Any, Any]:
        batch, p = lesson.settings.batch, lesson.policy.p
        drawn = list(lesson._draws(random, self._starts, updates, noisy))
        rows = np.concatenate([np.zeros((0, batch), dtype=np.int64), *(rows for rows, _ in drawn)])
        noise = np.concatenate([np.zeros((0, batch, p), dtype=np.float32), *(some for _, some in drawn if noisy)])
        return np.searchsorted(self._starts, rows), noise

    def critics(self, rows: Any, noise: Any, high: int) -> None:
        at, eps = self._critics[0]
        count = min(UNROLLED, len(at))
        rows[:count] = torch.as_tensor(at[:count])
        noise[:count] = torch.as_tensor(eps[:count] / self._deviation)
        self._critics[0] = at[count:], eps[count:]
        if len(at) == count:
            self._critics.pop(0)

    def actors(self, rows: Any, high: int) -> None:
        for member, at in enumerate(self._actors):
            count = min(UNROLLED, len(at))
            rows[member, :count] = torch.as_tensor(at[:count])
            self._actors[member] = at[count:]


class Learner(Living):
    """Its lessons too."""

    def __init__(self, seed: int, policy: str = "skip:3", space: Space = BOX, **settings: Any):
        super().__init__(seed, policy, space)
        self.settings = CEMRLSettings(**(SMALL | {"gradient_members": 3} | settings))
        self.critics = td3.new_critics(self.settings, self.kind, seed)

    def thetas(self) -> FloatArray:
        return 0.3 * np.random.default_rng(self.iteration).normal(size=(3, self.kind.size))

    def lesson(self, critic_updates: int, actor_updates: int) -> TD3Lesson:
        self.iteration += 1
        return TD3Lesson(
            self.settings, self.space, self.kind, self.whitening, self.critics, self.replay, self.thetas(),
            critic_updates, actor_updates, self.seed, self.iteration,
        )  # fmt: skip

    def learn(self, outcome: Memory) -> None:
        self.critics = {name: value for name, value in outcome.items() if name != "thetas"}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(
    ("policy", "space"), [("linear", BOX), ("skip:3", BOX), ("mlp:5,4", Space(N_OBS, N_ACT, 12)), ("affine", BOX)]
)
def test_lessons_together_are_the_lessons_one_by_one(device: str, policy: str, space: Space) -> None:
    """With different numbers of updates: several graphs, a part of one, and shares of none."""
    trainer, learners = TD3Trainer(device, SameDraws), [Learner(seed, policy, space) for seed in range(3)]
    for counts in ([(130, 45), (61, 7), (2, 20)], [(3, 1), (90, 33), (60, 40)], [(20, 5), (70, 21), (0, 9)]):
        for learner in learners:
            learner.live(3 + 4 * learner.seed)  # 39 to 143 rows each: the replay of the last is full at once
        lessons = [learner.lesson(*count) for learner, count in zip(learners, counts, strict=True)]
        together = trainer.train(lessons, learners)
        for learner, lesson, other in zip(learners, lessons, together, strict=True):
            one = lesson.carry_out()
            assert np.abs(one["thetas"] - lesson.thetas).max() > 1e-3
            assert_close(one, other)
            learner.learn(one)


@pytest.mark.parametrize("device", devices())
def test_a_run_learns_the_same_whichever_runs_are_beside_it(device: str) -> None:
    def outcome(others: int) -> Any:
        learners = [Learner(seed) for seed in range(1 + others)]
        for learner in learners:
            learner.live(4)
        lessons = [learner.lesson(30 + 40 * learner.seed, 25 + 30 * learner.seed) for learner in learners]
        return TD3Trainer(device).train(lessons, learners)[0]

    alone = outcome(0)
    assert_close(alone, outcome(2))
    lesson = Learner(0)
    lesson.live(4)
    assert np.abs(lesson.lesson(30, 25).carry_out()["q.w2"] - alone["q.w2"]).max() > 1e-4  # other draws


@pytest.mark.parametrize("device", devices())
def test_a_resumed_run_learns_the_same_from_a_replay_uploaded_anew(device: str) -> None:
    """The ring of the run that was not interrupted has wrapped around."""
    going, learner = TD3Trainer(device), Learner(0)
    for _ in range(4):
        learner.live(5)
        lesson = learner.lesson(25, 10)
        (one,) = going.train([lesson], [learner])
    assert learner.written > len(learner.replay["gain"]) == LIMIT
    (other,) = TD3Trainer(device).train([lesson], [Owner()])
    assert_close(one, other)


@pytest.mark.parametrize("device", devices())
def test_only_new_rows_are_copied_and_the_oldest_make_room(device: str) -> None:
    learner, ring = Learner(0), DeviceReplay(device, LIMIT)
    copied = []
    for episodes in (3, 2, 0, 5, 12, 2, 40, 1):
        learner.live(episodes)
        if episodes == 2 and len(copied) == 5:
            learner.live(1)
        ring.update(learner.replay)
        copied.append(ring.uploaded)
        starts, ends = ring.transitions().cpu().numpy().T
        held, rows = learner.replay, ring.rows.cpu().numpy()
        at = np.flatnonzero(held["ahead"])
        np.testing.assert_array_equal(rows[starts, :N_OBS], held["state"][at])
        np.testing.assert_array_equal(rows[starts, N_OBS:-2], held["action"][at])
        np.testing.assert_array_equal(rows[starts, -2:], np.stack([held["gain"], held["boot"]], axis=1)[at])
        np.testing.assert_array_equal(rows[ends, :N_OBS], held["state"][at + 1])
    assert copied == [39, 26, 0, 65, 156, 39, 200, 13] and ring.capacity == LIMIT
    learner.replay["state"] = learner.replay["state"].copy()
    learner.live(1)
    learner.replay["state"][-14] += 1  # what came before is not what the device has
    ring.update(learner.replay)
    assert ring.uploaded == LIMIT
    del learner.replay["written"]  # of a checkpoint of before there was the number
    ring.update(learner.replay)
    assert ring.uploaded == LIMIT


def test_a_replay_on_the_device_grows_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from offrank.algorithms.learning import device

    monkeypatch.setattr(device, "LEAST_ROWS", 16)
    learner, ring, capacities = Learner(0), DeviceReplay("cpu", LIMIT), []
    for _ in range(7):
        learner.live(2)
        ring.update(learner.replay)
        capacities.append((ring.capacity, ring.uploaded))
        np.testing.assert_array_equal(
            ring.rows[ring.transitions()[:, 0]][:, 0].numpy(), learner.replay["state"][learner.replay["ahead"] > 0, 0]
        )
    assert capacities == [(52, 26), (52, 26), (156, 78), (156, 26), (156, 26), (156, 26), (200, 182)]


def test_a_run_that_has_ended_needs_no_room_on_the_device() -> None:
    trainer, learners = TD3Trainer("cpu"), [Learner(0), Learner(1)]
    for learner in learners:
        learner.live(4)
    trainer.train([learner.lesson(5, 5) for learner in learners], learners)
    learners[0].done = True
    trainer.train([learners[1].lesson(5, 5)], learners[1:])
    assert list(trainer._replays) == [learners[1]]


@pytest.mark.parametrize("device", devices())
def test_a_run_that_diverges_fails_alone(device: str) -> None:
    learners = [Learner(seed) for seed in range(3)]
    for learner in learners:
        learner.live(4)
    lessons = [learner.lesson(45, 25) for learner in learners]
    lessons[1].critics["q.w1"][:] = 1e30
    trainer = TD3Trainer(device, SameDraws)
    first, broken, last = trainer.train(lessons, learners)
    assert isinstance(broken, OffrankError) and str(broken) == str(lessons[1].attempt())
    assert "became non-finite in iteration 1" in str(broken)
    assert_close(lessons[0].carry_out(), first)
    assert_close(lessons[2].carry_out(), last)
    assert_close(lessons[0].carry_out(), trainer.train([lessons[0], lessons[2]], [learners[0], learners[2]])[0])


def test_lessons_one_after_the_other_fail_alone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(td3, "has_torch", lambda device: False)
    learners = [Learner(seed) for seed in range(2)]
    for learner in learners:
        learner.live(4)
    lessons = [learner.lesson(5, 5) for learner in learners]
    lessons[0].critics["q.w1"][:] = np.nan
    broken, other = TD3Lesson.carry_out_together(lessons, learners, "cuda")
    assert isinstance(broken, OffrankError)
    assert_close(lessons[1].carry_out(), other)


def test_no_room_on_the_device_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner(0)
    learner.live(4)

    def full(self: Any, replay: Memory) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    monkeypatch.setattr(DeviceReplay, "update", full)
    says = "^cpu has no room for the lessons of 1 runs, with a replay of 200 transitions each: train fewer runs at a "
    with pytest.raises(EngineError, match=f"{says}time, or set a smaller replay$"):
        TD3Trainer("cpu").train([learner.lesson(5, 5)], [learner])


def test_a_lesson_on_a_device_is_the_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = TD3Trainer("cpu", SameDraws)
    monkeypatch.setattr(batched_td3, "trainer_on", lambda device: trainer)
    learner = Learner(0)
    learner.live(4)
    lesson = learner.lesson(30, 10)
    (found,) = TD3Lesson.carry_out_together([lesson], [learner], "cpu")
    assert learner in trainer._replays
    assert_close(lesson.carry_out(), found)


def test_lessons_of_other_bounds_or_numbers_of_actors_are_batched_apart() -> None:
    learner = Learner(0)
    lesson = learner.lesson(5, 5)
    assert lesson.batch_key == learner.lesson(6, 7).batch_key
    others = [replace(lesson, space=Space(N_OBS, N_ACT, 12)), replace(lesson, thetas=lesson.thetas[:2])]
    assert len({lesson.batch_key, *(other.batch_key for other in others)}) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_recorded_work_is_repeated_on_the_same_arrays() -> None:
    x = torch.zeros(3, device="cuda:0")
    work = recorder("cuda:0")(lambda: x.add_(1))
    x.zero_()
    work()
    work()
    assert x.tolist() == [2, 2, 2]
