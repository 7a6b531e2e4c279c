"""Charts as SVG text, drawn by matplotlib, for a page in light and in dark colors.

The drawings contain no colors of their own: placeholders become the page's CSS variables. Each call makes a figure of
its own, without pyplot and its global state."""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.errors import OptionError, how_to_install, printable
from pipeline.pages.page import Chart
from pipeline.sizes import counted, format_number

INCHES = (7.6, 2.7)
LEGEND_COLUMNS, LEGEND_ROW = 3, 0.18  # the height of a row, in inches
MOST_POINTS = 2_000  # per line: more than a screen has pixels
BINS = 40
MARKS: Mapping[str, Any] = {
    "Dashed lines": "--",
    "Dotted lines": ":",
    "Dash-dotted lines": "-.",
    "Solid lines": "-",
    "Lines of long dashes": (0, (10, 3)),
    "Lines of dots in pairs": (0, (1, 1, 1, 4)),
}
MOST_NAMED = 8  # marks of a kind, in the alternative text
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

    trend: points (x, y) of the same values, smoothed. It is drawn over the line, which becomes thin and pale.
    marks: what happened -> at which x, such as {"restarted": [150]}: vertical lines in the color of the line, in a
    style for each of at most six kinds. ticks: the same as small triangles on the axis, for what happens often."""

    name: str
    x: np.ndarray
    y: np.ndarray
    marks: Mapping[str, Sequence[float]] = field(default_factory=dict)
    ticks: Mapping[str, Sequence[float]] = field(default_factory=dict)
    trend: tuple[np.ndarray, np.ndarray] | None = None


def lines(
    title: str,
    of: Sequence[Line],
    x_label: str,
    y_label: str,
    *,
    log: bool = False,
    note: str = "",
    most_points: int = MOST_POINTS,
) -> Chart:
    """A chart of lines. log: a logarithmic y axis, if all values are positive. most_points: of each line.

    A long line is reduced to the smallest and the largest value of each of many stretches, so that no peak is lost;
    nor is a gap. The note explains the marks."""
    styles = dict(zip(_kinds(line.marks for line in of), MARKS.items(), strict=False))
    rows = -(-len(of) // LEGEND_COLUMNS) if len(of) > 1 else 0
    with _figure(rows * LEGEND_ROW) as (figure, axes):
        drawn = []
        for number, line in enumerate(of):
            drawn += _draw(axes, line, SERIES[number % len(SERIES)], number // len(SERIES), most_points)
            for kind, places in line.marks.items():
                for at in places:
                    axes.axvline(at, color=SERIES[number % len(SERIES)], linewidth=0.8, linestyle=styles[kind][1])
            for places in line.ticks.values():
                place = {"transform": axes.get_xaxis_transform(), "clip_on": False, "linestyle": "none"}
                axes.plot(places, np.zeros(len(places)), "^", markersize=4, color=SERIES[number % len(SERIES)], **place)
        finite = [line.y[np.isfinite(line.y)] for line in of]
        if log and all((y > 0).all() for y in finite) and any(len(y) for y in finite):
            _log_axis(axes, finite)
        else:
            axes.yaxis.set_major_formatter("{x:,.10g}")
        axes.xaxis.set_major_formatter("{x:,.10g}")  # the default may put a factor of 1e6 in a corner
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        if len(of) > 1:
            names = [printable(line.name) for line in of]  # given, as matplotlib hides a label that begins with "_"
            figure.legend(drawn, names, loc="outside lower center", ncols=min(LEGEND_COLUMNS, len(of)))
        svg = _svg(figure)
    told = [f"{style[0]}: {kind}." for kind, style in styles.items()]
    told += [f"Triangles: {kind}." for kind in _kinds(line.ticks for line in of)]
    alt = f"{title}: {'; '.join(map(_in_words, of))}"
    return Chart(svg, alt, title=title, note=" ".join(filter(None, [*told, note])))


def _log_axis(axes: Any, values: Sequence[np.ndarray]) -> None:
    """A logarithmic y axis, with the numbers 2 and 5 between powers of ten that are few."""
    from matplotlib.ticker import LogLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")  # the default is a formula
    decades = np.ptp(np.log10([y for part in values if len(part) for y in (part.min(), part.max())]))
    axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.yaxis.set_minor_formatter("{x:g}" if decades < 2 else "")
    axes.tick_params(axis="y", which="minor", labelsize=6.5)


def _kinds(marked: Iterable[Mapping[str, Sequence[float]]]) -> list[str]:
    """The kinds of marks that several lines have, each once."""
    return list(dict.fromkeys(kind for marks in marked for kind, places in marks.items() if len(places)))


def _draw(axes: Any, line: Line, color: str, cycle: int, most_points: int) -> list[Any]:
    """Returns what the legend shows of it."""
    x, y = _reduced(np.asarray(line.x, np.float64), np.asarray(line.y, np.float64), most_points)
    style = {"color": color, "linestyle": ("-", "--", ":")[cycle % 3]}
    if line.trend is None:
        return axes.plot(x, y, linewidth=1.2, marker="o" if len(x) <= 60 else None, markersize=2.5, **style)
    axes.plot(x, y, linewidth=0.5, alpha=0.45, **style)
    return axes.plot(*line.trend, linewidth=1.5, **style)


def histogram(title: str, values: np.ndarray, x_label: str, y_label: str = "records", *, note: str = "") -> Chart:
    """A histogram of numbers; non-finite ones are left out, which its note states."""
    values = np.asarray(values, np.float64).ravel()
    finite = values[np.isfinite(values)]
    bins, bad = _bins(finite), len(values) - len(finite)
    if bad:
        note = f"{note} {bad:,} value{'s are' if bad != 1 else ' is'} not finite and not shown.".strip()
    with _figure() as (figure, axes):
        integers = not isinstance(bins, int)
        axes.hist(finite, bins=bins, color=SERIES[0], rwidth=0.8 if integers else 1.0)  # integers: a gap between bars
        axes.locator_params(axis="x", integer=integers)
        axes.locator_params(axis="y", integer=True)
        axes.xaxis.set_major_formatter("{x:,.10g}")
        axes.yaxis.set_major_formatter("{x:,.10g}")
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        svg = _svg(figure)
    if not len(finite):
        return Chart(svg, f"{title}: no values", title=title, note=note)
    low, middle, high = np.percentile(finite, [0, 50, 100])
    told = f"{counted(len(finite), 'value')} from {format_number(low)} to {format_number(high)}"
    told += f", median {format_number(middle)}"
    return Chart(svg, f"{title}: {told}", title=title, note=f"{told}. {note}".strip())


def _bins(finite: np.ndarray) -> Any:
    """The number of bins, or their edges: a bin for each integer, if these are few."""
    if not len(finite):
        return BINS
    width, resolution = np.ptp(finite), np.spacing(np.abs(finite).max())
    if width < BINS and resolution < 0.5 and (finite == finite.round()).all():
        return np.arange(finite.min(), finite.max() + 2) - 0.5
    if width == 0 and resolution >= 0.5:  # a bin needs a width
        return finite[0] + resolution * np.array([-1, 1])
    return max(1, min(BINS, int(width / resolution)))


@contextmanager
def _figure(more_inches: float = 0.0) -> Iterator[tuple[Any, Any]]:
    """A new figure and its axes, in the page's style. more_inches: of its height."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as e:
        raise OptionError(f"pages need {e.name}. Install it: {how_to_install('pages')}.") from e
    with mpl.rc_context():
        mpl.rcdefaults()  # not those of a matplotlibrc in the current directory, which can make it run LaTeX
        mpl.rcParams.update(STYLE)
        figure = Figure(figsize=(INCHES[0], INCHES[1] + more_inches), layout="constrained")
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


