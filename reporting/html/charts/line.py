"""Draws line charts: one or more series over a common x axis, with horizontal reference lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from conf.messages import counted
from reporting.elements.markup import Html, join, tag
from reporting.html.charts.frame import (
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Format,
    axis,
    frame,
    legend,
    nothing_to_draw,
    percent,
    x_of,
    y_of,
)

_MOST_POINTS = 600
_MOST_DOTS = 40


@dataclass(frozen=True)
class Series:
    """A line of a chart. Points with a coordinate that is not finite are not drawn.

    Attributes:
        name: name of the line in the legend.
        points: pairs (x, y).
    """

    name: str
    points: Sequence[tuple[float, float]]

    def drawable(self) -> list[tuple[float, float]]:
        """Returns the finite points.

        If there are more than 600 finite points, returns only every n-th of them and the last one.
        """
        finite = [(x, y) for x, y in self.points if math.isfinite(x) and math.isfinite(y)]
        stride = math.ceil(len(finite) / _MOST_POINTS) or 1
        kept = finite[::stride]
        return kept if not finite or kept[-1] == finite[-1] else [*kept, finite[-1]]


@dataclass(frozen=True)
class Reference:
    """A horizontal line for comparison.

    Attributes:
        name: text at the line.
        value: y value of the line.
    """

    name: str
    value: float


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    references: Sequence[Reference] = (),
    from_zero: bool = False,
    x_whole: bool = False,
    x_written: Format | None = None,
    y_written: Format | None = None,
) -> Html:
    """Returns a line chart. If there are few points, each point is also drawn as a dot.

    If there are no points, returns a sentence that says so. With `x_whole`, the ticks of the x axis are at
    whole numbers. The function has many parameters, because each of the two axes needs a label and a format.
    """
    drawn = [(line.name, line.drawable()) for line in series]
    points = [point for _, line_points in drawn for point in line_points]
    if not points:
        return nothing_to_draw(title)
    shown = [reference for reference in references if math.isfinite(reference.value)]
    x = axis([px for px, _ in points], x_label, exact=True, whole=x_whole, written=x_written)
    y = axis(
        [*(py for _, py in points), *(reference.value for reference in shown)],
        y_label,
        from_zero=from_zero,
        written=y_written,
    )
    marks = [_reference(reference, y_of(y, reference.value)) for reference in shown]
    for index, (_, line_points) in enumerate(drawn):
        placed = [(x_of(x, px), y_of(y, py)) for px, py in line_points]
        path = " ".join(f"{'L' if position else 'M'}{px} {py}" for position, (px, py) in enumerate(placed))
        marks.append(tag("path", d=path, class_=f"line series-{index}"))
        if len(placed) <= _MOST_DOTS:
            marks += [
                tag(
                    "circle",
                    tag("title", f"{x.written(vx)}: {vy:.6g}"),
                    cx=px,
                    cy=py,
                    r=2.6,
                    class_=f"dot series-{index}",
                )
                for (px, py), (vx, vy) in zip(placed, line_points, strict=True)
            ]
    first, last = points[0], points[-1]
    description = f"{y_label} by {x_label}, from {first[1]:.4g} to {last[1]:.4g}, {len(points)} points"
    return join([legend([name for name, _ in drawn]), frame(x, y, marks, title, description)])


def _reference(reference: Reference, at: float) -> Html:
    """Returns the SVG elements of a reference line: the line, and its name above or below the line.

    The name of a line at the top is below the line; above it, the name would touch the label of the axis.
    """
    line = tag("line", x1=LEFT, x2=RIGHT, y1=at, y2=at, class_="reference")
    text_at = at + 16 if at < TOP + 16 else at - 6
    name = tag("text", reference.name, x=LEFT + 6, y=text_at, class_="reference-name")
    return tag("g", line, name)


# Draws scatter charts of two shares, with the diagonal on which both shares are equal.

_SMALLEST, _LARGEST = 2.5, 9.0


def scatter(title: str, points: Sequence[tuple[float, float, float]], *, x_label: str, y_label: str) -> Html:
    """Returns a scatter chart with one dot per point. Both axes have the same range.

    Args:
        title: title for screen readers.
        points: one tuple (x, y, weight) per dot. x and y are shares, and the area of the dot grows with the
            weight.
        x_label, y_label: labels of the axes.
    """
    drawn = [point for point in points if all(map(math.isfinite, point)) and point[2] > 0]
    if not drawn:
        return nothing_to_draw(title)
    values = [value for px, py, _ in drawn for value in (px, py)]
    x = axis(values, x_label, from_zero=True, written=percent)
    y = axis(values, y_label, from_zero=True, written=percent)
    heaviest = max(weight for _, _, weight in drawn)
    marks = [
        tag(
            "line",
            x1=x_of(x, x.low),
            y1=y_of(y, y.low),
            x2=x_of(x, x.high),
            y2=y_of(y, y.high),
            class_="diagonal",
        )
    ]
    for px, py, weight in drawn:
        radius = _SMALLEST + (_LARGEST - _SMALLEST) * math.sqrt(weight / heaviest)
        tooltip = tag(
            "title", f"{x_label} {percent(px)}, {y_label} {percent(py)}, {counted(round(weight), 'row')}"
        )
        marks.append(
            tag(
                "circle",
                tooltip,
                cx=x_of(x, px),
                cy=y_of(y, py),
                r=round(radius, 2),
                class_="bubble series-0",
            )
        )
    furthest = max(abs(px - py) for px, py, _ in drawn)
    description = f"{len(drawn)} points; the largest distance from the diagonal is {percent(furthest)}"
    return frame(x, y, marks, title, description)


# Draws trials: dots over an axis of any kind, and a line of the best values.


def dot_chart(
    title: str,
    complete: Series,
    pruned: Series,
    *,
    x: Axis,
    y_label: str,
    line: Sequence[tuple[float, float]] = (),
) -> Html:
    """Returns a chart of filled dots, hollow dots and a line.

    If there are no points, returns a sentence that says so.

    Args:
        title: title for screen readers.
        complete: the points of filled dots.
        pruned: the points of hollow dots; if there are any, the chart has a legend.
        x: the horizontal axis, which covers all points.
        y_label: label of the vertical axis.
        line: the points of the line.
    """
    groups = [(complete.name, complete.drawable()), (pruned.name, pruned.drawable())]
    points = [point for _, of_group in groups for point in of_group]
    if not points:
        return nothing_to_draw(title)
    y = axis([py for _, py in points], y_label)
    marks = []
    if line:
        path = " ".join(
            f"{'L' if place else 'M'}{x_of(x, px)} {y_of(y, py)}" for place, (px, py) in enumerate(line)
        )
        marks.append(tag("path", d=path, class_="line series-0"))
    for index, (name, of_group) in enumerate(groups):
        kind = "hollow" if index else "dot"
        for px, py in of_group:
            tooltip = tag("title", f"{name}, {x.label} {x.written(px)}: {py:.6g}")
            marks.append(
                tag("circle", tooltip, cx=x_of(x, px), cy=y_of(y, py), r=4, class_=f"{kind} series-{index}")
            )
    description = f"{y_label} by {x.label}, {counted(len(points), 'point')}"
    names = [name for name, of_group in groups if of_group or name == complete.name]
    return join([legend(names), frame(x, y, marks, title, description)])


# Draws values with their intervals: a difference with the gate's limit, or the values of several names.

_TICK = 6
_ROW, _ROWS_TOP, _ROWS_BOTTOM = 30, 8, 42
_NAMES, _VALUES = 150, 60  # widths of the names on the left and of the values on the right
_MOST_LETTERS = 18  # a longer name is truncated


@dataclass(frozen=True)
class Span:
    """A value and the interval around it.

    Attributes:
        name: name of the value.
        value: the value.
        low, high: ends of the interval. If they are equal, no interval is drawn.
        points: single values with the mean `value`, which are also drawn; empty for none.
    """

    name: str
    value: float
    low: float
    high: float
    points: Sequence[float] = ()


def interval_chart(title: str, span: Span, limit: float, *, x_label: str, limit_name: str) -> Html:
    """Returns a chart of a value and its interval, with lines at zero and at the limit of the interval."""
    x = axis([span.low, span.high, 0.0, limit], x_label, most_ticks=5)
    y = Axis("", 0.0, 1.0, (), str)
    marks = [
        _upright(x, y, 0.0, "diagonal"),
        _upright(x, y, limit, "reference"),
        tag("text", limit_name, x=x_of(x, limit) + 6, y=y_of(y, 0.9), class_="reference-name"),
        *_span(x, y, span),
    ]
    description = (
        f"{span.name} {span.value:+.4f}, interval from {span.low:+.4f} to {span.high:+.4f}; "
        f"it must not begin below {limit:+.4f}"
    )
    return frame(x, y, marks, title, description)


def _upright(x: Axis, y: Axis, value: float, kind: str) -> Html:
    """Returns a vertical line at a value of the x axis."""
    at = x_of(x, value)
    return tag("line", x1=at, x2=at, y1=y_of(y, 0.0), y2=y_of(y, 1.0), class_=kind)


def _span(x: Axis, y: Axis, span: Span) -> list[Html]:
    """Returns the SVG elements of a Span: a dot at the value, and a line with end marks for the interval."""
    at, low, high = y_of(y, 0.5), x_of(x, span.low), x_of(x, span.high)
    ends = (
        tag("line", x1=end, x2=end, y1=at - _TICK, y2=at + _TICK, class_="line series-0")
        for end in (low, high)
    )
    dot = tag("title", f"{span.name} {span.value:+.4f}")
    return [
        tag("line", x1=low, x2=high, y1=at, y2=at, class_="line series-0"),
        *ends,
        tag("circle", dot, cx=x_of(x, span.value), cy=at, r=5, class_="dot series-0"),
    ]


def span_rows(title: str, spans: Sequence[Span], *, x_label: str) -> Html:
    """Returns a chart with one row for each Span: its name, its value as a dot, its interval and its points.

    The value is also written on the right. Values that are not finite are not drawn. If no value is finite,
    returns a sentence that says so.
    """
    drawn = [span for span in spans if all(map(math.isfinite, (span.value, span.low, span.high)))]
    if not drawn:
        return nothing_to_draw(title)
    left, right = _NAMES, WIDTH - _VALUES
    bottom = _ROWS_TOP + len(drawn) * _ROW
    ends = [end for span in drawn for end in (span.low, span.high, *span.points)]
    x = axis(ends, x_label, most_ticks=4)
    marks = [tag("title", title)]
    for tick in x.ticks:
        at = round(x.place(tick, left, right), 2)
        marks.append(tag("line", x1=at, x2=at, y1=_ROWS_TOP, y2=bottom, class_="gridline"))
        marks.append(tag("text", x.written(tick), x=at, y=bottom + 16, text_anchor="middle"))
    middle = (left + right) / 2
    marks.append(tag("text", x_label, x=middle, y=bottom + 34, text_anchor="middle", class_="axis-label"))
    for row, span in enumerate(drawn):
        marks.append(_span_row(x, span, _ROWS_TOP + row * _ROW + _ROW / 2))
    description = ", ".join(f"{span.name} {span.value:.4f}" for span in drawn)
    return tag(
        "svg",
        *marks,
        viewBox=f"0 0 {WIDTH} {bottom + _ROWS_BOTTOM}",
        role="img",
        aria_label=f"{title}. {description}",
        class_="chart",
    )


def _span_row(x: Axis, span: Span, at: float) -> Html:
    """Returns the SVG elements of one row of `span_rows`.

    Args:
        x: the axis of the values.
        span: the value.
        at: the vertical coordinate of the row's middle.
    """

    def place(value: float) -> float:
        return round(x.place(value, _NAMES, WIDTH - _VALUES), 2)

    name = span.name
    shown = name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}…"
    marks = [tag("title", f"{name}: {span.value:.4f}")]
    marks.append(tag("text", shown, x=_NAMES - 10, y=at + 4, text_anchor="end", class_="value"))
    if span.low < span.high:
        low, high = place(span.low), place(span.high)
        marks.append(tag("line", x1=low, x2=high, y1=at, y2=at, class_="line series-0"))
        marks += [
            tag("line", x1=end, x2=end, y1=at - _TICK, y2=at + _TICK, class_="line series-0")
            for end in (low, high)
        ]
    marks += [tag("circle", cx=place(value), cy=at, r=2.2, class_="point") for value in span.points]
    marks.append(tag("circle", cx=place(span.value), cy=at, r=5, class_="dot series-0"))
    marks.append(tag("text", f"{span.value:.4f}", x=WIDTH, y=at + 4, text_anchor="end", class_="value"))
    return tag("g", *marks)
