"""Files that lie: whatever they hold, reading them is one error of one line, within a bounded amount of memory."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offrank.cli import main
from offrank.core.errors import FileFormatError, UsageError
from offrank.core.files import digest, load_arrays, read_json, save_arrays
from offrank.policies.trained import TrainedPolicy
from offrank.runs.metrics import MetricsFile, read_metrics
from offrank.runs.segments import load_in_segments

POLICY = Path(__file__).parents[1] / "policies" / "Swimmer-v3-trained.offrank"


def content() -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays and metadata of a policy."""
    _, arrays, meta = load_arrays(POLICY, "policy")
    return arrays, meta


def write(path: Path, arrays: dict[str, Any], text: bytes) -> Path:
    """A file with a valid checksum, whatever its arrays and metadata are."""
    named = {**arrays, "meta": np.frombuffer(text, dtype=np.uint8)}
    named["sha256"] = np.frombuffer(digest(named), dtype=np.uint8)
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **named)
    return path


def rezip(path: Path, name: str, member: bytes, how: int = zipfile.ZIP_STORED) -> Path:
    """A copy of the policy with one member replaced, or added."""
    with zipfile.ZipFile(POLICY) as old, zipfile.ZipFile(path, "w", how) as new:
        for info in old.infolist():
            if info.filename != name:
                new.writestr(info.filename, old.read(info))
        new.writestr(name, member)
    return path


def npy(shape: tuple[int, ...], dtype: str = "<f8", data: bytes = b"") -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue() + data


