"""The critics of many runs, trained in one batched computation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import offrank.runs.drive
from helpers import FunctionEngine, linear_system
from offrank.algorithms.learning.batched import Tutor, torch_tutor
from offrank.algorithms.rankers import Critic
from offrank.algorithms.rankers.base import Ranking, taught
from offrank.algorithms.rankers.critic import CriticLesson
from offrank.algorithms.strategies import ARS
from offrank.core.arrays import Memory
from offrank.core.candidates import Candidates, Episodes, Lesson, answered
from offrank.engines import EnvInfo
from offrank.runs.config import configure, resolve
from offrank.runs.opening import open_run
from offrank.runs.run import Run

P, N_OBS, HORIZON = 3, 5, 12
CRITIC = Critic(replay=300, warmup=1, passes=30.0, hidden=16)


def numpy_tutor() -> Tutor:
    return Tutor(np, np.array, np.asarray)


def torch_on_the_cpu() -> Tutor:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    tutor = torch_tutor("cpu")
    assert tutor is not None
    return tutor


def torch_on_the_gpu() -> Tutor:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    tutor = torch_tutor("cuda:0")
    assert tutor is not None
    return tutor


class Pupil:
    """A run, as far as a tutor knows it."""

    def __init__(self, seed: int, b: int):
        self.engine = FunctionEngine(linear_system(N_OBS, P), N_OBS, P, HORIZON)
        self.strategy = ARS(n_directions=20, n_top=b, noise_std=0.1)
        self.state = self.strategy.start(P, N_OBS, seed, CRITIC)

    def lesson(self) -> tuple[Lesson, Any]:
        """The lesson of an iteration, and the iteration, which waits for its outcome."""
        iteration = self.strategy.iteration(self.state, CRITIC, Episodes(horizon=HORIZON, train_horizon=HORIZON))
        wanted = next(iteration)
        while not isinstance(wanted, Lesson):
            wanted = iteration.send(self.engine.run(wanted))
        return wanted, iteration

    def go_on(self, iteration: Any, memory: Memory) -> None:
        try:
            iteration.send(memory)
        except StopIteration as done:
            self.state = done.value[0]


def pupil_candidates(lesson: Lesson) -> Candidates:
    assert isinstance(lesson, CriticLesson)
    return lesson.candidates


@pytest.mark.parametrize("make", [numpy_tutor, torch_on_the_cpu, torch_on_the_gpu])
def test_lessons_together_are_the_lessons_one_by_one(make: Any) -> None:
    tutor, pupils = make(), [Pupil(seed, b) for seed, b in ((0, 2), (1, 5), (2, 3))]
    updates = set()
    for _ in range(5):  # 2 x 13 to 5 x 2 x 13 rows each: the largest replay is full after three
        lessons = [pupil.lesson() for pupil in pupils]
        alone = [lesson.carry_out() for lesson, _ in lessons]
        together = tutor.teach([(pupil, lesson) for pupil, (lesson, _) in zip(pupils, lessons, strict=True)])
        for pupil, (_, iteration), one, other in zip(pupils, lessons, alone, together, strict=True):
            assert one.keys() == other.keys() and int(one["step"]) == int(other["step"]) > 0
            assert float(one["unit"]) == float(other["unit"])
            updates.add(int(one["step"]) - int(pupil.state.ranker["step"]))
            for name, value in one.items():
                assert other[name].dtype == value.dtype and other[name].shape == value.shape
                np.testing.assert_allclose(other[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
            pupil.go_on(iteration, one)
    assert updates == {6, 7, 9, 10, 15, 16}  # not all had equally much to learn, nor in every iteration
    assert len(pupils[1].state.ranker["replay.state"]) == CRITIC.replay


def test_a_run_that_did_not_come_the_last_time_is_known_again() -> None:
    tutor, pupil = numpy_tutor(), Pupil(0, 3)
    for taught_here in (True, False, True, True):
        lesson, iteration = pupil.lesson()
        alone = lesson.carry_out()
        if taught_here:
            [found] = tutor.teach([(pupil, lesson)])
            np.testing.assert_allclose(found["q.w2"], alone["q.w2"], rtol=1e-3, atol=1e-5)
        pupil.go_on(iteration, alone)


def test_a_critic_that_diverges_begins_anew_and_leaves_the_others_alone() -> None:
    tutor, pupils = numpy_tutor(), [Pupil(0, 3), Pupil(1, 3)]
    lessons = [pupil.lesson()[0] for pupil in pupils]
    broken: Any = lessons[0]
    broken.memory["q.w1"][:] = 1e30
    with np.errstate(all="ignore"):
        first, second = tutor.teach(list(zip(pupils, lessons, strict=True)))
    assert int(first["step"]) == 0 and all(np.isfinite(value).all() for value in first.values())
    np.testing.assert_allclose(second["q.w1"], lessons[1].carry_out()["q.w1"], rtol=1e-3, atol=1e-5)


def test_a_ranker_taught_by_hand_knows_what_an_iteration_would_have_taught_it() -> None:
    pupil = Pupil(0, 3)
    lesson, iteration = pupil.lesson()
    c = replace(pupil_candidates(lesson), keep=True)
    pairs = answered(c.evaluate(np.arange(3)), pupil.engine.run)
    memory = taught(CRITIC, CRITIC.start(P, N_OBS, 0), c, Ranking(pairs.index), pairs)
    pupil.go_on(iteration, lesson.carry_out())
    assert int(memory["step"]) == int(pupil.state.ranker["step"]) > 0
    np.testing.assert_array_equal(memory["q.w2"], pupil.state.ranker["q.w2"])


# --- in a fleet


class Counting(Tutor):
    def __init__(self) -> None:
        super().__init__(np, np.array, np.asarray)
        self.classes: list[int] = []

    def teach(self, pupils: Any) -> list[Memory]:
        self.classes.append(len(pupils))
        return super().teach(pupils)


class Device(FunctionEngine):
    """As on a GPU."""

    device = "pretended"


def run(seed: int, folder: Any = None, **limits: Any) -> Run:
    recipe = resolve("LQR", "ars", "critic", {"n_directions": 30, "n_top": 3, "warmup": 1, "hidden": 8})
    info = EnvInfo(N_OBS, P, HORIZON)
    settings = {"iterations": 6, "eval_every": 2, "eval_episodes": 3, "threshold": None} | limits
    return open_run(configure("LQR", recipe, info, seed=seed, engine="numpy", **settings), info, folder, True)


def device() -> Device:
    return Device(linear_system(N_OBS, P), N_OBS, P, HORIZON)


@pytest.fixture
def tutor(monkeypatch: pytest.MonkeyPatch) -> Counting:
    tutor = Counting()
    monkeypatch.setattr(offrank.runs.drive, "torch_tutor", lambda device: tutor)
    return tutor


def test_a_fleet_on_a_device_learns_together_what_its_runs_learn_alone(tutor: Counting) -> None:
    alone = [run(seed) for seed in range(4)]
    offrank.runs.drive.drive(alone, FunctionEngine(linear_system(N_OBS, P), N_OBS, P, HORIZON))
    assert tutor.classes == []  # not where there is no device
    together = [run(seed) for seed in range(4)]
    offrank.runs.drive.drive(together, device())
    assert sum(tutor.classes) >= 4 * 6 and max(tutor.classes) > 1
    for a, b in zip(alone, together, strict=True):
        assert b.state.iteration == 6 and b.state.steps == a.state.steps and len(b.evaluations) == len(a.evaluations)
        np.testing.assert_allclose(b.state.M, a.state.M, rtol=1e-3, atol=1e-5)


def test_without_pytorch_every_run_has_its_own_lesson(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offrank.runs.drive, "torch_tutor", lambda device: None)
    alone, other = run(0), run(0)
    offrank.runs.drive.drive([alone], FunctionEngine(linear_system(N_OBS, P), N_OBS, P, HORIZON))
    offrank.runs.drive.drive([other], device())
    assert other.policy.sha256 == alone.policy.sha256


def test_a_run_that_ends_while_it_waits_for_its_lesson_is_done(tutor: Counting) -> None:
    stopping, going = run(0, threshold=-1e9), run(1)
    offrank.runs.drive.drive([stopping, going], device())
    assert stopping.stop_reason == "threshold" and stopping.state.iteration == 2
    assert going.state.iteration == 6 and stopping.lesson is None


def test_what_goes_wrong_in_a_lesson_saves_the_runs(tutor: Counting, tmp_path: Any, monkeypatch: Any) -> None:
    def fail(pupils: Any) -> list[Memory]:
        if len(tutor.classes) > 1:
            raise offrank.core.errors.EngineError("the device is gone")
        return Counting.teach(tutor, pupils)

    monkeypatch.setattr(tutor, "teach", fail)
    with pytest.raises(offrank.core.errors.EngineError, match="the device is gone"):
        offrank.runs.drive.drive([run(seed, tmp_path / str(seed)) for seed in range(2)], device())
    monkeypatch.undo()
    resumed = [run(seed, tmp_path / str(seed)) for seed in range(2)]
    assert all(r.state.iteration > 0 for r in resumed)
    offrank.runs.drive.drive(resumed, FunctionEngine(linear_system(N_OBS, P), N_OBS, P, HORIZON))
    whole = [run(seed) for seed in range(2)]
    offrank.runs.drive.drive(whole, FunctionEngine(linear_system(N_OBS, P), N_OBS, P, HORIZON))
    for a, b in zip(whole, resumed, strict=True):
        np.testing.assert_allclose(b.state.M, a.state.M, rtol=1e-3, atol=1e-5)
