"""Exported policies: each format computes what predict returns, without offrank."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offrank
from offrank.cli import main
from offrank.core.arrays import FloatArray
from offrank.core.normalizer import Whitening
from offrank.policies import make_policy
from offrank.policies.export import FORMATS
from offrank.policies.trained import TrainedPolicy

N, P = 5, 6
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "export.md"


def trained(name: str, p: int = P) -> TrainedPolicy:
    """Of random numbers, without bounds."""
    random, kind = np.random.default_rng(0), make_policy(name, N, p)
    whitening = Whitening(random.normal(size=N), np.array([0.5, 2.0, 0.0, 1.0, 3.0]))
    return TrainedPolicy(kind, random.normal(size=kind.size), whitening)


HALF_OPEN = {"low": np.array([-np.inf, *[-1.0] * 5]), "high": np.array([0.7] * 5 + [np.inf])}
POLICIES = {
    **{name: trained(name) for name in ("linear", "affine", "skip:4", "mlp:4", "mlp:6,4,3")},
    "clipped": replace(trained("skip:4"), low=np.full(P, -1.0), high=np.full(P, 0.5)),
    "float32": replace(trained("mlp:4"), low=np.full(P, -1.0), high=np.full(P, 1.0), dtype="float32"),
    "half-open": replace(trained("affine"), **HALF_OPEN, shape=(2, 3)),
    "one number": replace(trained("mlp:4", 1), shape=()),
    "whole numbers": replace(trained("affine"), low=np.full(P, -3.0), high=np.full(P, 3.0), dtype="int32"),
    "discrete": replace(trained("skip:4"), discrete=True),
    "discrete from 7": replace(trained("mlp:4"), discrete=True, first=7),
    "several discrete parts": replace(trained("mlp:4"), discrete=True, choices=(3, 1, 2), first=1),
    "table of discrete parts": replace(trained("skip:4", 9), discrete=True, choices=(3, 2, 2, 2), shape=(2, 2)),
    "one discrete part": replace(trained("affine"), discrete=True, choices=(6,)),
    "discrete, all equal": replace(trained("linear"), theta=np.zeros(N * P), discrete=True, first=-2),
}
OBSERVATIONS = 2 * np.random.default_rng(1).normal(size=(1000, N))


def snippet(language: str, word: str) -> str:
    """The block of code of docs/guides/export.md that has a word in it."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = (block for block in blocks if word in block)
    return found


