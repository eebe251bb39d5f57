"""Two processes never write one run folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import another_process
from offrank.cli import main
from offrank.core.errors import BusyError
from offrank.runs.lock import lock_folder
from offrank.runs.opening import holds_run


def test_a_folder_held_by_another_process_is_refused_until_that_process_dies(tmp_path: Path) -> None:
    with another_process(tmp_path) as holder:
        with pytest.raises(BusyError, match="is being written by another offrank process"):
            lock_folder(tmp_path)
        holder.kill()
        holder.wait()
        lock_folder(tmp_path).release()


def test_one_process_may_open_its_folder_again(tmp_path: Path) -> None:
    first = lock_folder(tmp_path)
    assert lock_folder(tmp_path) is first
    first.release(force=True)


def test_train_refuses_a_folder_that_another_process_is_writing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "LQR", "--iterations", "1", "--eval-every", "0", "--out", str(tmp_path), "--quiet"]
    with another_process(tmp_path):
        for resume in ([], ["--resume"]):
            assert main([*words, *resume]) == 2
            said = capsys.readouterr().err
            assert said.startswith(f"offrank: {tmp_path} is being written by another") and said.count("\n") == 1
        assert not holds_run(tmp_path)
    assert main(words) == 0
