"""Which engine `workflow.engine: auto` is."""

from __future__ import annotations

from typing import Literal

import pytest

from etl.ops.choose_engine import choose_engine


@pytest.mark.parametrize(
    "wanted, in_memory, expected",
    [
        ("auto", True, "arrow"),
        ("auto", False, "sql"),
        ("sql", True, "sql"),
        ("arrow", False, "arrow"),
    ],
)
def test_only_large_tables_make_auto_choose_sql(
    wanted: Literal["auto", "sql", "arrow"], in_memory: bool, expected: str
) -> None:
    assert choose_engine(wanted, in_memory) == expected
