"""Draws scatter charts of two shares, with the diagonal on which both shares are equal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from conf.counted import counted
from reporting.elements.markup import Html, tag
from reporting.html.charts.axis import axis, percent
from reporting.html.charts.frame import frame, nothing_to_draw, x_of, y_of

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
