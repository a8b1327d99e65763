"""Draws charts as inline SVG: line, bar and scatter charts, with axes, ticks and a frame."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from conf.messages import counted
from reporting.elements.markup import Html, join, tag

WIDTH, HEIGHT = 440, 280
LEFT, RIGHT, TOP, BOTTOM = 58, 428, 30, 236
_LETTER = 7.5  # assumed width of a letter


def x_of(axis: Axis, value: float) -> float:
    """Returns the horizontal chart coordinate of a value."""
    return round(axis.place(value, LEFT, RIGHT), 2)


def y_of(axis: Axis, value: float) -> float:
    """Returns the vertical chart coordinate of a value."""
    return round(axis.place(value, BOTTOM, TOP), 2)


def frame(x: Axis, y: Axis, marks: Iterable[Html], title: str, description: str) -> Html:
    """Returns a complete chart as an SVG element.

    Args:
        x, y: the horizontal and the vertical axis. The function draws their ticks and labels.
        marks: SVG elements such as lines and bars, in the chart coordinates that x_of and y_of return.
        title, description: what screen readers read instead of the picture.
    """
    horizontal = [_horizontal(y, tick) for tick in y.ticks]
    vertical = [
        tag("text", x.written(tick), x=x_of(x, tick), y=BOTTOM + 18, text_anchor=_anchor(x_of(x, tick)))
        for tick in x.ticks
    ]
    labels = [
        tag("text", x.label, x=(LEFT + RIGHT) / 2, y=HEIGHT - 8, text_anchor="middle", class_="axis-label"),
        tag("text", y.label, x=0, y=12, class_="axis-label"),
    ]
    base = tag("line", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM, class_="axis")
    content = [tag("title", title), *horizontal, base, *vertical, *labels, *marks]
    return tag(
        "svg",
        *content,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{title}. {description}",
        class_="chart",
    )


def nothing_to_draw(title: str) -> Html:
    """Returns the sentence that replaces a chart without finite values."""
    return tag("p", f"{title}: there are no values to draw.", class_="missing")


def legend(names: list[str], kind: str = "series") -> Html | None:
    """Returns the legend above a chart with several series, or with several layers of a stack.

    Returns None if there is only one name.
    """
    if len(names) < 2:
        return None
    keys = [tag("span", tag("i", class_=f"swatch {kind}-{index}"), name) for index, name in enumerate(names)]
    return tag("div", *keys, class_="legend")


def _horizontal(y: Axis, tick: float) -> Html:
    """Returns a horizontal grid line and the number of its tick."""
    at = y_of(y, tick)
    line = tag("line", x1=LEFT, x2=RIGHT, y1=at, y2=at, class_="gridline")
    return tag("g", line, tag("text", y.written(tick), x=LEFT - 8, y=at + 4, text_anchor="end"))


def _anchor(at: float) -> str:
    """Returns the text alignment of the number at a tick.

    The last number is aligned so that it does not extend beyond the picture.
    """
    return "end" if at > RIGHT - 12 else "middle"


# The axes of charts. An axis has a range of values and ticks at round numbers.

Format = Callable[[float], str]


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`, where low < high.

    Attributes:
        label: the title of the axis, such as "AUC".
        low, high: the values at the ends of the axis.
        ticks: the values that have a tick.
        written: a function that formats the value of a tick as text.
        log: whether the axis is logarithmic. If so, `low` is above 0.
    """

    label: str
    low: float
    high: float
    ticks: tuple[float, ...]
    written: Format
    log: bool = False

    def place(self, value: float, start: float, end: float) -> float:
        """Returns the chart coordinate of a value.

        Args:
            value: a value on the axis.
            start: the chart coordinate of `low`.
            end: the chart coordinate of `high`.
        """
        value, low, high = (
            map(math.log10, (value, self.low, self.high)) if self.log else (value, self.low, self.high)
        )
        return start + (value - low) / (high - low) * (end - start)


