from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import offrank as offrank_package
from commands import Outcome
from offrank.cli import VERBS, build_parser, main
from offrank.core.errors import FileFormatError
from offrank.core.files import load_arrays, save_arrays
from offrank.core.noise import Role, episode_seeds
from offrank.core.normalizer import Whitening
from offrank.policies import make_policy
from offrank.policies.trained import TrainedPolicy

TESTS = Path(__file__).parent
FILES = {
    "config.json",
    "metrics.jsonl",
    "checkpoint.npz",
    "best.offrank",
    "final.offrank",
    "result.json",
    ".lock",
    "curve.png",
}
SHORT = ["--horizon", "20", "--eval-episodes", "2", "--eval-every", "2"]
SWIMMER = ["train", "Swimmer-v3", "--algo", "op-ars", *SHORT, "--iterations", "3"]
POINT = ["train", "toy_envs:Point-v0", "--algo", "op-ars", *SHORT, "--iterations", "3", "--workers", "0"]


def environment(**extra: str) -> dict[str, str]:
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **extra}


def offrank_process(*words: object, cwd: Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "offrank", *map(str, words)],
        cwd=cwd,
        env=env or environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> Outcome:
    out, err = process.communicate(timeout=120)
    return Outcome(process.returncode, out, err)


def read(path: Path):
    return json.loads(path.read_text())


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same_run(a: Path, b: Path) -> bool:
    """Equal to the last bit, except for wall times."""
    one, two = ([{k: v for k, v in r.items() if k != "wall_s"} for r in metrics(f)] for f in (a, b))
    results = [{k: v for k, v in read(f / "result.json").items() if k != "wall_s"} for f in (a, b)]
    policies = [[load_arrays(f / name, "policy")[1] for name in ("best.offrank", "final.offrank")] for f in (a, b)]
    bits = [[{k: v.tobytes() for k, v in arrays.items()} for arrays in pair] for pair in policies]
    return one == two and results[0] == results[1] and bits[0] == bits[1]


