"""Runs of one command that are shared between processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from offrank.cli import processes
from offrank.core.errors import BusyError
from offrank.core.files import load_arrays
from offrank.runs.lock import lock_folder

SHORT = ["--horizon", "20", "--eval-episodes", "2", "--eval-every", "2"]
SWIMMER = ["train", "Swimmer-v3", "--algo", "ars,es", "--seeds", "3,0-1", *SHORT, "--iterations", "2"]
SLOW = ["train", "toy_envs:Slow-v0", "--algo", "op-ars", "--seeds", "0-2", "--env-arg", "delay=0.001", *SHORT]
ENDLESS = ["--iterations", "1M", "--checkpoint-seconds", "1000", "--eval-every", "0", "--workers", "0", "--out", "run"]
NOISY = """
import gymnasium as gym
from toy_envs import Point
print("[a line of somebody else]")
gym.register("Noisy-v0", Point)
"""
posix = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


def in_processes(*words: object, cwd: Path) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "offrank", *map(str, words), "--processes", "2"]
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=cwd, env=os.environ | {"PYTHONPATH": path}, **how)


def results(folder: Path) -> dict[str, str]:
    """The final policies of the runs in a folder."""
    return {file.parent.name: json.loads(file.read_text())["policy_sha256"] for file in folder.glob("*/result.json")}


def wait_until(true: Any) -> None:
    for _ in range(6000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within a minute")


def begun(folder: Path) -> bool:
    """Whether each of the three runs has done a few iterations."""
    files = list(folder.glob("*/metrics.jsonl"))
    return len(files) == 3 and all(file.read_bytes().count(b"\n") > 3 for file in files)


def is_free(folder: Path) -> bool:
    try:
        lock_folder(folder).release()
    except BusyError:
        return False
    return True


def test_runs_are_the_same_in_several_processes(offrank) -> None:
    assert offrank(*SWIMMER, "--out", "one").status == 0
    shared = offrank(*SWIMMER, "--out", "two", "--processes", "2", "--json")
    assert shared.status == 0 and results(Path("one")) == results(Path("two"))
    folders = [f"two/Swimmer-v3-{algo}-{seed}" for algo in ("ars", "es") for seed in (3, 0, 1)]
    assert [result["folder"] for result in shared.json] == folders
    again = offrank(*SWIMMER, "--iterations", "3", "--out", "two", "--resume", "--processes", "9")
    assert again.status == 0 and again.out.count("Swimmer-v3 es seed") == 3 and again.out.count("\n") == 6


def test_results_are_whole_whatever_an_environment_prints(offrank, monkeypatch) -> None:
    Path("noisy.py").write_text(NOISY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), "."]))
    monkeypatch.syspath_prepend(".")
    words = ["train", "noisy:Noisy-v0", "--algo", "ars", "--seeds", "0-1", "--workers", "0", *SHORT]
    ran = offrank(*words, "--iterations", "1", "--out", "run", "--processes", "2", "--json")
    found = json.loads(ran.out.removeprefix("[a line of somebody else]\n"))
    assert ran.status == 0 and [result["seed"] for result in found] == [0, 1]
    assert found == [json.loads(Path(one["folder"], "result.json").read_text()) | one for one in found]


def test_what_is_wrong_is_said_once_before_any_process_starts(offrank, monkeypatch) -> None:
    def start(*args: Any) -> Any:
        raise AssertionError("nothing is started")

    monkeypatch.setattr(processes, "run_offrank", start)
    offrank(*SWIMMER, "--set", "n_directionz=3", "--processes", "2").complains("did you mean 'n_directions'")
    offrank(*SWIMMER, "--engine", "ray", "--processes", "2").complains("does not go with a cluster")
    offrank(*SWIMMER, "--processes", "0").complains("positive whole number")


def test_a_configuration_file_may_say_how_many_processes(offrank) -> None:
    Path("run.toml").write_text('task = "Swimmer-v3"\nalgo = "ars"\nseeds = [0, 1]\nprocesses = 2\niterations = 1\n')
    assert offrank("train", "--config", "run.toml", *SHORT, "--out", "runs").status == 0
    assert len(results(Path("runs"))) == 2


def test_each_process_has_its_share_of_the_cores(monkeypatch) -> None:
    monkeypatch.setattr(processes, "usable_cpus", lambda: 8)
    args = type("Args", (), {"threads": None, "workers": None, "engine": None, "address": None})
    quiet = ["--processes", "1", "--quiet"]
    assert processes.flags_of_share(args, "Hopper-v3", 4) == [*quiet, "--threads", "2"]
    assert processes.flags_of_share(args, "Pendulum-v1", 16) == [*quiet, "--threads", "1", "--workers", "1"]
    args.threads, args.workers = 3, 0
    assert processes.flags_of_share(args, "Pendulum-v1", 4) == quiet


def test_a_failure_in_one_process_is_that_of_the_command(offrank, tmp_path) -> None:
    assert offrank(*SWIMMER, "--out", "run").status == 0
    Path("run/Swimmer-v3-es-1/checkpoint.npz").write_bytes(b"damaged")
    process = in_processes(*SWIMMER, "--iterations", "3", "--out", "run", "--resume", cwd=tmp_path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1 and err.count("\n") == 1 and "Swimmer-v3-es-1/checkpoint.npz is" in err
    assert out.count("did not reach 325") == 5
    assert sum(json.loads(file.read_text())["iterations"] == 3 for file in Path("run").glob("*/result.json")) == 5


@posix
@pytest.mark.parametrize(("name", "to_all"), [("SIGTERM", False), ("SIGTERM", True), ("SIGKILL", False)])
def test_signals_reach_all_processes_and_what_they_did_is_saved(offrank, tmp_path, name, to_all) -> None:
    process = in_processes(*SLOW, *ENDLESS, cwd=tmp_path)
    wait_until(lambda: begun(tmp_path / "run"))
    if to_all:  # as a supervisor does that ends a group of processes
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGTERM)
    process.send_signal(getattr(signal, name))
    _, err = process.communicate(timeout=120)
    assert process.returncode == (143 if name == "SIGTERM" else -signal.SIGKILL)
    assert name == "SIGKILL" or err.count("saved, add --resume to continue") == 2
    folders = [file.parent for file in tmp_path.glob("run/*/metrics.jsonl")]
    assert len(folders) == 3
    for folder in folders:
        wait_until(lambda folder=folder: is_free(folder))  # nobody runs it any more
        done = (folder / "metrics.jsonl").read_bytes().count(b"\n")
        _, arrays, _ = load_arrays(folder / "checkpoint.npz", "run")  # written when the signal came, and not before
        assert arrays["state.counters"][1] == done > 3  # iterations


def test_progress_is_a_line_now_and_then(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(processes, "PROGRESS", 0.0)
    for seed, text in enumerate(['{"steps": 10}\n{"steps": 20}\n', '{"steps": 5}\n{"ste', ""]):
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "metrics.jsonl").write_text(text)
    (tmp_path / "1" / "result.json").write_text("{}")  # of the run that is continued
    folders = [tmp_path / str(seed) for seed in range(4)]
    loud, quiet = (processes.Progress(folders, quiet) for quiet in (False, True))
    (tmp_path / "0" / "result.json").write_text("{}")
    loud()
    quiet()
    assert capsys.readouterr().err == "1 of 4 runs have ended; 25 steps of all\n"
