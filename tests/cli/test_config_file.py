from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import offrank as package
from offrank.cli import build_parser
from offrank.cli.config_file import setting_names

SHORT = """
horizon = 20
eval-every = 2
eval_episodes = 2
iterations = 3
quiet = true
"""
SWIMMER = 'task = "Swimmer-v3"\n' + SHORT
POINT = 'task = "toy_envs:Point-v0"\nworkers = 0\n' + SHORT


def write(text: str, name: str = "run.toml") -> str:
    Path(name).write_text(text)
    return name


def config(folder: str) -> dict:
    return json.loads((Path(folder) / "config.json").read_text())


def policy(folder: str) -> str:
    return json.loads((Path(folder) / "result.json").read_text())["policy_sha256"]


def test_flags_and_settings_are_told_apart_and_a_given_flag_is_no_default() -> None:
    flags = build_parser("train")[1]["train"]._actions
    assert not {flag.dest for flag in flags} & set(setting_names())
    assert all(flag.nargs == 0 or flag.default in (None, []) for flag in flags)


def test_the_file_of_the_guide_works_as_it_stands(offrank) -> None:
    page = Path(__file__).parents[2] / "docs" / "guides" / "command-line.md"
    (text,) = re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    brief = ["--seeds", "0-1", "--steps", "200", "--horizon", "20", "--eval-episodes", "2", "--quiet"]
    assert offrank("train", "--config", write(text), *brief).status == 0
    assert config("runs/Hopper-v3-ars-1")["hyperparameters"]["n_directions"] == 16


def test_a_file_means_the_same_as_its_flags(offrank) -> None:
    file = write(
        SWIMMER
        + 'algo = "ars"\nranker = "random"\npolicy = "affine"\nseed = 3\nthreshold = "none"\nclip-actions = true\n'
        + 'n_directions = 4\nstep_size = 0.03\nform = "V1-t"\nsteps = "3k"\n'
    )
    assert offrank("train", "--config", file, "--out", "file").status == 0
    flags = "--horizon 20 --eval-every 2 --eval-episodes 2 --iterations 3 --algo ars --ranker random --policy affine"
    flags += " --seed 3 --threshold none --clip-actions --steps 3k"
    settings = "--set n_directions=4 --set step_size=0.03 --set form=V1-t --out flags"
    assert offrank("train", "Swimmer-v3", *flags.split(), *settings.split()).status == 0
    assert config("file") == config("flags") and policy("file") == policy("flags")
    assert config("file")["sources"]["step_size"] == "given"


def test_flags_override_the_file(offrank) -> None:
    file = write(SWIMMER + "seeds = [0, 1]\nn_directions = 4\nn_top = 2\nthreads = 2\nclip_actions = true\n")
    words = "train Hopper-v3 --algo ars --seed 7 --eval-steps 100 --set n_top=3 --threads 0 --no-clip-actions --out run"
    assert offrank(*words.split(), "--config", file).status == 0
    found = config("run")
    assert (found["task"], found["algo"], found["seed"], found["iterations"]) == ("Hopper-v3", "ars", 7, 3)
    assert found["eval_steps"] == 100 and found["clip_actions"] is False
    assert found["hyperparameters"]["n_directions"] == 4 and found["hyperparameters"]["n_top"] == 3


def test_several_runs_and_environment_arguments(offrank) -> None:
    file = write(POINT + 'algo = ["ars", "op-ars"]\nseeds = [0, 2]\nout = "all"\n[env_arg]\ntarget = 2.5\n')
    assert offrank("train", "--config", file, "--allow-import").status == 0
    assert {path.name for path in Path("all").iterdir()} == {
        f"toy_envs_Point-v0-{algo}-{seed}" for algo in ("ars", "op-ars") for seed in (0, 2)
    }
    assert config("all/toy_envs_Point-v0-ars-2")["env_args"] == {"target": 2.5}
    words = ["--algo", "ars", "--seed", "0", "--env-arg", "target=1", "--out", "one"]
    assert offrank("train", "--config", file, "--allow-import", *words).status == 0
    assert config("one")["env_args"] == {"target": 1}


def test_text_in_a_file_stays_text(offrank) -> None:
    file = write(POINT + '[env-arg]\ntarget = "1"\n')
    offrank("train", "--config", file, "--allow-import").complains("<U1", status=1)


@pytest.mark.parametrize("path", ["first/config.json", "first"])
def test_the_config_of_a_run_makes_the_same_run(offrank, path: str) -> None:
    words = "--algo q-ars --seed 4 --set n_directions=50 --policy skip:2 --confirm-episodes 5 --out first"
    assert offrank("train", "--config", write(SWIMMER), *words.split()).status == 0
    assert offrank("train", "--config", path, "--seed", "4", "--out", "again").status == 0
    one, two = config("first"), config("again")
    assert {**one, "sources": None} == {**two, "sources": None} and policy("first") == policy("again")
    assert offrank("train", "--config", path, "--seed", "5", "--iterations", "1", "--out", "other").status == 0
    assert (config("other")["seed"], config("other")["iterations"]) == (5, 1)
    offrank("train", "Hopper-v3", "--config", path).complains("first", "a run of Swimmer-v3, not of Hopper-v3")


