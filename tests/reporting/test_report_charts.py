"""Charts: ticks are round and enclose the values; charts of no, one or infinite values can be drawn."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reporting.elements.charts import (
    Reference,
    Series,
    Span,
    axis,
    column_axis,
    columns,
    dot_chart,
    histogram,
    line_chart,
    log_axis,
    plain,
    rows,
    scatter,
    span_rows,
    tick_step,
    x_of,
)

_VALUES = st.lists(
    st.floats(-1e9, 1e9).filter(lambda value: value == 0 or abs(value) > 1e-6), min_size=1, max_size=20
)
_NUMBER = re.compile(r' (?:x|y|x1|x2|y1|y2|cx|cy|r|width|height)="([^"]*)"')


@given(_VALUES, st.booleans(), st.booleans())
def test_axis_encloses_its_values_with_few_ascending_ticks(
    values: list[float], from_zero: bool, exact: bool
) -> None:
    chart_axis = axis(values, "x", from_zero=from_zero, exact=exact)
    slack = 1e-9 * (chart_axis.high - chart_axis.low)
    assert chart_axis.low - slack <= min(values)
    assert max(values) <= chart_axis.high + slack
    assert chart_axis.low < chart_axis.high
    assert list(chart_axis.ticks) == sorted(set(chart_axis.ticks))
    assert len(chart_axis.ticks) <= 9
    assert all(chart_axis.low - slack <= tick <= chart_axis.high + slack for tick in chart_axis.ticks)
    if from_zero:
        assert chart_axis.low <= 0 <= chart_axis.high


@given(_VALUES, st.booleans())
def test_whole_ticks_are_whole_numbers(values: list[float], exact: bool) -> None:
    chart_axis = axis(values, "epoch", exact=exact, whole=True)
    finite = [value for value in values if math.isfinite(value)]
    if math.floor(max(finite)) >= math.ceil(
        min(finite)
    ):  # the axis may end at a whole number beyond the values
        assert all(tick == round(tick) for tick in chart_axis.ticks)
    assert chart_axis.ticks or exact


@given(st.floats(1e-9, 1e9), st.floats(1.001, 1e9))
def test_a_log_axis_has_ticks_in_its_range_and_equal_distances_of_ratios(low: float, ratio: float) -> None:
    chart_axis = log_axis(low, low * ratio, "rate")
    assert 1 <= len(chart_axis.ticks) <= 20
    assert list(chart_axis.ticks) == sorted(set(chart_axis.ticks))
    slack = 1e-6 * low
    assert all(low - slack <= tick <= low * ratio * (1 + 1e-6) for tick in chart_axis.ticks)
    assert chart_axis.place(low, 0.0, 1.0) == pytest.approx(0.0, abs=1e-6)
    assert chart_axis.place(low * ratio, 0.0, 1.0) == pytest.approx(1.0, abs=1e-6)
    assert chart_axis.place(low * math.sqrt(ratio), 0.0, 1.0) == pytest.approx(0.5, abs=1e-6)


def test_ticks_of_a_log_axis() -> None:
    assert log_axis(1e-4, 0.1, "rate").ticks == (1e-4, 1e-3, 1e-2, 0.1)
    assert log_axis(0.004, 0.06, "rate").ticks == (0.005, 0.01, 0.02, 0.05)
    assert log_axis(3.0, 4.0, "rate").ticks == (3.0, 4.0)
    assert [log_axis(1e-4, 0.1, "rate").written(tick) for tick in (1e-4, 0.1)] == ["0.0001", "0.1"]


def test_columns_of_choices_are_within_the_picture_and_long_names_are_cut() -> None:
    x = column_axis(["[128, 64]", "a name that is far too long to be shown"], "model.top_mlp")
    assert [x.written(tick) for tick in x.ticks] == ["[128, 64]", "a name that is far too …"]
    assert x_of(x, 0) == pytest.approx(58 + 370 / 4)
    drawn = dot_chart(
        "Loss",
        Series("complete", [(0, 0.5), (1, 0.4), (1, math.nan)]),
        Series("pruned", [(0, 0.7)]),
        x=x,
        y_label="log loss",
        line=[(0, 0.5), (1, 0.4)],
    )
    assert drawn.count('class="dot series-0"') == 2
    assert drawn.count('class="hollow series-1"') == 1
    assert drawn.count('class="line series-0"') == 1
    assert "<title>pruned, model.top_mlp [128, 64]: 0.7</title>" in drawn
    _all_finite(drawn)
    empty = Series("pruned", [])
    assert "no values to draw" in dot_chart("Loss", empty, empty, x=x, y_label="log loss")
    assert "legend" not in dot_chart("Loss", Series("complete", [(0, 1)]), empty, x=x, y_label="log loss")


def test_rows_of_spans_show_mean_interval_and_points_within_the_picture() -> None:
    spans = [
        Span("a_very_long_name_of_one_experiment", 0.5, 0.4, 0.6, [0.4, 0.6]),
        Span("DLRM, higher learning rate", 0.6, 0.6, 0.6),
        Span("one seed", 0.7, 0.7, 0.7),
        Span("no value", math.nan, math.nan, math.nan),
    ]
    drawn = span_rows("AUC", spans, x_label="AUC")
    assert "a_very_long_name_of_one_exp…</text>" in drawn
    assert "<title>a_very_long_name_of_one_experiment: 0.5000</title>" in drawn
    assert "DLRM, higher learning rate</text>" in drawn
    assert drawn.count('class="point"') == 2
    assert drawn.count('class="line series-0"') == 3  # the interval and its two ends
    assert "no value" not in drawn
    _all_finite(drawn)
    assert "no values to draw" in span_rows("AUC", spans[3:], x_label="AUC")


@pytest.mark.parametrize(
    "span, most, step",
    [(10, 5, 2), (1, 6, 0.2), (7, 6, 2), (12, 6, 2), (0.03, 6, 0.005), (1.4e6, 6, 250_000)],
)
def test_tick_step_is_round(span: float, most: int, step: float) -> None:
    assert tick_step(span, most) == pytest.approx(step)


@pytest.mark.parametrize(
    "step, value, written",
    [
        (0.25, 0.5, "0.50"),
        (2, 1_000, "1,000"),
        (1e3, 25_000, "25k"),
        (2.5e6, 5e6, "5M"),
        (2e-4, 6e-4, "0.0006"),
    ],
)
def test_ticks_are_written_with_the_decimals_their_step_needs(
    step: float, value: float, written: str
) -> None:
    assert plain(step)(value) == written


def test_axis_needs_a_finite_value() -> None:
    with pytest.raises(ValueError, match="no finite value"):
        axis([math.nan, math.inf], "loss")


def test_place_maps_the_ends_to_the_ends() -> None:
    chart_axis = axis([0.0, 10.0], "x")
    assert (chart_axis.place(0, 50, 450), chart_axis.place(5, 50, 450), chart_axis.place(10, 50, 450)) == (
        50,
        250,
        450,
    )


@pytest.mark.parametrize("points", [[], [(1.0, math.nan)], [(math.inf, 1.0)]])
def test_line_without_a_finite_point_is_a_sentence(points: list[tuple[float, float]]) -> None:
    drawn = line_chart("Loss", [Series("train", points)], x_label="step", y_label="loss")
    assert drawn == '<p class="missing">Loss: there are no values to draw.</p>'


def test_line_with_one_point_shows_it() -> None:
    drawn = line_chart("Loss", [Series("train", [(1, 0.5)])], x_label="step", y_label="loss")
    assert drawn.count("<circle") == 1
    _all_finite(drawn)


def test_line_skips_values_that_are_not_finite() -> None:
    points = [(1, 0.5), (2, math.nan), (3, 0.4), (4, -math.inf)]
    references = [Reference("best", 0.3), Reference("nothing", math.nan)]
    drawn = line_chart(
        "Loss", [Series("train", points)], x_label="step", y_label="loss", references=references
    )
    assert drawn.count("<circle") == 2
    assert "best" in drawn
    assert "nothing" not in drawn
    _all_finite(drawn)


def test_the_name_of_a_line_at_the_top_is_below_it() -> None:
    points = [(1, 0.0), (2, 0.1)]
    for value, below in ((0.2, True), (0.05, False)):
        drawn = line_chart(
            "Drift",
            [Series("psi", points)],
            x_label="day",
            y_label="PSI",
            references=[Reference("limit", value)],
        )
        line = re.search(r'y1="([^"]+)"[^>]*class="reference"', drawn)
        name = re.search(r'y="([^"]+)"[^>]*class="reference-name"', drawn)
        assert line
        assert name
        assert (float(name[1]) > float(line[1])) == below


def test_long_line_is_thinned_and_keeps_its_ends() -> None:
    kept = Series("train", [(step, 1.0) for step in range(10_001)]).drawable()
    assert len(kept) <= 601
    assert (kept[0][0], kept[-1][0]) == (0, 10_000)


def test_both_axes_write_their_ticks_in_their_formats() -> None:
    lines = [Series("a", [(0.0, 1_000.0), (1.0, 3_000.0)])]
    seconds, euros = "{:.2f} s".format, "{:,.0f} EUR".format
    chart = line_chart("t", lines, x_label="x", y_label="y", x_written=seconds, y_written=euros)
    ticks = re.findall(r"<text [^>]*>([^<]*)</text>", chart)
    assert {"0.00 s", "1.00 s", "1,000 EUR", "3,000 EUR"} <= set(ticks)
    assert not [tick for tick in ticks if re.fullmatch(r"[\d.]+", tick)]


def test_several_series_have_a_legend() -> None:
    both = [Series("a", [(0, 1), (1, 2)]), Series("b", [(0, 2), (1, 1)])]
    assert 'class="legend"' in line_chart("t", both, x_label="x", y_label="y")
    assert 'class="legend"' not in line_chart("t", both[:1], x_label="x", y_label="y")


def test_histogram_draws_bars_in_proportion() -> None:
    drawn = histogram("h", [0.0, 0.5, 1.0], [10, 20], x_label="p", y_label="rows")
    heights = [float(number) for number in re.findall(r'<rect [^>]*height="([^"]+)"', drawn)]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.02)


@pytest.mark.parametrize("counts", [[0, 0], [math.nan, 0]])
def test_histogram_without_counts_is_a_sentence(counts: list[float]) -> None:
    assert "no values" in histogram("h", [0, 1, 2], counts, x_label="p", y_label="rows")


def test_histogram_needs_one_edge_more_than_counts() -> None:
    with pytest.raises(ValueError, match="2 counts need 3 edges, got 2"):
        histogram("h", [0, 1], [1, 2], x_label="p", y_label="rows")


def test_one_bar_of_zero_width_is_drawn() -> None:
    _all_finite(histogram("h", [0.5, 0.5], [3], x_label="p", y_label="rows"))


def test_columns_and_rows_stand_with_none_and_one() -> None:
    assert "no values" in columns("c", [], [], groups=[], x_label="day", y_label="rows")
    assert "no values" in rows("r", ["a"], [math.nan], unit="s")
    _all_finite(columns("c", ["a"], [0.0], groups=[0], x_label="day", y_label="rows"))
    _all_finite(rows("r", ["a"], [0.0], unit="s"))


def test_scatter_stands_with_none_one_and_weightless_points() -> None:
    assert "no values" in scatter("s", [], x_label="p", y_label="o")
    assert "no values" in scatter("s", [(0.1, 0.1, 0.0)], x_label="p", y_label="o")
    drawn = scatter("s", [(0.1, 0.2, 5.0), (math.nan, 0.1, 5.0)], x_label="p", y_label="o")
    assert drawn.count("<circle") == 1
    _all_finite(drawn)


def _all_finite(drawn: str) -> None:
    assert all(math.isfinite(float(number)) for number in _NUMBER.findall(drawn))