def altered_copy(source: Path, target: Path, array: str) -> None:
    """The same archive with one number of one array changed and valid zip checksums."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = bytearray(old.read(name))
            if name == f"{array}.npy":
                content[-1] ^= 1
            new.writestr(name, bytes(content))


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("steps", "said"), [("30", True), ("31", False)])
def test_too_few_steps_for_a_trained_policy_are_said_at_once(steps, said, offrank) -> None:
    words = ["train", "toy_envs:Point-v0", *SHORT, "--workers", "0", "--steps", steps, "--set", "hidden=4"]
    done = offrank(*words, "--set", "warmup_steps=30", "--quiet")
    assert ("guided has no trained policy before 30 steps (warmup_steps): give more" in done.err) == said


def test_a_warning_of_the_command_is_one_line() -> None:
    code = "import sys, warnings; from offrank.cli import main; sys.argv = ['offrank', '--version']; main(); "
    said = subprocess.run([sys.executable, "-c", code + "warnings.warn('lost')"], capture_output=True, text=True)
    assert said.stderr == "offrank: lost\n"


def test_what_needs_more_memory_than_there_is_is_one_line(offrank) -> None:
    offrank("train", "LQR", "--algo", "guided", "--set", "hidden=900000").complains(
        "out of memory: Unable to", status=1
    )


# --- bad input: one line, status 2


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["train", "Swimer-v3"], ["unknown task 'Swimer-v3'", "did you mean 'Swimmer-v3'"]),
        (["train", "swimmer-V3"], ["unknown task 'swimmer-V3'", "did you mean 'Swimmer-v3'"]),
        (["train", "HalfCheetah"], ["unknown task 'HalfCheetah'", "did you mean 'HalfCheetah-v3'"]),
        (["train", "no-such-thing-at-all"], ["unknown task", "Swimmer-v3", "any Gymnasium id"]),
        (["train", "no_such_module:Env-v0"], ["cannot import 'no_such_module'"]),
        (["train", "toy_envs:Pont-v0"], ["unknown task 'toy_envs:Pont-v0'", "did you mean", "Point-v0"]),
        (["train", "Swimmer-v3", "--algo", "op_ars"], ["unknown algorithm 'op_ars'", "did you mean 'op-ars'"]),
        (["train", "Swimmer-v3", "--algo", "op-ars,sac"], ["unknown algorithm 'sac'", "one of ars"]),
        (["train", "Swimmer-v3", "--algo", ""], ["unknown algorithm ''", "one of ars"]),
        (["train", "Swimmer-v3", "--algo", "op-ars", "--ranker", ""], ["unknown ranker ''", "one of on-policy"]),
        (["train", "Swimmer-v3", "--horizon", "99999999999999999999"], ["horizon = 1", "at most 100,000,000"]),
        (
            ["train", "Swimmer-v3", "--algo", "op-ars", "--set", "bandwidth=1e-300"],
            ["bandwidth = 1e-300", "from 1e-30"],
        ),
        (["train", "Swimmer-v3", "--algo", "op-ars", "--set", "step_size=1e300"], ["step_size = 1e+300", "to 1e+30"]),
        (["train", "Swimmer-v3", "--algo", "op-ars", "--set", "noise_std=1e300"], ["noise_std = 1e+300", "to 1e+30"]),
        (["train", "toy_envs:NoObservationSpace-v0"], ["NoObservationSpace has no observation_space"]),
        (["train", "toy_envs:Picture-v0"], ["(8, 8, 3)", "not supported: images", "FlattenObservation"]),
        (["train", "shimmy:dm_control/walker-walk-v0"], ["cannot import 'shimmy'", "pip install 'shimmy[dm-control]'"]),
        (["train", "Swimmer-v3", "--ranker", "kernl"], ["unknown ranker 'kernl'", "did you mean 'kernel'"]),
        (["train", "Swimmer-v3", "--engine", "mujco"], ["unknown engine 'mujco'", "did you mean 'mujoco'"]),
        (["train", "Pendulum-v1", "--engine", "mujoco"], ["not 'Pendulum-v1'", "--engine gymnasium"]),
        (
            ["train", "Swimmer-v3", "--algo", "op-ars", "--set", "n_direction=3"],
            ["'n_direction'", "did you mean 'n_directions'"],
        ),
        (["train", "Swimmer-v3", "--algo", "op-ars", "--set", "N=3"], ["unknown hyperparameter 'N'", "'n_directions'"]),
        (
            ["train", "Swimmer-v3", "--algo", "op-ars", "--set", "alpha=3"],
            ["unknown hyperparameter 'alpha'", "'step_size'"],
        ),
        (["train", "Swimmer-v3", "--set", "n_directions"], ["'n_directions'", "name=value"]),
        (["train", "Swimmer-v3", "--algo", "ars", "--set", "bandwidth=1"], ["'bandwidth'", "on-policy"]),
        (["train", "Swimmer-v3", "--algo", "op-ars", "--set", "n_top=3"], ["n_top = 3", "n_directions = 2", "b <= N"]),
        (["train", "Swimmer-v3", "--algo", "op-ars", "--set", "n_directions=0"], ["n_directions = 0", "at least 1"]),
        (["train", "Swimmer-v3", "--algo", "op-ars", "--set", "n_behaviour=0"], ["n_behaviour = 0", "at least one"]),
        (
            ["train", "Swimmer-v3", "--algo", "op-ars", "--set", "n_directions=2.5"],
            ["n_directions = 2.5", "a whole number"],
        ),
        (["train", "Swimmer-v3", "--algo", "op-ars", "--set", "step_size=-1"], ["step_size = -1", "positive"]),
        (["train", "Swimmer-v3", "--algo", "op-ars", "--set", "noise_std=0"], ["noise_std = 0", "positive"]),
        (["train", "Swimmer-v3", "--algo", "op-ars", "--set", "bandwidth=0"], ["bandwidth = 0", "positive"]),
        (["train", "Swimmer-v3", "--algo", "op-ars", "--set", "step_size=nan"], ["step_size = nan", "a number"]),
        (["train", "Swimmer-v3", "--algo", "op-ars", "--set", "noise_std=inf"], ["noise_std = inf", "a number"]),
        (["train", "Swimmer-v3", "--set", "reward_shift=NaN"], ["reward_shift = NaN", "a number"]),
        (["train", "Swimmer-v3", "--algo", "op-ars", "--set", "form=V3"], ["form = 'V3'", "one of BRS, V1"]),
        (["train", "Swimmer-v3", "--algo", "q-ars", "--set", "tails=maybe"], ["tails = maybe", "true or false"]),
        (["train", "Swimmer-v3", "--policy", "skpi:3"], ["unknown policy 'skpi:3'", "did you mean 'skip'"]),
        (["train", "Swimmer-v3", "--policy", "mlp"], ["mlp:W1,W2 is written like mlp:64,64"]),
        (["train", "Swimmer-v3", "--steps", "0"], ["--steps", "'0'", "positive"]),
        (["train", "Swimmer-v3", "--steps", "-5"], ["--steps", "'-5'", "positive"]),
        (["train", "Swimmer-v3", "--steps", "many"], ["--steps", "'many'", "3M"]),
        (["train", "Swimmer-v3", "--iterations", "0"], ["--iterations", "'0'", "positive"]),
        (["train", "Swimmer-v3", "--iterations", "nan"], ["--iterations", "'nan'", "positive"]),
        (["train", "Swimmer-v3", "--horizon", "0"], ["--horizon", "'0'", "positive"]),
        (["train", "Swimmer-v3", "--eval-episodes", "0"], ["--eval-episodes", "'0'", "positive"]),
        (["train", "Swimmer-v3", "--eval-every", "-1"], ["--eval-every", "'-1'", "from 0"]),
        (["train", "Swimmer-v3", "--eval-every", "10", "--eval-steps", "5k"], ["eval_every or eval_steps, not both"]),
        (["train", "Swimmer-v3", "--confirm-episodes", "50"], ["confirm_episodes = 50", "eval_episodes = 100"]),
        (["train", "Swimmer-v3", "--threshold", "nan"], ["--threshold", "'nan'", "neither a number nor none"]),
        (["train", "Swimmer-v3", "--threads", "-1"], ["--threads", "'-1'", "from 0"]),
        (["train", "Swimmer-v3", "--workers", "few"], ["--workers", "'few'", "from 0"]),
        (["train", "Swimmer-v3", "--checkpoint-seconds", "nan"], ["--checkpoint-seconds", "'nan'"]),
        (["train", "Swimmer-v3", "--checkpoint-seconds", "-1"], ["--checkpoint-seconds", "'-1'"]),
        (["train", "Swimmer-v3", "--seed", "-1"], ["--seed", "'-1'", "from 0"]),
        (["train", "Swimmer-v3", "--seed", 2**63], ["--seed", "9223372036854775808", "below 2^63"]),
        (["train", "Swimmer-v3", "--seed", "0", "--seeds", "0-3"], ["--seed or --seeds, not both"]),
        (["train", "Swimmer-v3", "--seeds", "3-1"], ["--seeds", "'3-1'", "0-7"]),
        (["train", "Swimmer-v3", "--env-arg", "a=1"], ["Swimmer-v3", "no environment arguments", "a"]),
        (["train", "LQR", "--clip-actions"], ["LQR has no bounds to clip actions to"]),
        (["train", "toy_envs:Point-v0", "--env-arg", "traget=1"], ["cannot make", "'traget'"]),
        (["train", "toy_envs:WordAction-v0"], ["action space Text", "must be a Box, Discrete or MultiDiscrete"]),
        (["train", "toy_envs:SequenceObservation-v0"], ["observation space Sequence", "must flatten to a Box"]),
        (["train", "Swimmer-v3", "--sed", "1"], ["'--sed'", "did you mean '--seed'", "offrank train --help"]),
        (["train", "Swimmer-v3", "--stesp=3"], ["'--stesp=3'", "did you mean '--steps'"]),
        (["train", "Swimmer-v3", "Hopper-v3"], ["'Hopper-v3'"]),
        (["train", "Swimmer-v3", "--steps"], ["--steps", "expected one argument"]),
        (["train"], ["TASK"]),
        (["trian", "Swimmer-v3"], ["unknown verb 'trian'", "did you mean 'train'"]),
        (["--verison"], ["'--verison'", "did you mean '--version'"]),
        ([], ["VERB"]),
        (["evaluate", "nowhere"], ["there is no nowhere"]),
        (["evaluate", "."], ["not a run folder", "best.offrank"]),
        (["evaluate", ".", "--which", "bets"], ["--which", "'bets'", "best", "final"]),
        (["evaluate", ".", "--episodes", "0"], ["--episodes", "'0'", "positive"]),
        (["plot", "nowhere", "--out", "a.png"], ["nowhere is not a run folder"]),
        (["plot", "."], ["--out"]),
        (["record", "nowhere", "--out", "a.mp4"], ["there is no nowhere"]),
        (["record", "nowhere", "--out", "a.avi"], ["a.avi", ".mp4 or .gif"]),
    ],
    ids=lambda value: " ".join(map(str, value))[:60] if isinstance(value, list) else None,
)
def test_bad_arguments_get_one_clear_line(offrank, words, parts) -> None:
    offrank(*words).complains(*parts)
    assert list(Path().iterdir()) == []


def test_a_real_process_complains_in_one_line_too(tmp_path) -> None:
    for words, part in (
        (["train", "Swimer-v3"], "did you mean 'Swimmer-v3'"),
        (["train", "CartPole-v1", "--clip-actions", "--set", "n_top=0"], "n_top"),
    ):
        finished(offrank_process(*words, cwd=tmp_path)).complains(part)


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("imageio_ffmpeg", ["record", "run", "--out", "a.mp4"], "video"),
        ("tensorboardX", [*POINT, "--out", "other", "--tensorboard"], "tensorboard"),
    ],
)
def test_a_missing_extra_says_how_to_install_it(offrank, monkeypatch, module, words, extra) -> None:
    offrank(*POINT, "--out", "run")
    monkeypatch.setitem(sys.modules, module, None)
    offrank(*words).complains(f"pip install 'offrank[{extra}]'")
    assert not Path("a.mp4").exists()
    assert not Path("other").exists()


def test_a_folder_that_holds_a_run_is_left_alone(offrank) -> None:
    offrank(*POINT, "--out", "run")
    before = {path.name: path.read_bytes() for path in Path("run").iterdir()}
    offrank(*POINT, "--seed", "1", "--out", "run").complains("run already holds a run", "--resume", "--out")
    assert {path.name: path.read_bytes() for path in Path("run").iterdir()} == before


def test_one_taken_folder_stops_the_fleet_before_it_starts(offrank) -> None:
    offrank(*POINT, "--seeds", "1", "--out", "fleet")
    offrank(*POINT, "--seeds", "0-1", "--out", "fleet").complains("toy_envs_Point-v0-op-ars-1 already holds a run")
    assert [path.name for path in Path("fleet").iterdir()] == ["toy_envs_Point-v0-op-ars-1"]


def test_an_output_folder_that_cannot_be_made_is_a_usage_error(offrank) -> None:
    Path("taken").write_text("x")
    offrank(*POINT, "--out", "taken").complains("taken is a file")
    offrank(*POINT, "--out", "taken/run").complains("taken/run")
    assert Path("taken").read_text() == "x"


def test_a_truncated_checkpoint_is_refused(offrank) -> None:
    offrank(*POINT, "--out", "run")
    whole = Path("run/checkpoint.npz").read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        Path("run/checkpoint.npz").write_bytes(whole[:size])
        offrank(*POINT, "--out", "run", "--resume").complains("run/checkpoint.npz", "truncated")
        assert Path("run/checkpoint.npz").read_bytes() == whole[:size]


def test_a_checkpoint_with_one_flipped_bit_is_refused(offrank) -> None:
    offrank(*POINT, "--out", "run")
    path = Path("run/checkpoint.npz")
    content = path.read_bytes()
    weights = load_arrays(path, "run")[1]["state.memory.theta"].tobytes()
    flip(path, content.index(weights))
    offrank(*POINT, "--out", "run", "--resume").complains("run/checkpoint.npz", "damaged")


@pytest.mark.parametrize("array", ["state.memory.theta", "state.counters", "policy.theta", "evaluations", "sha256"])
def test_a_rezipped_checkpoint_with_one_changed_number_is_refused(offrank, array) -> None:
    offrank(*POINT, "--out", "run")
    shutil.copy("run/checkpoint.npz", "good.npz")
    altered_copy(Path("good.npz"), Path("run/checkpoint.npz"), array)
    offrank(*POINT, "--out", "run", "--resume").complains("run/checkpoint.npz", "altered")
    offrank("evaluate", "run/checkpoint.npz").complains("run/checkpoint.npz", "altered")


@pytest.mark.parametrize("name", ["state.counters", "state.normalizer_m2", "evaluations", "best_at", "config"])
def test_a_checkpoint_that_lacks_something_is_refused(offrank, name) -> None:
    offrank(*POINT, "--out", "run")
    path = Path("run/checkpoint.npz")
    _, arrays, meta = load_arrays(path, "run")
    arrays.pop(name, None)
    meta.pop(name, None)
    save_arrays(path, "run", arrays, meta)
    offrank(*POINT, "--out", "run", "--resume").complains(
        "run/checkpoint.npz is not a whole checkpoint", name.removeprefix("state.")
    )


def test_a_flipped_bit_anywhere_in_a_policy_file_is_refused(offrank) -> None:
    offrank(*POINT, "--out", "run")
    source, target = Path("run/final.offrank"), Path("flipped.offrank")
    content = source.read_bytes()
    for position in range(len(content)):
        target.write_bytes(content)
        flip(target, position)
        with pytest.raises(FileFormatError):
            load_arrays(target, "policy")


def test_a_flipped_bit_in_a_file_of_an_earlier_version_is_refused_or_changes_nothing(tmp_path) -> None:
    source, target = Path(__file__).parent / "policies" / "Swimmer-v3-trained.offrank", tmp_path / "flipped.offrank"
    _, arrays, meta = load_arrays(source, "policy")
    content, refused = source.read_bytes(), 0
    for position in range(len(content)):
        target.write_bytes(content)
        flip(target, position)
        try:
            _, found, found_meta = load_arrays(target, "policy")
        except FileFormatError:
            refused += 1
        else:
            assert found_meta == meta
            assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
    assert refused > len(content) / 2


@pytest.mark.parametrize("kind", ["text", "npy", "npz", "pickle", "empty", "json"])
def test_a_foreign_file_is_refused(offrank, kind) -> None:
    path = Path("foreign.offrank")
    with path.open("wb") as file:
        if kind == "text":
            file.write(b"not a policy\n")
        elif kind == "npy":
            np.save(file, np.ones(3))
        elif kind == "npz":
            np.savez(file, M=np.ones((2, 2)))
        elif kind == "pickle":
            file.write(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07foreign\x94.")
        elif kind == "json":
            file.write(b'{"M": [1, 2]}')
    for words in (["evaluate", path], ["record", path, "--out", "a.gif"]):
        offrank(*words).complains("foreign.offrank", "not an offrank file")


def test_a_policy_file_is_not_a_checkpoint(offrank) -> None:
    offrank(*POINT, "--out", "run")
    shutil.copy("run/final.offrank", "run/checkpoint.npz")
    offrank(*POINT, "--out", "run", "--resume").complains("run/checkpoint.npz holds a policy, not a run")


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"a": 1}',
        '{"task": "toy_envs:Point-v0", "algo": "op-ars", "ranker": "kernel", "hyperparameters": {}, "seed": 0}',
    ],
    ids=["not JSON", "a list", "foreign", "incomplete"],
)
def test_a_foreign_config_is_refused(offrank, content) -> None:
    offrank(*POINT, "--out", "run")
    Path("run/config.json").write_text(content)
    offrank(*POINT, "--out", "run", "--resume").complains("config.json")
    offrank("plot", "run", "--out", "a.png").complains("config.json")


def test_resume_refuses_a_run_of_another_task(offrank) -> None:
    offrank(*POINT, "--out", "run")
    words = ["--out", "run", "--resume", "--workers", "0"]
    offrank("train", "Pendulum-v1", *words).complains("run holds a run of toy_envs:Point-v0, not of Pendulum-v1")


def test_resume_refuses_the_checkpoint_of_another_task(offrank) -> None:
    offrank(*POINT, "--out", "run")
    offrank(*SWIMMER, "--out", "swimmer")
    shutil.copy("swimmer/checkpoint.npz", "run/checkpoint.npz")
    offrank(*POINT, "--out", "run", "--resume").complains("run/checkpoint.npz", "another run", "'Swimmer-v3'")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--seed", "1"], ["seed = 0, not 1"]),
        (["--algo", "ars"], ["algo = op-ars, not ars"]),
        (["--ranker", "random"], ["ranker = kernel, not random"]),
        (["--set", "step_size=0.5"], ["step_size = 0.02, not 0.5"]),
        (["--horizon", "19"], ["horizon = 20, not 19"]),
        (["--env-arg", "target=1"], ["env_args"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_resume_refuses_what_would_make_it_another_run(offrank, words, parts) -> None:
    offrank(*POINT, "--out", "run")
    offrank(*POINT, *words, "--out", "run", "--resume").complains("run holds a run with", *parts)


def test_resume_refuses_metrics_that_lost_lines(offrank) -> None:
    offrank(*POINT, "--out", "run")
    Path("run/metrics.jsonl").write_text("")
    outcome = offrank(*POINT, "--out", "run", "--resume")
    outcome.complains("run/metrics.jsonl", "lines are missing")


@pytest.mark.parametrize(
    ("task", "parts"),
    [
        ("Nan-v0", ["non-finite reward (nan)", "episode seed", "step 5"]),
        ("Raise-v0", ["ZeroDivisionError: the toy broke on purpose (episode seed", "step 3"]),
    ],
)
def test_a_failing_environment_is_one_line_and_status_1(offrank, task, parts) -> None:
    words = ["train", f"toy_envs:{task}", *SHORT, "--iterations", "3", "--workers", "0", "--out", "run"]
    offrank(*words).complains(*parts, status=1)


def test_a_policy_of_another_size_than_the_environment_is_refused(offrank) -> None:
    offrank("train", "toy_envs:Point-v0", *SHORT, "--iterations", "1", "--workers", "0", "--out", "run")
    _, arrays, meta = load_arrays(Path("run/final.offrank"), "policy")
    from offrank.core.files import save_arrays

    other = replace(TrainedPolicy.from_arrays(arrays), kind=make_policy("linear", 3, 2), theta=np.ones(6))
    other = replace(other, whitening=Whitening.identity(3), low=None, high=None)
    arrays = other.arrays()
    save_arrays(Path("other.offrank"), "policy", arrays, {"config": meta["config"]})
    offrank("evaluate", "other.offrank", "--workers", "0").complains("maps 3 observations to 2 actions")


def test_play_without_a_display_says_so(offrank, monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    offrank(*POINT, "--out", "run")
    offrank("play", "run").complains("no display", "offrank record")


def test_record_of_an_environment_that_cannot_render_says_so(offrank) -> None:
    offrank(*POINT, "--out", "run")
    offrank("record", "run", "--out", "a.gif").complains("toy_envs:Point-v0", "render_mode")


def test_record_says_what_went_wrong_in_rendering(offrank, monkeypatch) -> None:
    from offrank.tasks.environment import LocomotionEnv

    def no_context(self):
        raise RuntimeError("no OpenGL context\nand more")

    offrank(*SWIMMER, "--out", "run")
    monkeypatch.setattr(LocomotionEnv, "render", no_context)
    offrank("record", "run", "--out", "a.gif").complains("cannot show Swimmer-v3", "no OpenGL context", status=1)
    assert not Path("a.gif").exists()


def test_plot_to_an_impossible_place_is_one_line(offrank) -> None:
    offrank(*POINT, "--out", "run")
    offrank("plot", "run", "--out", "a.jpg").complains("a.jpg", ".png, .svg, .pdf")
    offrank("plot", "run", "--out", "run/config.json/a.png").complains("cannot write", "a.png", status=1)


# --- good paths


def test_train_writes_exactly_the_pinned_files(offrank) -> None:
    outcome = offrank(*SWIMMER)
    folder = Path("runs/Swimmer-v3-op-ars-0")
    assert outcome.status == 0
    assert {path.name for path in folder.iterdir()} == FILES
    assert list(Path().iterdir()) == [Path("runs")]
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert outcome.out.startswith("Swimmer-v3 op-ars seed 0: did not reach 325 in 240 steps")
    assert str(folder) in outcome.out


def test_metrics_have_a_line_per_iteration_and_per_evaluation(offrank) -> None:
    offrank(*SWIMMER, "--out", "run")
    records = metrics(Path("run"))
    assert [(r["kind"], r["iteration"], r.get("final", False)) for r in records] == [
        ("iteration", 1, False),
        ("iteration", 2, False),
        ("evaluation", 2, False),
        ("iteration", 3, False),
        ("evaluation", 3, True),
    ]
    for record in records:
        assert {"steps", "episodes", "return_mean", "return_std", "wall_s"} <= set(record)
    assert all({"q_mean", "q_negative"} <= set(r) for r in records if r["kind"] == "iteration")
    episodes = 2 + 2 * 1  # n_b behaviour rollouts and b pairs per iteration
    assert [r["steps"] for r in records if r["kind"] == "iteration"] == [20 * episodes * i for i in (1, 2, 3)]
    assert records[-1]["episodes"] == 3 * episodes


def test_result_says_how_the_run_ended(offrank) -> None:
    offrank(*SWIMMER, "--out", "run")
    result = read(Path("run/result.json"))
    assert result["steps_to_threshold"] is None
    assert result["reached"] is False
    assert result["budget"] is None
    assert result["steps"] == 240
    assert result["stop_reason"] == "iterations"
    assert re.fullmatch("[0-9a-f]{64}", result["policy_sha256"])
    assert {"offrank", "numpy", "mujoco", "gymnasium", "python"} <= set(result["versions"])
    config = read(Path("run/config.json"))
    assert (config["task"], config["algo"], config["seed"]) == ("Swimmer-v3", "op-ars", 0)
    assert config["sources"]["n_directions"].startswith("paper")


def test_the_threshold_ends_a_run(offrank) -> None:
    outcome = offrank(*POINT, "--threshold", "-1e6", "--out", "run")
    result = read(Path("run/result.json"))
    assert outcome.status == 0
    assert result["stop_reason"] == "threshold"
    assert result["reached"] is True
    assert result["steps_to_threshold"] == result["steps"] == metrics(Path("run"))[-1]["steps"]
    assert result["iterations"] == 2
    assert "reached -1e+06 after" in outcome.out


def test_a_final_evaluation_is_no_crossing(offrank) -> None:
    offrank(*POINT, "--threshold", "-1e6", "--eval-every", "5", "--out", "run")
    assert metrics(Path("run"))[-1]["final"] is True
    assert read(Path("run/result.json"))["reached"] is False


def test_a_step_budget_finishes_its_iteration(offrank) -> None:
    words = ["train", "toy_envs:Point-v0", "--algo", "op-ars", *SHORT, "--steps", "200", "--workers", "0"]
    offrank(*words, "--out", "run")
    result = read(Path("run/result.json"))
    a_round = 20 * (1 + 2 * 4)
    assert (result["budget"], result["stop_reason"], result["steps"]) == (200, "steps", 2 * a_round)


def test_threshold_none_and_no_evaluation(offrank) -> None:
    offrank(*SWIMMER, "--threshold", "none", "--eval-every", "0", "--out", "run")
    result = read(Path("run/result.json"))
    assert (result["threshold"], result["best_return"], result["final_return"]) == (None, None, None)
    assert {r["kind"] for r in metrics(Path("run"))} == {"iteration"}
    assert {path.name for path in Path("run").iterdir()} == FILES


def test_numbers_may_have_units(offrank) -> None:
    words = ["train", "toy_envs:Point-v0", *SHORT, "--iterations", "1", "--workers", "0"]
    for text, value in (("3M", 3_000_000), ("3e6", 3_000_000), ("2_000", 2000), ("0.5k", 500)):
        offrank(*words, "--steps", text, "--out", text)
        assert read(Path(text) / "config.json")["steps"] == value


@pytest.mark.parametrize("command", ["evaluate run --episodes 1", "record run --out v.mp4"])
def test_a_file_does_not_decide_which_modules_are_imported(offrank, monkeypatch, command: str) -> None:
    offrank(*POINT, "--out", "run")
    monkeypatch.delitem(sys.modules, "toy_envs")
    offrank(*command.split()).complains("run/best.offrank", "toy_envs:Point-v0", "import", "--allow-import")
    with pytest.raises(offrank_package.UsageError, match=r"import the module 'toy_envs'.*env='toy_envs:Point-v0'"):
        offrank_package.load("run").evaluate(1)
    policy = offrank_package.load("run/best.offrank").policy
    assert policy.predict(np.zeros(2)).shape == (2,)  # acting needs no environment
    assert "toy_envs" not in sys.modules
    if command.startswith("evaluate"):
        offrank(*command.split(), "--allow-import", "--workers", "0")
        assert "toy_envs" in sys.modules


def test_evaluate_as_json(offrank) -> None:
    offrank(*SWIMMER, "--out", "run")
    found = offrank("evaluate", "run", "--episodes", "3", "--json").json
    assert {"mean", "std", "returns", "lengths"} <= set(found)
    assert len(found["returns"]) == len(found["lengths"]) == 3
    assert found["lengths"] == [20, 20, 20]
    assert found["mean"] == pytest.approx(np.mean(found["returns"]))
    assert found["std"] == pytest.approx(np.std(found["returns"]))
    again = offrank("evaluate", "run", "--episodes", "3", "--json").json
    other = offrank("evaluate", "run", "--episodes", "3", "--seed", "1", "--json").json
    assert again == found
    assert other["returns"] != found["returns"]


def test_evaluate_takes_the_best_policy_or_the_final_one(offrank) -> None:
    words = [*POINT, "--seed", "1", "--set", "step_size=0.5"]  # worse after the third iteration than after the second
    offrank(*words, "--out", "run")
    offrank(*words, "--iterations", "2", "--out", "short")
    by_name = {w: offrank("evaluate", "run", "--which", w, "--workers", "0", "--json").json for w in ("best", "final")}
    assert by_name["final"]["policy_sha256"] == read(Path("run/result.json"))["policy_sha256"]
    assert by_name["best"]["policy_sha256"] == read(Path("short/result.json"))["policy_sha256"]
    assert by_name["best"]["policy_sha256"] != by_name["final"]["policy_sha256"]
    file = offrank("evaluate", "run/final.offrank", "--workers", "0", "--json").json
    assert file["returns"] == by_name["final"]["returns"]


def test_evaluate_as_text(offrank) -> None:
    offrank(*SWIMMER, "--out", "run")
    outcome = offrank("evaluate", "run", "--episodes", "2")
    assert outcome.err == ""
    assert re.fullmatch(r"run.best.offrank: Swimmer-v3, mean return \S+ ± \S+ over 2 episodes of 20.*\n", outcome.out)


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("deep/er/a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_plot_draws_runs_and_fleets(offrank, name, start) -> None:
    offrank(*POINT, "--out", "run")
    offrank(*POINT, "--seeds", "1-2", "--out", "fleet")
    outcome = offrank("plot", "run", "fleet", "--out", name)
    assert (outcome.status, outcome.out) == (0, f"{Path(name)}: 3 runs\n")
    assert Path(name).read_bytes().startswith(start)


def test_a_fleet_has_a_folder_per_run(offrank) -> None:
    outcome = offrank(*SWIMMER, "--seeds", "0-1", "--algo", "op-ars,ars", "--out", "fleet", "--json")
    expected = [f"Swimmer-v3-{algo}-{seed}" for algo in ("op-ars", "ars") for seed in (0, 1)]
    assert {path.name for path in Path("fleet").iterdir()} == set(expected)
    assert [Path(result["folder"]).name for result in outcome.json] == expected
    for name in expected:
        assert {path.name for path in Path("fleet", name).iterdir()} == FILES


@pytest.mark.parametrize("words", [SWIMMER, POINT], ids=["mujoco", "gymnasium"])
def test_a_run_in_a_fleet_equals_the_run_alone(offrank, words) -> None:
    offrank(*words, "--seeds", "0,2", "--algo", "op-ars,ars", "--out", "fleet")
    for algo, seed in (("op-ars", 2), ("ars", 0)):
        alone = Path(f"alone-{algo}-{seed}")
        offrank(*words, "--seed", seed, "--algo", algo, "--out", alone)
        (among,) = Path("fleet").glob(f"*-v?-{algo}-{seed}")
        assert same_run(alone, among)
    shas = {read(path)["policy_sha256"] for path in Path("fleet").glob("*/result.json")}
    assert len(shas) == 4


def test_workers_and_threads_do_not_change_the_bits(offrank) -> None:
    offrank(*POINT, "--out", "zero")
    offrank(*POINT, "--workers", "2", "--out", "two")
    assert same_run(Path("zero"), Path("two"))
    offrank(*SWIMMER, "--threads", "1", "--out", "one")
    offrank(*SWIMMER, "--threads", "3", "--out", "three")
    assert same_run(Path("one"), Path("three"))


# --- resuming


@pytest.mark.parametrize("words", [SWIMMER, POINT], ids=["mujoco", "gymnasium"])
def test_resume_extends_a_finished_run_to_the_same_bits(offrank, words) -> None:
    offrank(*words, "--out", "parts")
    outcome = offrank(*words, "--iterations", "7", "--out", "parts", "--resume")
    offrank(*words, "--iterations", "7", "--out", "whole")
    assert outcome.status == 0
    assert read(Path("parts/result.json"))["iterations"] == 7
    assert same_run(Path("parts"), Path("whole"))


def test_resume_of_a_finished_run_changes_nothing(offrank) -> None:
    offrank(*POINT, "--out", "run")
    shutil.copytree("run", "before")
    offrank("train", "toy_envs:Point-v0", "--workers", "0", "--out", "run", "--resume")
    assert same_run(Path("run"), Path("before"))


def test_resume_without_a_run_starts_one(offrank) -> None:
    offrank(*POINT, "--out", "run", "--resume")
    offrank(*POINT, "--out", "other")
    assert same_run(Path("run"), Path("other"))


def test_resume_of_a_fleet_adds_the_missing_runs(offrank) -> None:
    offrank(*POINT, "--seeds", "0-1", "--out", "fleet")
    offrank(*POINT, "--seeds", "0-2", "--iterations", "4", "--out", "fleet", "--resume")
    offrank(*POINT, "--seeds", "0-2", "--iterations", "4", "--out", "whole")
    for seed in range(3):
        name = f"toy_envs_Point-v0-op-ars-{seed}"
        assert same_run(Path("fleet", name), Path("whole", name))


def test_resume_accepts_what_was_given_before(offrank) -> None:
    words = [*POINT, "--env-arg", "target=0.5", "--env-arg", "shape=(2,)", "--set", "step_size=0.1"]
    offrank(*words, "--out", "run")
    assert offrank(*words, "--iterations", "4", "--out", "run", "--resume").status == 0
    assert read(Path("run/result.json"))["iterations"] == 4


def test_resume_goes_on_with_the_algorithm_of_the_folder(offrank) -> None:
    offrank(*POINT, "--out", "run")
    words = ["train", "toy_envs:Point-v0", "--iterations", "4", "--set", "step_size=0.02", "--out", "run", "--resume"]
    assert offrank(*words).status == 0
    assert (read(Path("run/result.json"))["algo"], read(Path("run/result.json"))["iterations"]) == ("op-ars", 4)


def test_the_recommended_algorithm_is_trained_unless_another_is_named(offrank) -> None:
    assert offrank("train", "Swimmer-v3", *SHORT, "--iterations", "1").status == 0
    assert read(Path("runs/Swimmer-v3-guided-0/result.json"))["algo"] == "guided"


posix = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


def wait_for_lines(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    path = folder / "metrics.jsonl"
    for _ in range(6000):
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    raise AssertionError(f"{path} did not get {count} lines")


@posix
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT"])
@pytest.mark.parametrize("workers", [0, 1])
def test_resume_after_a_signal_equals_uninterrupted(offrank, tmp_path, name, workers) -> None:
    slow = ["train", "toy_envs:Slow-v0", "--env-arg", "delay=0.001", *SHORT, "--quiet"]
    endless = ["--iterations", "1M", "--checkpoint-seconds", "0", "--workers", workers, "--out", "run"]
    process = offrank_process(*slow, *endless, cwd=tmp_path)
    wait_for_lines(Path("run"), 4, process)
    process.send_signal(getattr(signal, name))
    outcome = finished(process)
    if name == "SIGKILL":
        assert outcome.status == -signal.SIGKILL
    else:
        assert outcome.status == 128 + getattr(signal, name)
        assert outcome.err == f"offrank: interrupted by {name}; saved, add --resume to continue\n"
    reached = int(load_arrays(Path("run/checkpoint.npz"), "run")[1]["state.counters"][1])
    assert reached >= 2
    assert not Path("run/result.json").exists()

    slow += ["--workers", "0", "--iterations", reached + 2]
    assert offrank(*slow, "--out", "run", "--resume").status == 0
    offrank(*slow, "--out", "whole")
    assert same_run(Path("run"), Path("whole"))


@posix
def test_a_signal_before_the_first_iteration_ends_still_saves(offrank, tmp_path) -> None:
    words = ["train", "toy_envs:Slow-v0", "--workers", "0", "--out", "run", "--iterations", "1"]
    process = offrank_process(*words, "--env-arg", "delay=0.02", cwd=tmp_path)
    for _ in range(6000):
        if Path("run/metrics.jsonl").exists():
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert finished(process).status == 143
    assert int(load_arrays(Path("run/checkpoint.npz"), "run")[1]["state.counters"][1]) == 0


def test_a_failed_run_can_be_resumed_once_the_cause_is_removed(offrank) -> None:
    words = ["train", "toy_envs:Crash-v0", *SHORT, "--iterations", "3", "--workers", "1", "--out", "run"]
    words += ["--algo", "op-ars", "--env-arg", "marker=marker.txt", "--env-arg", "times=4"]
    offrank(*words).complains("lost its worker 3 times", status=1)
    assert offrank(*words, "--resume").status == 0
    assert len(Path("marker.txt").read_text().splitlines()) == 4
    offrank(*POINT, "--out", "point")
    sha = [read(Path(name) / "result.json")["policy_sha256"] for name in ("run", "point")]
    assert sha[0] == sha[1]


# --- output


def test_json_is_all_of_stdout(offrank) -> None:
    outcome = offrank(*SWIMMER, "--out", "run", "--json")
    result = read(Path("run/result.json"))
    assert {k: v for k, v in outcome.json.items() if k in result and k != "wall_s"} == {
        k: v for k, v in result.items() if k != "wall_s"
    }
    assert outcome.json["folder"] == "run"


def test_quiet_shows_no_progress(offrank) -> None:
    outcome = offrank(*SWIMMER, "--out", "run", "--quiet")
    assert outcome.err == ""
    assert outcome.out.count("\n") == 1


def test_progress_is_plain_lines_where_there_is_no_terminal(tmp_path) -> None:
    outcome = finished(offrank_process(*SWIMMER, "--out", "run", cwd=tmp_path))
    lines = outcome.err.splitlines()
    assert "\x1b" not in outcome.err + outcome.out
    assert len(lines) == 2
    assert lines[0].startswith("Swimmer-v3 op-ars seed 0: iteration 2, 160 steps, evaluated ")
    assert lines[1].startswith("Swimmer-v3 op-ars seed 0: iteration 3, 240 steps, evaluated ")
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def test_many_runs_are_shown_together(tmp_path) -> None:
    many = ("--algo", "op-ars,ars", "--seeds", "0-8", "--iterations", "1", "--horizon", "20", "--out", "runs")
    outcome = finished(offrank_process("train", "Swimmer-v3", *many, "--eval-episodes", "2", cwd=tmp_path))
    assert outcome.status == 0, outcome.err
    first, second = outcome.err.splitlines()
    assert first.startswith("Swimmer-v3 op-ars (kernel, linear): 9 of 9 ended, 9 by iterations; 80 to 80 steps; ")
    assert second.startswith("Swimmer-v3 ars (on-policy, linear): 9 of 9 ended, 9 by iterations; 80 to 80 steps; ")


def test_every_verb_has_help_with_an_example(capsys) -> None:
    assert {"train", "evaluate", "plot", "record", "play"} <= set(VERBS)
    for verb in VERBS:
        with pytest.raises(SystemExit) as exit:
            main([verb, "--help"])
        assert exit.value.code == 0
        text = capsys.readouterr().out
        assert re.search(rf"examples?:\n  offrank {verb} ", text), text


def test_the_list_of_verbs_has_the_help_text_of_each_verb(capsys) -> None:
    """The list is made without importing the verbs' modules, so it could differ from them."""
    for verb, (_, help) in VERBS.items():
        parser, _ = build_parser(verb)
        listed = parser.format_help()
        assert re.search(rf"{verb}\s+{re.escape(help)}", listed), listed


