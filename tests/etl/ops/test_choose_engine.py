"""Which engine `workflow.engine: auto` is."""

from __future__ import annotations

from typing import Literal

import pytest

from etl.ops.base import choose_engine


@pytest.mark.parametrize("wanted, expected", [("auto", "arrow"), ("sql", "sql"), ("arrow", "arrow")])
def test_auto_is_the_engine_that_is_faster(wanted: Literal["auto", "sql", "arrow"], expected: str) -> None:
    assert choose_engine(wanted) == expected
