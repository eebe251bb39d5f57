"""Progress of training: live bars on a terminal, plain lines elsewhere. There is a line per run; for many runs, a line
per algorithm that summarises its runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from offrank.algorithms import ALGORITHMS
from offrank.core.arrays import Metrics
from offrank.core.errors import RunFailed
from offrank.engines.base import Engine
from offrank.runs.drive import drive
from offrank.runs.run import Run

QUIET_SECONDS = 30.0  # maximum time between two plain lines
REFRESH = 5  # updates of live bars per second
MANY = 16  # number of runs from which on they are summarised per algorithm


class Display(Protocol):
    """`on_record` is called with every record of every run, `tick` several times per second."""

    def on_record(self, run: Run, record: Metrics) -> None: ...
    def tick(self) -> None: ...
    def close(self) -> None: ...


class GrowingDisplay(Display, Protocol):
    """A display to which runs are added one by one."""

    def add(self, run: Run) -> None: ...


def make_display(runs: Sequence[Run], stream: TextIO, enabled: bool = True) -> Display:
    if enabled and len(runs) >= MANY:
        groups = grouped(runs)
        return LiveDisplay(stream, groups) if stream.isatty() else PlainGroups(groups, stream)
    display = growing_display(stream, enabled)
    for run in runs:
        display.add(run)
    return display


def drive_shown(
    runs: Sequence[Run],
    engine: Engine,
    stream: TextIO,
    enabled: bool = True,
    side_by_side: int | None = None,
    failures: Sequence[RunFailed] = (),
    lessons: str | None = None,
) -> None:
    """`offrank.runs.drive.drive`, with progress shown on a stream."""
    display = make_display(runs, stream, enabled)
    for run in runs:
        run.callbacks = (display.on_record, *run.callbacks)
    try:
        drive(runs, engine, display.tick, side_by_side, failures, lessons)
    finally:
        display.close()


def growing_display(stream: TextIO, enabled: bool = True) -> GrowingDisplay:
    if not enabled:
        return NoDisplay()
    return LiveDisplay(stream) if stream.isatty() else PlainDisplay(stream)


class Pace:
    """Steps per second and remaining time of one run, measured in this process."""

    def __init__(self, run: Run):
        self.run, self._steps, self._begin = run, run.state.steps, time.perf_counter()

    @property
    def rate(self) -> float:
        return (self.run.state.steps - self._steps) / max(time.perf_counter() - self._begin, 1e-9)

    @property
    def fraction(self) -> float:
        """The used fraction of the budget, 0 to 1; 0 without a budget."""
        config, state = self.run.config, self.run.state
        parts = [state.steps / config.steps] if config.steps else []
        parts += [state.iteration / config.iterations] if config.iterations else []
        return min(max(parts, default=0.0), 1.0)

    @property
    def left(self) -> str:
        """Estimated time until the budget is used up, or, with a threshold, at most until then."""
        config, state = self.run.config, self.run.state
        done = state.steps - self._steps
        if done == 0 or self.fraction == 0:
            return "-:-- left"
        total = state.steps / self.fraction if not config.steps else config.steps
        rest = clock((total - state.steps) / max(self.rate, 1e-9))
        return f"{rest} left" if config.threshold is None else f"at most {rest} left"


def clock(seconds: float) -> str:
    minutes, s = divmod(int(max(seconds, 0)), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


def _name(run: Run) -> str:
    config = run.config
    policy = "" if config.policy == ALGORITHMS[config.algo].policy else f" {config.policy}"
    ranker = "" if config.ranker == ALGORITHMS[config.algo].ranker else f" ({config.ranker})"
    return f"{config.task} {config.algo}{ranker}{policy} seed {config.seed}"


def _returns(run: Run) -> str:
    if not run.evaluations:
        return "not evaluated yet"
    best = "" if run.best is None else f", best {run.best[0].mean:.1f}"
    return f"return {run.evaluations[-1].mean:.1f}{best}"


class NoDisplay:
    def add(self, run: Run) -> None: ...
    def on_record(self, run: Run, record: Metrics) -> None: ...
    def tick(self) -> None: ...
    def close(self) -> None: ...


class PlainDisplay:
    """A line per evaluation, and at least one every QUIET_SECONDS."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._paces: dict[int, Pace] = {}
        self._last = time.perf_counter()

    def add(self, run: Run) -> None:
        self._paces[id(run)] = Pace(run)

    def on_record(self, run: Run, record: Metrics) -> None:
        now = time.perf_counter()
        if record["kind"] == "iteration" and now - self._last < QUIET_SECONDS:
            return
        self._last = now
        pace = self._paces[id(run)]
        what = {"iteration": "training", "evaluation": "evaluated"}.get(record["kind"], record["kind"])
        budget = f" of {run.config.steps:,}" if run.config.steps else ""
        self._stream.write(
            f"{_name(run)}: iteration {record['iteration']}, {record['steps']:,}{budget} steps, {what} "
            f"{record['return_mean']:.1f} ± {record['return_std']:.1f}, {pace.rate:,.0f} steps/s, {pace.left}\n"
        )
        self._stream.flush()

    def tick(self) -> None: ...
    def close(self) -> None: ...


