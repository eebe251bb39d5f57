"""Let a run and a fleet go on for hours, and see whether they need more and more of anything.

    python -m offrank.lab.campaign.soak --hours 8 --out results/campaign/soak.json

`guided` alone and a fleet of 8 (`guided` and `q-ars`, four seeds each) run side by side, each in a process of its own,
without a limit. Once a minute memory, open files and threads of each process are read, and the seconds and bytes of its
checkpoints since the last time. Replay buffers are small, so that they are full soon. The first quarter of the time is
left out; of the rest, a line is fitted to each measurement. Its slope is flat if the upper end of the 95 % interval is
under a limit per hour, growing if the lower end is over it, and otherwise unclear: the time was too short. Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from offrank.core.errors import OffrankError, UsageError, require
from offrank.core.files import write_json
from offrank.core.version import versions
from offrank.lab.campaign import one_thread, show
from offrank.lab.script import make_parser, run_script
from offrank.lab.statistics import trend

SMALL = "--set hidden=32 --set replay=10000"
RUNS = {
    "guided": f"train HalfCheetah-v3 --algo guided {SMALL} --set batch=32",
    "fleet of 8": f"train HalfCheetah-v3 --algo guided,q-ars --seeds 0-3 --clip-actions {SMALL}",
}
ENDLESS = "--steps 1000000000000 --threshold none --eval-episodes 10 --threads 1 --checkpoint-seconds 10 --quiet"
LIMITS = {  # growth per hour, as a share of the level, that counts as flat
    "memory_mb": 0.01,
    "descriptors": 0.01,
    "threads": 0.01,
    "checkpoint_mb": 0.01,
    "checkpoint_seconds": 0.1,  # the time of a write depends on what else the machine does
}
SETTLING = 0.25  # share of the time that is left out: buffers fill, the allocator gets its memory


# --- the run that is watched, in a process of its own


def _child(log: Path, words: Sequence[str]) -> int:
    """Run a command, and log every checkpoint as a line: its time and its size."""
    from offrank.cli import main
    from offrank.runs.folder import CHECKPOINT, REPLAY
    from offrank.runs.run import Run

    plain = Run.checkpoint

    def timed(run: Run) -> None:
        start = time.perf_counter()
        plain(run)
        seconds = time.perf_counter() - start
        assert run.folder is not None
        files = [run.folder / CHECKPOINT, *(run.folder / REPLAY).glob("*")]
        rows = [int(v) for name, v in run.state.memory.items() if name.endswith(".written")]
        full = min(rows, default=0) >= run.config.hyperparameters["replay"]
        line = {"seconds": seconds, "mb": sum(file.stat().st_size for file in files) / 1e6, "full": full}
        line |= {"run": run.name, "steps": run.state.steps}
        file.write(json.dumps(line) + "\n")
        file.flush()

    Run.checkpoint = timed  # type: ignore[method-assign, assignment]
    with log.open("a") as file:
        return main(list(words))


# --- the campaign


class Watched:
    """A process, and what was measured of it."""

    def __init__(self, name: str, words: str, folder: Path):
        self.name, self._log, self._read = name, folder / "checkpoints.jsonl", 0
        self.samples: list[dict[str, Any]] = []
        self.steps: dict[str, int] = {}
        self._full: set[str] = set()  # runs whose replay buffer is full
        folder.mkdir()
        self._log.touch()
        command = [sys.executable, "-m", "offrank.lab.campaign.soak", "--child", str(self._log)]
        command += [*words.split(), *ENDLESS.split(), "--out", str(folder / "runs")]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=one_thread())

    @property
    def started(self) -> bool:
        """Whether it has made a checkpoint, or has ended."""
        return self._log.stat().st_size > 0 or self.process.poll() is not None

    def sample(self, minute: float) -> None:
        """Measure once.

        Raises:
            OffrankError: the process has ended.
        """
        proc = Path(f"/proc/{self.process.pid}")
        try:
            status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
            found: dict[str, Any] = {"minute": round(minute, 3), "descriptors": len(list((proc / "fd").iterdir()))}
            found |= {"memory_mb": int(status["VmRSS"].split()[0]) / 1024, "threads": int(status["Threads"])}
        except (OSError, KeyError) as error:  # a process that has ended has no memory
            _, err = self.process.communicate()
            raise OffrankError(f"{self.name} ended, exit status {self.process.returncode}: {err[-300:]}") from error
        whole = self._log.read_text().splitlines(keepends=True)[self._read :]
        new = [json.loads(line) for line in whole if line.endswith("\n")]
        self._read += len(new)
        self.steps |= {line["run"]: line["steps"] for line in new}
        self._full |= {line["run"] for line in new if line["full"]}
        found |= {"checkpoints": len(new), "full": bool(self.steps) and len(self._full) == len(self.steps)}
        for key in ("seconds", "mb"):
            found[f"checkpoint_{key}"] = median(line[key] for line in new) if new else None
        self.samples.append(found)

    def stop(self) -> str | None:
        """End the process by SIGTERM, upon which it saves its runs. Returns what was wrong with that, or None."""
        self.process.send_signal(signal.SIGTERM)
        try:
            _, err = self.process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "did not end within two minutes of SIGTERM"
        if self.process.returncode != 128 + signal.SIGTERM:
            return f"exit status {self.process.returncode} after SIGTERM: {err[-300:]}"
        return None

    def summary(self) -> dict[str, Any]:
        full = next((sample["minute"] for sample in self.samples if sample["full"]), None)
        begin = SETTLING * self.samples[-1]["minute"] if self.samples else 0.0
        return {
            "steps": sum(self.steps.values()),
            "runs": len(self.steps),
            "checkpoints": sum(sample["checkpoints"] for sample in self.samples),
            "buffers_full_at_minute": full,
            "trends_from_minute": round(begin, 1),
            "trends": {name: _trend(self.samples, name, begin, limit) for name, limit in LIMITS.items()},
            "samples": self.samples,
        }


def _trend(samples: Sequence[dict[str, Any]], name: str, begin: float, limit: float) -> dict[str, Any] | None:
    """The trend of a measurement per hour, and what it means. None before there are enough samples."""
    used = [(s["minute"] / 60, s[name]) for s in samples if s["minute"] >= begin and s[name] is not None]
    if len(used) < 3:
        return None
    found = trend([hour for hour, _ in used], [value for _, value in used])
    low, high, most = found.interval.low, found.interval.high, limit * found.level
    assert low is not None and high is not None
    verdict = "flat" if high <= most else "growing" if low > most else "unclear"
    line = {"level": found.level, "slope_per_hour": found.slope, "interval": asdict(found.interval), "limit": most}
    return line | {"verdict": verdict}


def _soak(args: argparse.Namespace) -> None:
    if not Path("/proc/self/status").exists():
        raise UsageError("this campaign needs Linux: it reads /proc")
    require("scipy", "studies")  # for the trends, which come last
    problems = list[str]()
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the processes must end, too
    with tempfile.TemporaryDirectory() as scratch:
        watched = [Watched(name, words, Path(scratch) / name.split()[0]) for name, words in RUNS.items()]
        try:
            while not all(one.started for one in watched):
                time.sleep(0.1)
            start = time.monotonic()
            while (spent := time.monotonic() - start) < 3600 * args.hours:
                time.sleep(min(args.every, 3600 * args.hours - spent))
                for one in watched:
                    one.sample((time.monotonic() - start) / 60)
                if args.out:
                    write_json(args.out, _summary(watched, start, problems))
        finally:
            problems += [f"{one.name}: {problem}" for one in watched if (problem := one.stop())]
            signal.signal(signal.SIGTERM, before)
    summary = _summary(watched, start, problems)
    if args.out:
        write_json(args.out, summary)
    for process in summary["processes"].values():
        del process["samples"]
    show(summary)


def _summary(watched: Sequence[Watched], start: float, problems: Sequence[str]) -> dict[str, Any]:
    return {
        "hours": round((time.monotonic() - start) / 3600, 3),
        "problems": list(problems),
        "processes": {one.name: one.summary() for one in watched},
        "versions": versions(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--child"]:
        return _child(Path(words[1]), words[2:])
    parser = make_parser("soak", __doc__)
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--every", type=float, default=60.0, metavar="S", help="seconds between two samples")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a JSON file for the summary, written as it goes")
    return run_script(parser, _soak, words)


if __name__ == "__main__":
    sys.exit(main())