def axis(
    values: Iterable[float],
    label: str,
    *,
    from_zero: bool = False,
    exact: bool = False,
    whole: bool = False,
    written: Format | None = None,
    most_ticks: int = 6,
) -> Axis:
    """Returns an axis that covers all finite values.

    The axis begins and ends at a tick. With `exact`, it begins at the smallest value and ends at the largest.
    With `whole`, ticks are at whole numbers if the range of the values contains one.

    Raises:
        ValueError: there is no finite value.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        raise ValueError(f"axis {label!r} has no finite value")
    low, high = min(finite), max(finite)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high:  # all values are equal: add room around this value
        room = abs(low) * 0.1 or 1.0
        low, high = (0.0, room) if from_zero and low == 0 else (low - room, high + room)
    step = tick_step(high - low, most_ticks)
    if whole and math.floor(high) >= math.ceil(low):
        step = 5.0 if step == 2.5 else max(step, 1.0)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [round(index * step, 12) for index in range(first, last + 1)]
    if exact:
        ticks = [tick for tick in ticks if low - step * 1e-9 <= tick <= high + step * 1e-9]
    else:
        low, high = ticks[0], ticks[-1]
    return Axis(label, low, high, tuple(ticks), written or plain(step))


def log_axis(low: float, high: float, label: str) -> Axis:
    """Returns a logarithmic axis from `low` to `high`, where 0 < low < high.

    Ticks are at powers of ten. If the range has at most one power of ten, ticks are also at twice and five
    times the powers. If the range still has no tick, ticks are at the ends.
    """
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        values = [float(f"{factor}e{exponent}") for exponent in exponents for factor in factors]
        ticks = [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(ticks) > 1:
            break
    return Axis(label, low, high, tuple(ticks or (low, high)), lambda value: f"{value:g}", log=True)


def column_axis(names: Sequence[str], label: str) -> Axis:
    """Returns an axis with a column for each name. The middle of a column is at its index, from 0.

    A name that is wider than its column is truncated.
    """
    letters = max(int((RIGHT - LEFT) / len(names) / _LETTER), 2)
    shown = [name if len(name) <= letters else f"{name[: letters - 1]}…" for name in names]
    ticks = tuple(float(index) for index in range(len(names)))
    return Axis(label, -0.5, len(names) - 0.5, ticks, lambda index: shown[round(index)])


def tick_step(span: float, most_ticks: int) -> float:
    """Returns a round distance between ticks: 1, 2, 2.5 or 5 times a power of ten.

    The result is the smallest of these distances that divides the span (> 0) into at most `most_ticks` steps.
    """
    raw = span / most_ticks
    magnitude = 10.0 ** math.floor(math.log10(raw))
    return next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw * (1 - 1e-9))


def plain(step: float) -> Format:
    """Returns a function that formats the value of a tick.

    The text has as many decimals as the distance `step` between ticks needs. Thousands are written with k,
    millions with M.
    """
    if step >= 1e6:
        return lambda value: f"{value / 1e6:g}M"
    if step >= 1e3:
        return lambda value: f"{value / 1e3:g}k" if value else "0"
    decimals = next(digits for digits in range(13) if abs(round(step, digits) - step) <= step * 1e-6)
    return lambda value: f"{value:,.{decimals}f}"


def percent(value: float) -> str:
    """Formats a share (0 to 1) as a percentage."""
    return f"{100 * value:.4g}%"


# Functions that draw bar charts: histograms with numeric bins, and bars with names.

_ROW, _TOP = 26, 6
_NAME_WIDTH = 178


def histogram(
    title: str,
    edges: Sequence[float],
    counts: Sequence[float],
    *,
    x_label: str,
    y_label: str,
    x_written: Format | None = None,
) -> Html:
    """Returns a histogram. If all counts are zero, returns a sentence that says so.

    Args:
        title: title for screen readers.
        edges: n + 1 ascending edges of the bins.
        counts: n counts, one per bin.
        x_label, y_label: labels of the axes.
        x_written: a function that formats the numbers at the ticks of the x axis.

    Raises:
        ValueError: the number of edges is not the number of counts plus one.
    """
    if len(edges) != len(counts) + 1:
        raise ValueError(f"{title}: {len(counts)} counts need {len(counts) + 1} edges, got {len(edges)}")
    bars = [
        (low, high, count)
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
        if all(map(math.isfinite, (low, high, count))) and count > 0
    ]
    if not bars:
        return nothing_to_draw(title)
    x = axis(
        [edge for low, high, _ in bars for edge in (low, high)],
        x_label,
        from_zero=True,
        exact=True,
        written=x_written,
    )
    y = axis([count for _, _, count in bars], y_label, from_zero=True)
    marks = []
    for low, high, count in bars:
        left, right, top = x_of(x, low), x_of(x, high), y_of(y, count)
        tooltip = tag("title", f"{x.written(low)} to {x.written(high)}: {count:,.0f}")
        width = max(round(right - left - 1, 2), 0.5)
        marks.append(
            tag(
                "rect",
                tooltip,
                x=left,
                y=top,
                width=width,
                height=round(BOTTOM - top, 2),
                class_="bar series-0",
            )
        )
    total = sum(count for _, _, count in bars)
    return frame(
        x,
        y,
        marks,
        title,
        f"Histogram of {counted(round(total), 'value')} of {x_label}, {counted(len(bars), 'bar')}",
    )


def columns(
    title: str,
    names: Sequence[str],
    values: Sequence[float],
    *,
    groups: Sequence[int],
    x_label: str,
    y_label: str,
) -> Html:
    """Returns a chart of vertical bars with names, in the order of `names`.

    Args:
        title: title for screen readers.
        names: name of each bar.
        values: height of each bar. A value that is not finite is not drawn.
        groups: index of the colour of each bar.
        x_label, y_label: labels of the axes.
    """
    bars = [bar for bar in zip(names, values, groups, strict=True) if math.isfinite(bar[1])]
    if not bars:
        return nothing_to_draw(title)
    y = axis([value for _, value, _ in bars], y_label, from_zero=True)
    x = axis([0, len(bars)], x_label, exact=True, written=lambda value: "")
    slot = (RIGHT - LEFT) / len(bars)
    every = math.ceil(len(bars) / 8)  # show at most about 8 names, which fit side by side
    marks = []
    for index, (name, value, group) in enumerate(bars):
        left, top = LEFT + index * slot + slot * 0.15, y_of(y, value)
        box = {"x": round(left, 2), "y": top, "width": round(slot * 0.7, 2), "height": round(BOTTOM - top, 2)}
        marks.append(tag("rect", tag("title", f"{name}: {value:,.6g}"), class_=f"bar series-{group}", **box))
        if index % every == 0:
            middle = round(left + slot * 0.35, 2)
            marks.append(tag("text", name, x=middle, y=BOTTOM + 18, text_anchor="middle"))
    return frame(x, y, marks, title, f"{y_label} of {len(bars)} {x_label}")


def stacked(
    title: str,
    names: Sequence[str],
    parts: Sequence[tuple[str, Sequence[float]]],
    *,
    x_label: str,
    y_label: str,
) -> Html:
    """Returns a chart of vertical bars with names, in the order of `names`. Each bar is a stack of layers.

    Args:
        title: title for screen readers.
        names: name of each bar.
        parts: name of each layer, and the height of this layer in each bar. The first layer is at the bottom.
            A value that is not finite is not drawn.
        x_label, y_label: labels of the axes.
    """
    sums = [
        math.fsum(values[index] for _, values in parts if math.isfinite(values[index]))
        for index in range(len(names))
    ]
    if not any(sums):
        return nothing_to_draw(title)
    y = axis(sums, y_label, from_zero=True)
    x = axis([0, len(names)], x_label, exact=True, written=lambda value: "")
    slot = (RIGHT - LEFT) / len(names)
    every = math.ceil(len(names) / 8)
    marks = []
    for index, name in enumerate(names):
        foot, left = 0.0, LEFT + index * slot + slot * 0.15
        for part, (part_name, values) in enumerate(parts):
            value = values[index]
            if not math.isfinite(value) or value <= 0:
                continue
            top, base = y_of(y, foot + value), y_of(y, foot)
            tooltip = tag("title", f"{name}, {part_name}: {value:,.4g}")
            box = {"x": round(left, 2), "y": top, "width": round(slot * 0.7, 2)}
            # A gap separates the layers, in case two colours look alike.
            marks.append(
                tag(
                    "rect",
                    tooltip,
                    class_=f"part stack-{part}",
                    height=max(round(base - top - 1, 2), 0.5),
                    **box,
                )
            )
            foot += value
        if index % every == 0:
            middle = round(left + slot * 0.35, 2)
            marks.append(tag("text", name, x=middle, y=BOTTOM + 18, text_anchor="middle"))
    keys = legend([part_name for part_name, _ in parts], kind="stack")
    most = max(range(len(names)), key=lambda index: sums[index])
    description = f"{y_label} of {len(names)} {x_label}, at most {sums[most]:,.4g} at {names[most]}"
    return join([keys, frame(x, y, marks, title, description)])


def rows(title: str, names: Sequence[str], values: Sequence[float], *, unit: str) -> Html:
    """Returns a chart of horizontal bars. Each bar has its name on the left and its value on the right."""
    bars = [bar for bar in zip(names, values, strict=True) if math.isfinite(bar[1])]
    if not bars:
        return nothing_to_draw(title)
    most = max(value for _, value in bars) or 1.0
    room = WIDTH - _NAME_WIDTH - 66
    marks = [tag("title", title)]
    for index, (name, value) in enumerate(bars):
        top, width = _TOP + index * _ROW, max(round(room * value / most, 2), 1.0)
        marks.append(tag("text", name, x=_NAME_WIDTH - 8, y=top + 14, text_anchor="end"))
        marks.append(
            tag("rect", x=_NAME_WIDTH, y=top + 2, width=width, height=_ROW - 9, class_="bar series-0")
        )
        marks.append(
            tag("text", f"{value:,.1f} {unit}", x=_NAME_WIDTH + width + 6, y=top + 14, class_="value")
        )
    description = ", ".join(f"{name} {value:,.1f} {unit}" for name, value in bars)
    height = _TOP + len(bars) * _ROW + 4
    return tag(
        "svg",
        *marks,
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_label=f"{title}. {description}",
        class_="chart",
    )


# Functions that draw line charts: one or more series over a common x axis, with horizontal reference lines.

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
        name: the text that is written above or below the line.
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


# A function that draws a scatter chart of two shares, with the diagonal on which both shares are equal.

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


# A function that draws the trials of a search: a dot for each trial, and a line with the best value so far.


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


# Functions that draw values with intervals: one value beside a limit, or several values in one row each.

_TICK = 6
_SPAN_ROW, _ROWS_TOP, _ROWS_BOTTOM = 30, 8, 42
_VALUES = 60  # width of the values on the right
_LETTER, _FEWEST_LETTERS, _MOST_LETTERS = (
    7.5,
    18,
    28,
)  # width of a letter of a name; longer names are truncated


@dataclass(frozen=True)
class Span:
    """A value and the interval around it.

    Attributes:
        name: name of the value.
        value: the value.
        low, high: ends of the interval. If they are equal, no interval is drawn.
        points: the single values whose mean is `value`. They are also drawn.
    """

    name: str
    value: float
    low: float
    high: float
    points: Sequence[float] = ()


def interval_chart(title: str, span: Span, limit: float, *, x_label: str, limit_name: str) -> Html:
    """Returns a chart of a value and its interval, with lines at zero and at `limit`."""
    x = axis([span.low, span.high, 0.0, limit], x_label, most_ticks=5)
    y = Axis("", 0.0, 1.0, (), str)
    marks = [
        _upright(x, y, 0.0, "diagonal"),
        _upright(x, y, limit, "reference"),
        tag("text", limit_name, x=x_of(x, limit) + 6, y=y_of(y, 0.9), class_="reference-name"),
        *_span(x, y, span),
    ]
    description = (
        f"{span.name} {span.value:+.4f}, interval from {span.low:+.4f} to {span.high:+.4f}; the interval "
        f"must not begin below {limit:+.4f}"
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
    longest = max(len(span.name) for span in drawn)
    left = round(10 + _LETTER * min(max(longest, _FEWEST_LETTERS), _MOST_LETTERS))
    right = WIDTH - _VALUES
    bottom = _ROWS_TOP + len(drawn) * _SPAN_ROW
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
        marks.append(_span_row(x, span, _ROWS_TOP + row * _SPAN_ROW + _SPAN_ROW / 2, left))
    description = ", ".join(f"{span.name} {span.value:.4f}" for span in drawn)
    return tag(
        "svg",
        *marks,
        viewBox=f"0 0 {WIDTH} {bottom + _ROWS_BOTTOM}",
        role="img",
        aria_label=f"{title}. {description}",
        class_="chart",
    )


def _span_row(x: Axis, span: Span, at: float, left: float) -> Html:
    """Returns the SVG elements of one row of `span_rows`.

    Args:
        x: the axis of the values.
        span: the value.
        at: the vertical coordinate of the row's middle.
        left: the horizontal coordinate at which the names end and the axis begins.
    """

    def place(value: float) -> float:
        return round(x.place(value, left, WIDTH - _VALUES), 2)

    name = span.name
    shown = name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}…"
    marks = [tag("title", f"{name}: {span.value:.4f}")]
    marks.append(tag("text", shown, x=left - 10, y=at + 4, text_anchor="end", class_="value"))
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
