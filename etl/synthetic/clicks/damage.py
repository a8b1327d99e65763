"""Converts rows to lines, and makes some of the rows malformed on purpose, to test the quarantine.

A malformed row has exactly one error, which is called its damage. The damage is named like the reason for
which the row is quarantined: `field_count` (one field too few or too many), `integer:<column>` (not an
integer), `label:<column>` (neither 0 nor 1) or `missing_key:<column>` (an empty id).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from etl.synthetic.clicks.layout import Layout

Ints = NDArray[np.int64]

WHOLE = -1  # a row without damage
_NOT_INTEGER, _NOT_LABEL = "n/a", "2"
_KINDS = 4


def reasons_of(layout: Layout) -> list[str]:
    """Returns the reasons for which malformed rows of a layout are quarantined, one per kind of damage."""
    columns = list(zip(layout.columns, layout.feature_names, strict=True))
    integers = [f"integer:{name}" for column, name in columns if column.kind == "integer"]
    keys = [f"missing_key:{name}" for column, name in columns if column.kind == "key"]
    return ["field_count", f"label:{layout.names[0]}", *integers, *keys]


def draw_damage(layout: Layout, rng: np.random.Generator, rows: int, share: float) -> Ints:
    """Draws which rows become malformed. Returns the damage of each row, shape (rows,).

    The damage of a row is an index in `reasons_of(layout)`, or WHOLE for a valid row. A row becomes malformed
    with the probability `share`. The kinds field_count, label, integer and missing_key are then equally
    likely.
    """
    reasons = reasons_of(layout)
    kinds = [reason.split(":")[0] for reason in reasons]
    weights = np.array([1.0 / (_KINDS * kinds.count(kind)) for kind in kinds])
    chosen = np.searchsorted(np.cumsum(weights)[:-1], rng.random(rows), side="right")
    return np.where(rng.random(rows) < share, chosen, WHOLE)


def lines(layout: Layout, texts: list[pa.StringArray], damage: Ints) -> bytes:
    """Converts rows to lines of text, and makes rows with a damage malformed.

    Args:
        layout: the layout of the rows.
        texts: one array per column, in the order in which columns are written. Null is written as an empty
            field.
        damage: the result of `draw_damage`.
    """
    columns = list(texts)
    for index, reason in enumerate(reasons_of(layout)):
        damaged = damage == index
        kind, _, column = reason.partition(":")
        if kind == "field_count" or not damaged.any():
            continue
        column_index = layout.names.index(column)
        text = {"integer": _NOT_INTEGER, "label": _NOT_LABEL, "missing_key": ""}[kind]
        columns[column_index] = pc.if_else(pa.array(damaged), text, columns[column_index])
    start = pc.binary_join_element_wise(
        *columns[:-1], layout.separator, null_handling="replace", null_replacement=""
    )
    whole = pc.binary_join_element_wise(
        start, columns[-1], layout.separator, null_handling="replace", null_replacement=""
    )
    miscounted = damage == reasons_of(layout).index("field_count")
    even = np.arange(len(damage)) % 2 == 0  # even rows lose the last field, odd ones get one more
    too_long = pc.binary_join_element_wise(whole, "0", layout.separator)
    shaped = pc.if_else(pa.array(miscounted & even), start, whole)
    shaped = pc.if_else(pa.array(miscounted & ~even), too_long, shaped)
    ended = pc.binary_join_element_wise(shaped, "", "\n")
    return ended.buffers()[2].to_pybytes() if len(ended) else b""
