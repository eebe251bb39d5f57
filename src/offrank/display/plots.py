"""Learning curves of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from offrank.algorithms import ALGORITHMS
from offrank.core.arrays import Metrics
from offrank.core.errors import UsageError
from offrank.display.figures import Axis, Band, Figure, Item, Line, Marks, Panel, Rule, save
from offrank.runs.config import RunConfig
from offrank.runs.folder import CONFIG, CURVE, METRICS
from offrank.runs.metrics import read_metrics
from offrank.runs.opening import read_config
from offrank.runs.run import Run

STEPS, RETURN = "environment steps of training", "mean return of an episode"
CHANGE_LENGTH = ("probe_share", "horizon_growth")  # settings by which training episodes get longer


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
        """The algorithm, with its ranker and kind of policy where they are not its usual ones."""
        config = self.config
        usual = ALGORITHMS.get(config.algo)
        known = (usual.ranker, usual.policy) if usual else (None, "linear")
        parts = [part for part, own in zip((config.ranker, config.policy), known, strict=True) if part != own]
        return f"{config.algo} ({', '.join(parts)})" if parts else config.algo

    def evaluations(self) -> list[Metrics]:
        """The records of evaluations, without those that another one was to confirm."""
        return [r for r in self.records if r["kind"] == "evaluation" and not r.get("unconfirmed")]

    def crossing(self, threshold: float | None) -> Metrics | None:
        """The first scheduled evaluation of a trained policy whose mean return reaches a threshold, or None."""
        if threshold is None:
            return None
        count, trained = self.config.confirm_episodes, (r for r in self.evaluations() if r["steps"] > 0)
        scheduled = (r for r in trained if not r.get("final") and r.get("eval_episodes", 0) >= count)
        return next((r for r in scheduled if r["return_mean"] >= threshold), None)


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
    """Plot the learning curves of runs to a file."""
    save(learning_curves([Curve.read(folder) for folder in folders]), out)


def plot_ended(runs: Iterable[Run]) -> None:
    """Write the learning curve of every run that has ended to its folder."""
    for run in runs:
        if run.folder is not None and run.stop_reason is not None:
            plot_runs([run.folder], run.folder / CURVE)


def learning_curves(curves: Sequence[Curve]) -> Figure:
    """The evaluations of runs against training steps, with a panel per task and a colour per algorithm. A run alone is
    shown with its training episodes and what it knows of its ranker and critics."""
    tasks = list(dict.fromkeys(c.config.task for c in curves))
    more = _spread_and_training(curves[0]) if len(curves) == 1 else []
    panels = [_task_panel(task, [c for c in curves if c.config.task == task], more) for task in tasks]
    if len(curves) == 1:
        panels += _learned_panels([r for r in curves[0].records if r["kind"] == "iteration"])
    labels = [c.label for c in curves]
    drawn = (item.series for panel in panels for item in panel.items if not isinstance(item, Rule))
    keys = {"rule": "threshold"} if any(c.config.threshold is not None for c in curves) else {}
    if any(c.crossing(c.config.threshold) for c in curves):
        keys["star"] = "threshold first reached"
    if len(curves) == 1:
        keys["band"] = "± one standard deviation"
    return Figure(list(dict.fromkeys([*labels, *drawn])), panels, keys)


def _task_panel(task: str, curves: Sequence[Curve], more: Sequence[Item]) -> Panel:
    threshold = curves[0].config.threshold
    items = [*more] if threshold is None else [*more, Rule(threshold)]
    for curve in curves:
        evaluations = curve.evaluations()
        seed = f"{curve.label}, seed {curve.config.seed}"
        items.append(_line(curve.label, evaluations, "return_mean", name=seed))
        if (crossing := curve.crossing(threshold)) is not None:
            items.append(Marks(curve.label, [crossing["steps"]], [crossing["return_mean"]], [seed], shape="star"))
    seeds = sorted({c.config.seed for c in curves})
    title = f"{task}, seed{'s' if len(seeds) > 1 else ''} {ranges(seeds)}"
    title += "" if threshold is None else f", threshold {threshold:g}"
    return Panel(title, Axis(STEPS, low=0), Axis(RETURN), items, task)


def _spread_and_training(curve: Curve) -> list[Item]:
    """The spread of a run's evaluations, and the returns of its training episodes."""
    iterations = [r for r in curve.records if r["kind"] == "iteration"]
    settings = curve.config.hyperparameters
    cut, some = settings.get("train_horizon"), any(settings.get(name) for name in CHANGE_LENGTH)
    training = "training episodes" + (", some of them cut" if some else f", cut at {cut} steps" if cut else "")
    items: list[Item] = [_line(training, iterations, "return_mean", look="dense")] if iterations else []
    if any("return_best" in r for r in iterations):
        items.append(_line("best training episode", iterations, "return_best", look="dense"))
    evaluations = curve.evaluations()
    low, high = ([r["return_mean"] + sign * r["return_std"] for r in evaluations] for sign in (-1, 1))
    return [*items, Band(curve.label, [r["steps"] for r in evaluations], low, high, "one standard deviation")]


def _learned_panels(iterations: Sequence[Metrics]) -> list[Panel]:
    """The trust in a ranker and the iterations that it ranked; a critic's value of the policies that were run at their
    start states beside their discounted returns; the share of elites that had followed its gradient."""
    panels = []
    trusted = [r for r in iterations if "ranker_trust" in r]
    valued = [r for r in iterations if {"q_start", "return_discounted"} <= set(r)]
    shared = [r for r in valued if "gradient_elites" in r]
    if trusted:
        ranked = [r for r in trusted if r["ranker_learned"]]
        steps, trust = [r["steps"] for r in ranked], [r["ranker_trust"] for r in ranked]
        marks = Marks("iterations that it ranked", steps, trust, [f"iteration {r['iteration']}" for r in ranked])
        line = _line("trust in the ranker", trusted, "ranker_trust", look="dense")
        panels.append(Panel("Trust in the ranker", Axis(STEPS, low=0), Axis("trust", -1, 1), [line, marks]))
    if valued:
        value = _line("critic's value at the start", valued, "q_start")
        paid = _line("true value", valued, "return_discounted")
        panels.append(
            Panel("Value of the policies that were run", Axis(STEPS, low=0), Axis("discounted return"), [value, paid])
        )
    if shared:
        share = _line("elites with gradient steps", shared, "gradient_elites", look="dense")
        panels.append(Panel("Elites with gradient steps", Axis(STEPS, low=0), Axis("share", -0.02, 1.02), [share]))
    return panels


def _line(series: str, records: Sequence[Metrics], metric: str, name: str = "", look: str = "") -> Line:
    shown = [r for r in records if metric in r]
    return Line(series, [r["steps"] for r in shown], [r[metric] for r in shown], name, look)


def ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] as '0-2, 5'."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
