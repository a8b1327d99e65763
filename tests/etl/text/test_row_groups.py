"""The rows of row groups, which are taken from every part of a file split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from etl.text.encode_pass import _dealt

ROWS = 23


@pytest.mark.parametrize("groups", [1, 2, 7, ROWS])
def test_every_row_is_in_one_group_with_all_its_columns(groups: int) -> None:
    numbers = np.arange(ROWS)
    columns: dict[str, Any] = {
        "int": pa.array(numbers, pa.int32()),
        "float": pa.array(numbers / 8, pa.float32()),
        "nulls": pa.array([None if number % 3 else number for number in range(ROWS)], pa.int64()),
        "text": pa.array([f"t{number % 4}" for number in range(ROWS)]).dictionary_encode(),
        "text_nulls": pa.array([None if number % 2 else "x" for number in range(ROWS)]).dictionary_encode(),
        "list": pa.array([[number] * (number % 3) for number in range(ROWS)]),
        "time": pa.array(numbers, pa.timestamp("us")),
        "sliced": pa.array(np.arange(-5, ROWS), pa.int32()).slice(5),
    }
    table = pa.table(columns)
    dealt = _dealt(table, groups)
    order = [row for group in range(groups) for row in range(group, ROWS, groups)]
    expected = table.take(pa.array(order))
    assert dealt.to_pydict() == expected.to_pydict()
    assert dealt.schema.types == expected.schema.types