def test_a_policy_is_named_trained_evaluated_recorded_and_plotted(offrank) -> None:
    outcome = offrank(*POINT, "--policy", "SKIP: 4", "--out", "run", "--json", "--quiet")
    assert outcome.json["policy"] == "skip:4" and outcome.json["parameters"] == 2 * 2 + 2 * 4 + 4 * 2 + 4
    assert offrank("evaluate", "run", "--workers", "0", "--episodes", "2", "--json").json["mean"]
    assert offrank("plot", "run", "--out", "curve.png").status == 0
    offrank(*POINT, "--out", "run", "--resume", "--policy", "linear").complains("policy = skip:4, not linear")
    assert offrank(*POINT, "--iterations", "5", "--policy", "skip:4", "--out", "run", "--resume").status == 0
    offrank(*POINT, "--iterations", "5", "--policy", "skip:4", "--out", "whole")
    assert same_run(Path("run"), Path("whole"))


def test_help_and_version(offrank) -> None:
    assert offrank("--help").status == 0
    outcome = offrank("--version")
    assert outcome.status == 0
    assert re.fullmatch(r"offrank \d+\.\d+\.\d+\S*\n", outcome.out)


def test_where_a_threshold_may_end_the_run_the_time_left_is_at_most(offrank) -> None:
    brief = [*POINT, "--iterations", "2", "--eval-every", "1"]
    assert re.search(r"steps/s, at most 0:0\d left\n", offrank(*brief, "--threshold", "1e9", "--out", "a").err)
    assert re.search(r"steps/s, 0:0\d left\n", offrank(*brief, "--threshold", "none", "--out", "b").err)


