"""Draws the frame of a chart: grid lines, ticks, axis labels, and the description for screen readers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from reporting.elements.markup import Html, tag

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
        x, y: the axes.
        marks: SVG elements such as lines and bars, in the chart coordinates that x_of and y_of return.
        title, description: texts for screen readers.
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
        label: text at the axis.
        low, high: the values at the ends of the axis.
        ticks: the values that have a tick.
        written: formats the value of a tick as text.
        log: whether the axis is logarithmic. Then `low` is above 0.
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
