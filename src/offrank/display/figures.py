"""Figures as plain data, and how they are written as pictures.

A figure is defined once, by a function that returns a `Figure`. `save` draws it as PNG, SVG or PDF; the script of
`offrank report` draws the same data on its page. The colours are those of Okabe and Ito, which colour-blind readers can
distinguish; dashes and shapes tell series apart in black and white.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, isfinite
from pathlib import Path
from typing import Any

from offrank.core.errors import UsageError
from offrank.core.files import write_atomically

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (2, 3)))
SHAPES = ("circle", "square", "triangle", "diamond", "down", "cross")
FORMATS = ("png", "svg", "pdf")

Values = Sequence[float | None]  # None where there is a hole


@dataclass(frozen=True)
class Line:
    series: str
    x: Values
    y: Values
    name: str = ""  # what it is, where its series has several
    look: str = ""  # "thin": one of many; "faint": one of very many; "dense": thin and without dashes
    step: bool = False  # keeps a value until the next point
    marked: bool = False  # some of its points have the shape of the series
    kind: str = "line"


@dataclass(frozen=True)
class Band:
    """The area between two lines."""

    series: str
    x: Values
    low: Values
    high: Values
    name: str  # what lies between
    step: bool = False
    kind: str = "band"


@dataclass(frozen=True)
class Marks:
    series: str
    x: Values
    y: Values
    names: Sequence[str]  # of each mark
    shape: str = ""  # the series' own if not given; also "star" and "tick"
    open: bool = False  # not filled
    low: Values = ()  # ends of intervals, if there are any
    high: Values = ()
    kind: str = "marks"


@dataclass(frozen=True)
class Box:
    """Quartiles around the median, whiskers to the last value within one and a half times their distance."""

    series: str
    at: float
    low: float
    q1: float
    median: float
    q3: float
    high: float
    kind: str = "box"


@dataclass(frozen=True)
class Rule:
    """A dashed horizontal line, from one side to the other if no ends are given."""

    y: float
    left: float | None = None
    right: float | None = None
    kind: str = "rule"


Item = Line | Band | Marks | Box | Rule


@dataclass(frozen=True)
class Axis:
    label: str
    low: float | None = None  # None: what the items need
    high: float | None = None
    log: bool = False
    places: Sequence[str] = ()  # names of 0, 1, 2, ... instead of numbers
    series: Sequence[str] = ()  # of each place, where a place belongs to one


@dataclass(frozen=True)
class Panel:
    title: str
    x: Axis
    y: Axis
    items: Sequence[Item]
    task: str = ""  # by which the report's reader picks panels
    counts: dict[str, str] = field(default_factory=dict)  # said of a series in this panel


@dataclass(frozen=True)
class Figure:
    """Panels with one legend: a series has the same colour, dashes and shape in each."""

    series: Sequence[str]
    panels: Sequence[Panel]
    keys: dict[str, str] = field(default_factory=dict)  # what a "rule", "star", "open", "tick" or "band" means
    columns: int = 3


def short(value: float) -> str:
    """1500000 as '1.5M', 2000 as '2k'."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


# --- drawing with matplotlib; legends are under the panels, where they cover nothing

