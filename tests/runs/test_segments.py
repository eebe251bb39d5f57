"""A checkpoint's tables in segments: same bits after any interruption, every row written few times, damage noticed."""

from __future__ import annotations

import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offrank
from helpers import FunctionEngine, linear_system
from offrank.core.arrays import Memory, part, tables
from offrank.core.errors import FileFormatError, OffrankError
from offrank.core.files import load_arrays, save_arrays
from offrank.core.rollouts import Request
from offrank.lab.rank_quality.checkpoints import Checkpoint
from offrank.runs import segments
from offrank.runs.config import RunConfig
from offrank.runs.drive import drive
from offrank.runs.opening import open_run
from offrank.runs.recipe import resolve
from offrank.runs.run import Run
from offrank.runs.saved import Saved
from offrank.runs.segments import load_in_segments, save_in_segments

N_OBS, N_ACT, HORIZON = 4, 2, 10
ALGORITHMS: dict[str, dict[str, Any]] = {
    "cem-rl": {"population": 4, "elites": 2, "gradient_members": 2, "hidden": 8, "batch": 8, "warmup_steps": 50},
    "q-ars": {"n_directions": 4, "n_top": 2, "hidden": 8, "warmup": 1, "passes": 2.0, "probe_share": 0.0},
}
both = pytest.mark.parametrize("algo", list(ALGORITHMS))


def config(algo: str, iterations: int, **settings: Any) -> RunConfig:
    recipe = resolve(None, algo, None, ALGORITHMS[algo] | settings, "linear")
    given = {"seed": 0, "engine": "function", "horizon": HORIZON, "eval_every": 2, "eval_episodes": 2}
    return RunConfig(
        "toy", recipe.algo, recipe.ranker.name, recipe.hyperparameters, recipe.sources, iterations=iterations, **given
    )


def go(cfg: RunConfig, folder: Path | None = None, resume: bool = False, seconds: float = 0.0) -> Run:
    """A run that writes a checkpoint after every iteration, if it has a folder."""
    on = FunctionEngine(linear_system(N_OBS, N_ACT), N_OBS, N_ACT, HORIZON)
    run = open_run(cfg, on.space, folder, resume, checkpoint_seconds=seconds)
    drive([run], on)
    return run


