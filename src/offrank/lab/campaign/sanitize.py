"""Run the engines' tests and mutated files with the compiled loop under AddressSanitizer and UBSan.

    python -m offrank.lab.campaign.sanitize --cases 2000 --out results/campaign/sanitize.json

The loop is compiled again, with gcc and the sanitizers, into a copy of the package. First it reads beyond an array on
purpose: if that is not noticed, nothing else would be. Then the tests and the fuzzing campaign run with the copy, and
every report of a sanitizer is counted. Needs a source checkout, gcc with libasan, and pytest.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import offrank
from offrank.cli.options import natural
from offrank.core.errors import OffrankError, UsageError
from offrank.core.files import read_json, write_json
from offrank.core.version import versions
from offrank.lab.campaign import one_thread, show
from offrank.lab.script import make_parser, run_script

SOURCE = Path("engines") / "native" / "_rollout.c"
TESTS = ("tests/engines/test_engines.py", "tests/policies", "tests/test_agents.py")
FLAGS = ("-g", "-O1", "-std=c99", "-ffp-contract=off", "-fsanitize=address,undefined", "-fno-omit-frame-pointer")
BEYOND = """
import numpy as np
from offrank.core.normalizer import Whitening
from offrank.policies import make_policy
from offrank.engines.native import compiled
policy = make_policy("linear", 8, 2)
actor = compiled.Actor(policy).set(np.zeros(16), Whitening.identity(8))
short = np.zeros(3)
actor.structure.theta = short.ctypes.data
actor(np.ones((1, 8)))
"""


def build(folder: Path) -> None:
    """A copy of the package whose loop is compiled with the sanitizers.

    Raises:
        OffrankError: it cannot be compiled.
    """
    package = Path(offrank.__file__).parent
    if not (package / SOURCE).is_file():
        raise UsageError(f"{package / SOURCE} is missing: run this from a source checkout")
    shutil.copytree(package, folder / "offrank", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    source = folder / "offrank" / SOURCE
    command = ["gcc", "-shared", "-fPIC", *FLAGS, str(source), "-o", str(source.with_suffix(".so")), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OffrankError(f"gcc failed: {done.stderr.strip().splitlines()[-1]}")


def environment(folder: Path) -> dict[str, str]:
    """Variables of a process that uses the copy; reports go to files `report.*` of the folder."""
    libraries = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so.6")  # the second is there for exceptions of C++ in other libraries
    ]
    options = f"log_path={folder / 'report'}:halt_on_error=1:detect_leaks=0"  # Python itself does not free everything
    return one_thread() | {
        "PYTHONPATH": str(folder),
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": options,
        "UBSAN_OPTIONS": f"{options}:print_stacktrace=1",
    }


def reports(folder: Path) -> list[str]:
    """What the sanitizers reported, one line each, and removed."""
    found = []
    for path in sorted(folder.glob("report.*")):
        text = path.read_text(errors="replace")
        found += re.findall(r"ERROR: \S+Sanitizer: .*|runtime error: .*", text) or [text[:200]]
        path.unlink()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("sanitize", __doc__)
    parser.add_argument("--cases", type=natural, default=1000, help="of the fuzzing campaign; 0: none")
    parser.add_argument("--tests", nargs="*", default=list(TESTS), metavar="PATH", help="of pytest; none: no tests")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a JSON file for the summary")
    return run_script(parser, _sanitize, argv)


def _sanitize(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        build(folder)
        variables = environment(folder)

        def run(*words: str) -> str:
            done = subprocess.run([sys.executable, *words], env=variables, capture_output=True, text=True)
            return (done.stdout + done.stderr).strip()

        run("-c", BEYOND)
        if not (noticed := reports(folder)):
            raise OffrankError("the sanitizers do not notice a read beyond an array: nothing was tried")
        summary: dict[str, Any] = {"on_purpose": noticed[0]}
        if args.tests:
            said = run("-m", "pytest", "-q", "-p", "no:cacheprovider", *args.tests)
            summary |= {"tests": said.splitlines()[-1], "reports_of_tests": reports(folder)}
        if args.cases:
            run("-m", "offrank.lab.campaign.fuzz", "--cases", str(args.cases), "--out", str(folder / "fuzz.json"))
            fuzzed = read_json(folder / "fuzz.json")
            summary |= {name: fuzzed[name] for name in ("cases", "problems", "bad")}
            summary["reports_of_fuzzing"] = reports(folder)
    summary["versions"] = versions()
    if args.out:
        write_json(args.out, summary)
    show(summary, "bad")


if __name__ == "__main__":
    sys.exit(main())
