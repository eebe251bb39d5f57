"""The campaigns for reliability, in small."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from offrank.core.errors import FileFormatError
from offrank.core.files import load_arrays
from offrank.lab.campaign import children, disk, fuzz, kill, mutate, mutations, sanitize, soak


def test_mutated_files_and_command_lines_are_one_line_at_worst(tmp_path: Path) -> None:
    assert fuzz.main(["--cases", "60", "--workers", "1", "--out", str(tmp_path / "fuzz.json")]) == 0
    summary = json.loads((tmp_path / "fuzz.json").read_text())
    assert summary["cases"] == 60 and summary["bad"] == []
    assert set(summary["statuses"]) == set(fuzz.USES) and summary["statuses"]["policy"]["2"] > 0


def test_results_of_fuzzing_are_written_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[int]()
    monkeypatch.setattr(fuzz, "CHUNK", 2)
    monkeypatch.setattr(fuzz, "USES", {"good": lambda *_: ("good", lambda: 0)})
    monkeypatch.setattr(fuzz, "make_corpus", lambda folder: None)
    monkeypatch.setattr(fuzz, "write_json", lambda path, summary: written.append(summary["cases"]))
    assert fuzz.main(["--cases", "5", "--workers", "1", "--out", str(tmp_path / "fuzz.json")]) == 0
    assert written == [2, 4, 5]


@pytest.mark.parametrize("failing", ["raise", "warn", "import", "write", "hang", "loop", "die"])
def test_what_goes_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    code = {
        "raise": "raise ZeroDivisionError('oh')",
        "warn": "import warnings; warnings.warn('oh')",
        "import": f"import {fuzz.EVIL}",
        "write": "open('/tmp/offrank-fuzz-test', 'w').close()",
        "hang": "import time; time.sleep(60)",
        "loop": "while True: pass",
        "die": "import os; os._exit(7)",
    }[failing]
    says = {"raise": "ZeroDivisionError: oh", "warn": "warning: oh", "import": "was imported", "write": "wrote outside"}
    says |= {"hang": "took more than 0.5 s", "loop": "took more than 0.5 s", "die": "the process died (exit status 7)"}
    monkeypatch.setattr(fuzz, "USES", {"bad": lambda *_: ("bad", lambda: exec(code) or 0)})
    monkeypatch.setattr(fuzz, "make_corpus", lambda folder: None)
    monkeypatch.setattr(fuzz, "ASLEEP", 1 if failing == "hang" else 100)
    found = list(fuzz.run_all(range(2), 1, 0.5, tmp_path))
    assert len(found) == 2 and all(says[failing] in case["problems"][0] for case in found)


def test_a_document_is_mutated_by_its_case_alone() -> None:
    """What one case has put in, a later one does not find changed."""
    document = {"a": {"b": [1, 2]}, "c": "d"}
    before = json.dumps(mutations.JUNK)
    for seed in range(300):
        changed = document
        for _ in range(3):
            changed = mutations.mutate_json(changed, np.random.default_rng(seed))
            json.dumps(changed)
    assert json.dumps(mutations.JUNK) == before and document == {"a": {"b": [1, 2]}, "c": "d"}


def test_arrays_are_mutated_under_a_right_checksum(tmp_path: Path) -> None:
    fuzz.make_corpus(tmp_path)
    path, random = tmp_path / "guided" / "best.offrank", np.random.default_rng(0)
    content, read = path.read_bytes(), 0
    for _ in range(40):
        path.write_bytes(content)
        if ": array" in fuzz.mutate_file(path, random):
            try:
                load_arrays(path, "policy")
                read += 1
            except FileFormatError as error:  # an array of text
                assert "checksum" not in str(error)
    assert read > 3


def test_killed_runs_end_as_undisturbed_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"mujoco": [("ars", 6, "")], "ask-tell": [("ARS", 3, "")]}
    monkeypatch.setattr(kill, "TASKS", small)
    assert kill.main(["--kills", "4", "--workers", "2", "--out", str(tmp_path / "kill.json")]) == 0
    summary = json.loads((tmp_path / "kill.json").read_text())
    assert summary["kills"] >= 4 and summary["bad"] == [] and sum(summary["by_phase"].values()) == summary["kills"]


def test_a_policy_that_differs_is_found(tmp_path: Path) -> None:
    trial = kill._trial(("ask-tell", "ARS", 3, ""), 0, "another hash", 1.0, tmp_path / "trial")
    assert "the policy differs" in trial["problems"][0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the library that fails is for Linux")
def test_a_run_whose_writes_fail_is_resumed_to_the_same_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "RUNS", {"op-ars": "train Swimmer-v3 --algo op-ars --iterations 2"})
    assert disk.main(["--every", "150", "--workers", "2", "--out", str(tmp_path / "disk.json")]) == 0
    summary = json.loads((tmp_path / "disk.json").read_text())
    assert summary["failures"] == summary["planned"] >= 6 and summary["bad"] == []
    assert any("stopped" in name for name in summary["counts"])


@pytest.mark.skipif(shutil.which("gcc") is None or sys.platform != "linux", reason="needs gcc on Linux")
def test_a_read_beyond_an_array_is_noticed_and_mutated_policies_cause_none(tmp_path: Path) -> None:
    out = tmp_path / "sanitize.json"
    assert sanitize.main(["--tests", "--cases", "12", "--out", str(out)]) == 0
    summary = json.loads(out.read_text())
    assert "heap-buffer-overflow" in summary["on_purpose"]
    assert summary["cases"] == 12 and summary["reports_of_fuzzing"] == []


@pytest.mark.skipif(shutil.which("gcc") is None or sys.platform != "linux", reason="needs gcc on Linux")
def test_sanitizers_that_notice_nothing_are_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sanitize, "FLAGS", ("-std=c99",))
    assert sanitize.main(["--tests", "--cases", "0"]) == 1
    assert "do not notice a read beyond an array" in capsys.readouterr().err


TINY = "train Swimmer-v3 --algo guided --horizon 30 --set hidden=8 --set batch=4 --set warmup_steps=99 --set replay=300"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_soak_measures_its_processes_and_ends_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "RUNS", {"guided": TINY, "fleet of 2": f"{TINY} --seeds 0-1"})
    monkeypatch.setattr(soak, "ENDLESS", soak.ENDLESS.replace("--checkpoint-seconds 10", "--checkpoint-seconds 0.2"))
    out, before = tmp_path / "soak.json", set(children(os.getpid()))
    assert soak.main(["--hours", "0.0014", "--every", "0.5", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["problems"] == [] and [p["runs"] for p in found["processes"].values()] == [1, 2]
    for process in found["processes"].values():
        assert process["checkpoints"] >= 1 and process["steps"] > 0
        last = process["samples"][-1]
        assert 40 < last["memory_mb"] < 1000 and 3 <= last["descriptors"] < 100 and last["threads"] >= 1
    assert set(children(os.getpid())) == before


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_soaked_process_that_ends_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(soak, "RUNS", {"lost": "train Swimmer-v3 --algo nothing"})
    assert soak.main(["--hours", "0.01", "--every", "0.5"]) == 1
    assert capsys.readouterr().err.startswith("soak: lost ended, exit status 2: offrank: unknown algorithm 'nothing'")


@pytest.mark.parametrize(("per_hour", "noise", "verdict"), [(0, 1, "flat"), (30, 1, "growing"), (0, 300, "unclear")])
def test_a_soak_tells_growth_from_noise(per_hour: float, noise: float, verdict: str) -> None:
    random = np.random.default_rng(0)
    samples = [{"minute": m, "memory_mb": 1000 + per_hour * m / 60 + noise * random.normal()} for m in range(480)]
    found = soak._trend(samples, "memory_mb", 120, 0.01)
    assert found is not None and found["verdict"] == verdict
    assert found["interval"]["low"] <= per_hour <= found["interval"]["high"]


class OneTest:
    """Stands for the coverage of the tests: all changes but those of `unseen` are run by one test."""

    def of(self, mutant: mutate.Mutant, seconds: float) -> list[str]:
        return [] if mutant.operator == "unseen" else ["tests/test_sums.py::test_add"]

    def time(self, tests: list[str]) -> float:
        return 0.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_changes_of_the_code_are_killed_by_the_tests_that_run_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "def add(a, b):\n    return a + b\n"
    for name, content in {
        "src/offrank/__init__.py": "",
        "src/offrank/core/__init__.py": "",
        "pyproject.toml": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "src/offrank/core/sums.py").write_text(text)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_sums.py").write_text(
        "from offrank.core.sums import add\n\ndef test_add():\n    assert add(2, 2) == 4\n"
    )
    changes = {"-": "killed", "*": "survived", "hang": "too slow", "unseen": "no test runs it"}
    new = {"hang": text.replace("return", "while True: pass\n    return"), "unseen": text.replace("+", "-")}
    mutants = [mutate.Mutant("core/sums.py", operator, 0, (2, 13), (2, 14)) for operator in changes]
    monkeypatch.setattr(mutate, "GRACE", 5.0)
    monkeypatch.setattr(mutate, "mutated", lambda text, m: new.get(m.operator) or text.replace("+", m.operator))
    found = [one for _, one in mutate.run_all(mutants, OneTest(), [tmp_path], 1.0)]  # type: ignore[arg-type]
    assert {one["operator"]: one["verdict"] for one in found} == changes
    assert (tmp_path / "src/offrank/core/sums.py").read_text() == text
    summary = mutate._summary(found, 7, 0.0)
    assert summary["scores"]["core"]["killed"] == 2 and summary["scores"]["core"]["drawn"] == 4
    assert [one["operator"] for one in summary["survivors"]] == ["*", "unseen"]


def test_type_hints_and_arguments_of_decorators_are_not_changed() -> None:
    text = (
        "@dataclass(frozen=True)\nclass A:\n    b: int | None = 1 + 2\n\n    def c(self, d: int | str) -> A | B: ...\n"
    )
    parts = [text.splitlines()[first[0] - 1][first[1] : last[1]] for first, last in mutate._inert(text)]
    assert sorted(parts) == ["A | B", "True", "int | None", "int | str"]
