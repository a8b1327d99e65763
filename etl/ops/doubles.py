"""Conversions of doubles that several operators share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from conf.lazy_imports import F
from storage.feature_spec import FLOAT32_MAX

if TYPE_CHECKING:
    from pyspark.sql import Column


def bounded_column(value: Column) -> Column:
    """Clips doubles to the range of float32, so that no feature is infinite; null stays null."""
    limit = F.lit(FLOAT32_MAX)
    return F.when(value > limit, limit).when(value < -limit, -limit).otherwise(value)


def bounded_array(numbers: Any) -> Any:
    """Clips float64 numbers to the range of float32."""
    return np.clip(numbers, -FLOAT32_MAX, FLOAT32_MAX)


def as_doubles(values: pa.Array) -> Any:
    """Returns n values as (n,) float64, with NaN for null, and an (n,) bool array that is true for nulls."""
    nulls = values.is_null().to_numpy(zero_copy_only=False)
    return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), nulls


def from_doubles(values: Any, nulls: Any) -> pa.Array:
    """Returns the NumPy array `values` as a float64 Arrow array, with null where `nulls` is true."""
    return pa.array(values, pa.float64(), mask=nulls)
