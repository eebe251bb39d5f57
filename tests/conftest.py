from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import pytest

TESTS = str(Path(__file__).parent)
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)

if sys.platform == "linux" and not os.environ.get("DISPLAY"):
    os.environ.setdefault("MUJOCO_GL", "egl")  # before anything imports mujoco


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu", action="store_true", help="run the tests of the warp engine on a GPU, and in full")


@pytest.fixture
def offrank(tmp_path, monkeypatch, capsys):
    """Runs a command line in this process, in an empty folder."""
    from commands import Outcome
    from offrank.cli import main

    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                status = main([str(word) for word in words])
            except SystemExit as exit:
                status = exit.code
        said = capsys.readouterr()
        return Outcome(status, said.out, "".join(f"{w.message}\n" for w in caught) + said.err)

    return run
