"""Let every write of a run fail in turn, below Python, and resume it: nothing may be lost.

    python -m offrank.lab.campaign.disk --workers 2 --out results/campaign/disk.json

A small library that is loaded before all others counts the system calls by which a run changes its folder (open for
writing, write, fsync, rename, mkdir, truncate) and lets one of them fail, or all from it on: a full disk (ENOSPC, all),
a read-only one (EROFS, all), an error of the device (EIO, one). The run must stop with one line, or go on; resumed on a
good disk, it must end with the policy of a run that nobody disturbed. Needs Linux and a C compiler.
"""

from __future__ import annotations

import argparse
import errno
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from offrank.cli.options import count
from offrank.core.errors import UsageError
from offrank.core.files import read_json, write_json
from offrank.core.version import versions
from offrank.lab.campaign import one_thread, show
from offrank.lab.script import make_parser, run_script

KINDS = {"full": (errno.ENOSPC, True), "read-only": (errno.EROFS, True), "i/o error": (errno.EIO, False)}
RUNS = {
    "op-ars": "train Swimmer-v3 --algo op-ars --iterations 6",
    "guided": "train Swimmer-v3 --algo guided --iterations 6 --set hidden=8 --set batch=4 --set warmup_steps=100",
}
SHORT = (
    "--horizon 30 --eval-every 2 --eval-episodes 2 --threshold none --checkpoint-seconds 0 --threads 1 --quiet --resume"
)
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_long calls;

static int fails(const char *path) {
  const char *folder = getenv("FAIL_FOLDER"), *at = getenv("FAIL_AT"), *total = getenv("FAIL_COUNT");
  if (!folder || !path || strncmp(path, folder, strlen(folder))) return 0;
  const long call = atomic_fetch_add(&calls, 1) + 1;
  if (total) {
    FILE *file = fopen(total, "w");
    if (file) { fprintf(file, "%ld", call); fclose(file); }
  }
  if (!at) return 0;
  if (call == atol(at) || (call > atol(at) && getenv("FAIL_ON"))) {
    errno = atoi(getenv("FAIL_ERRNO"));
    return 1;
  }
  return 0;
}

static int fails_fd(int fd) {
  char link[64], path[4096];
  const int saved = errno;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  errno = saved;
  if (length <= 0) return 0;
  path[length] = 0;
  return fails(path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) { return fails_fd(fd) ? -1 : REAL(write)(fd, data, size); }
int fsync(int fd) { return fails_fd(fd) ? -1 : REAL(fsync)(fd); }
int ftruncate(int fd, off_t size) { return fails_fd(fd) ? -1 : REAL(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { return fails_fd(fd) ? -1 : REAL(ftruncate64)(fd, size); }
int rename(const char *from, const char *to) { return fails(to) ? -1 : REAL(rename)(from, to); }
int mkdir(const char *path, mode_t mode) { return fails(path) ? -1 : REAL(mkdir)(path, mode); }

#define OPEN(name)                                                                     \
  int name(const char *path, int flags, ...) {                                         \
    va_list more;                                                                      \
    va_start(more, flags);                                                             \
    const mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;                    \
    va_end(more);                                                                      \
    return (flags & O_ACCMODE) != O_RDONLY && fails(path) ? -1 : REAL(name)(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)
"""


def build(folder: Path) -> Path:
    """Compile the library."""
    source, library = folder / "fail.c", folder / "fail.so"
    source.write_text(SOURCE)
    try:
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-w", "-o", library, source, "-ldl"], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(f"this campaign needs Linux and gcc: {error}") from error
    return library


def run(words: str, folder: Path, library: Path | None = None, **failing: str) -> subprocess.CompletedProcess[str]:
    """A run in a folder, with a failing disk."""
    environment = one_thread()
    if library is not None:
        environment |= {"LD_PRELOAD": str(library), "FAIL_FOLDER": str(folder), **failing}
    command = [sys.executable, "-m", "offrank", *words.split(), *SHORT.split(), "--out", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def trial(algo: str, kind: str, at: int, reference: str, folder: Path, library: Path) -> dict[str, Any]:
    """Let a run fail at a call, and resume it."""
    number, on = KINDS[kind]
    failing = {"FAIL_AT": str(at), "FAIL_ERRNO": str(number)} | ({"FAIL_ON": "1"} if on else {})
    first = run(RUNS[algo], folder, library, **failing)
    problems = []
    if first.returncode not in (0, 1, 2):
        problems.append(f"exit status {first.returncode}: {first.stderr[-300:]}")
    elif first.returncode and not re.fullmatch(r"offrank: [^\n]+\n", first.stderr):
        problems.append(f"not one line: {first.stderr[-400:]!r}")
    second = run(RUNS[algo], folder)
    if second.returncode != 0:
        problems.append(f"not resumed, exit status {second.returncode}: {second.stderr[-300:]}")
    elif (found := _hash(folder)) != reference:
        problems.append(f"the policy differs: {found}")
    ended = "went on" if first.returncode == 0 else "stopped"
    return {"run": algo, "kind": kind, "at": at, "ended": ended, "problems": problems}


def _hash(folder: Path) -> str:
    return str(read_json(folder / "result.json")["policy_sha256"])


def _disk(args: argparse.Namespace) -> None:
    start, done, lock = time.monotonic(), list[dict[str, Any]](), threading.Lock()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(args.workers) as pool:
        root = Path(scratch)
        library, jobs = build(root), []
        for algo, words in RUNS.items():
            counted = run(words, root / algo, library, FAIL_COUNT=str(root / "calls"))
            if counted.returncode != 0:
                raise UsageError(f"{algo} does not run undisturbed: {counted.stderr[-300:]}")
            reference, calls = _hash(root / algo), int((root / "calls").read_text())
            jobs += [(algo, kind, at, reference) for kind in KINDS for at in range(1, calls + 1, args.every)]

        def work(job: tuple[str, str, int, str]) -> None:
            algo, kind, at, reference = job
            tried = trial(algo, kind, at, reference, root / f"{algo}-{kind.replace('/', '')}-{at}", library)
            with lock:  # two threads that write one file would remove each other's part of it
                done.append(tried)
                if args.out:
                    write_json(args.out, _summary(done, len(jobs), start))

        list(pool.map(work, jobs))
    show(_summary(done, len(jobs), start))


def _summary(done: Sequence[dict[str, Any]], planned: int, start: float) -> dict[str, Any]:
    bad = [one for one in done if one["problems"]]
    counts = Counter(f"{one['run']}, {one['kind']}: {one['ended']}" for one in done)
    return {
        "failures": len(done),
        "planned": planned,
        "problems": len(bad),
        "counts": dict(sorted(counts.items())),
        "seconds": round(time.monotonic() - start),
        "bad": bad[:100],
        "versions": versions(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("disk", __doc__)
    parser.add_argument("--every", type=count, default=1, metavar="K", help="let only every K-th call fail")
    parser.add_argument("--workers", type=count, default=2)
    parser.add_argument("--out", type=Path, metavar="FILE", help="a JSON file for the summary, written as it goes")
    return run_script(parser, _disk, argv)


if __name__ == "__main__":
    sys.exit(main())