class Single:
    """The bar of one run."""

    def __init__(self, run: Run):
        self.name, self._pace = _name(run), Pace(run)

    @property
    def ended(self) -> bool:
        return self._pace.run.stop_reason is not None

    @property
    def fraction(self) -> float:
        return 1.0 if self.ended else self._pace.fraction

    @property
    def line(self) -> str:
        run, pace = self._pace.run, self._pace
        rest = f"ended: {run.stop_reason}" if self.ended else f"{pace.rate:,.0f} steps/s, {pace.left}"
        return f"{run.state.steps:,} steps, {_returns(run)}, {rest}"


class Group:
    """The bar of several runs of one algorithm on one task."""

    def __init__(self, name: str, runs: Sequence[Run]):
        self.name, self.paces = name, [Pace(run) for run in runs]

    @property
    def ended(self) -> bool:
        return all(pace.run.stop_reason for pace in self.paces)

    @property
    def fraction(self) -> float:
        """The mean used fraction of the budgets; 1 for a run that has ended."""
        return fmean(1.0 if pace.run.stop_reason else pace.fraction for pace in self.paces)

    @property
    def line(self) -> str:
        runs = [pace.run for pace in self.paces]
        ended = Counter(run.stop_reason for run in runs if run.stop_reason)
        counts = [f"{ended.total()} of {len(runs)} ended", *(f"{n} by {reason}" for reason, n in ended.most_common())]
        steps = sorted(run.state.steps for run in runs)
        parts = [", ".join(counts), f"{steps[0]:,} to {steps[-1]:,} steps", self._returns(runs)]
        going = [pace for pace in self.paces if not pace.run.stop_reason]
        if going:
            slowest = max((pace.left for pace in going), key=lambda left: (len(left), left))
            parts.append(f"{sum(pace.rate for pace in going):,.0f} steps/s, {slowest}")
        return "; ".join(parts)

    @staticmethod
    def _returns(runs: list[Run]) -> str:
        means = sorted(run.evaluations[-1].mean for run in runs if run.evaluations)
        if not means:
            return "not evaluated yet"
        return f"return {means[0]:.0f} to {means[-1]:.0f}, median {median(means):.0f}"


def grouped(runs: Sequence[Run]) -> list[Group]:
    """A group per algorithm, ranker and policy, in the order of the runs."""
    members: dict[str, list[Run]] = {}
    for run in runs:
        config = run.config
        members.setdefault(f"{config.task} {config.algo} ({config.ranker}, {config.policy})", []).append(run)
    return [Group(name, some) for name, some in members.items()]


class PlainGroups:
    """A line per group every QUIET_SECONDS, and at the end."""

    def __init__(self, groups: list[Group], stream: TextIO):
        self._groups, self._stream, self._last = groups, stream, time.perf_counter()

    def on_record(self, run: Run, record: Metrics) -> None: ...

    def tick(self) -> None:
        if time.perf_counter() - self._last >= QUIET_SECONDS:
            self._write()

    def close(self) -> None:
        self._write()

    def _write(self) -> None:
        self._last = time.perf_counter()
        for group in self._groups:
            self._stream.write(f"{group.name}: {group.line}\n")
        self._stream.flush()


class LiveDisplay:
    """A bar per run or group. If there are many, those that have ended are hidden."""

    def __init__(self, stream: TextIO, groups: Sequence[Group] = ()):
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f}% {task.fields[line]}"),
            console=Console(file=stream),
            refresh_per_second=REFRESH,
        )
        self._bars: list[tuple[Single | Group, TaskID]] = []
        self._last = 0.0
        for group in groups:
            self._show(group)
        self._progress.start()

    def add(self, run: Run) -> None:
        self._show(Single(run))

    def on_record(self, run: Run, record: Metrics) -> None: ...

    def tick(self) -> None:
        if time.perf_counter() - self._last >= 1 / REFRESH:
            self._update()

    def close(self) -> None:
        self._update()
        self._progress.stop()

    def _show(self, row: Single | Group) -> None:
        self._bars.append((row, self._progress.add_task(row.name, total=1.0, line="")))

    def _update(self) -> None:
        self._last = time.perf_counter()
        for row, task in self._bars:
            shown = not row.ended or len(self._bars) <= MANY
            self._progress.update(task, completed=row.fraction, line=row.line, visible=shown)
