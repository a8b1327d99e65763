"""Draws line charts: one or more series over a common x axis, with horizontal reference lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reporting.elements.markup import Html, join, tag
from reporting.html.charts.axis import Format, axis
from reporting.html.charts.frame import LEFT, RIGHT, TOP, frame, legend, nothing_to_draw, x_of, y_of

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
    x_written: Format | None = None,
    y_written: Format | None = None,
) -> Html:
    """Returns a line chart. If there are few points, each point is also drawn as a dot.

    If there is nothing to draw, returns a sentence that says so. The function has many parameters, because
    each of the two axes needs a label and a format.
    """
    drawn = [(line.name, line.drawable()) for line in series]
    points = [point for _, line_points in drawn for point in line_points]
    if not points:
        return nothing_to_draw(title)
    shown = [reference for reference in references if math.isfinite(reference.value)]
    x = axis([px for px, _ in points], x_label, exact=True, written=x_written)
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
    """Returns the SVG elements of a reference line: the line, and its name above or below it.

    The name is below a line at the top, where it would touch the label of the axis.
    """
    line = tag("line", x1=LEFT, x2=RIGHT, y1=at, y2=at, class_="reference")
    text_at = at + 16 if at < TOP + 16 else at - 6
    name = tag("text", reference.name, x=LEFT + 6, y=text_at, class_="reference-name")
    return tag("g", line, name)
