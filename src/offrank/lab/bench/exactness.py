"""Train one seed of OP-ARS on HalfCheetah-v3 in five ways and print the hash of each policy: all must be equal.

    python -m offrank.lab.bench.exactness [FOLDER]

One thread; four threads; beside two other seeds; killed (SIGKILL) and resumed; extended from 5 to 12 iterations. Exits
with status 1 if a hash differs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from offrank.core.errors import OffrankError
from offrank.core.files import read_json
from offrank.lab.script import make_parser, run_script
from offrank.runs.folder import METRICS, RESULT

TASK, ALGO, ITERATIONS = "HalfCheetah-v3", "op-ars", 12
COMMAND = [sys.executable, "-m", "offrank", "train", TASK, "--algo", ALGO, "--threshold", "none"]
COMMAND += ["--eval-every", "5", "--eval-episodes", "10", "--quiet"]


def train(folder: Path, *flags: str, iterations: int = ITERATIONS) -> subprocess.Popen[bytes]:
    words = [*COMMAND, *flags, "--iterations", str(iterations), "--out", str(folder)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL)


def finish(process: subprocess.Popen[bytes]) -> None:
    if process.wait() != 0:
        raise OffrankError(f"{process.args!r} ended with status {process.returncode}")


def kill_and_resume(folder: Path) -> None:
    process = train(folder, "--seed", "0", "--checkpoint-seconds", "0")
    log = folder / METRICS
    while process.poll() is None and (not log.is_file() or len(log.read_bytes().splitlines()) < 4):
        time.sleep(0.05)
    process.kill()
    process.wait()
    print(f"  (killed after {len(log.read_bytes().splitlines())} lines of metrics)")
    finish(train(folder, "--seed", "0", "--resume"))


def compare(args: argparse.Namespace) -> None:
    out: Path = args.folder or Path(tempfile.mkdtemp())
    hashes = []

    def show(what: str, folder: Path) -> None:
        hashes.append(read_json(folder / RESULT)["policy_sha256"])
        print(f"{what:32} {hashes[-1]}", flush=True)

    for threads, name in (("1", "one thread"), ("4", "four threads")):
        finish(train(out / name.replace(" ", "-"), "--seed", "0", "--threads", threads))
        show(name, out / name.replace(" ", "-"))
    finish(train(out / "fleet", "--seeds", "0-2"))
    show("beside seeds 1 and 2", out / "fleet" / f"{TASK}-{ALGO}-0")
    kill_and_resume(out / "killed")
    show("killed, then --resume", out / "killed")
    finish(train(out / "extended", "--seed", "0", iterations=5))
    finish(train(out / "extended", "--seed", "0", "--resume"))
    show(f"5 iterations, resumed to {ITERATIONS}", out / "extended")
    if len(set(hashes)) > 1:
        raise OffrankError("the policies differ")


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("exactness", __doc__)
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help="of the runs (default: a temporary one)")
    return run_script(parser, compare, argv)


if __name__ == "__main__":
    sys.exit(main())
