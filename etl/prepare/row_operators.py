"""Applies the operators of `prepare` that add columns or combine rows, without Spark."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from conf.errors import ConfigError
from etl.ops.frames import RowChanger
from storage.feature_spec import LABEL, ROW_ID


def require_table_forms(changers: Sequence[RowChanger]) -> None:
    """Raises ConfigError if an operator has only a form for Spark frames."""
    for changer in changers:
        if type(changer).apply_table is RowChanger.apply_table:
            changer.apply_table(pa.table({}))


def keep_users_together(changers: Sequence[RowChanger], user_column: str | None) -> bool:
    """Returns whether the operators give the same rows if each task has all rows of some users of a day.

    If not, one task must have all rows of the day.

    Args:
        changers: the operators of the configuration that change rows.
        user_column: the raw column of the user key; None without the section `keys`.
    """
    return all(user_column in changer.key_columns() for changer in changers)


def apply_row_operators(rows: pa.Table, changers: Sequence[RowChanger]) -> pa.Table:
    """Returns the rows after all operators, in the order of the configuration.

    Args:
        rows: all rows of a day, or all rows of some of its users (`keep_users_together`).
        changers: the operators of the configuration that change rows.

    Raises:
        ConfigError: an operator has only a form for Spark frames, or does not return a table with the columns
            `row_id` and `label`.
    """
    require_table_forms(changers)
    for changer in changers:
        changed = changer.apply_table(rows)
        if not isinstance(changed, pa.Table) or not {ROW_ID, LABEL} <= set(changed.column_names):
            raise ConfigError(
                f"`apply_table` of the operator {changer.name} did not return a pyarrow.Table with the "
                f"columns {ROW_ID} and {LABEL}",
                f"correct the method `apply_table` of {changer.name}",
            )
        rows = changed
    return rows
