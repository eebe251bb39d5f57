"""Change the code at random places, one at a time, and see whether a test fails.

    pip install 'offrank[mutation]'
    python -m offrank.lab.campaign.mutate --sample 400 --out results/campaign/mutation.json    # in a checkout

The changes are those of cosmic-ray: another operator, comparison, number, boolean or exception, a condition negated, a
loop never entered, a decorator removed. Places are drawn at random from `core`, `algorithms` and `runs`, except in type
hints and in arguments of decorators, and at each place one of its changes. The tests that run it are known from one run
of all under coverage; for a line that is only run when its file is imported, they are those that run any line of the
file, and those of the tables of settings in the documentation. They are run from the shortest on, up to --seconds, and
up to --long where these notice nothing; each change in a copy of the checkout, by a process forked from one that has
imported what takes long. A change that no test notices survives, also if it makes no difference.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from offrank.cli.options import count, natural
from offrank.core.errors import OffrankError, UsageError, require
from offrank.core.files import write_json
from offrank.core.version import versions
from offrank.lab.campaign import one_thread, show
from offrank.lab.script import make_parser, run_script
from offrank.lab.statistics import success_interval

PACKAGES = ("core", "algorithms", "runs")
TESTS = (  # all but those of engines on clusters and GPUs, and of the laboratory
    *("tests/core", "tests/algorithms", "tests/runs", "tests/policies", "tests/tasks", "tests/cli"),
    *("tests/test_agents.py", "tests/test_fleet.py", "tests/test_asktell.py", "tests/test_callbacks.py"),
    *("tests/test_cli.py", "tests/test_docs.py", "tests/engines/test_engines.py"),
)
TABLES = (  # they read the defaults of settings, which are set when a file is imported
    "tests/test_docs.py::test_settings_and_their_defaults_are_those_of_the_code",
    "tests/test_docs.py::test_settings_of_rankers_are_those_of_the_code",
)
PRELOADED = ("pytest", "hypothesis", "numpy", "scipy.stats", "mujoco", "gymnasium", "matplotlib.pyplot", "torch")
GRACE, SLOWER = 30.0, 5.0  # seconds, and factor, by which tests may take longer than they took
DURATION = re.compile(r"^\s*([\d.]+)s (?:call|setup|teardown) +(\S+::.+?)\s*$", re.MULTILINE)
Position = tuple[int, int]  # line, column


@dataclass(frozen=True)
class Mutant:
    """A change of one place of a file."""

    file: str  # relative to src/offrank
    operator: str
    occurrence: int  # of the operator in the file
    start: Position
    end: Position

    @property
    def package(self) -> str:
        return self.file.split("/")[0]


# --- what can be changed


def mutants_of(file: str, text: str) -> Iterator[Mutant]:
    """All changes of a file."""
    syntax, plugins = require("cosmic_ray.ast", "mutation"), require("cosmic_ray.plugins", "mutation")
    inert, nodes = list(_inert(text)), list(syntax.ast_nodes(syntax.get_ast(text)))
    for name in sorted(plugins.operator_names()):
        kind = plugins.get_operator(name)
        if name == "core/NoOp" or kind.arguments():
            continue
        operator, occurrence = kind(), 0
        for node in nodes:
            for start, end in operator.mutation_positions(node):
                if not any(first <= start and end <= last for first, last in inert):
                    yield Mutant(file, name, occurrence, start, end)
                occurrence += 1


def _inert(text: str) -> Iterator[tuple[Position, Position]]:
    """Where the type hints of a file are, which are never evaluated, and the arguments of decorators."""
    for node in ast.walk(ast.parse(text)):
        found = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for decorator in getattr(node, "decorator_list", []):
            found += [keyword.value for keyword in getattr(decorator, "keywords", [])]
        for part in found:
            if isinstance(part, ast.expr):
                assert part.end_lineno is not None and part.end_col_offset is not None
                yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


def mutated(text: str, mutant: Mutant) -> str:
    """The file with the change."""
    operator = require("cosmic_ray.plugins", "mutation").get_operator(mutant.operator)()
    changed = require("cosmic_ray.mutating", "mutation").mutate_code(text, operator, mutant.occurrence)
    assert changed is not None
    return str(changed)


def draw(source: Path, sample: int, seed: int) -> tuple[list[Mutant], int]:
    """Changes at random places, and the number of places there are."""
    places = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((source / package).rglob("*.py")):
            file = path.relative_to(source).as_posix()
            for mutant in mutants_of(file, path.read_text()):
                places[file, mutant.start, mutant.end].append(mutant)
    dice = random.Random(seed)
    order = dice.sample(sorted(places), len(places))
    drawn = (dice.choice(places[place]) for place in order)
    return list(islice((mutant for mutant in drawn if _differs(source, mutant)), sample)), len(places)


def _differs(source: Path, mutant: Mutant) -> bool:
    """Whether the change is one, as 1e100 + 1 is not, and is Python."""
    text = (source / mutant.file).read_text()
    try:
        return ast.dump(ast.parse(text)) != ast.dump(ast.parse(mutated(text, mutant)))
    except SyntaxError:
        return False


# --- which tests run it


class Tests:
    """Which tests run which line, and how long they take."""

    def __init__(self, tree: Path, folder: Path):
        database, log = folder / "coverage.db", folder / "tests.log"
        require("pytest_cov", "mutation")
        if not database.is_file():
            _run_covered(tree, database, log)
        self._data = require("coverage", "mutation").CoverageData(str(database))
        self._data.read()
        self._source = tree / "src" / "offrank"
        self._seconds: defaultdict[str, float] = defaultdict(float)
        for seconds, test in DURATION.findall(log.read_text()):
            self._seconds[test] += float(seconds)
        self._failed = set(re.findall(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", log.read_text(), re.MULTILINE))

    def of(self, mutant: Mutant, seconds: float) -> list[str]:
        """The tests that run the change, from the shortest on, as many as fit into a time, but at least one."""
        lines = self._data.contexts_by_lineno(str(self._source / mutant.file))
        there = {context for line in range(mutant.start[0], mutant.end[0] + 1) for context in lines.get(line, [])}
        imported = not any(there)
        if imported:
            there = {context for contexts in lines.values() for context in contexts}
        tests = {context.rpartition("|")[0] for context in there if context} - self._failed
        tests |= set(TABLES) if imported and tests else set()
        chosen, total = list[str](), 0.0
        for test in sorted(tests, key=lambda test: (self._seconds[test], test)):
            total += self._seconds[test]
            if chosen and total > seconds:
                break
            chosen.append(test)
        return chosen

    def time(self, tests: Sequence[str]) -> float:
        return sum(self._seconds[test] for test in tests)


def _run_covered(tree: Path, database: Path, log: Path) -> None:
    settings = database.with_suffix(".ini")
    settings.write_text(f"[run]\ndata_file = {database}\n")
    words = ["--cov=offrank", f"--cov-config={settings}", "--cov-context=test", "--cov-report=", "--durations=0", "-vv"]
    environment = one_thread() | {"PYTHONPATH": _with_path(tree / "src")}
    with log.open("w") as file:
        subprocess.run([sys.executable, "-m", "pytest", *words, *TESTS], cwd=tree, env=environment, stdout=file)
    if not database.is_file():
        raise OffrankError(f"the tests did not run under coverage: {log.read_text()[-300:]}")


def _with_path(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


# --- running them


def _child(tree: Path, tests: Sequence[str]) -> None:
    """Run tests in a process that was forked, and end it."""
    status = 70
    try:
        os.setsid()
        os.chdir(tree)
        output = os.open(tree / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for name in [name for name in sys.modules if name.split(".")[0] == "offrank"]:
            del sys.modules[name]
        os.environ["PYTHONPATH"] = _with_path(tree / "src")
        sys.path.insert(0, str(tree / "src"))
        import pytest

        where = ["--basetemp", str(tree / "tmp"), "-p", "no:cacheprovider"]
        status = int(pytest.main(["-x", "-q", *where, *tests]))
    finally:
        os._exit(status)


def _copy(checkout: Path, tree: Path) -> Path:
    for part in ("src", "tests", "examples", "docs", "results"):
        shutil.copytree(checkout / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "mkdocs.yml", "README.md", "CHANGELOG.md"):
        shutil.copy(checkout / name, tree)
    return tree


def _verdict(status: int | None) -> str:
    """What the exit status of pytest means; None: it took too long."""
    return "too slow" if status is None else "survived" if status == 0 else "killed"


def run_all(
    mutants: Sequence[Mutant], tests: Tests, trees: Sequence[Path], seconds: float
) -> Iterator[tuple[Mutant, dict[str, Any]]]:
    """Run the tests of every change, some side by side, and yield what came of each."""
    waiting, free = list(reversed(mutants)), list(trees)
    going: dict[int, tuple[Mutant, dict[str, Any], Path, str, float, float]] = {}
    while waiting or going:
        while waiting and free:
            mutant, tree = waiting.pop(), free[-1]
            chosen, path = tests.of(mutant, seconds), tree / "src" / "offrank" / mutant.file
            text = path.read_text()
            changed = mutated(text, mutant)
            what = asdict(mutant) | {"before": _line(text, mutant), "after": _line(changed, mutant)}
            what["tests"] = len(chosen)
            if not chosen:
                yield mutant, what | {"verdict": "no test runs it"}
                continue
            path.write_text(changed)
            begin = time.monotonic()
            if (pid := os.fork()) == 0:
                _child(tree, chosen)
            going[pid] = mutant, what, free.pop(), text, begin, begin + GRACE + SLOWER * tests.time(chosen)
        time.sleep(0.05)
        for pid, (mutant, what, tree, text, begin, deadline) in list(going.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            late = not ended and time.monotonic() > deadline
            if not (ended or late):
                continue
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # and what it started
            if late:
                os.waitpid(pid, 0)
            (tree / "src" / "offrank" / what["file"]).write_text(text)
            free.append(tree)
            del going[pid]
            verdict = _verdict(None if late else os.waitstatus_to_exitcode(status))
            yield mutant, what | {"verdict": verdict, "seconds": round(time.monotonic() - begin, 1)}


def _line(text: str, mutant: Mutant) -> str:
    return text.splitlines()[mutant.start[0] - 1].strip()


def _mutate(args: argparse.Namespace) -> None:
    checkout, start = Path.cwd(), time.monotonic()
    if not (checkout / "src" / "offrank").is_dir() or not (checkout / "tests").is_dir():
        raise UsageError("run this campaign in a checkout, which has src/offrank and tests/")
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        plain = folder / "plain"
        if not plain.is_dir():
            plain.mkdir(parents=True)
            _copy(checkout, plain)
        tests = Tests(plain, folder)
        mutants, places = draw(plain / "src" / "offrank", args.sample, args.seed)
        trees = [_copy(plain, _new(folder / f"tree-{i}")) for i in range(args.workers)]
        for name in PRELOADED:
            with suppress(ImportError):
                __import__(name)
        done: dict[Mutant, dict[str, Any]] = {}
        for seconds in (args.seconds, args.long):
            left = [mutant for mutant in mutants if mutant not in done or done[mutant]["verdict"] == "survived"]
            for mutant, what in run_all(left, tests, trees, seconds):
                done[mutant] = what
                if args.out:
                    write_json(args.out, _summary([*done.values()], places, start))
    show(_summary([*done.values()], places, start), "survivors")


def _new(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _summary(done: Sequence[dict[str, Any]], places: int, start: float) -> dict[str, Any]:
    noticed = [one for one in done if one["verdict"] in ("killed", "too slow")]
    scores = {}
    for package in ("all", *PACKAGES):
        drawn, killed = (sum(package in ("all", one["file"].split("/")[0]) for one in some) for some in (done, noticed))
        if drawn:
            share = {"share": round(killed / drawn, 3), "interval": asdict(success_interval(killed, drawn))}
            scores[package] = {"drawn": drawn, "killed": killed, **share}
    return {
        "places": places,
        "drawn": len(done),
        "scores": scores,
        "verdicts": dict(Counter(one["verdict"] for one in done)),
        "seconds": round(time.monotonic() - start),
        "survivors": sorted((one for one in done if one not in noticed), key=lambda one: (one["file"], one["start"])),
        "versions": versions(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("mutate", __doc__)
    parser.add_argument("--sample", type=count, default=400, help="number of places to change")
    parser.add_argument("--seed", type=natural, default=0, help="of the sample")
    parser.add_argument("--seconds", type=float, default=20.0, help="of tests per change, as they take unchanged")
    parser.add_argument("--long", type=float, default=90.0, help="the same, for a change that survives those")
    parser.add_argument("--workers", type=count, default=2)
    parser.add_argument("--folder", type=Path, help="keep a copy of the checkout and its coverage here, for next time")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a JSON file for the summary, written as it goes")
    return run_script(parser, _mutate, argv)


if __name__ == "__main__":
    sys.exit(main())