def _reduced(x: np.ndarray, y: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """About `most` of the points: of each stretch those with the smallest and the largest y, and its first gap."""
    if len(x) <= most:
        return x, y
    kept = []
    for part in np.array_split(np.arange(len(x)), most // 2):
        values = y[part]
        finite = np.isfinite(values)
        if finite.any():
            kept += {part[finite][values[finite].argmin()], part[finite][values[finite].argmax()]}
        if not finite.all():
            kept.append(part[~finite][0])
    kept = np.sort(kept)
    return x[kept], y[kept]


def _in_words(line: Line) -> str:
    finite = np.flatnonzero(np.isfinite(line.y))
    if not len(finite):
        return f"{line.name}, no values"
    first, last, lowest = map(format_number, (*line.y[finite[[0, -1]]], line.y[finite].min()))
    told = f"{line.name}, from {first} to {last}, lowest {lowest}"
    marked = {kind: places for kind, places in {**line.marks, **line.ticks}.items() if len(places)}
    return ", ".join([told, *(_marks_in_words(kind, places) for kind, places in marked.items())])


def _marks_in_words(kind: str, places: Sequence[float]) -> str:
    more = len(places) - MOST_NAMED
    named = ", ".join(f"{at:,.6g}" for at in places[:MOST_NAMED])
    return f"{kind} at {named}{f' and {more:,} more' if more > 0 else ''}"
