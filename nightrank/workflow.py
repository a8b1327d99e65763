"""A fitted workflow, which computes the features of raw rows in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import pyarrow as pa

from etl.workflow.local_workflow import LocalWorkflow
from nightrank.frames import Frame, arrow_table, frame_like
from storage.feature_spec import FeatureSpec


class Workflow:
    """A version of a fitted workflow.

    Args:
        fitted: the workflow.
    """

    def __init__(self, fitted: LocalWorkflow) -> None:
        self._fitted = fitted

    @property
    def version(self) -> str:
        """Returns the version."""
        return self._fitted.version

    @property
    def spec(self) -> FeatureSpec:
        """Returns the features, with their kinds, dtypes and scopes."""
        return self._fitted.spec

    @cached_property
    def raw_columns(self) -> Mapping[str, str]:
        """Maps each raw column that the features depend on to its type.

        The types are int, float, string, ints and strings; the last two are lists.
        """
        return self._fitted.raw_types()

    def encode(self, rows: Frame | pa.RecordBatch, features: Sequence[str] | None = None) -> Frame:
        """Returns the features of raw rows, as a frame of the same kind as `rows`, in the order of the rows.

        Rows are treated as rows outside the training days, so target encodings are those of all training
        rows. Values that the workflow does not know get the id of unknown values.

        Integers may have any integer type, and be floats with NaN for nulls, as pandas makes them. Columns of
        texts may contain integers. NaN and empty texts are nulls.

        Args:
            rows: a frame of pandas, Polars or Arrow with the columns `raw_columns`; others are ignored.
            features: the features to compute; None for all features, in the order of `spec`.

        Raises:
            ConfigError: the workflow has no such feature, or `rows` is no frame.
            DataError: a raw column is missing, or has a value that does not fit its type. The message names
                the column, the row and the value.
        """
        return frame_like(rows, self.encode_to_arrow(rows, features))

    def encode_to_arrow(
        self, rows: Frame | pa.RecordBatch, features: Sequence[str] | None = None
    ) -> pa.Table:
        """Does the same as `encode`, but returns an Arrow table for every kind of frame."""
        return self._fitted.encode_table(arrow_table(rows, list(self.raw_columns)), features)

    def __repr__(self) -> str:
        return f"Workflow({self.version!r}, {len(self.spec.features)} features)"
