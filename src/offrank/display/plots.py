"""Learning curves. The colours are those of Okabe and Ito, which colour-blind readers can distinguish; dashes help in
print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offrank.core.arrays import Metrics
from offrank.core.errors import OffrankError, UsageError
from offrank.runs.config import RunConfig
from offrank.runs.folder import CONFIG, CURVE, METRICS
from offrank.runs.metrics import read_metrics
from offrank.runs.opening import read_config
from offrank.runs.run import Run

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (2, 3)))
FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True)
class Curve:
    """The configuration and metrics of a run folder."""

    config: RunConfig
    records: list[Metrics]

    @staticmethod
    def read(folder: Path) -> Curve:
        if not (folder / CONFIG).is_file() or not (folder / METRICS).is_file():
            raise UsageError(f"{folder} is not a run folder: it has no {CONFIG} and {METRICS}")
        return Curve(read_config(folder), read_metrics(folder / METRICS))

    @property
    def label(self) -> str:
        policy = "" if self.config.policy == "linear" else f", {self.config.policy}"
        return f"{self.config.algo} ({self.config.ranker}{policy})"

    def evaluations(self) -> list[Metrics]:
        """The records of evaluations, without those that another one was to confirm."""
        return [r for r in self.records if r["kind"] == "evaluation" and not r.get("unconfirmed")]

    def crossing(self, threshold: float | None) -> Metrics | None:
        """The first scheduled evaluation whose mean return reaches a threshold, or None."""
        count = self.config.confirm_episodes
        scheduled = (r for r in self.evaluations() if not r.get("final") and r.get("eval_episodes", 0) >= count)
        return next((r for r in scheduled if threshold is not None and r["return_mean"] >= threshold), None)


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """The paths that are run folders, and the run folders directly inside the others.

    Raises:
        UsageError: a path is neither a run folder nor contains one.
    """
    found: list[Path] = []
    for path in paths:
        if (path / CONFIG).is_file():
            found.append(path)
            continue
        inside = sorted(p.parent for p in path.glob(f"*/{CONFIG}"))
        if not inside:
            raise UsageError(f"{path} is not a run folder, and holds none")
        found += inside
    return found


def plot_runs(folders: Sequence[Path], out: Path) -> None:
    """Plot the evaluations of runs against training steps, with a panel per task and a colour per algorithm."""
    if out.suffix.lstrip(".") not in FORMATS:
        raise UsageError(f"{out}: a picture ends in {', '.join('.' + f for f in FORMATS)}")
    from matplotlib.figure import Figure

    curves = [Curve.read(folder) for folder in folders]
    tasks = list(dict.fromkeys(c.config.task for c in curves))
    valued = [r for r in curves[0].records if {"q_start", "return_discounted"} <= set(r)] if len(curves) == 1 else []
    panels = len(tasks) + bool(valued)
    columns = min(panels, 3)
    rows = -(-panels // columns)
    figure = Figure(figsize=(6.4 * columns, 4.2 * rows), layout="constrained")
    for number, task in enumerate(tasks):
        axes = figure.add_subplot(rows, columns, number + 1)
        _panel(axes, task, [c for c in curves if c.config.task == task])
    if valued:
        _value_panel(figure.add_subplot(rows, columns, panels), valued)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=150)
    except OSError as error:
        raise OffrankError(f"cannot write {out}: {error.strerror or error}") from error


def plot_ended(runs: Iterable[Run]) -> None:
    """Write the learning curve of every run that has ended to its folder."""
    for run in runs:
        if run.folder is not None and run.stop_reason is not None:
            plot_runs([run.folder], run.folder / CURVE)


def _panel(axes: Any, task: str, curves: Sequence[Curve]) -> None:
    labels = list(dict.fromkeys(c.label for c in curves))
    for curve in curves:
        style = labels.index(curve.label)
        colour, dash = COLOURS[style % len(COLOURS)], DASHES[style % len(DASHES)]
        evaluations = curve.evaluations()
        iterations = [r for r in curve.records if r["kind"] == "iteration"]
        if len(curves) == 1 and iterations:
            x = [r["steps"] for r in iterations]
            cut = curve.config.hyperparameters.get("train_horizon")
            label = f"training episodes, cut at {cut} steps" if cut else "training episodes"
            axes.plot(x, [r["return_mean"] for r in iterations], color="0.75", lw=0.8, label=label)
            if "return_best" in iterations[0]:
                best = [r["return_best"] for r in iterations]
                axes.plot(x, best, color=COLOURS[4], lw=0.8, label="best member")
            _trust(axes, iterations)
        steps = [r["steps"] for r in evaluations]
        mean = [r["return_mean"] for r in evaluations]
        axes.plot(steps, mean, color=colour, ls=dash, lw=1.8, label=_once(axes, curve.label))
        if len(curves) == 1:
            std = [r["return_std"] for r in evaluations]
            low, high = ([m + s * d for m, d in zip(mean, std, strict=True)] for s in (-1, 1))
            axes.fill_between(steps, low, high, color=colour, alpha=0.2, lw=0, label="± one standard deviation")
        if (crossing := curve.crossing(curve.config.threshold)) is not None:
            at = (crossing["steps"], crossing["return_mean"])
            axes.plot(*at, "*", color=colour, mec="black", ms=13, label=_once(axes, "threshold first reached"))
    threshold = curves[0].config.threshold
    if threshold is not None:
        axes.axhline(threshold, color="black", lw=1, ls=(0, (4, 3)))
        axes.annotate(
            f"threshold {threshold:g}", (0.01, threshold), xycoords=("axes fraction", "data"), va="bottom", fontsize=8
        )
    seeds = sorted({c.config.seed for c in curves})
    axes.set_title(f"{task}, seed{'s' if len(seeds) > 1 else ''} {ranges(seeds)}")
    axes.set_xlabel("environment steps of training")
    axes.set_ylabel("mean return of an episode")
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.grid(alpha=0.25)
    axes.legend(loc="best", fontsize=8, framealpha=0.6)


def _trust(axes: Any, iterations: Sequence[Metrics]) -> None:
    """Plot the trust in the ranker on a second axis, and shade the iterations that it ranked."""
    with_trust = [r for r in iterations if "ranker_trust" in r]
    if not with_trust:
        return
    steps, trust = [r["steps"] for r in with_trust], [r["ranker_trust"] for r in with_trust]
    right = axes.twinx()
    axes.set_zorder(right.get_zorder() + 1)
    axes.patch.set_visible(False)
    right.fill_between(
        steps, -1, 1, where=[r["ranker_learned"] for r in with_trust], step="mid", color=COLOURS[5], alpha=0.15, lw=0
    )
    right.plot(steps, trust, color=COLOURS[5], lw=1.0)
    right.set_ylim(-1, 1)
    right.set_ylabel("trust in the ranker (shaded: it ranked)", color=COLOURS[5])


def _value_panel(axes: Any, records: Sequence[Metrics]) -> None:
    """A critic's value of the policies that were run at their start states beside their discounted returns, and the
    share of the elites that had followed its gradient, where there are any."""
    steps = [r["steps"] for r in records]
    axes.plot(steps, [r["q_start"] for r in records], color=COLOURS[0], lw=1.5, label="critic's value at the start")
    axes.plot(steps, [r["return_discounted"] for r in records], color=COLOURS[1], lw=1.5, ls="--", label="true value")
    axes.set_xlabel("environment steps of training")
    axes.set_ylabel("discounted return")
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.grid(alpha=0.25)
    axes.legend(loc="upper left", fontsize=8, framealpha=0.6)
    if "gradient_elites" not in records[0]:
        return
    beside = axes.twinx()
    beside.plot(steps, [r["gradient_elites"] for r in records], color=COLOURS[5], lw=1.0)
    beside.set_ylim(-0.02, 1.5)
    beside.set_yticks([0.0, 0.5, 1.0])
    beside.set_ylabel("share of elites with gradient steps", color=COLOURS[5])


def _once(axes: Any, label: str) -> str:
    """The label, or "_" (no legend entry) if the panel has a line with this label."""
    return "_" if label in axes.get_legend_handles_labels()[1] else label


def short(value: float) -> str:
    """1500000 as '1.5M', 2000 as '2k'."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] as '0-2, 5'."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