def test_tensorboard_writes_its_own_files(offrank) -> None:
    pytest.importorskip("tensorboardX")
    offrank(*POINT, "--out", "run", "--tensorboard")
    (events,) = Path("run/tensorboard").glob("events.out.tfevents.*")
    assert b"evaluation/return_mean" in events.read_bytes()


# --- video


def can_render() -> bool:
    script = "import mujoco; c = mujoco.GLContext(64, 64); c.make_current(); c.free()"
    env = environment(**({"MUJOCO_GL": os.environ["MUJOCO_GL"]} if "MUJOCO_GL" in os.environ else {}))
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def opengl() -> None:
    if not can_render():
        pytest.skip("no OpenGL context can be made here")


def test_record_writes_a_video(offrank, opengl) -> None:
    offrank(*SWIMMER, "--out", "run")
    outcome = offrank("record", "run", "--out", "films/a.mp4", "--steps", "5", "--width", "64", "--height", "48")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith(f"{Path('films/a.mp4')}: 6 frames")
    assert b"ftyp" in Path("films/a.mp4").read_bytes()[:32]


def test_record_tells_a_person_at_a_terminal_that_it_takes_a_while(offrank, opengl, monkeypatch) -> None:
    offrank(*SWIMMER, "--out", "run")
    monkeypatch.setattr("offrank.cli.show.sys.stderr.isatty", lambda: True)
    outcome = offrank("record", "run", "--out", "a.gif", "--steps", "2", "--width", "64", "--height", "48")
    assert outcome.err == "rendering a.gif: without a GPU about ten frames per second\n"


