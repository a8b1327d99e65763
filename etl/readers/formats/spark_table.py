"""The format `spark_table`: Parquet copies of tables of Spark's catalogue (etl/spark/copy_tables.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conf.raw_types import FormatSettings

if TYPE_CHECKING:
    from etl.readers.base import TableReader


class Settings(FormatSettings):
    """A table or view of Spark's catalogue, such as a Hive or Iceberg table; `path` is its name.

    The path may end with values of columns, such as `shop.clicks/dt={date}`. The format needs a JVM
    (docs/lakes.md).
    """


def reader() -> type[TableReader]:
    """Returns the class that reads the copies."""
    from etl.readers.parquet import ParquetReader

    return ParquetReader
