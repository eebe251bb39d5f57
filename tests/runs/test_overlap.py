"""An evaluation overlaps the iterations after it, and the result of the run does not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers import FunctionEngine, linear_system
from offrank.core.errors import EpisodeError
from offrank.core.noise import Role
from offrank.core.rollouts import Request
from offrank.runs.config import EVAL_EVERY, RunConfig
from offrank.runs.drive import drive
from offrank.runs.metrics import read_metrics
from offrank.runs.opening import open_run
from offrank.runs.recipe import resolve
from offrank.runs.run import Run


class TrainingFirst(FunctionEngine):
    """Runs evaluations only when no other request is queued, so that they are completed as late as possible."""

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__(linear_system(4, 2), 4, 2)
        self.fail_at = fail_at

    def _work(self, timeout: float | None) -> None:
        self._queue.sort(key=lambda entry: Role.EVALUATION in entry[1].roles)
        ticket, request = self._queue[0]
        directions = getattr(request.candidates, "directions", None)
        if directions is not None and directions.iteration == self.fail_at:
            self._queue.pop(0)
            self._fail(ticket, EpisodeError("diverged", 7, 3))
        else:
            super()._work(timeout)


class EvaluationFirst(FunctionEngine):
    """Runs requests one after the other, without overlap."""

    def __init__(self) -> None:
        super().__init__(linear_system(4, 2), 4, 2)

    def _work(self, timeout: float | None) -> None:
        self._queue.sort(key=lambda entry: Role.EVALUATION not in entry[1].roles)
        super()._work(timeout)


def config(**settings: Any) -> RunConfig:
    recipe = resolve(None, "op-ars", None, {"n_directions": 6, "n_top": 2, "step_size": 0.05, "noise_std": 0.1})
    defaults = {"seed": 0, "engine": "function", "horizon": 10, "eval_every": 3, "eval_episodes": 3, "iterations": 10}
    parts = (recipe.algo, recipe.ranker.name, recipe.hyperparameters, recipe.sources)
    return RunConfig("toy", *parts, **(defaults | settings))


def go(cfg: RunConfig, on: FunctionEngine, folder: Path | None = None, **options: Any) -> Run:
    run = open_run(cfg, on.space, folder, **options)
    drive([run], on)
    return run


def log(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "wall_s"} for record in read_metrics(folder / "metrics.jsonl")]


def means(**settings: Any) -> list[float]:
    return [e.mean for e in go(config(**settings), EvaluationFirst()).evaluations]


def middle() -> float:
    """A threshold that is reached after some of the evaluations."""
    return sorted(means())[1]


def evaluations(requests: list[Request]) -> list[int]:
    """The positions of evaluations in the order of requests."""
    return [i for i, request in enumerate(requests) if Role.EVALUATION in request.roles]


def test_iterations_are_requested_during_an_evaluation() -> None:
    on = TrainingFirst()
    run = open_run(config(), on.space, None)
    run.start()
    wanted = run.take()
    while not evaluations(wanted):
        run.receive(wanted[0], on.run(wanted[0]))
        wanted = run.take()
    assert len(wanted) == 2 and run.state.iteration == 3
    training = next(request for request in wanted if Role.EVALUATION not in request.roles)
    run.receive(training, on.run(training))
    assert len(run.take()) == 1 and run.state.iteration == 3 and not run.evaluations


WHEN: list[dict[str, int]] = [{"eval_every": every} for every in (1, 2, 3, 10)]
WHEN += [{"eval_every": EVAL_EVERY, "eval_steps": steps} for steps in (7, 50, 120, 400)]  # an iteration has 50 steps


@pytest.mark.parametrize("when", WHEN, ids=str)
@pytest.mark.parametrize("confirm", [0, 5])
@pytest.mark.parametrize("stop", ["budget", "threshold"])
def test_the_time_at_which_an_evaluation_completes_does_not_change_the_run(
    tmp_path: Path, when: dict[str, int], confirm: int, stop: str
) -> None:
    cfg = config(**when, confirm_episodes=confirm, threshold=middle() if stop == "threshold" else None)
    late = go(cfg, TrainingFirst(), tmp_path / "late")
    early = go(cfg, EvaluationFirst(), tmp_path / "early")
    assert log(tmp_path / "late") == log(tmp_path / "early")
    assert late.policy.sha256 == early.policy.sha256 and late.evaluations == early.evaluations
    assert late.result["steps_to_threshold"] == early.result["steps_to_threshold"]
    assert late.stop_reason == early.stop_reason and late.state.steps == early.state.steps


def test_speculative_iterations_are_discarded_when_the_threshold_is_reached() -> None:
    on = TrainingFirst()
    run = go(config(threshold=middle()), on)
    assert run.stop_reason == "threshold" and run.state.iteration == run.evaluations[-1].iteration
    found = [getattr(request.candidates, "directions", None) for request in on.requests]
    iterations = {directions.iteration for directions in found if directions is not None}
    assert max(iterations) == run.state.iteration + 2  # it had continued up to the next evaluation


def test_what_a_run_still_waits_for_when_it_ends_is_dropped_by_the_engine() -> None:
    on, dropped = EvaluationFirst(), []
    on.drop = lambda ticket: (dropped.append(ticket), FunctionEngine.drop(on, ticket))  # type: ignore[method-assign]
    run = go(config(threshold=middle()), on)
    assert run.stop_reason == "threshold"
    assert len(dropped) == 1 and on._open == {} and on._queue == [] and on.completed(0.0) == []


def test_a_callback_stops_the_run_where_it_would_have_stopped_without_overlap() -> None:
    def stop_after_five(run: Run, record: dict[str, Any]) -> bool:
        return record["iteration"] < 5

    late = go(config(), TrainingFirst(), callbacks=(stop_after_five,))
    early = go(config(), EvaluationFirst(), callbacks=(stop_after_five,))
    assert late.state.iteration == early.state.iteration == 5
    assert late.policy.sha256 == early.policy.sha256 and late.stop_reason == early.stop_reason == "stopped"


def test_an_error_in_a_speculative_iteration_is_ignored_if_the_evaluation_ends_the_run() -> None:
    threshold = middle()
    ends = go(config(threshold=threshold), EvaluationFirst()).state.iteration
    assert go(config(threshold=threshold), TrainingFirst(fail_at=ends)).stop_reason == "threshold"


def test_an_error_in_a_speculative_iteration_is_raised_after_the_evaluation(tmp_path: Path) -> None:
    on = TrainingFirst(fail_at=4)
    run = open_run(config(), on.space, tmp_path / "run")
    with pytest.raises(EpisodeError, match="seed 7"):
        drive([run], on)
    assert [(r["kind"], r["iteration"]) for r in log(tmp_path / "run")][-2:] == [("evaluation", 3), ("iteration", 4)]
    resumed = go(config(), TrainingFirst(), tmp_path / "run", resume=True)
    assert resumed.policy.sha256 == go(config(), EvaluationFirst()).policy.sha256


@pytest.mark.parametrize("when", [{}, {"eval_every": EVAL_EVERY, "eval_steps": 120}], ids=str)
@pytest.mark.parametrize("confirm", [0, 5])
def test_a_run_interrupted_during_an_evaluation_resumes_to_the_same_bits(
    tmp_path: Path, when: dict[str, int], confirm: int
) -> None:
    threshold = max(means(**when)) if confirm else None
    cfg = config(**when, confirm_episodes=confirm, threshold=threshold)
    whole = go(cfg, EvaluationFirst(), tmp_path / "whole")
    assert any(r.get("unconfirmed") for r in log(tmp_path / "whole")) == (confirm > 0)
    for cut in range(1, 32):
        on, folder = TrainingFirst(), tmp_path / str(cut)
        run = open_run(cfg, on.space, folder, checkpoint_seconds=0.0)
        run.start()
        wanted = run.take()
        for _ in range(cut):
            wanted.sort(key=lambda request: Role.EVALUATION in request.roles)
            if not wanted:
                break
            request = wanted.pop(0)
            run.receive(request, on.run(request))
            wanted += run.take()
        if cut % 2 and not run.done:
            run.pause()
        resumed = go(cfg, TrainingFirst(), folder, resume=True)
        assert resumed.policy.sha256 == whole.policy.sha256 and resumed.evaluations == whole.evaluations
        assert resumed.evaluation_steps == whole.evaluation_steps
        assert log(folder) == log(tmp_path / "whole")


def test_the_engine_is_told_to_drop_what_a_finished_run_had_asked_for() -> None:
    on = TrainingFirst()
    stopping, going = (open_run(config(threshold=t, seed=s), on.space, None) for t, s in ((-1e9, 0), (None, 1)))
    drive([stopping, going], on)
    assert stopping.state.iteration == 3 and going.state.iteration == 10
    assert not on._open and not on._queue


def test_a_dropped_request_is_never_returned() -> None:
    on = EvaluationFirst()
    run = open_run(config(), on.space, None)
    run.start()
    (request,) = run.take()
    first, second = on.submit(request), on.submit(request)
    on.drop(first)
    assert [ticket for ticket, _ in on.completed()] == [second] and on.completed() == []
    third = on.submit(request)
    on._work(None)
    on.drop(third)  # finished, but not yet returned
    assert on.completed() == []