@pytest.mark.parametrize(("task", "frames", "duration"), [("Swimmer-v3", 5, 40), ("Hopper-v3", 2, 20)])
def test_a_gif_is_shown_at_the_speed_of_the_task(task: str, frames: int, duration: int, offrank, opengl) -> None:
    offrank("train", task, *SHORT, "--iterations", "1", "--out", "run")
    offrank("record", "run", "--out", "a.gif", "--steps", "4", "--width", "64", "--height", "48")
    with Image.open("a.gif") as film:
        assert (film.n_frames, film.info["duration"]) == (frames, duration)


def test_record_needs_neither_a_display_nor_a_setting(offrank, opengl, tmp_path) -> None:
    offrank(*SWIMMER, "--out", "run")
    env = {k: v for k, v in environment().items() if k not in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}
    words = ["record", "run", "--out", "a.gif", "--steps", "2", "--width", "64", "--height", "48"]
    outcome = finished(offrank_process(*words, cwd=tmp_path, env=env))
    assert (outcome.status, outcome.err) == (0, "")
    assert Path("a.gif").read_bytes().startswith(b"GIF8")


@pytest.mark.parametrize(
    "flags",
    ["--env-arg target=2.0", "--engine gymnasium", "--algo ars", "--seed 3", "--no-clip-actions"],
)
def test_resume_keeps_the_settings_of_the_run_without_repeating_flags(offrank, flags) -> None:
    """The environment, engine and algorithm are those of the run folder, not the defaults."""
    task = ("train", "toy_envs:Point-v0", "--workers", "0")
    new = (*task, *flags.split(), "--eval-every", "0", "--threshold", "none")
    assert offrank(*new, "--iterations", "6", "--out", "whole").status == 0
    assert offrank(*new, "--iterations", "3", "--out", "parts").status == 0
    assert offrank(*task, "--iterations", "6", "--out", "parts", "--resume").status == 0
    whole, parts = (read(Path(name) / "result.json") for name in ("whole", "parts"))
    assert whole["policy_sha256"] == parts["policy_sha256"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--algo", "ars", "--set", "n_directions=1e8"], "must be at most 10,000,000"),
        (["--algo", "ars", "--set", "n_directions=1e12"], "must be at most 1,000,000,000"),
        (["--seeds", "0-9999999999"], "more than 100,000 seeds"),
        (["--env-arg", "a={[]:1}"], "Swimmer-v3"),  # not a literal, so a string, which the task does not accept
    ],
)
def test_sizes_that_would_take_forever_are_refused(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["train", "Swimmer-v3", "--iterations", "1", "--quiet", *words])
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2 and line in capsys.readouterr().err


