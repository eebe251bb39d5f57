"""The file of offrank train --config: flags and settings by name."""

from __future__ import annotations

import argparse
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from offrank.algorithms import ALGORITHMS
from offrank.algorithms.base import Episodes
from offrank.cli.options import Parser, setting
from offrank.core.errors import UsageError, did_you_mean
from offrank.core.files import check_regular
from offrank.engines import native_name
from offrank.runs.opening import read_config
from offrank.runs.saved import ASK_TELL, foreign_module

ON_THE_COMMAND_LINE = ("help", "config", "allow_import", "set")  # in a file, settings are given by their own names
EITHER = {"seed": "seeds", "seeds": "seed", "eval_every": "eval_steps", "eval_steps": "eval_every"}
RUN_CODE = ("address", "runtime_env")  # a cluster's answers are unpickled, its workers may import anything


def with_file(args: argparse.Namespace, parser: Parser) -> argparse.Namespace:
    """The arguments of the command line, completed by those of the file of --config.

    Raises:
        UsageError: the file cannot be read, has an unknown name or an invalid value, or would import code.
    """
    if args.config is None:
        return args
    of_run = args.config.is_dir() or args.config.suffix == ".json"
    named = _of_run(args.config, args) if of_run else _of_toml(args.config)
    flags = {action.dest: action for action in parser._actions if action.dest not in ON_THE_COMMAND_LINE}
    known_settings = setting_names()
    completed, settings = argparse.Namespace(**vars(args)), []
    for key, value in named.items():
        name = key.replace("-", "_")
        if name in known_settings:
            settings.append((name, value))
        elif name in ON_THE_COMMAND_LINE:
            own = "; give settings by their own names" if name == "set" else ""
            raise UsageError(f"{args.config}: {key!r} is for the command line only{own}")
        elif name not in flags:
            hint = did_you_mean(name, [*flags, *known_settings])
            raise UsageError(f"{args.config}: {key!r} is neither a flag of offrank train nor a setting{hint}")
        elif flags[name].type is setting:
            setattr(completed, name, [*_table(args.config, key, value), *(getattr(args, name) or [])])
        elif not any(_given(args, flags[one]) for one in (name, EITHER.get(name, name))):
            setattr(completed, name, _convert(args.config, key, value, flags[name]))
            _refuse_code(args, name, getattr(completed, name))
    completed.set = [*settings, *args.set]
    return completed


def setting_names() -> list[str]:
    """The names of all settings of all algorithms and rankers."""
    classes = {cls for entry in ALGORITHMS.values() for cls in (entry.settings, *entry.rankers.values(), Episodes)}
    return sorted({f.name for cls in classes for f in fields(cls)} - {"horizon"})


def _given(args: argparse.Namespace, flag: argparse.Action) -> bool:
    return bool(getattr(args, flag.dest) != flag.default)  # no flag of train has a default that can also be given


def _of_toml(path: Path) -> dict[str, Any]:
    check_regular(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error


def _of_run(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """What makes the same run again, except for its seed.

    Raises:
        UsageError: it is not the configuration of a run, or not enough.
    """
    config = read_config(path)
    if config.engine == ASK_TELL:
        raise UsageError(f"{path} is of a run by ask and tell: there is no environment to train in")
    if args.task is not None and (native_name(args.task) or args.task) != config.task:
        raise UsageError(f"{path} is of a run of {config.task}, not of {args.task}")
    if config.init is not None and args.init is None:
        raise UsageError(f"{path} is of a run that started from a saved policy: give it again (--init)")
    same = ("task", "algo", "ranker", "policy", "engine", "horizon", "clip_actions", "eval_episodes")
    named = {name: getattr(config, name) for name in (*same, "steps", "iterations")}
    named |= {"env_arg": config.env_args, "threshold": "none" if config.threshold is None else config.threshold}
    named |= {"eval_every": config.eval_every} if config.eval_steps is None else {"eval_steps": config.eval_steps}
    named |= {"confirm_episodes": config.confirm_episodes or None}
    return {name: value for name, value in (named | config.hyperparameters).items() if value is not None}


def _refuse_code(args: argparse.Namespace, name: str, value: Any) -> None:
    """Raise UsageError if a file decides which code is run, unless --allow-import is given."""
    if args.allow_import:
        return
    if name == "task" and (module := foreign_module(value)):
        raise UsageError(
            f"{args.config} has the task {value}: this would import the module {module!r} because the file names it; "
            "add --allow-import if you trust it"
        )
    if name in RUN_CODE:
        raise UsageError(
            f"{args.config} has {name}: that may run any code; add --allow-import if you trust it, or give "
            f"--{name.replace('_', '-')}"
        )


def _table(path: Path, key: str, value: Any) -> list[tuple[str, str]]:
    """A table, as the pairs that repeated flags give."""
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {key} = {value!r}: must be a table, such as {key} = {{ name = 1.5 }}")
    return [(name, repr(one)) for name, one in value.items()]


def _convert(path: Path, key: str, value: Any, flag: argparse.Action) -> Any:
    """The value that the flag has on the command line. A list is several, separated by commas."""
    if flag.nargs == 0:
        if not isinstance(value, bool):
            raise UsageError(f"{path}: {key} = {value!r}: must be true or false")
        return value
    several = value if isinstance(value, list) else [value]
    kinds = (str,) if flag.type in (None, Path) else (str, int, float)
    if not several or any(isinstance(one, bool) or not isinstance(one, kinds) for one in several):
        raise UsageError(f"{path}: {key} = {value!r}: must be {'text' if kinds == (str,) else 'a number or text'}")
    text = ",".join(map(str, several))
    try:
        return flag.type(text) if callable(flag.type) else text
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise UsageError(f"{path}: {key}: {error}") from error
