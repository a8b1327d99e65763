"""Checks what the fitted steps of operators compute, because operators may be those of other packages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from conf.errors import ConfigError
from etl.ops.base import Fitted


def require_arrays(step: Fitted, outputs: Any, num_rows: int) -> None:
    """Raises ConfigError unless a step has computed an array of all rows for each of its outputs."""
    arrays = outputs if isinstance(outputs, list | tuple) else []
    fits = [isinstance(array, pa.Array | pa.ChunkedArray) and len(array) == num_rows for array in arrays]
    if len(fits) != len(step.outputs) or not all(fits):
        raise ConfigError(
            f"the operator {step.name} did not compute {len(step.outputs)} Arrow arrays of {num_rows} values",
            "correct the method compute of its fitted step: it returns a list with one array per output",
        )
