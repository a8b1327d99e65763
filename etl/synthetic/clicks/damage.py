"""Converts rows to lines, and makes some of the rows malformed on purpose, to test the quarantine.

Each damaged row has one kind of damage, with the name of the reason for which the row is quarantined:
`field_count` (one field too few or too many), `integer:<column>` (not an integer), `label:<column>` (neither
0 nor 1) or `missing_key:<column>` (an empty id).
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
    """Returns the kinds of damage that rows of a layout can have, as reasons for quarantining a row."""
    columns = list(zip(layout.columns, layout.feature_names, strict=True))
    integers = [f"integer:{name}" for column, name in columns if column.kind == "integer"]
    keys = [f"missing_key:{name}" for column, name in columns if column.kind == "key"]
    return ["field_count", f"label:{layout.names[0]}", *integers, *keys]


def draw_damage(layout: Layout, rng: np.random.Generator, rows: int, share: float) -> Ints:
    """Returns (rows,) the damage of each row: an index in `reasons_of(layout)`, or WHOLE if it has none.

    A row is damaged with the probability `share`. Then field_count, label, integer and missing_key are
    equally likely.
    """
    reasons = reasons_of(layout)
    kinds = [reason.split(":")[0] for reason in reasons]
    weights = np.array([1.0 / (_KINDS * kinds.count(kind)) for kind in kinds])
    chosen = np.searchsorted(np.cumsum(weights)[:-1], rng.random(rows), side="right")
    return np.where(rng.random(rows) < share, chosen, WHOLE)


def lines(layout: Layout, texts: list[pa.StringArray], damage: Ints) -> bytes:
    """Returns the rows as lines of text. Rows that were chosen for damage are malformed.

    Args:
        layout: the layout of the rows.
        texts: one array per written column. Null is written as an empty field.
        damage: (rows,) the damage of each row, as `draw_damage` returns it.
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
