"""The trained policies in examples/, and the video of them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offrank.display import video
from offrank.lab.experiments import six_policies
from offrank.runs.evaluation import evaluate_policy
from offrank.runs.saved import Saved
from offrank.tasks import TASKS

POLICIES = Path(__file__).parents[2] / "examples" / "policies"


@pytest.mark.parametrize("task", sorted(TASKS))
def test_every_task_has_a_trained_policy(task: str) -> None:
    saved = Saved.read(POLICIES / f"{task}.offrank")
    assert (saved.config.task, saved.config.algo, saved.config.policy) == (task, "guided", "skip:32")
    engine = saved.engine(threads=2)
    found = evaluate_policy(saved.policy, engine, episodes=3, seed=1)
    engine.close()
    assert saved.config.threshold is not None
    assert np.median(found["returns"]) >= 0.9 * saved.config.threshold  # one of Ant's falls


def test_a_frame_shows_the_step_of_its_time() -> None:
    assert six_policies.frame_steps(125, 1)[:4] == [0, 5, 10, 15]  # Hopper: 125 steps per second, 25 frames
    assert six_policies.frame_steps(20, 1)[:6] == [0, 0, 1, 2, 3, 4]  # HalfCheetah: fewer steps than frames
    assert len(six_policies.frame_steps(67, 3)) == 75


def test_pictures_are_tiled_in_rows_of_three() -> None:
    pictures = [np.full((2, 4, 3), number, dtype=np.uint8) for number in range(1, 5)]
    wall = six_policies.tiled(pictures)
    assert wall.shape == (4, 12, 3)
    assert wall[::2, ::4, 0].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert six_policies.tiled(pictures[:2]).shape == (2, 8, 3)


def test_an_episode_that_ends_early_stays_on_its_last_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter(range(100))
    env = SimpleNamespace(render=lambda: np.full((60, 200, 3), step_of[-1], dtype=np.uint8), close=lambda: None)
    runner = SimpleNamespace(env=env)
    step_of: list[int] = []

    def play(*args: Any, **kwargs: Any) -> Any:
        for step in islice(steps, 4):
            step_of.append(step)
            yield 0.0, step

    monkeypatch.setattr(video, "open_rendered", lambda *args: runner)
    monkeypatch.setattr(video, "frame_rate", lambda runner: six_policies.RATE)
    monkeypatch.setattr(video, "play_episodes", play)
    saved: Any = SimpleNamespace(config=SimpleNamespace(task="Hopper-v3"))
    shown = list(islice(six_policies.frames(saved, 1, (200, 60), 0), 7))
    assert [picture[-1, -1, 0] for picture in shown] == [0, 1, 2, 3, 3, 3, 3]
    assert (shown[2] == 255).any(), "the task's name is written on the picture"


def test_another_ending_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert six_policies.main([str(POLICIES / "Hopper-v3.offrank"), "--out", str(tmp_path / "a.avi")]) == 2
    assert "a.avi: a video ends in .mp4 or .gif" in capsys.readouterr().err
