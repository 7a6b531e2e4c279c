"""Charts: the same data are the same bytes, colors are the page's, and no peak or gap is lost."""

import itertools
import re

import numpy as np
import pytest

from pipeline.pages.charts import Line, histogram, lines

STEPS = np.arange(10)


def test_colors_are_those_of_the_page_and_the_same_data_are_the_same_bytes():
    made = [lines("loss", [Line("a", STEPS, STEPS + 1.0), Line("b", STEPS, STEPS)], "step", "loss") for _ in range(2)]
    assert made[0] == made[1]
    assert set(re.findall(r"(?:stroke|fill): ([^;\"]+)", made[0].svg)) <= {
        *("none", "currentColor", "var(--line)", "var(--series-0)", "var(--series-1)"),
    }
    assert not re.search(r"#[0-9a-f]{6}", made[0].svg.partition("</defs>")[2])


def test_labels_are_text_and_escaped():
    chart = lines("<b>", [Line("<i>$x$", STEPS, STEPS), Line("\x1b", STEPS, STEPS)], "$step", "a & b")
    assert "&lt;i&gt;$x$" in chart.svg
    assert "$step" in chart.svg
    assert "a &amp; b" in chart.svg
    assert "<i>" not in chart.svg


def test_a_long_line_keeps_its_peaks():
    y = np.zeros(100_000)
    y[54_321] = 7.0
    chart = lines("loss", [Line("a", np.arange(len(y)), y)], "step", "loss")
    assert len(chart.svg) < 200_000
    assert ">7<" in chart.svg  # a tick of the axis, which reaches as far as the peak


def test_a_long_line_keeps_its_gaps():
    y = np.ones(100_000)
    y[[30_000, 60_000]] = np.nan
    chart = lines("loss", [Line("a", np.arange(len(y)), y)], "step", "loss")
    whole = lines("loss", [Line("a", np.arange(len(y)), np.ones(len(y)))], "step", "loss")
    pieces = [max(re.findall(r'd="([^"]*)"', each.svg), key=len).count("M") for each in (chart, whole)]
    assert pieces == [3, 1]


def test_each_kind_of_mark_has_a_style_of_its_own_that_the_note_and_the_words_explain():
    marks = {"restarted": [2, 5], "killed": [4], "nothing": []}
    chart = lines("loss", [Line("a", STEPS, STEPS, marks, {"saved": range(10)})], "step", "loss", note="Seen.")
    assert chart.note == "Dashed lines: restarted. Dotted lines: killed. Triangles: saved. Seen."
    assert chart.alt.endswith("lowest 0, restarted at 2, 5, killed at 4, saved at 0, 1, 2, 3, 4, 5, 6, 7 and 2 more")
    dashes = re.findall(r"stroke-dasharray: ([^;\"]+)", chart.svg)
    assert len(dashes) == 3
    assert len({*dashes}) == 2
    plain = lines("loss", [Line("a", STEPS, STEPS)], "step", "loss")
    assert chart.svg.count("<use") - plain.svg.count("<use") == 10


def test_a_trend_is_drawn_above_its_values_in_their_color():
    line = Line("a", STEPS, STEPS, trend=(STEPS[::3], STEPS[::3] + 0.5))
    svg = lines("loss", [Line("b", STEPS, STEPS), line], "step", "loss").svg
    drawn = re.findall(r"stroke: var\(--series-1\); stroke-(opacity|width)", svg)
    assert drawn[:2] == ["opacity", "width"]


def test_a_logarithmic_axis_has_numbers_between_powers_of_ten_also_next_to_a_line_without_values():
    nothing = Line("b", STEPS, np.full(10, np.nan))
    svg = lines("loss", [Line("a", STEPS, np.geomspace(0.1, 4, 10)), nothing], "step", "loss", log=True).svg
    assert {">0.1<", ">0.2<", ">0.5<", ">1<", ">2<"} <= {*re.findall(r">[\d.]+<", svg)}
    assert ">0.7<" not in svg