def test_a_worker_that_dies_again_and_again_stops_its_own_run_only_and_every_failure_has_a_line(offrank) -> None:
    bad = int(episode_seeds(1, 1, Role.PLUS, np.array([0]))[0])  # of seed 1, in its second iteration
    words = ["train", "toy_envs:CrashAt-v0", "--env-arg", f"seed={bad}", *SHORT, "--algo", "ars", "--iterations", "3"]
    outcome = offrank(*words, "--workers", "2", "--seeds", "0-2", "--out", "fleet")
    assert outcome.status == 1
    why = f"lost its worker 3 times, at last because its process died (exit status 3) (episode seed {bad})"
    assert outcome.err.splitlines()[-1] == f"offrank: toy_envs_CrashAt-v0-ars-1: {why}"
    ended = [Path(f"fleet/toy_envs_CrashAt-v0-ars-{seed}/result.json").is_file() for seed in range(3)]
    assert ended == [True, False, True]
    assert "ars seed 0" in outcome.out and "ars seed 2" in outcome.out and "ars seed 1" not in outcome.out


@pytest.mark.parametrize("damage", ["config.json", "checkpoint.npz"])
def test_one_damaged_folder_does_not_stop_a_fleet_that_is_resumed(offrank, damage: str) -> None:
    words = [*POINT, "--seeds", "0-2", "--out", "fleet", "--quiet"]
    offrank(*words)
    broken = Path("fleet/toy_envs_Point-v0-op-ars-1") / damage
    broken.write_bytes(b"{")
    outcome = offrank(*words, "--iterations", "5", "--resume")
    assert outcome.status == 1 and outcome.err.count("\n") == 1
    assert outcome.err.startswith("offrank: toy_envs_Point-v0-op-ars-1: ") and "damaged" in outcome.err
    done = [read(Path(f"fleet/toy_envs_Point-v0-op-ars-{seed}/result.json"))["iterations"] for seed in range(3)]
    assert done == [5, 3, 5] and broken.read_bytes() == b"{"


