"""The lessons of many guided runs, carried out in one batched computation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from learners import BOX, N_ACT, N_OBS, SMALL, Living, Owner, assert_close, devices
from offrank.algorithms.guided import GuidedSettings
from offrank.algorithms.learning import actor_critic
from offrank.algorithms.learning.actor_critic import ActorCriticLesson
from offrank.core.errors import OffrankError
from offrank.core.space import Space

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from offrank.algorithms.learning import batched_actor_critic  # noqa: E402
from offrank.algorithms.learning.batched_actor_critic import DRAWN, UNROLLED, ActorCriticTrainer  # noqa: E402
from offrank.algorithms.learning.batched_networks import Layout  # noqa: E402

FREE = Space(N_OBS, N_ACT, 12)


class SameDraws:
    """The rows and the noise that `carry_out` draws. The first update of a run with an odd number of them so far is the
    second of a pair."""

    def __init__(self, lesson: ActorCriticLesson, device: str):
        settings, starts = lesson.settings, np.flatnonzero(lesson.replay["ahead"])
        odd = int(lesson.learner["critic.step"]) % 2
        before = odd * [(np.zeros(settings.batch, dtype=np.int64), np.zeros((settings.batch, lesson.policy.p)))]
        drawn = [(np.searchsorted(starts, at), eps / settings.target_noise) for at, eps in lesson._draws()]
        self._drawn = before + drawn

    def next(self, rows: Any, noise: Any, high: int) -> None:
        now, self._drawn = self._drawn[:DRAWN], self._drawn[DRAWN:]
        for u, (at, eps) in enumerate(now):
            rows[u], noise[u] = torch.as_tensor(at), torch.as_tensor(eps)


class Learner(Living):
    """Its lessons too."""

    def __init__(self, seed: int, policy: str = "skip:4", space: Space = BOX, **settings: Any):
        super().__init__(seed, policy, space)
        self.settings = GuidedSettings(**(SMALL | {"critic_rate": 1e-3} | settings))
        theta = 0.3 * np.random.default_rng(seed).normal(size=self.kind.size)
        self.learner = actor_critic.new_learner(self.settings, self.kind, theta, seed)

    def lesson(self, updates: int) -> ActorCriticLesson:
        self.iteration += 1
        return ActorCriticLesson(
            self.settings, self.space, self.kind, self.whitening, self.learner, self.replay,
            updates, self.seed, self.iteration,
        )  # fmt: skip


def alive(count: int) -> list[Learner]:
    learners = [Learner(seed) for seed in range(count)]
    for learner in learners:
        learner.live(4)
    return learners


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("space", [BOX, FREE, Space(N_OBS, N_ACT, 12, discrete=True)], ids=["box", "free", "discrete"])
@pytest.mark.parametrize("policy", ["linear", "skip:4", "mlp:5,4"])
def test_lessons_together_are_the_lessons_one_by_one(device: str, policy: str, space: Space) -> None:
    """With different numbers of updates, odd and even: none, one, a whole graph, several, and rows drawn twice."""
    trainer, learners = ActorCriticTrainer(device, SameDraws), [Learner(seed, policy, space) for seed in range(3)]
    for counts in ([45, 7, 20], [1, DRAWN + 4, 0], [UNROLLED, 38, 1], [30, 0, UNROLLED - 1]):
        for learner in learners:
            learner.live(3 + 4 * learner.seed)  # 39 to 143 rows each: the replay of the last is full at once
        lessons = [learner.lesson(count) for learner, count in zip(learners, counts, strict=True)]
        together = trainer.train(lessons, learners)
        for learner, lesson, other in zip(learners, lessons, together, strict=True):
            one = lesson.carry_out()
            assert_close(one, other)
            moved = np.abs(one["actor.theta"] - lesson.learner["actor.theta"]).max()
            assert (moved > 1e-3) == (int(one["critic.step"]) // 2 > int(lesson.learner["critic.step"]) // 2)
            learner.learner = one


@pytest.mark.parametrize("device", devices())
def test_critics_stay_on_the_device_unless_they_are_others(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, pack = list[str](), Layout.pack
    monkeypatch.setattr(Layout, "pack", lambda self, nets, rows: packed.append("") or pack(self, nets, rows))
    learners, trainer = alive(2), ActorCriticTrainer(device, SameDraws)
    for round, copied in enumerate((8, 0, 4, 0)):  # 4 of each run: the critics, slow copies and two moments
        if round == 2:  # as after a checkpoint was read
            learners[1].learner = {name: array.copy() for name, array in learners[1].learner.items()}
        lessons = [learner.lesson(5 + round) for learner in learners]
        outcomes = trainer.train(lessons, learners)
        for learner, lesson, other in zip(learners, lessons, outcomes, strict=True):
            assert_close(lesson.carry_out(), other)
            learner.learner = other
        assert len(packed) == copied
        packed.clear()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("before", [0, 1])
def test_the_actor_waits_for_its_critics(device: str, before: int) -> None:
    learners = alive(3)
    for learner in learners:
        learner.learner = learner.lesson(before).carry_out()
    lessons = [replace(learners[k].lesson(45), alone=alone) for k, alone in enumerate((45, 21, 0))]
    together = ActorCriticTrainer(device, SameDraws).train(lessons, learners)
    for lesson, other in zip(lessons, together, strict=True):
        one = lesson.carry_out()
        assert_close(one, other)
        still = np.array_equal(one["actor.theta"], lesson.learner["actor.theta"])
        assert still == (lesson.alone == 45) and one["actor.second"].any()
    assert np.array_equal(together[0]["actor.theta"], lessons[0].learner["actor.theta"])


@pytest.mark.parametrize("device", devices())
def test_each_run_has_its_own_limit_on_the_norm_of_the_last_weights(device: str) -> None:
    learners, limits = alive(3), (0.05, np.inf, 0.0)
    lessons = [replace(learner.lesson(25), limit=limit) for learner, limit in zip(learners, limits, strict=True)]
    assert len({lesson.batch_key for lesson in lessons}) == 1
    assert replace(lessons[0], limit=None).batch_key != lessons[0].batch_key
    together = ActorCriticTrainer(device, SameDraws).train(lessons, learners)
    for lesson, other in zip(lessons, together, strict=True):
        assert_close(lesson.carry_out(), other)
    norms = [np.linalg.norm(lessons[0].policy.layers(out["actor.theta"])[-1].weights) for out in together]
    assert norms[0] == pytest.approx(0.05, rel=1e-4) and norms[1] > 0.05 and norms[2] == 0


@pytest.mark.parametrize("device", devices())
def test_runs_with_other_rates_and_targets_learn_together(device: str) -> None:
    learners = alive(3)
    learners[1].settings = replace(learners[1].settings, critic_rate=2e-3, actor_rate=1e-4, slow=0.5, reward_unit=1.0)
    learners[2].settings = replace(
        learners[2].settings, target_noise=0.4, target_noise_clip=0.1, level=False, pessimism=0.3
    )
    lessons = [learner.lesson(25) for learner in learners]
    assert len({lesson.batch_key for lesson in lessons}) == 1
    together = ActorCriticTrainer(device, SameDraws).train(lessons, learners)
    for lesson, other in zip(lessons, together, strict=True):
        assert_close(lesson.carry_out(), other)
    wider = replace(lessons[0], settings=replace(lessons[0].settings, hidden=9))
    assert wider.batch_key != lessons[0].batch_key


@pytest.mark.parametrize("device", devices())
def test_each_action_has_its_own_range_and_states_have_outliers(device: str) -> None:
    space = Space(N_OBS, N_ACT, 12, low=np.array([-0.4, -np.inf]), high=np.array([1.0, np.inf]))
    learner = Learner(0, "linear", space)
    learner.live(4)
    learner.whitening = replace(learner.whitening, scale=np.array([100.0, 0.1, 1.0]))
    lesson = learner.lesson(31)
    (found,) = ActorCriticTrainer(device, SameDraws).train([lesson], [learner])
    assert_close(lesson.carry_out(), found)


@pytest.mark.parametrize("device", devices())
def test_a_run_learns_the_same_whichever_runs_are_beside_it(device: str) -> None:
    def outcome(others: int) -> Any:
        learners = alive(1 + others)
        lessons = [learner.lesson(31 + 90 * learner.seed) for learner in learners]
        return ActorCriticTrainer(device).train(lessons, learners)[0]

    alone = outcome(0)
    assert_close(alone, outcome(2))
    other_draws = alive(1)[0].lesson(31).carry_out()
    assert np.abs(other_draws["critic.q.w2"] - alone["critic.q.w2"]).max() > 1e-4


@pytest.mark.parametrize("device", devices())
def test_a_resumed_run_learns_the_same_from_a_replay_uploaded_anew(device: str) -> None:
    going, learner = ActorCriticTrainer(device), Learner(0)
    for _ in range(4):
        learner.live(5)
        lesson = learner.lesson(7)
        (one,) = going.train([lesson], [learner])
        assert isinstance(one, dict)
        learner.learner = one
    (other,) = ActorCriticTrainer(device).train([lesson], [Owner()])
    assert_close(one, other)


@pytest.mark.parametrize("device", devices())
def test_a_run_that_diverges_fails_alone(device: str) -> None:
    """And leaves nothing behind in the arrays that the next lessons use."""
    learners = alive(3)
    lessons = [learner.lesson(45) for learner in learners]
    lessons[1].learner["critic.q.w3"][:] = 1e30
    trainer = ActorCriticTrainer(device, SameDraws)
    first, broken, last = trainer.train(lessons, learners)
    assert isinstance(broken, OffrankError) and str(broken) == str(lessons[1].attempt())
    assert "became non-finite in iteration 1" in str(broken)
    assert_close(lessons[0].carry_out(), first)
    assert_close(lessons[2].carry_out(), last)
    again = [lessons[2], replace(lessons[0], updates=0), lessons[2]]
    for lesson, found in zip(again, trainer.train(again, [learners[2], learners[0], Owner()]), strict=True):
        assert_close(lesson.carry_out(), found)


def test_lessons_on_a_device_are_the_trainers_and_without_pytorch_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = ActorCriticTrainer("cpu", SameDraws)
    monkeypatch.setattr(batched_actor_critic, "trainer_on", lambda device: trainer)
    (learner,) = alive(1)
    lesson = learner.lesson(5)
    (found,) = ActorCriticLesson.carry_out_together([lesson], [learner], "cpu")
    assert list(trainer._replays) == [learner]
    assert_close(lesson.carry_out(), found)
    monkeypatch.setattr(actor_critic, "has_torch", lambda device: False)
    (plain,) = ActorCriticLesson.carry_out_together([lesson], [Owner()], "cuda")
    assert isinstance(plain, dict) and list(trainer._replays) == [learner]
    np.testing.assert_array_equal(plain["actor.theta"], lesson.carry_out()["actor.theta"])


def test_lessons_of_other_bounds_are_batched_apart() -> None:
    learner = Learner(0)
    lesson = learner.lesson(5)
    assert lesson.batch_key == learner.lesson(6).batch_key != replace(lesson, space=FREE).batch_key
