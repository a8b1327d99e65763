"""Draws a difference with its confidence interval and the gate's limit."""

from __future__ import annotations

from dataclasses import dataclass

from reporting.elements.markup import Html, tag
from reporting.html.charts.axis import Axis, axis
from reporting.html.charts.frame import frame, x_of, y_of

_TICK = 6


@dataclass(frozen=True)
class Span:
    """A value and the confidence interval around it.

    Attributes:
        name: name of the value.
        value: the value.
        low, high: ends of the interval.
    """

    name: str
    value: float
    low: float
    high: float


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