@posix
def test_at_an_interrupt_on_a_full_disk_the_command_says_what_was_not_saved(offrank, monkeypatch) -> None:
    full, fsync = threading.Event(), os.fsync

    def failing(descriptor: int) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    def interrupt() -> None:
        path = Path("run/metrics.jsonl").absolute()
        while not path.exists() or path.read_bytes().count(b"\n") < 4:
            time.sleep(0.01)
        full.set()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(os, "fsync", failing)
    slow = ["train", "toy_envs:Slow-v0", "--env-arg", "delay=0.001", *SHORT, "--quiet", "--eval-every", "0"]
    threading.Thread(target=interrupt).start()
    outcome = offrank(*slow, "--workers", "0", "--iterations", "1M", "--out", "run")
    assert outcome.status == 130
    first, second = outcome.err.splitlines()
    assert first.startswith("offrank: not saved") and "No space left on device" in first
    assert second == "offrank: interrupted by SIGINT; 1 not saved, add --resume to continue"
    full.clear()
    slow += ["--workers", "0", "--iterations", "4"]
    assert offrank(*slow, "--out", "run", "--resume").status == 0  # the folder is free
    offrank(*slow, "--out", "whole")
    assert same_run(Path("run"), Path("whole"))


def test_tensorboard_is_closed_and_hides_what_a_resumed_run_replays(offrank, monkeypatch) -> None:
    library = pytest.importorskip("tensorboardX")
    writers: list[tuple[int | None, list[int], list[str]]] = []

    class Recorded(library.SummaryWriter):
        def __init__(self, *args: object, purge_step: int | None = None, **options: object):
            super().__init__(*args, purge_step=purge_step, **options)
            self.steps: list[int] = []
            self.ends: list[str] = []
            writers.append((purge_step, self.steps, self.ends))

        def add_scalar(self, name: str, value: float, steps: int) -> None:
            self.steps.append(steps)
            super().add_scalar(name, value, steps)

        def close(self) -> None:
            self.ends.append("closed")
            super().close()

    monkeypatch.setattr(library, "SummaryWriter", Recorded)
    offrank(*POINT, "--out", "run", "--tensorboard")
    state = int(load_arrays(Path("run/checkpoint.npz"), "run")[1]["state.counters"][2])
    offrank(*POINT, "--iterations", "5", "--out", "run", "--tensorboard", "--resume")
    (first, before, ended), (purge, after, also_ended) = writers
    assert first is None and purge == state + 1
    assert ended and also_ended and max(before) <= state < min(after)


