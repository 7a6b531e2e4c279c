"""Charts as SVG text, drawn by matplotlib, for a page in light and in dark colors.

The drawings contain no colors of their own: placeholders become the page's CSS variables. Each call makes a figure of
its own, without pyplot and its global state."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.errors import OptionError, printable
from pipeline.installing import how_to_install
from pipeline.pages.page import Chart

__all__ = ["Line", "histogram", "lines"]

INCHES = (7.6, 2.7)
MOST_POINTS = 2_000  # per line: more than a screen has pixels
BINS = 40
INK, GRID = "#010101", "#020202"
SERIES = [f"#0a0a0{number}" for number in range(6)]
CSS = {INK: "currentColor", GRID: "var(--line)"} | {color: f"var(--series-{n})" for n, color in enumerate(SERIES)}
STYLE: Mapping[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be selected, and is read aloud
    "svg.hashsalt": "infeed",  # the same data give the same bytes
    "font.size": 8,
    "text.parse_math": False,  # "$" in a label is a dollar
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Line:
    """A line of a chart through points x [n], y [n]; non-finite values of y are gaps. name: in the legend.

    marks: x -> what happened there, such as a restart: dashed vertical lines in the color of the line."""

    name: str
    x: np.ndarray
    y: np.ndarray
    marks: Mapping[float, str] = field(default_factory=dict)


def lines(title: str, of: Sequence[Line], x_label: str, y_label: str, *, log: bool = False, note: str = "") -> Chart:
    """A chart of lines. log: a logarithmic y axis, if all values are positive.

    A long line is reduced to the smallest and the largest value of each of a thousand stretches, so that no peak is
    lost."""
    with _figure() as (figure, axes):
        for number, line in enumerate(of):
            color = SERIES[number % len(SERIES)]
            x, y = _reduced(np.asarray(line.x, np.float64), np.asarray(line.y, np.float64))
            marker = "o" if len(x) <= 60 else None
            axes.plot(x, y, color=color, linewidth=1.2, marker=marker, markersize=2.5, label=printable(line.name))
            for at in line.marks:
                axes.axvline(at, color=color, linewidth=0.8, linestyle="--")
        finite = [line.y[np.isfinite(line.y)] for line in of]
        if log and all((y > 0).all() for y in finite) and any(len(y) for y in finite):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")  # the default is a formula
            axes.yaxis.set_minor_formatter("")
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        if len(of) > 1:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        svg = _svg(figure)
    return Chart(svg, f"{title}: {'; '.join(map(_in_words, of))}", title, note)


def histogram(title: str, values: np.ndarray, x_label: str, y_label: str = "records", *, note: str = "") -> Chart:
    """A histogram of numbers; non-finite ones are left out, which its note states."""
    values = np.asarray(values, np.float64).ravel()
    finite = values[np.isfinite(values)]
    bins: Any = BINS
    if len(finite) and np.ptp(finite) < BINS and (finite == finite.round()).all():
        bins = np.arange(finite.min(), finite.max() + 2) - 0.5  # a bar for each integer
    if len(finite) < len(values):
        note = f"{note} {len(values) - len(finite):,} values are not finite and not shown.".strip()
    with _figure() as (figure, axes):
        axes.hist(finite, bins=bins, color=SERIES[0])
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        svg = _svg(figure)
    if not len(finite):
        return Chart(svg, f"{title}: no values", title, note)
    low, middle, high = np.percentile(finite, [0, 50, 100])
    told = f"{len(finite):,} values from {low:.4g} to {high:.4g}, median {middle:.4g}"
    return Chart(svg, f"{title}: {told}", title, f"{told}. {note}".strip())


@contextmanager
def _figure() -> Iterator[tuple[Any, Any]]:
    """A new figure and its axes, in the page's style."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as e:
        raise OptionError(f"pages need {e.name}. Install it: {how_to_install('pages')}.") from e
    with mpl.rc_context(dict(STYLE)):
        figure = Figure(figsize=INCHES, layout="constrained")
        axes = figure.add_subplot()
        axes.grid(visible=True, axis="y", linewidth=0.6)
        axes.set_axisbelow(True)
        yield figure, axes


def _svg(figure: Any) -> str:
    """The drawing as an <svg> element that takes its colors from the page, and its width from the space."""
    sink = io.StringIO()
    figure.savefig(
        sink, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
    )
    text = sink.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # names that every drawing on a page would repeat
    text = re.sub(r'(<svg [^>]*?)width="[^"]*" height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    for placeholder, css in CSS.items():
        text = text.replace(placeholder, css)
    return text


def _reduced(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most MOST_POINTS of the points: of each stretch those with the smallest and the largest y."""
    if len(x) <= MOST_POINTS:
        return x, y
    kept = []
    for part in np.array_split(np.arange(len(x)), MOST_POINTS // 2):
        values = y[part]
        if np.isfinite(values).any():
            kept += sorted({part[np.nanargmin(values)], part[np.nanargmax(values)]})
        else:
            kept.append(part[0])
    return x[kept], y[kept]


def _in_words(line: Line) -> str:
    finite = np.flatnonzero(np.isfinite(line.y))
    if not len(finite):
        return f"{line.name}, no values"
    first, last = line.y[finite[[0, -1]]]
    return f"{line.name}, from {first:.4g} to {last:.4g}, lowest {line.y[finite].min():.4g}"
