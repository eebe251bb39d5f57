from __future__ import annotations

import os
from pathlib import Path

import pytest

from offrank.core import arithmetic
from offrank.core.arithmetic import usable_cpus


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity here")
def test_cpus_are_those_the_process_may_use() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert 1 <= usable_cpus() <= len(before)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_a_containers_limit_counts(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert arithmetic._container_cpus(tmp_path) == expected


def test_engines_take_as_many_workers_as_cpus_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from offrank.engines.gymnasium import engine as gymnasium_engine
    from offrank.engines.native import engine as native_engine
    from offrank.tasks import TASKS

    for module in (gymnasium_engine, native_engine):
        monkeypatch.setattr(module, "usable_cpus", lambda: 3)
    assert native_engine.MujocoEngine(TASKS["Swimmer-v3"]).threads == 3
    engine = gymnasium_engine.GymnasiumEngine(lambda: __import__("gymnasium").make("CartPole-v1"))
    assert engine._count == 3
