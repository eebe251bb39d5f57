"""The critics of many runs, trained in one batched computation."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers import FunctionEngine, linear_system, matrix, ranker_memory, search
from offrank.algorithms.base import Episodes
from offrank.algorithms.learning import batched
from offrank.algorithms.learning.batched import BatchedTrainer, trainer_on
from offrank.algorithms.rankers import Critic
from offrank.algorithms.rankers.base import Ranking, learn_now
from offrank.algorithms.rankers.critic import CriticLesson
from offrank.algorithms.strategies import ARS
from offrank.cli import main
from offrank.core.arrays import Memory
from offrank.core.errors import EngineError, FleetError, OffrankError, UsageError
from offrank.core.space import Space
from offrank.core.work import Lesson, answered
from offrank.fleet import Fleet
from offrank.runs.config import configure
from offrank.runs.drive import drive
from offrank.runs.opening import open_run
from offrank.runs.recipe import resolve
from offrank.runs.run import Run

P, N_OBS, HORIZON = 3, 5, 12
CRITIC = Critic(replay=300, warmup=1, passes=30.0, hidden=16)


def numpy_trainer() -> BatchedTrainer:
    return BatchedTrainer(np, np.array, np.asarray)


def torch_on_the_cpu() -> BatchedTrainer:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    trainer = trainer_on("cpu")
    assert trainer is not None
    return trainer


def torch_on_the_gpu() -> BatchedTrainer:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    trainer = trainer_on("cuda:0")
    assert trainer is not None
    return trainer


class Learner:
    """The part of a run that a trainer needs."""

    def __init__(self, seed: int, b: int, policy: str = "linear"):
        self.engine = FunctionEngine(linear_system(N_OBS, P), N_OBS, P, HORIZON)
        strategy, episodes = ARS(n_directions=20, n_top=b, noise_std=0.1), Episodes(HORIZON, train_horizon=HORIZON)
        self.algorithm = search(strategy, CRITIC, self.engine.space, episodes, policy)
        self.state = self.algorithm.start(seed)

    def lesson(self) -> tuple[CriticLesson, Any]:
        """The lesson of an iteration, and the iteration's generator, which waits for the result."""
        iteration = self.algorithm.iteration(self.state)
        work = next(iteration)
        while not isinstance(work, Lesson):
            work = iteration.send(self.engine.run(work))
        assert isinstance(work, CriticLesson)
        return work, iteration

    def complete(self, iteration: Any, memory: Memory) -> None:
        try:
            iteration.send(memory)
        except StopIteration as done:
            self.state = done.value[0]