WIDTH, HEIGHT = 5.2, 3.4  # of a panel, in inches, without its legend
ENTRY = 0.2  # height of a line of a legend
MARKERS = {
    "circle": "o", "square": "s", "triangle": "^", "diamond": "D", "down": "v", "cross": "P", "star": "*", "tick": "|",
}  # fmt: skip
SIZES = {"star": 13, "tick": 9}
LOOKS = {"": (1.8, 1.0), "thin": (0.8, 0.6), "faint": (0.5, 0.35), "dense": (0.8, 0.8)}  # width and opacity


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, by the end of the file's name; the same figure gives the same bytes.

    Raises:
        UsageError: the name has another ending.
        OffrankError: the file cannot be written.
    """
    kind = path.suffix.lstrip(".")
    if kind not in FORMATS:
        raise UsageError(f"{path}: a picture ends in {', '.join('.' + f for f in FORMATS)}")
    import matplotlib

    undated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    with matplotlib.rc_context({"svg.hashsalt": "offrank", "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # in the name of a task: an empty box is drawn
        canvas = drawn(figure)
        write_atomically(path, lambda file: canvas.savefig(file, format=kind, dpi=130, metadata=undated))


def drawn(figure: Figure) -> Any:
    """A matplotlib figure. Where panels have counts of their own, each has a legend; otherwise there is one."""
    from matplotlib.figure import Figure as Canvas

    columns = min(len(figure.panels), figure.columns)
    rows = ceil(len(figure.panels) / columns)
    width = max(WIDTH, 6.4 / columns)
    entries = [_Entries(figure, [panel], width) for panel in figure.panels]
    every = _Entries(figure, figure.panels, width * columns)
    shared = not any(panel.counts for panel in figure.panels)
    lines = every.lines if shared else rows * max(e.lines for e in entries)
    deepest = 0.16 * max(p.count("\n") for panel in figure.panels for p in ["", *panel.x.places])
    canvas = Canvas(figsize=(width * columns, rows * (HEIGHT + deepest) + lines * ENTRY), layout="constrained")
    for number, (panel, own) in enumerate(zip(figure.panels, entries, strict=True), start=1):
        axes = canvas.add_subplot(rows, columns, number)
        _draw(axes, figure.series, panel)
        if not shared:
            _legend(axes, own, 0.5 + deepest)
    if shared:
        canvas.legend(*every.found, loc="outside lower center", ncols=every.columns, fontsize=8, frameon=False)
    return canvas


class _Entries:
    """A legend of some panels: handles and labels, and how many lines and columns it has in a width in inches.

    It explains dashes and shapes; boxes are named by their axis.
    """

    def __init__(self, figure: Figure, panels: Sequence[Panel], width: float):
        counts = {name: count for panel in panels for name, count in panel.counts.items()}
        items = [item for panel in panels for item in panel.items]
        handles, labels = [], []
        for number, name in enumerate(figure.series):
            lines = [item for item in items if isinstance(item, Line) and item.series == name]
            marks = [item for item in items if isinstance(item, Marks) and item.series == name and not item.shape]
            if lines or marks:
                handles.append(_handle(number, lines, marks))
                labels.append(f"{name}, {counts[name]}" if name in counts else name)
        handles += map(_key, figure.keys)
        labels += figure.keys.values()
        self.found = handles, labels
        longest = max(map(len, labels), default=0)
        self.columns = max(1, min(len(labels), int(width / (0.45 + 0.062 * longest))))
        self.lines = ceil(len(labels) / self.columns)


def _handle(number: int, lines: Sequence[Line], marks: Sequence[Marks]) -> Any:
    from matplotlib.lines import Line2D

    look = _look(number, "dense" if any(line.look == "dense" for line in lines) else "")
    look |= {} if lines else {"ls": ""}
    if marks or any(line.marked for line in lines):
        look |= _face(number, any(mark.open for mark in marks)) | {"marker": _marker(number)}
    return Line2D([], [], **look)


def _key(kind: str) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if kind == "band":
        return Patch(facecolor="0.5", alpha=0.4)
    if kind == "rule":
        return Line2D([], [], color="black", lw=1, ls=(0, (4, 3)))
    marker = MARKERS["triangle" if kind == "open" else kind]
    return Line2D([], [], ls="", marker=marker, color="black", mfc="white", ms=0.8 * SIZES.get(kind, 7))


def _legend(axes: Any, entries: _Entries, depth: float) -> None:
    """Put a legend a depth, in inches, under the axes."""
    from matplotlib.transforms import ScaledTranslation

    under = axes.transAxes + ScaledTranslation(0, -depth, axes.figure.dpi_scale_trans)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": under, "borderaxespad": 0}
    axes.legend(*entries.found, **place, ncols=entries.columns, fontsize=8, frameon=False, borderpad=0)


def _draw(axes: Any, series: Sequence[str], panel: Panel) -> None:
    for item in panel.items:
        if isinstance(item, Rule):
            left, right = (0, 1) if item.left is None else (item.left, item.right)
            transform = axes.get_yaxis_transform() if item.left is None else axes.transData
            axes.plot([left, right], [item.y] * 2, color="black", lw=1, ls=(0, (4, 3)), transform=transform)
            continue
        number = series.index(item.series)
        if isinstance(item, Line):
            look = _look(number, item.look) | {"drawstyle": "steps-post" if item.step else "default"}
            if item.marked:
                every = max(1, ceil(len(item.x) / 8))
                look |= {"marker": _marker(number), "ms": 4, "markevery": (number % every, every)}
            elif sum(value is not None for value in item.y) == 1:
                look |= {"marker": "o", "ms": 4}  # a line of one point is none
            axes.plot(_holes(item.x), _holes(item.y), **look)
        elif isinstance(item, Band):
            step = "post" if item.step else None
            sides = map(_holes, (item.x, item.low, item.high))
            axes.fill_between(*sides, step=step, color=_colour(number), alpha=0.2, lw=0)
        elif isinstance(item, Box):
            _draw_box(axes, item, _colour(number))
        else:
            _draw_marks(axes, item, number)
    axes.set_title(panel.title, fontsize=10)
    for name, axis in (("x", panel.x), ("y", panel.y)):
        _scale(axes, name, axis)
    axes.grid(alpha=0.25, axis="y" if panel.x.places else "both")


def _draw_box(axes: Any, box: Box, colour: str) -> None:
    stats = {"whislo": box.low, "q1": box.q1, "med": box.median, "q3": box.q3, "whishi": box.high, "fliers": []}
    look = {"facecolor": colour, "alpha": 0.6}
    axes.bxp([stats], [box.at], widths=0.55, patch_artist=True, boxprops=look, medianprops={"color": "black"})


def _draw_marks(axes: Any, marks: Marks, number: int) -> None:
    colour = _colour(number)
    if marks.low:
        axes.vlines(marks.x, marks.low, marks.high, color=colour, lw=1.2)
    marker = MARKERS[marks.shape] if marks.shape else _marker(number)
    look = _face(number, marks.open or marks.shape == "tick") | {"ms": SIZES.get(marks.shape, 5)}
    axes.plot(marks.x, marks.y, marker, color=colour, **look, zorder=3)


def _face(number: int, open_: bool) -> dict[str, Any]:
    """The inside and the edge of a mark."""
    colour = _colour(number)
    return {"mfc": "white", "mec": colour, "mew": 1.2} if open_ else {"mfc": colour, "mec": "black", "mew": 0.6}


def _scale(axes: Any, name: str, axis: Axis) -> None:
    axes.set(**{f"{name}label": axis.label})
    nothing = axis.low is None and not isfinite(getattr(axes.dataLim, f"minpos{name}"))  # a logarithm has no place for
    if axis.log and not nothing:
        axes.set(**{f"{name}scale": "log"})
        getattr(axes, f"{name}axis").set_minor_formatter(lambda value, _: "")
    if axis.places:
        getattr(axes, f"set_{name}ticks")(range(len(axis.places)), axis.places, fontsize=8)
    else:
        getattr(axes, f"{name}axis").set_major_formatter(lambda value, _: short(value))
    if axis.low is not None:
        axes.set(**{f"{name}lim": (axis.low, None)})
    if axis.high is not None:
        axes.set(**{f"{name}lim": (None, axis.high)})


def _look(number: int, look: str) -> dict[str, Any]:
    width, opacity = LOOKS[look]
    dashes = "-" if look == "dense" else DASHES[number % len(DASHES)]
    return {"color": _colour(number), "ls": dashes, "lw": width, "alpha": opacity}


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _marker(number: int) -> str:
    return MARKERS[SHAPES[number % len(SHAPES)]]


def _holes(values: Values) -> list[float]:
    return [float("nan") if value is None else value for value in values]
