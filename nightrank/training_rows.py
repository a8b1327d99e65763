"""Checks that the features of training rows do not contain the labels of these rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from conf.errors import ConfigError
from etl.workflow.local_workflow import LocalWorkflow
from etl.workflow.raw_values import raw_values
from storage.table_digest import table_digest


def is_out_of_fold(workflow: LocalWorkflow) -> bool:
    """Returns whether features of training rows depend on their positions (operator target_encoding)."""
    return any(chain.out_of_fold for chain in workflow.chains)


def rows_digest(workflow: LocalWorkflow, rows: pa.Table, others: Sequence[str]) -> str:
    """Returns a digest of everything in training rows from which features are computed, with its order.

    It is the same for all kinds of frames.

    Args:
        workflow: the workflow that was fitted on the rows.
        rows: the rows, with the raw columns of the workflow.
        others: further columns of which statistics may have been computed. Only numbers can be.

    Raises:
        DataError: a raw column is missing, or has a value that does not fit.
    """
    numbers = [name for name in others if name in rows.column_names and _is_number(rows.schema.field(name))]
    return table_digest(
        pa.table(raw_values(rows, {**workflow.raw_types(), **dict.fromkeys(numbers, "float")}))
    )


def refuse_label(workflow: LocalWorkflow, label: str, other_names: Sequence[str]) -> None:
    """Raises ConfigError if a feature contains the label of its row, or a statistic that includes it.

    The operator target_encoding may read the label, because it leaves out the fold of a row.

    Args:
        workflow: the workflow that computes the features.
        label: the column with the label.
        other_names: further names that operators may use for the label.
    """
    if label in workflow.raw_types():
        raise ConfigError(
            f"features are computed from {label!r}, which is the label that the model must predict",
            "remove the column from the features, or pass another `label`",
        )
    for description in workflow.descriptions:
        # A description contains the names of measured columns as Python texts.
        measured = [name for name in (label, *other_names) if repr(name) in description]
        if measured and "join_groupby(" in description:
            raise ConfigError(
                f"join_groupby computes a statistic of {measured[0]!r}, the label, with the row itself",
                "use target_encoding, which leaves out the fold of a row",
            )


def _is_number(field: pa.Field) -> bool:
    kind = field.type
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