def exported(policy: TrainedPolicy, format: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write policy.json, .h, .onnx or .pt in a folder, and go there."""
    monkeypatch.chdir(folder)
    offrank.export(
        policy, format, {"json": "policy.json", "c": "policy.h", "onnx": "policy.onnx", "torch": "p.pt"}[format]
    )


def assert_same(found: Any, policy: TrainedPolicy) -> None:
    expected = policy.predict(OBSERVATIONS)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())


@every_policy
def test_the_recipe_of_the_docs_computes_the_same_from_json(policy: TrainedPolicy, tmp_path, monkeypatch) -> None:
    exported(policy, "json", tmp_path, monkeypatch)
    recipe = snippet("python", "json.load")
    assert len(recipe.splitlines()) <= 20
    names: dict[str, Any] = {}
    exec(recipe, names)
    assert_same(np.stack([names["act"](observation) for observation in OBSERVATIONS]), policy)


def test_json_says_what_it_holds(tmp_path) -> None:
    offrank.export(POLICIES["half-open"], "json", tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    found = json.loads(text, parse_constant=pytest.fail)  # standard JSON: no NaN, no Infinity
    assert (found["format"], found["format_version"]) == ("offrank policy", 1)
    assert (found["offrank_version"], found["policy"]) == (offrank.__version__, "affine")
    assert found["low"][:2] == [None, -1.0] and found["high"][-2:] == [0.7, None]
    assert (found["observation_size"], found["shape"], found["dtype"]) == (N, [2, 3], "float64")
    assert [set(layer) for layer in found["layers"]] == [{"weights", "bias", "activation"}]
    assert all(f"`{name}`" in PAGE.read_text(encoding="utf-8") for name in (*found, *found["layers"][0], "skip"))


@every_policy
def test_the_c_function_computes_the_same(policy: TrainedPolicy, tmp_path, monkeypatch) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")
    exported(policy, "c", tmp_path, monkeypatch)
    Path("main.c").write_text(snippet("c", "main"))
    strict = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]
    subprocess.run([compiler, *strict, "main.c", "-o", "act", "-lm"], check=True)
    out = subprocess.run(["./act"], input=OBSERVATIONS.tobytes(), capture_output=True, check=True).stdout
    expected = policy.predict(OBSERVATIONS)
    assert_same(np.frombuffer(out, dtype=expected.dtype).reshape(expected.shape), policy)


def test_the_c_header_is_plain(tmp_path) -> None:
    offrank.export(make_wide(), "c", tmp_path / "policy.h")
    text = (tmp_path / "policy.h").read_text()
    assert re.findall("#include (.*)", text) == ["<math.h>"] and "malloc" not in text
    assert max(map(len, text.splitlines())) <= 120
    with pytest.raises(offrank.UsageError, match="type float16 have no type in C: one of float64"):
        offrank.export(replace(make_wide(), dtype="float16"), "c", tmp_path / "half.h")


def make_wide() -> TrainedPolicy:
    kind = make_policy("skip:3", 100, 20)
    theta: FloatArray = np.random.default_rng(0).normal(size=kind.size)
    return TrainedPolicy(kind, theta, Whitening.identity(100), low=np.full(20, -np.inf), high=np.full(20, 0.4))


@every_policy
def test_the_onnx_model_computes_the_same(policy: TrainedPolicy, tmp_path, monkeypatch) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    exported(policy, "onnx", tmp_path, monkeypatch)
    names: dict[str, Any] = {"onnxruntime": onnxruntime, "observations": OBSERVATIONS}
    exec(snippet("python", "onnxruntime"), names)
    assert_same(names["actions"], policy)
    assert len(names["session"].run(None, {"observation": OBSERVATIONS[:1]})[0]) == 1


@every_policy
def test_the_pytorch_module_of_the_docs_computes_the_same(policy: TrainedPolicy, tmp_path, monkeypatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    exported(policy, "torch", tmp_path, monkeypatch)
    names: dict[str, Any] = {}
    exec(snippet("python", "torch.nn.Module"), names)
    module, observations = names["Policy"]("p.pt"), torch.as_tensor(OBSERVATIONS)
    assert_same(module(observations).detach().numpy(), policy)
    np.testing.assert_allclose(module(observations[0]).detach(), policy.predict(OBSERVATIONS[0]), rtol=1e-12)
    assert sum(parameter.numel() for parameter in module.parameters()) == policy.kind.size


# --- what is exported, and what is not accepted

POINT = "toy_envs:Point-v0"


def test_export_takes_an_agent_a_policy_a_file_and_a_run_folder(tmp_path, capsys) -> None:
    agent = offrank.ARS(POINT, workers=0, n_directions=2, n_top=2, policy="skip:3")
    agent.learn(iterations=3, eval_every=1, eval_episodes=2, out=tmp_path / "run")
    agent.save(tmp_path / "saved.offrank")

    def written(source: Any) -> bytes:
        offrank.export(source, "json", tmp_path / "out.json")
        return (tmp_path / "out.json").read_bytes()

    assert written(agent) == written(agent.policy) == written(tmp_path / "saved.offrank")
    assert written(tmp_path / "run") == written(agent.best_policy) == written(str(tmp_path / "run" / "best.offrank"))
    for which, policy in (("best", agent.best_policy), ("final", agent.policy)):
        words = ["export", tmp_path / "run", "--which", which, "--format", "json", "--out", tmp_path / "new" / "a.json"]
        assert main([str(word) for word in words]) == 0
        assert (tmp_path / "new" / "a.json").read_bytes() == written(policy)
        assert f"{which}.offrank, 2 observations" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.json"]


@pytest.fixture
def saved(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    source = Path(__file__).with_name("Swimmer-v3-trained.offrank")
    return Path(shutil.copy(source, tmp_path / "policy.offrank"))


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ("nowhere --format json --out a", 2, "there is no nowhere"),
        ("policy.offrank --format jsn --out a", 2, "--format"),
        ("policy.offrank --out a", 2, "--format"),
        ("policy.offrank --format json", 2, "--out"),
        ("policy.offrank --format json --out policy.offrank/a", 1, "cannot write"),
        ("policy.offrank --format json --out .", 2, ". is a folder"),
    ],
)
def test_what_cannot_be_exported_is_one_line(saved: Path, capsys, words: str, status: int, says: str) -> None:
    try:
        found = main(["export", *words.split()])
    except SystemExit as exit:
        found = exit.code
    said = capsys.readouterr()
    assert found == status and said.out == "" and says in said.err
    assert re.fullmatch(r"offrank: [^\n]+\n", said.err)
    assert [path.name for path in saved.parent.iterdir()] == ["policy.offrank"]


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_a_missing_package_says_how_to_install_it(saved: Path, monkeypatch, format: str) -> None:
    monkeypatch.setitem(sys.modules, format, None)
    with pytest.raises(offrank.UsageError, match=re.escape(f"pip install 'offrank[{format}]'")):
        offrank.export(saved, format, "a")


def test_unknown_formats_and_sources_are_named(saved: Path) -> None:
    with pytest.raises(
        offrank.UsageError, match="unknown format 'jsn': one of json, c, onnx, torch; did you mean 'json'"
    ):
        offrank.export(saved, "jsn", "a")
    with pytest.raises(offrank.UsageError, match="policy = 3: must be a path"):
        offrank.export(3, "json", "a")  # type: ignore[arg-type]
    with pytest.raises(offrank.UsageError, match="out = None: must be a path"):
        offrank.export(saved, "json", None)  # type: ignore[arg-type]
    assert list(FORMATS) == ["json", "c", "onnx", "torch"]