def same(a: Run, b: Run) -> bool:
    """States that are equal to the last bit."""
    x, y = a.state.arrays(), b.state.arrays()
    return x.keys() == y.keys() and all(x[k].dtype == y[k].dtype and np.array_equal(x[k], y[k]) for k in x)


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Time and size of every segment."""
    return {f.name: (f.stat().st_mtime_ns, f.stat().st_size) for f in (folder / "replay").iterdir()}


def named(folder: Path) -> set[str]:
    meta = load_arrays(folder / "checkpoint.npz", "run")[2]
    return {segment["name"] for of_table in meta["segments"].values() for segment in of_table}


# --- runs


@both
@pytest.mark.parametrize("limit", [1000, 100])  # rows; an iteration has 44
def test_resume_equals_uninterrupted(tmp_path: Path, algo: str, limit: int) -> None:
    whole = go(config(algo, 9, replay=limit))
    for iterations in (1, 2, 5, 9):
        parts = go(config(algo, iterations, replay=limit), tmp_path, resume=True)
        assert files(tmp_path).keys() == named(tmp_path)
    assert same(parts, whole)
    (table,) = tables(whole.state.memory)
    assert whole.state.memory[f"{table}written"] == 9 * 44
    assert len(whole.state.memory[f"{table}gain"]) == min(limit, 9 * 44)


@both
def test_a_checkpoint_writes_only_rows_that_are_new(tmp_path: Path, algo: str) -> None:
    """Six iterations: four are joined, then two, then one is left; none of them is in the checkpoint itself."""
    go(config(algo, 6), tmp_path)
    before = files(tmp_path)
    assert len(before) == 2
    go(config(algo, 7), tmp_path, resume=True)
    after = files(tmp_path)
    assert len(after) == 3 and before.items() <= after.items()
    arrays = load_arrays(tmp_path / "checkpoint.npz", "run")[1]
    (table,) = tables(arrays)
    assert all(len(rows) == 0 for name, rows in part(arrays, table).items() if name != "written")


@both
def test_a_run_killed_between_segment_and_checkpoint_resumes_to_the_same_bits(
    tmp_path: Path, algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(config(algo, 4), tmp_path)
    checkpoint, before = (tmp_path / "checkpoint.npz").read_bytes(), files(tmp_path)

    def killed(path: Path, kind: str, *rest: Any) -> None:
        if kind == "run":
            raise OffrankError("killed")
        save_arrays(path, kind, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(segments, "save_arrays", killed)
        with pytest.raises(OffrankError, match="killed"):
            go(config(algo, 7), tmp_path, resume=True)
    orphans = files(tmp_path).keys() - before.keys()
    assert orphans and before.items() <= files(tmp_path).items()
    assert (tmp_path / "checkpoint.npz").read_bytes() == checkpoint
    (tmp_path / "replay" / ".some.npz.part").write_bytes(b"half of a segment")
    (tmp_path / "replay" / "state.memory.replay.9-0.npz").write_bytes(b"of no checkpoint")
    assert same(go(config(algo, 7), tmp_path, resume=True), go(config(algo, 7)))
    assert files(tmp_path).keys() == named(tmp_path)


@both
def test_segments_are_removed_only_when_no_checkpoint_names_them(
    tmp_path: Path, algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for two iterations, every checkpoint drops segments; at each write, the last one has all of its own."""
    seen = []

    def save(path: Path, kind: str, *rest: Any) -> None:
        save_arrays(path, kind, *rest)
        if (tmp_path / "checkpoint.npz").is_file():
            arrays, _ = load_in_segments(tmp_path / "checkpoint.npz", "run")
            seen.append(int(arrays["state.counters"][1]))

    monkeypatch.setattr(segments, "save_arrays", save)
    run = go(config(algo, 8, replay=88), tmp_path)
    assert set(seen) == set(range(1, 9)) and len(files(tmp_path)) <= 3
    assert same(run, go(config(algo, 8, replay=88)))


