"""Draws the frame of a chart: grid lines, ticks, axis labels, and the description for screen readers."""

from __future__ import annotations

from collections.abc import Iterable

from reporting.elements.markup import Html, tag
from reporting.html.charts.axis import Axis

WIDTH, HEIGHT = 440, 280
LEFT, RIGHT, TOP, BOTTOM = 58, 428, 30, 236


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