def test_a_run_that_started_from_a_policy_needs_it_again(offrank) -> None:
    offrank("train", "--config", write(SWIMMER), "--out", "first")
    offrank("train", "--config", "run.toml", "--init", "first", "--out", "second")
    offrank("train", "--config", "second", "--out", "third").complains("second", "saved policy", "--init")
    assert offrank("train", "--config", "second", "--init", "first", "--out", "third").status == 0
    assert policy("second") == policy("third")


def test_a_run_by_ask_and_tell_has_no_environment(offrank) -> None:
    run = package.AskTell(package.OPARS, obs_dim=2, act_dim=1, seed=0, journal="robot", total_steps=1000)
    Path("robot.json").write_text(json.dumps(run._run.config.to_json()))
    offrank("train", "--config", "robot.json").complains("robot.json", "ask and tell")


def test_resume_goes_on_with_the_file(offrank) -> None:
    file = write(SWIMMER + 'algo = "ars"\nout = "run"\nn_directions = 4\n')
    offrank("train", "--config", file)
    offrank("train", "--config", file).complains("already holds a run")
    assert offrank("train", "--config", file, "--resume", "--iterations", "5").status == 0
    assert json.loads(Path("run/result.json").read_text())["iterations"] == 5
    offrank("train", "--config", write(SWIMMER + 'out = "run"\nn_directions = 5\n'), "--resume").complains(
        "n_directions = 4, not 5"
    )


def test_a_file_does_not_decide_which_code_is_run(offrank, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "toy_envs", raising=False)
    file = write(POINT)
    offrank("train", "--config", file).complains(file, "import the module 'toy_envs'", "--allow-import")
    offrank("train", "--config", write("allow_import = true\n" + POINT)).complains("'allow_import' is for the command")
    for line in ('address = "10.0.0.1:6379"', 'runtime_env = "env.json"'):
        offrank("train", "--config", write(SWIMMER + f'engine = "ray"\n{line}\n')).complains("--allow-import")
    assert "toy_envs" not in sys.modules and not Path("runs").exists()
    assert offrank("train", "--config", write(POINT), "--allow-import", "--out", "run").status == 0
    monkeypatch.delitem(sys.modules, "toy_envs")
    offrank("train", "--config", "run", "--out", "again").complains("run has the task", "'toy_envs'", "--allow-import")
    assert offrank("train", "toy_envs:Point-v0", "--config", file, "--out", "named").status == 0, "the user names it"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("sedes = 3", ["run.toml: 'sedes' is neither a flag of offrank train nor a setting", "did you mean 'seeds'"]),
        ("n_direction = 3", ["'n_direction'", "did you mean 'n_directions'"]),
        ("n_top = 3", ["unknown hyperparameter 'n_top' of guided"]),
        ("set = { n_top = 3 }", ["'set' is for the command line only; give settings by their own names"]),
        ('config = "other.toml"', ["'config' is for the command line only"]),
        ('steps = "many"', ["run.toml: steps: 'many' is not a positive whole number"]),
        ("steps = true", ["run.toml: steps = True: must be a number or text"]),
        ("steps = { a = 1 }", ["run.toml: steps = {'a': 1}: must be a number or text"]),
        ("episode_seconds = 'x'", ["run.toml: episode_seconds: could not convert"]),
        ("seed = 1.5", ["run.toml: seed: '1.5' is not a whole number"]),
        ("seeds = []", ["run.toml: seeds = []: must be"]),
        ("out = 3", ["run.toml: out = 3: must be text"]),
        ("algo = 3", ["run.toml: algo = 3: must be text"]),
        ("resume = 1", ["run.toml: resume = 1: must be true or false"]),
        ("env-arg = 1", ["run.toml: env-arg = 1: must be a table"]),
        ("population = 'few'", ["population = few: must be a whole number"]),
        ("seed = 1\nseeds = 2", ["--seed or --seeds, not both"]),
        ("seed 1", ["run.toml is not TOML", "line 1"]),
        ("a = " + "[" * 2000, ["run.toml is not TOML"]),
        ("horizon = 1", ["train needs a TASK", "--config"]),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else None,
)
def test_a_bad_file_gets_one_clear_line(offrank, text: str, parts: list[str]) -> None:
    file = write(text)
    task = [] if text.startswith("horizon") else ["Swimmer-v3"]
    offrank("train", *task, "--config", file).complains(*parts)
    assert [path.name for path in Path().iterdir()] == [file]


def test_a_file_that_cannot_be_read_gets_one_clear_line(offrank) -> None:
    offrank("train", "--config", "no.toml").complains("cannot read no.toml")
    offrank("train", "--config", "no.json").complains("cannot read no.json")
    offrank("train", "--config", ".").complains("cannot read config.json")
    Path("bytes.toml").write_bytes(b"\xff\xfe")
    offrank("train", "--config", "bytes.toml").complains("bytes.toml is not TOML")
    offrank("train", "--config", write("{}", "empty.json")).complains("empty.json", "not the configuration")
    offrank("train", "--config", write("{", "half.json")).complains("half.json", "not JSON")