@both
def test_an_interrupted_checkpoint_does_not_spoil_the_next_one(
    tmp_path: Path, algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint was on disk and the segment that it joined was gone; the next one has too many rows to join."""
    monkeypatch.setattr(segments, "ROWS", 100)
    on, remove = FunctionEngine(linear_system(N_OBS, N_ACT), N_OBS, N_ACT, HORIZON), segments._remove_others
    run = open_run(replace(config(algo, 4), eval_every=0), on.space, tmp_path, checkpoint_seconds=1e9)
    run.start()

    def advance_to(iteration: int) -> None:
        while run.state.iteration < iteration:
            (work,) = run.take()
            run.receive(work, on.run(work) if isinstance(work, Request) else work.carry_out())

    def interrupted(folder: Path, names: set[str]) -> None:
        remove(folder, names)
        raise KeyboardInterrupt

    advance_to(1)
    run.checkpoint()
    advance_to(2)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(segments, "_remove_others", interrupted)
        run.checkpoint()
    advance_to(3)
    run.checkpoint()
    copy = Run(run.config, run.space)
    copy.restore(tmp_path / "checkpoint.npz")
    assert same(copy, run)
    run.close()


@both
def test_a_checkpoint_of_before_there_were_segments_is_continued(tmp_path: Path, algo: str) -> None:
    run = go(config(algo, 4), tmp_path)
    run.save(tmp_path / "checkpoint.npz")
    shutil.rmtree(tmp_path / "replay")
    _, arrays, meta = load_arrays(tmp_path / "checkpoint.npz", "run")
    assert meta["offrank"] == 2
    old = {name: value for name, value in arrays.items() if not name.endswith(".written")}
    assert len(old) == len(arrays) - 1
    save_arrays(tmp_path / "checkpoint.npz", "run", old, meta)
    assert same(go(config(algo, 9), tmp_path, resume=True), go(config(algo, 9)))
    assert files(tmp_path).keys() == named(tmp_path) != set()


@both
def test_a_saved_run_is_one_file_and_a_policy_needs_no_segment(tmp_path: Path, algo: str) -> None:
    run, folder = go(config(algo, 5), tmp_path / "run"), tmp_path / "run"
    run.save(tmp_path / "one.npz")
    state = Checkpoint.read(folder).state
    assert state.arrays().keys() == run.state.arrays().keys()
    shutil.rmtree(folder / "replay")
    assert Saved.read(folder / "checkpoint.npz").policy.sha256 == run.policy.sha256
    copy = Run(config(algo, 5), run.space)
    copy.restore(tmp_path / "one.npz")
    assert same(copy, run)


def test_an_agent_goes_on_from_a_folder_to_another_and_back(tmp_path: Path) -> None:
    settings = ALGORITHMS["cem-rl"] | {"warmup_steps": 20, "workers": 0, "horizon": 8}
    brief: dict[str, Any] = {"eval_every": 2, "eval_episodes": 1}

    def new() -> offrank.CEMRL:
        return offrank.CEMRL("toy_envs:Point-v0", **settings)

    new().learn(iterations=4, out=tmp_path / "a", **brief)
    agent = offrank.load(tmp_path / "a")
    agent.learn(iterations=5, out=tmp_path / "b", **brief)  # one iteration more: too few rows to join with the others
    assert files(tmp_path / "b").keys() == named(tmp_path / "b")
    agent.learn(iterations=6, out=tmp_path / "b", **brief)
    for folder in ("a", "b"):
        again = offrank.load(tmp_path / folder).learn(iterations=7, out=tmp_path / folder, resume=True, **brief)
        assert again.policy.sha256 == new().learn(iterations=7, **brief).policy.sha256
        assert files(tmp_path / folder).keys() == named(tmp_path / folder)


def test_a_run_without_a_table_has_no_segments(tmp_path: Path) -> None:
    offrank.ARS("LQR", horizon=5).learn(iterations=2, eval_every=0, out=tmp_path / "run")
    assert not (tmp_path / "run" / "replay").exists()
    assert load_arrays(tmp_path / "run" / "checkpoint.npz", "run")[2]["offrank"] == 2


# --- damage


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def exchange(file: Path) -> None:
    other = next(f for f in file.parent.iterdir() if f != file)
    file.write_bytes(other.read_bytes())


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "says"),
    [(flip, "damaged"), (truncate, "damaged"), (Path.unlink, "is missing"), (exchange, "is not the one that")],
)
@both
def test_a_damaged_missing_or_exchanged_segment_is_named(tmp_path: Path, algo: str, damage: Any, says: str) -> None:
    go(config(algo, 6), tmp_path)
    file = tmp_path / "replay" / min(named(tmp_path))
    damage(file)
    with pytest.raises(FileFormatError, match=says) as caught:
        go(config(algo, 7), tmp_path, resume=True)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(FileFormatError, match=says):
        Checkpoint.read(tmp_path)


@pytest.mark.parametrize("damage", [{"first": 0.0}, {"rows": 3.0}, {"rows": True}, {"rows": "3"}, {"first": 2**70}])
def test_numbers_of_rows_are_whole(tmp_path: Path, damage: dict[str, Any]) -> None:
    segment = {"name": "a.npz", "first": 0, "rows": 3, "sha256": ""}
    good = {"segments": {"a.": [segment, segment | {"first": 3}]}, "rows": {"a.": 1}}
    assert [s.end for s in segments.segments_of(tmp_path, good)["a."]] == [3, 6]
    for lie in (good | {"segments": {"a.": [segment, segment | {"first": 3} | damage]}}, good | {"rows": {"a.": 1.0}}):
        with pytest.raises(FileFormatError, match="does not name its segments as it should"):
            segments.segments_of(tmp_path, lie)


def test_more_rows_than_the_segments_can_hold_are_not_allocated(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "a.npz").write_bytes(bytes(1000))
    segment = segments.Segment("a.npz", first=0, rows=10, sha256="")
    monkeypatch.setattr(segments, "load_arrays", lambda *_: pytest.fail("they fit: the segment is read"))
    table = {"state": np.zeros((0, 25), dtype=np.float32)}  # 100 bytes per row
    with pytest.raises(FileFormatError, match="names 11 rows, and its segments do not have as many"):
        segments._read_rows(tmp_path / "checkpoint.npz", [segment], table, 11)
    with pytest.raises(pytest.fail.Exception, match="they fit"):
        segments._read_rows(tmp_path / "checkpoint.npz", [segment], table, 10)


# --- tables of any size


def grow(path: Path, sizes: list[int], limit: int) -> tuple[int, int]:
    """Checkpoints of a growing table. Returns the most segments that there were, and how often rows were written."""
    every = np.zeros(0, dtype=np.int64)
    known: segments.Segments = {}
    most = rewritten = 0
    for size in sizes:
        every = np.arange(len(every) + size)
        held = every[-limit:]
        arrays: Memory = {"a.x": held, "a.y": np.outer(held, [1, 2]), "a.written": np.array(len(every))}
        after = save_in_segments(path, "run", arrays, {"n": len(every)}, known)
        new = [s for s in after["a."] if s not in known.get("a.", [])]
        assert all(s.rows <= segments.ROWS for s in new)
        rewritten += sum(s.rows for s in new)
        most, known = max(most, len(after["a."])), after
        found, meta = load_in_segments(path, "run")
        assert found.keys() == arrays.keys() and meta["n"] == len(every)
        assert all(np.array_equal(found[k], arrays[k]) and found[k].dtype == arrays[k].dtype for k in arrays)
    return most, rewritten


@pytest.mark.parametrize("limit", [10**6, 1500, 70, 1])
def test_segments_are_few_and_rows_are_rewritten_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(segments, "ROWS", 256)
    random = np.random.default_rng(0)
    sizes = [0, 3, 0, *random.integers(0, 40, size=60).tolist(), 1, 700, 2, 256, *range(40, 0, -1)]
    most, rewritten = grow(tmp_path / "checkpoint.npz", sizes, limit)
    assert most <= 2 * min(limit, sum(sizes)) / 256 + 9  # 8 halvings of 256
    assert rewritten <= 6 * sum(sizes)


def test_a_checkpoint_replaced_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint.npz"
    arrays: Memory = {"a.x": np.arange(4), "a.written": np.array(4)}
    known = save_in_segments(path, "run", arrays, {"n": 1}, {})
    read = segments._read_rows

    def meanwhile(*given: Any) -> Memory:
        monkeypatch.setattr(segments, "_read_rows", read)
        # the four rows are joined with four more, and their segment is removed
        save_in_segments(path, "run", {"a.x": np.arange(8), "a.written": np.array(8)}, {"n": 2}, known)
        return read(*given)

    monkeypatch.setattr(segments, "_read_rows", meanwhile)
    found, meta = load_in_segments(path, "run")
    assert meta["n"] == 2 and found["a.x"].tolist() == list(range(8))


def test_saving_copies_no_table(tmp_path: Path) -> None:
    rows = np.zeros((1 << 18, 40), dtype=np.float32)  # 40 MiB, four segments; NumPy writes 16 MiB at a time
    arrays: Memory = {"a.x": rows, "a.written": np.array(len(rows))}
    tracemalloc.start()
    try:
        save_in_segments(tmp_path / "checkpoint.npz", "run", arrays, {}, {})
        save_arrays(tmp_path / "one.npz", "run", arrays, {})
        assert tracemalloc.get_traced_memory()[1] < rows.nbytes / 2
    finally:
        tracemalloc.stop()
