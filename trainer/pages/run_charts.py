"""The charts of runs: each scalar over the steps and over the time, with restarts and checkpoints marked."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.pages.charts import Line, lines
from pipeline.pages.page import Block, Note
from trainer.events.metrics_lines import Column
from trainer.pages.run_files import Clock, Scalars, TrainingRun

TRAINING = "training"
SPEEDS = {
    "speed/examples_per_second": "examples per second",
    "speed/steps_per_second": "steps per second",
    "speed/mfu": "share of the devices' peak (MFU)",
    "speed/tflops_per_second": "TFLOP/s of all devices",
    "speed/input_wait": "share of time spent waiting for input",
    "speed/input_wait_max": "the same on the host that waited most",
    "speed/slowest_host": "the host that the others waited for",
    "speed/slowest_share": "share of time in which it did not",
}
SAME_SHAPE = ("speed/tflops_per_second", "speed/steps_per_second", "speed/mfu")
"""Speeds that are examples per second times a constant of the run; the first one, of most runs that are compared."""
MOST_LINES, MOST_CHARTS = 240, 120  # of a page, which has to stay below 5 MB; a chart takes 27 KB, its lines aside
ALL_POINTS, FEWEST_POINTS, MOST_POINTS = 100_000, 120, 2_000
NOISY, BLOCKS, DECAY = 60, 200, 0.8  # a line of more points gets a trend: a moving mean over that many blocks
TREND = "Thick lines are moving means, thin lines the values themselves."
MOST_NAMED, LABEL = 10, 28
LOG_RATIO = 20.0


@dataclass(frozen=True)
class Drawn:
    """A line to draw: the scalars of a run, named in the legend."""

    label: str
    run: TrainingRun
    scalars: Scalars
    column: Column
    trained: bool


def charts(runs: Sequence[TrainingRun], wanted: Mapping[str, Sequence[str]], clock: Clock) -> dict[str, list[Block]]:
    """Charts of each scalar of each section, as many as fit a page; a note names the others.

    wanted: section -> names; the first sections get their charts first."""
    groups = [
        (section, name, title, drawn)
        for section, names in wanted.items()
        for name in names
        for title, drawn in _groups(runs, name)
    ]
    total = list(itertools.accumulate(2 * len(drawn) for *_, drawn in groups))
    count = min(sum(lines <= MOST_LINES for lines in total), MOST_CHARTS // 2)
    shown, left = groups[: max(1, count)], groups[max(1, count) :]
    points = min(MOST_POINTS, max(FEWEST_POINTS, ALL_POINTS // max([1, *total[: len(shown)]])))
    blocks: dict[str, list[Block]] = {section: [] for section in wanted}
    for section, name, title, drawn in shown:
        blocks[section] += _pair(name, title, drawn, clock, points)
    for section, found in blocks.items():
        if missing := list(dict.fromkeys(name for of, name, *_ in left if of == section)):
            found.append(Note(f"Not shown, because the page would be too large: {', '.join(missing)}."))
    return blocks


def _groups(runs: Sequence[TrainingRun], name: str) -> Iterator[tuple[str, list[Drawn]]]:
    """(title, lines) of the charts of a scalar: of one run, a chart with all its evaluations; of several, one chart
    for the training and for each evaluation, with a line per run."""
    title = SPEEDS.get(name, name)
    every = dict.fromkeys(source for run in runs for source in run.evaluations)
    found = {source: list(_of_source(runs, name, source)) for source in (TRAINING, *every)}
    if len(runs) == 1:
        joined = [drawn for of_source in found.values() for drawn in of_source]
        found = {"": joined}
    for source, drawn in found.items():
        if any(len(each.column.steps) > 1 for each in drawn):  # the table of results has a single value
            yield (f"{title}, {source}" if source and name not in SPEEDS else title), drawn


def _of_source(runs: Sequence[TrainingRun], name: str, source: str) -> Iterator[Drawn]:
    for run in runs:
        scalars = run.train if source == TRAINING else run.evaluations.get(source)
        if scalars is not None and name in scalars.columns:
            label = source if len(runs) == 1 else run.name if len(run.name) <= LABEL else f"…{run.name[1 - LABEL :]}"
            yield Drawn(label, run, scalars, scalars.columns[name], source == TRAINING)


def _pair(name: str, title: str, of: Sequence[Drawn], clock: Clock, points: int) -> Iterator[Block]:
    values = np.concatenate([drawn.column.values for drawn in of])
    finite = values[np.isfinite(values)]
    log = "loss" in name and len(finite) > 0 and finite.min() > 0 and finite.max() > LOG_RATIO * finite.min()
    over_steps = [_over_steps(drawn) for drawn in of]
    over_time = [line for line in (_over_time(drawn, clock) for drawn in of) if line is not None]
    found = {"over steps": ("step", over_steps), "over time": (f"{clock.unit} since training began", over_time)}
    if not over_time or ("loss" not in name and name not in SPEEDS and _uninterrupted(of)):
        del found["over time"]  # it would have the shape of the other
    elif name in SPEEDS:
        del found["over steps"]
    trend = TREND if any(line.trend for line in over_steps) else ""
    note = " ".join(filter(None, [trend, *map(_not_finite, of)]))
    for over, (x_label, drawn) in found.items():
        yield lines(f"{title}, {over}", drawn, x_label, "", log=log, note=note, most_points=points)
        note = ""


def _uninterrupted(of: Sequence[Drawn]) -> bool:
    """Whether all lines are of one run, which one process trained."""
    return all(drawn.run is of[0].run and len(drawn.run.attempts) < 2 for drawn in of)


def _over_steps(drawn: Drawn) -> Line:
    x, y = drawn.column.steps.astype(np.float64), drawn.column.values
    marks = Clock.resumed_steps(drawn.run) if drawn.trained else {}
    ticks = {"checkpoints": sorted(drawn.run.checkpoints)} if drawn.trained else {}
    return Line(drawn.label, x, y, marks=marks, ticks=ticks, trend=_trend([(x, y)]))


def _over_time(drawn: Drawn, clock: Clock) -> Line | None:
    """None if the times are not known. Between two processes the line has a gap."""
    x, y = clock.of(drawn.run, drawn.scalars.times.at(drawn.column.steps)), drawn.column.values
    known = np.isfinite(x)
    if not known.any():
        return None
    parts = clock.parts(drawn.run, x[known], y[known]) if drawn.trained else [(x[known], y[known])]
    parts = [(_spread(times), values) for times, values in parts]
    marks = clock.marks(drawn.run) if drawn.trained else {}
    ticks = {"checkpoints": clock.saved(drawn.run)} if drawn.trained else {}
    return Line(drawn.label, *_joined(parts), marks=marks, ticks=ticks, trend=_trend(parts))


def _spread(times: np.ndarray) -> np.ndarray:
    """Steps of a dispatch are reported together, at its end: they get times evenly from the report before them on; the
    first ones, as if they took as long as those of the second report."""
    ends = np.flatnonzero(np.diff(times, append=np.inf))
    if len(ends) < 2:
        return times
    began = times[ends[0]] - (ends[0] + 1) * (times[ends[1]] - times[ends[0]]) / (ends[1] - ends[0])
    return np.interp(np.arange(len(times)), np.append(-1, ends), np.append(began, times[ends]))


Points = tuple[np.ndarray, np.ndarray]


def _joined(parts: Sequence[Points]) -> Points:
    """One line with a gap, a NaN, between the parts."""
    gap = np.array([np.nan])
    xs = [piece for x, _ in parts for piece in (x, x[-1:])][:-1]
    ys = [piece for _, y in parts for piece in (y, gap)][:-1]
    return np.concatenate(xs), np.concatenate(ys)


def _trend(parts: Sequence[Points]) -> Points | None:
    """The moving mean over blocks of steps; None if there are few points."""
    total = sum(len(x) for x, _ in parts)
    if total <= NOISY:
        return None
    smooth = []
    for x, y in parts:
        blocks = np.array_split(np.arange(len(x)), max(1, min(len(x), round(BLOCKS * len(x) / total))))
        values = [y[block] for block in blocks]
        means = (_moving_means(values) + _moving_means(values[::-1])[::-1]) / 2  # of both directions: no lag
        smooth.append((np.array([x[block].mean() for block in blocks]), means))
    return _joined(smooth)


def _moving_means(blocks: Sequence[np.ndarray]) -> np.ndarray:
    """Of finite values, a block counting DECAY times as much as the next; NaN for a block without any."""
    total = weight = 0.0
    means = []
    for values in blocks:
        finite = values[np.isfinite(values)]
        total, weight = DECAY * total + finite.sum(), DECAY * weight + len(finite)
        means.append(total / weight if len(finite) else np.nan)
    return np.array(means)


def _not_finite(drawn: Drawn) -> str:
    bad = np.flatnonzero(~np.isfinite(drawn.column.values))
    if not len(bad):
        return ""
    steps, more = drawn.column.steps[bad[:MOST_NAMED]].tolist(), len(bad) - MOST_NAMED
    named = ", ".join(f"{step:,}" for step in steps) + (f" and {more:,} more" if more > 0 else "")
    return (
        f"{drawn.label}: {len(bad):,} value{'s are' if len(bad) > 1 else ' is'} not finite, at "
        f"step{'s' * (len(bad) > 1)} {named}."
    )