def test_from_a_source_tree_without_installed_metadata_everything_says_its_version(tmp_path) -> None:
    """As on a cluster's nodes, where the sources are on the path and nothing was installed."""
    shutil.copytree(Path(offrank_package.__file__).parent, tmp_path / "src" / "offrank")
    code = (
        "import importlib.metadata as m, sys; found = m.version\n"
        "def version(name):\n"
        "    if name == 'offrank': raise m.PackageNotFoundError(name)\n"
        "    return found(name)\n"
        "m.version = version\n"
        "from offrank.cli import main; from offrank.core.version import versions\n"
        "assert versions()['offrank'] == __import__('offrank').__version__\n"
        "sys.exit(main(['train', 'LQR', '--iterations', '1', '--out', sys.argv[1], '--quiet']) or main(['--version']))"
    )
    env = environment(PYTHONPATH=os.pathsep.join([str(tmp_path / "src"), str(TESTS)]))
    words = [sys.executable, "-c", code, str(tmp_path / "run")]
    process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    outcome = finished(process)
    assert outcome.status == 0 and outcome.err == "", outcome.err
    assert outcome.out.splitlines()[-1] == f"offrank {offrank_package.__version__}"


def test_weights_that_could_not_be_read_again_are_not_saved(offrank) -> None:
    words = ["train", "Pendulum-v1", "--algo", "ars", "--horizon", "20", "--eval-episodes", "2", "--workers", "0"]
    ran = offrank(*words, "--set", "step_size=1e30", "--iterations", "20", "--out", "run", "--quiet")
    ran.complains("the weights became non-finite in iteration", "larger than 1e+30: the steps are too large", status=1)
    assert offrank("evaluate", "run", "--episodes", "1").status == 0
    assert offrank(*words, "--set", "step_size=1e30", "--iterations", "20", "--out", "run", "--resume").err == ran.err
