"""Copies raw tables from Spark's catalogue to the lake, at the start of a stage that reads new rows.

All other stages read only the copies. So all stages read the same rows, and only the stages that make copies
need a Spark session for these tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from etl.workflow.feature_plan import FeaturePlan, copied_tables
from storage.run_context import RunContext


def copy_tables_of_run(context: RunContext, plan: FeaturePlan, days: Sequence[str] | None = None) -> None:
    """Copies the changed rows of those raw tables that are in Spark's catalogue. There may be none.

    Args:
        context: provides the run date, the lineage recorder, and the Spark session, which is built only if
            the configuration has a table of Spark's catalogue.
        plan: the feature plan of the configuration, which names its raw tables.
        days: the days of the tables that are read by day; None for all days that a run of `build_features`
            reads.

    Raises:
        ConfigError: the session cannot open a table, or the type of a column in the table does not fit its
            declared type.
        DataError: a table lacks a column, or has a column whose type cannot be read.
    """
    if not copied_tables(plan):
        return
    from etl.spark.copy_tables import copy_tables  # imports pyspark, which other configurations do not need

    with context.phase("copies"):
        copy_tables(context.spark, plan, context.run_date, context.recorder, days)