def test_a_gap_is_not_drawn_over_however_many_points_there_are():
    for points in (10, 10_000):
        y = np.ones(points)
        y[points // 2] = np.nan
        (drawn,) = re.findall(
            r'<path d="([^"]+)" clip-path="[^"]+" style="fill: none; stroke: var\(--series-0\)',
            lines("loss", [Line("a", np.arange(points), y)], "step", "loss").svg,
        )
        assert drawn.count("M") == 2


def test_the_legend_names_every_line():
    names = ["_hidden", "run", *"abcde"]
    svg = lines("loss", [Line(name, STEPS, STEPS * 1.0) for name in names], "step", "loss").svg
    assert [name for name in names if f">{name}</text>" in svg] == names


def test_each_kind_of_marks_has_a_style_of_its_own():
    kinds = ["ended", "preempted", "interrupted", "killed", "resumed", "moved"]
    chart = lines("loss", [Line("run", STEPS, STEPS * 1.0, {kind: [3] for kind in kinds})], "step", "loss")
    styles = re.findall(r"([A-Z][a-z -]*): (\w+)\.", chart.note)
    assert [kind for _, kind in styles] == kinds
    assert len({style for style, _ in styles}) == len(set(re.findall(r"stroke-dasharray: [^;]*", chart.svg))) + 1 == 6


def test_a_logarithmic_axis_needs_positive_values():
    rising = 10.0 ** np.arange(-2, 8)
    svg = lines("loss", [Line("a", STEPS, rising)], "step", "loss", log=True).svg
    assert ">0.01<" in svg
    assert ">1e+06<" in svg
    svg = lines("loss", [Line("a", STEPS, rising - 0.01)], "step", "loss", log=True).svg
    assert ">0.01<" not in svg


def test_the_alternative_text_of_a_line_chart_states_first_last_and_lowest_value():
    values = np.array([np.nan, 3.0, 1.0, 2.0, np.inf])
    assert lines("loss", [Line("run", np.arange(5), values)], "step", "loss").alt == (
        "loss: run, from 3 to 2, lowest 1"
    )
    assert lines("loss", [Line("run", STEPS, np.full(10, np.nan))], "step", "loss").alt == "loss: run, no values"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([3, 1, 2, 2], "4 values from 1 to 3, median 2"),
        ([0.5, np.nan, np.inf, 1.5], "2 values from 0.5 to 1.5, median 1. 2 values are not finite and not shown."),
        ([1.0, np.nan], "1 value from 1 to 1, median 1. 1 value is not finite and not shown."),
        ([2.0**60, 2.0**60 + 256, 2.0**60 + 512], "3 values from 1.153e+18 to 1.153e+18"),
        ([2.0**60] * 2, "2 values from 1.153e+18 to 1.153e+18"),
        ([1.0, np.nextafter(1.0, 2.0)], "2 values from 1 to 1"),
        ([], "no values"),
        ([7.0], "1 value from 7 to 7, median 7"),
        ([10_640.4, 1_234_567], "2 values from 10,640 to 1,234,567, median 622,604"),
        ([1e-9, 1e15], "2 values from 1e-09 to 1e+15"),
    ],
)
def test_a_histogram_states_how_many_values_it_has_and_which_it_leaves_out(values, told):
    chart = histogram("sizes", np.array(values), "bytes")
    assert told in (chart.note or chart.alt)


def test_a_histogram_of_few_integers_has_a_bar_and_a_tick_for_each():
    svg = histogram("labels", np.array([4, 5, 5, 7]), "label").svg
    ticks = re.findall(r">([\d.]+)</text>", svg)
    assert ticks == ["4", "5", "6", "7", "0", "1", "2"]
    bars = re.findall(r'd="M ([\d.]+) [\d.]+ \nL ([\d.]+) [\d.]+ \nL \2 [\d.]+ \nL \1 ', svg)[-4:]
    assert all(float(end) < float(start) for (_, end), (start, _) in itertools.pairwise(bars))  # gaps between the bars