@pytest.mark.parametrize("policy", ["linear", "skip:4"])
@pytest.mark.parametrize("make", [numpy_trainer, torch_on_the_cpu, torch_on_the_gpu])
def test_lessons_together_are_the_lessons_one_by_one(make: Any, policy: str) -> None:
    trainer, learners = make(), [Learner(seed, b, policy) for seed, b in ((0, 2), (1, 5), (2, 3))]
    updates = set()
    for _ in range(5):  # 2 x 13 to 5 x 2 x 13 rows each: the largest replay is full after three
        lessons = [learner.lesson() for learner in learners]
        alone = [lesson.carry_out() for lesson, _ in lessons]
        together = trainer.train([lesson for lesson, _ in lessons], learners)
        for learner, (_, iteration), one, other in zip(learners, lessons, alone, together, strict=True):
            assert one.keys() == other.keys() and int(one["step"]) == int(other["step"]) > 0
            assert float(one["unit"]) == float(other["unit"])
            updates.add(int(one["step"]) - int(ranker_memory(learner.state)["step"]))
            for name, value in one.items():
                assert other[name].dtype == value.dtype and other[name].shape == value.shape
                np.testing.assert_allclose(other[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
            learner.complete(iteration, one)
    assert updates == {6, 7, 9, 10, 15, 16}  # the number of updates differs between runs and iterations
    assert len(ranker_memory(learners[1].state)["replay.state"]) == CRITIC.replay


def test_a_run_that_was_not_in_the_last_batch_keeps_its_buffer() -> None:
    trainer, learner = numpy_trainer(), Learner(0, 3)
    for trained_here in (True, False, True, True):
        lesson, iteration = learner.lesson()
        alone = lesson.carry_out()
        if trained_here:
            [found] = trainer.train([lesson], [learner])
            np.testing.assert_allclose(found["q.w2"], alone["q.w2"], rtol=1e-3, atol=1e-5)
        learner.complete(iteration, alone)


def test_a_critic_that_diverges_is_reinitialised_and_does_not_change_the_others() -> None:
    trainer, learners = numpy_trainer(), [Learner(0, 3), Learner(1, 3)]
    lessons = [learner.lesson()[0] for learner in learners]
    broken: Any = lessons[0]
    broken.memory["q.w1"][:] = 1e30
    with np.errstate(all="ignore"):
        first, second = trainer.train(lessons, learners)
    assert int(first["step"]) == 0 and all(np.isfinite(value).all() for value in first.values())
    np.testing.assert_allclose(second["q.w1"], lessons[1].carry_out()["q.w1"], rtol=1e-3, atol=1e-5)


def test_learn_now_equals_the_learning_of_an_iteration() -> None:
    learner = Learner(0, 3)
    lesson, iteration = learner.lesson()
    c = replace(lesson.proposal, keep=True)
    pairs = answered(c.evaluate(np.arange(3)), learner.engine.run)
    memory = learn_now(CRITIC, CRITIC.start(c.policy, 0), c, Ranking(pairs.index), pairs)
    learner.complete(iteration, lesson.carry_out())
    assert int(memory["step"]) == int(ranker_memory(learner.state)["step"]) > 0
    np.testing.assert_array_equal(memory["q.w2"], ranker_memory(learner.state)["q.w2"])


# --- in a fleet


class Counting(BatchedTrainer):
    def __init__(self) -> None:
        super().__init__(np, np.array, np.asarray)
        self.batches: list[int] = []

    def train(self, lessons: Any, owners: Any) -> list[Memory]:
        self.batches.append(len(lessons))
        time.sleep(0.05)  # in which the lessons of other runs gather
        return super().train(lessons, owners)


class Device(FunctionEngine):
    """As on a GPU."""

    device = "pretended"


def run(
    seed: int, folder: Any = None, algo: str = "ars", ranker: str = "critic", hidden: int = 8, **limits: Any
) -> Run:
    settings = {"n_directions": 30, "n_top": 3} | ({"warmup": 1, "hidden": hidden} if ranker == "critic" else {})
    recipe = resolve("LQR", "ars", ranker, settings)
    space = Space(N_OBS, P, HORIZON)
    how = {"iterations": 6, "eval_every": 2, "eval_episodes": 3, "threshold": None} | limits
    return open_run(configure("LQR", recipe, space, seed=seed, engine="numpy", **how), space, folder, True)


def plain() -> FunctionEngine:
    return FunctionEngine(linear_system(N_OBS, P), N_OBS, P, HORIZON)


def device() -> Device:
    return Device(linear_system(N_OBS, P), N_OBS, P, HORIZON)


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Counting:
    trainer = Counting()
    monkeypatch.setattr(batched, "trainer_on", lambda device: trainer)
    return trainer


def test_a_fleet_on_a_device_learns_in_batches_what_its_runs_learn_alone(trainer: Counting) -> None:
    alone = [run(seed) for seed in range(4)]
    drive(alone, plain())
    assert trainer.batches == []  # not without a device
    together = [run(seed) for seed in range(4)]
    drive(together, device())
    assert sum(trainer.batches) >= 4 * 6 and max(trainer.batches) > 1
    for a, b in zip(alone, together, strict=True):
        assert b.state.iteration == 6 and b.state.steps == a.state.steps and len(b.evaluations) == len(a.evaluations)
        np.testing.assert_allclose(matrix(b.state), matrix(a.state), rtol=1e-3, atol=1e-5)


def test_without_pytorch_every_run_has_its_own_lesson(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "trainer_on", lambda device: None)
    alone, other = run(0), run(0)
    drive([alone], plain())
    drive([other], device())
    assert other.policy.sha256 == alone.policy.sha256


def test_lessons_of_different_kinds_are_batched_apart(trainer: Counting) -> None:
    narrow, wide = [run(seed) for seed in range(2)], [run(seed, hidden=16) for seed in range(2)]
    alone = [run(0), run(0, hidden=16)]
    drive(alone, plain())
    drive([*narrow, *wide], device())
    assert max(trainer.batches) <= 2
    for a, b in zip(alone, (narrow[0], wide[0]), strict=True):
        np.testing.assert_allclose(matrix(b.state), matrix(a.state), rtol=1e-3, atol=1e-5)


def test_a_run_that_ends_while_it_waits_for_its_lesson_is_done(trainer: Counting) -> None:
    stopping, going = run(0, threshold=-1e9), run(1)
    drive([stopping, going], device())
    assert stopping.stop_reason == "threshold" and stopping.state.iteration == 2
    assert going.state.iteration == 6 and stopping.done


@pytest.mark.parametrize("error", [EngineError("the device is gone"), RuntimeError("CUDA out of memory")])
def test_an_error_in_a_lesson_saves_the_runs(
    trainer: Counting, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(lessons: Any, owners: Any) -> list[Memory]:
        if len(trainer.batches) > 1:
            raise error
        return Counting.train(trainer, lessons, owners)

    monkeypatch.setattr(trainer, "train", fail)
    runs = [run(seed, tmp_path / str(seed)) for seed in range(2)]
    with pytest.raises(type(error), match=str(error)):
        drive(runs, device())
    monkeypatch.undo()
    resumed = [run(seed, tmp_path / str(seed)) for seed in range(2)]
    assert all(r.state.iteration > 0 for r in resumed)
    drive(resumed, plain())
    whole = [run(seed) for seed in range(2)]
    drive(whole, plain())
    for a, b in zip(whole, resumed, strict=True):
        np.testing.assert_allclose(matrix(b.state), matrix(a.state), rtol=1e-3, atol=1e-5)


def test_lessons_may_have_a_device_that_the_engine_does_not(trainer: Counting) -> None:
    drive([run(seed) for seed in range(3)], device(), lessons="cpu")
    assert trainer.batches == []
    drive([run(seed) for seed in range(3)], plain(), lessons="pretended")
    assert sum(trainer.batches) >= 3 * 6


@pytest.mark.parametrize("where", ["cpu", "pretended"])
def test_a_lesson_that_fails_is_the_failure_of_its_run_alone(
    trainer: Counting, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, where: str
) -> None:
    """Also while its run is being evaluated: the evaluation is logged before the run fails."""
    carry_out, train = CriticLesson.carry_out, trainer.train

    def fails(lesson: CriticLesson) -> bool:
        return lesson.proposal.directions.seed == 1 and lesson.proposal.iteration == 2

    def alone(lesson: CriticLesson) -> Memory:
        if fails(lesson):
            raise OffrankError("non-finite")
        return carry_out(lesson)

    def together(lessons: Any, owners: Any) -> Any:
        outcomes = train(lessons, owners)
        failed = OffrankError("non-finite")
        return [failed if fails(lesson) else one for lesson, one in zip(lessons, outcomes, strict=True)]

    monkeypatch.setattr(CriticLesson, "carry_out", alone)
    monkeypatch.setattr(trainer, "train", together)
    runs = [run(seed, tmp_path / str(seed)) for seed in range(3)]
    with pytest.raises(FleetError) as caught:
        drive(runs, plain(), lessons=where)
    assert [str(failure) for failure in caught.value.exceptions] == [f"{runs[1].name}: non-finite"]
    assert [r.state.iteration for r in runs] == [6, 2, 6] and len(runs[1].evaluations) == 1
    assert run(1, tmp_path / "1").state.iteration == 2


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("gpu", "lessons = 'gpu': must be cpu, cuda, or a GPU such as cuda:1"),
        ("cuda:", "lessons = 'cuda:': must be cpu, cuda, or a GPU such as cuda:1"),
        ("cuda:99", r"lessons = 'cuda:99': PyTorch sees (no|\d+) GPUs? here"),
    ],
)
def test_where_lessons_cannot_be_is_one_clear_line(where: str, says: str, tmp_path: Any, capsys: Any) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(UsageError, match=says):
        Fleet("LQR", "cem-rl", [0], lessons=where)
    words = ["train", "LQR", "--algo", "cem-rl", "--lessons", where, "--out", str(tmp_path / "run")]
    assert main(words) == 2
    assert re.search(says, capsys.readouterr().err) and not (tmp_path / "run").exists()


def test_lessons_on_a_gpu_need_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"this needs torch: pip install 'offrank\[torch\]'"):
        Fleet("LQR", "cem-rl", [0], lessons="cuda")


def test_where_lessons_are_is_no_part_of_a_run(tmp_path: Any) -> None:
    words = ["train", "LQR", "--iterations", "1", "--eval-every", "0", "--quiet", "--horizon", "20"]
    words += ["--out", str(tmp_path / "run")]
    assert main([*words, "--lessons", "cpu"]) == 0
    assert "lessons" not in (tmp_path / "run" / "config.json").read_text()
    assert main([*words, "--resume"]) == 0
