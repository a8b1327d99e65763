"""Draws bar charts: histograms with numeric bins, and bars with names."""

from __future__ import annotations

import math
from collections.abc import Sequence

from conf.messages import counted
from reporting.elements.markup import Html, join, tag
from reporting.html.charts.frame import (
    BOTTOM,
    LEFT,
    RIGHT,
    WIDTH,
    Format,
    axis,
    frame,
    legend,
    nothing_to_draw,
    x_of,
    y_of,
)

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
        x_written: formats the values at the x axis.

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