def refused(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The line that the command line says about a file, with exit status 2 and little memory."""
    tracemalloc.start()
    try:
        assert main(["evaluate", str(path)]) == 2
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and path.name in said.err
    return said.err


@pytest.mark.parametrize(
    "member",
    [
        npy((10**15,)),
        npy((10**5, 10**5, 10**5, 10**5)),
        npy((-1,), data=bytes(8)),
        npy((2**62, 4)),
        npy((3,), data=bytes(8)),
        npy((1,), data=bytes(64)),
        npy((1,), "<U2", bytes(8)),
        npy((1,), "|S8", bytes(8)),
        npy((1,), "|O", bytes(8)),
        npy((1,), "<c16", bytes(16)),
        npy((1,), "<M8[s]", bytes(8)),
        b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000,
        b"\x93NUMPY\x09\x00",
        b"",
    ],
)
def test_an_array_that_is_not_what_it_declares_is_refused(member: bytes, tmp_path: Path, capsys) -> None:
    assert "not an offrank file" in refused(rezip(tmp_path / "a.offrank", "policy.theta.npy", member), capsys)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, capsys) -> None:
    bomb = npy((25_000_000,), data=bytes(200_000_000))
    path = rezip(tmp_path / "bomb.offrank", "policy.theta.npy", bomb, zipfile.ZIP_DEFLATED)
    del bomb
    assert path.stat().st_size < 1e6
    assert "not an offrank file" in refused(path, capsys)


def test_arrays_that_share_their_bytes_are_refused(tmp_path: Path, capsys) -> None:
    """Members of a zip file may overlap: a small file then has any number of large arrays."""
    path = tmp_path / "overlapping.offrank"
    member = npy((100_000,), data=bytes(800_000))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", member)
        for i in range(200):
            info = zipfile.ZipInfo(f"a{i}.npy")
            info.file_size = info.compress_size = len(member)
            info.header_offset, info.CRC = 0, archive.infolist()[0].CRC
            archive.filelist.append(info)
    assert "not an offrank file" in refused(path, capsys)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"hello", "its metadata are not JSON"),
        (b"\xff\xfe", "its metadata are not JSON"),
        (b"[" * 100_000, "its metadata are not JSON"),
        (b"[1, 2]", "its metadata are not a JSON object"),
        (b"3", "its metadata are not a JSON object"),
        (b"{}", "is of format None"),
        (b'{"offrank": [2]}', "is of format [2]"),
        (b'{"offrank": 2}', "holds a None, not a policy"),
        (b'{"offrank": 2, "kind": ["policy"]}', "holds a ['policy'], not a policy"),
        (b'{"offrank": 2, "kind": "policy"}', "this is not the configuration of an offrank run"),
        (b'{"offrank": 2, "kind": "policy", "config": [1]}', "this is not the configuration of an offrank run"),
        (b'{"offrank": 2, "kind": "policy", "config": 7}', "this is not the configuration of an offrank run"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_metadata_that_are_not_ours_are_refused(text: bytes, line: str, tmp_path: Path, capsys) -> None:
    assert line in refused(write(tmp_path / "a.offrank", content()[0], text), capsys)


@pytest.mark.parametrize(
    ("name", "value"),
    [("task", 5), ("algo", ["ars"]), ("hyperparameters", []), ("env_args", 3), ("seed", None), ("policy", None)],
)
def test_a_configuration_of_other_types_is_refused(name: str, value: Any, tmp_path: Path, capsys) -> None:
    arrays, meta = content()
    meta["config"][name] = value
    assert "a.offrank" in refused(write(tmp_path / "a.offrank", arrays, json.dumps(meta).encode()), capsys)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.pop("policy.mean"),
        lambda a: a.pop("policy.discrete"),
        lambda a: a.update({"policy.mean": np.zeros((2, 2, 2))}),
        lambda a: a.update({"policy.mean": np.full_like(a["policy.mean"], np.nan)}),
        lambda a: a.update({"policy.discrete": np.zeros((2, 2, 2), bool)}),
        lambda a: a.update({"policy.first": np.zeros(3)}),
        lambda a: a.update({"policy.shape": np.zeros((2, 2, 2), int)}),
        lambda a: a.update({"policy.shape": np.array([7, 7])}),
        lambda a: a.update({"policy.shape": np.array([-1, -len(a["policy.low"])])}),
        lambda a: a.update({"policy.shape": np.array([np.inf])}),
        lambda a: a.update({"policy.first": np.array(np.inf)}),
        lambda a: a.update({"policy.choices": np.array([np.inf])}),
        lambda a: a.update({"policy.discrete": np.array(np.nan)}),
        lambda a: a.update({"policy.kind": np.frombuffer(b"[" * 200_000, dtype=np.uint8)}),
        lambda a: a.update({"policy.kind": np.frombuffer(b'{"name": "linear", "n": -8, "p": 2}', dtype=np.uint8)}),
        lambda a: a.pop("policy.high"),
        lambda a: a.update({"policy.low": np.full_like(a["policy.low"], np.nan)}),
        lambda a: a.update({"policy.low": a["policy.high"] + 1}),
        lambda a: a.update({"policy.dtype": np.zeros(0, dtype=bool)}),
        lambda a: a.update({"policy.scale": np.full_like(a["policy.scale"], 1e300)}),
        lambda a: a.update({"policy.scale": np.full_like(a["policy.scale"], -1.0)}),
    ],
)
def test_a_policy_with_other_arrays_is_refused(change: Callable[[Any], Any], tmp_path: Path, capsys) -> None:
    arrays, meta = content()
    policy = TrainedPolicy.from_arrays(arrays)
    arrays = replace(policy, low=-np.ones(policy.kind.p), high=np.ones(policy.kind.p)).arrays()
    assert TrainedPolicy.from_arrays(arrays).high is not None
    change(arrays)
    refused(write(tmp_path / "a.offrank", arrays, json.dumps(meta).encode()), capsys)


def test_the_comment_of_the_archive_is_the_hash_of_all_before_it(tmp_path: Path) -> None:
    save_arrays(tmp_path / "a.npz", "policy", {"x": np.arange(5.0)}, {})
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        comment = archive.comment
    data = (tmp_path / "a.npz").read_bytes()
    assert data.endswith(comment) and comment == hashlib.sha256(data[: -len(comment)]).hexdigest().encode()


def test_a_link_in_the_place_of_an_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    """A run folder may be a stranger's."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / ".a.npz.part").symlink_to(tmp_path / "victim")
    save_arrays(tmp_path / "a.npz", "policy", {"x": np.arange(5.0)}, {})
    assert (tmp_path / "victim").read_text() == "precious" and not (tmp_path / "a.npz").is_symlink()
    assert load_arrays(tmp_path / "a.npz", "policy")[1]["x"][4] == 4.0


def test_metrics_that_are_a_link_are_not_cut(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(UsageError, match=r"metrics.jsonl is a link"):
        MetricsFile(tmp_path / "metrics.jsonl")
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("text", [b"[" * 200_000 + b"\n", b"\0" * 3_000_000])
def test_metrics_of_one_endless_line_or_deep_brackets_are_damaged(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(text)
    with pytest.raises(FileFormatError, match="a line is not JSON"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_a_configuration_of_deep_brackets_is_damaged_and_a_device_is_none(tmp_path: Path, capsys) -> None:
    (tmp_path / "config.json").write_text("[" * 200_000)
    with pytest.raises(FileFormatError, match="it is not JSON"):
        read_json(tmp_path / "config.json")
    assert main(["train", "Swimmer-v3", "--config", "/dev/zero"]) == 2
    assert capsys.readouterr().err == "offrank: cannot read /dev/zero: it is not a file\n"


def test_a_device_is_not_read(capsys) -> None:
    assert "cannot read /dev/zero: it is not a file" in refused(Path("/dev/zero"), capsys)


@pytest.mark.parametrize("segments", [{"m.": [{}]}, {"m.": 3}, [1], {"m.": [["a", 0, 1, "b"]]}])
def test_a_checkpoint_with_invalid_segments_is_refused(segments: Any, tmp_path: Path) -> None:
    save_arrays(tmp_path / "c.npz", "run", {"m.x": np.zeros((0, 2))}, {"segments": segments, "rows": {"m.": 10**15}})
    with pytest.raises(FileFormatError, match="does not name its segments"):
        load_in_segments(tmp_path / "c.npz", "run")


def test_a_checkpoint_with_more_rows_than_its_segments_is_refused(tmp_path: Path) -> None:
    save_arrays(tmp_path / "replay" / "a.npz", "segment", {"x": np.zeros((1, 2))}, {})
    named = [{"name": "a.npz", "first": 65536 * i, "rows": 65536, "sha256": ""} for i in range(1000)]
    meta = {"segments": {"m.": named}, "rows": {"m.": 65_536_000}}
    save_arrays(tmp_path / "c.npz", "run", {"m.x": np.zeros((0, 100_000))}, meta)
    with pytest.raises(FileFormatError, match="its segments do not have as many"):
        load_in_segments(tmp_path / "c.npz", "run")


def test_a_segment_outside_of_its_folder_is_refused(tmp_path: Path) -> None:
    named = [{"name": "../a.npz", "first": 0, "rows": 1, "sha256": ""}]
    meta = {"segments": {"m.": named}, "rows": {"m.": 1}}
    save_arrays(tmp_path / "c.npz", "run", {"m.x": np.zeros((0, 2))}, meta)
    with pytest.raises(FileFormatError, match="does not name its segments"):
        load_in_segments(tmp_path / "c.npz", "run")


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    save_arrays(path, "episode", {"x": np.arange(3.0), "y": np.zeros((2, 0), np.int32)}, {"id": "a"})
    whole = path.read_bytes()
    for position in range(len(whole)):
        for bits in (0x01, 0x80):
            damaged = bytearray(whole)
            damaged[position] ^= bits
            path.write_bytes(damaged)
            with pytest.raises(FileFormatError):
                load_arrays(path, "episode")
    for other in (whole[:-1], whole + b"x", b"x" + whole):
        path.write_bytes(other)
        with pytest.raises(UsageError):
            load_arrays(path, "episode")
