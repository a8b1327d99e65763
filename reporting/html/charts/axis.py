"""The axes of charts. An axis has a range of values and ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Format = Callable[[float], str]


@dataclass(frozen=True)
class Axis:
    """A linear axis from `low` to `high`, where low < high.

    Attributes:
        label: text at the axis.
        low, high: the values at the ends of the axis.
        ticks: the values that have a tick.
        written: formats the value of a tick as text.
    """

    label: str
    low: float
    high: float
    ticks: tuple[float, ...]
    written: Format

    def place(self, value: float, start: float, end: float) -> float:
        """Returns the chart coordinate of a value.

        Args:
            value: a value on the axis.
            start: the chart coordinate of `low`.
            end: the chart coordinate of `high`.
        """
        return start + (value - self.low) / (self.high - self.low) * (end - start)


def axis(
    values: Iterable[float],
    label: str,
    *,
    from_zero: bool = False,
    exact: bool = False,
    written: Format | None = None,
    most_ticks: int = 6,
) -> Axis:
    """Returns an axis that covers all finite values.

    The axis begins and ends at a tick. With `exact`, it begins at the smallest value and ends at the largest.

    Raises:
        ValueError: there is no finite value.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        raise ValueError(f"axis {label!r} has no finite value")
    low, high = min(finite), max(finite)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high:  # only one distinct value: add room around it
        room = abs(low) * 0.1 or 1.0
        low, high = (0.0, room) if from_zero and low == 0 else (low - room, high + room)
    step = tick_step(high - low, most_ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [round(index * step, 12) for index in range(first, last + 1)]
    if exact:
        ticks = [tick for tick in ticks if low - step * 1e-9 <= tick <= high + step * 1e-9]
    else:
        low, high = ticks[0], ticks[-1]
    return Axis(label, low, high, tuple(ticks), written or plain(step))


def tick_step(span: float, most_ticks: int) -> float:
    """Returns a round distance between ticks: 1, 2, 2.5 or 5 times a power of ten.

    The result is the smallest such distance that divides the span (> 0) into at most `most_ticks` steps.
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
