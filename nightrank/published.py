"""One date of a published table, as a frame of pandas, Polars, Arrow or Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from conf.counted import counted
from conf.errors import ConfigError
from nightrank.frames import listed
from nightrank.packages import require_packages
from storage.manifest import Manifest, data_files
from storage.parquet_files import read_table
from storage.paths import Partition

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, repr=False)
class Published:
    """One date of a table, as it was published when this object was created.

    The files that its manifest names are read. So all methods return the same rows, even if a job replaces
    the date meanwhile, until these files are deleted (`output.grace_hours`).

    Attributes:
        partition: the date of the table.
        manifest: its manifest.
    """

    partition: Partition
    manifest: Manifest

    @property
    def table(self) -> str:
        """Returns the path of the table below the lake."""
        return self.partition.table

    @property
    def date(self) -> str:
        """Returns the ISO date."""
        return self.partition.dt

    @property
    def rows(self) -> int:
        """Returns the number of rows."""
        return self.manifest.rows

    @property
    def columns(self) -> list[str]:
        """Returns the names of the columns, in order."""
        return [name for name, _ in self.manifest.schema]

    @property
    def facts(self) -> Mapping[str, Any]:
        """Returns what the job that published the date recorded about it, as JSON values."""
        return self.manifest.facts

    @property
    def files(self) -> list[str]:
        """Returns the paths of the Parquet files."""
        return data_files(self.partition, self.manifest)

    def arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns the rows, with some columns or all of them, as an Arrow table.

        Raises:
            ConfigError: the table has no such column, or `columns` lists one twice.
            DataError: a file is missing or damaged.
            InfrastructureError: a file could not be read.
        """
        self._require(columns)
        return read_table(self.partition, self.manifest, columns=columns)

    def pandas(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Returns the rows as a DataFrame of pandas. Raises the errors of `arrow`.

        Raises:
            ConfigError: pandas is not installed.
        """
        require_packages(["pandas"], "pandas", "a frame of pandas")
        return self.arrow(columns).to_pandas()

    def polars(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Returns the rows as a DataFrame of Polars. Raises the errors of `arrow`.

        Raises:
            ConfigError: Polars is not installed.
        """
        require_packages(["polars"], "polars", "a frame of Polars")
        import polars

        return polars.from_arrow(self.arrow(columns))  # type: ignore[return-value]  # a table, not an array

    def spark(self, session: SparkSession, columns: Sequence[str] | None = None) -> DataFrame:
        """Returns the rows as a frame of this Spark session, which reads the files when it is evaluated.

        Raises:
            ConfigError: the table has no such column.
        """
        from storage.publish import rows_of  # imports pyspark

        self._require(columns)
        return rows_of(session, self.partition, self.manifest, columns=columns)

    def __repr__(self) -> str:
        size = f"{counted(self.rows, 'row')}, {counted(len(self.columns), 'column')}"
        return f"<{self.table} dt={self.date}: {size}>"

    def _require(self, columns: Sequence[str] | None) -> None:
        names = listed("columns", columns)
        wanted = list(names or ())
        repeated = sorted({name for name in wanted if wanted.count(name) > 1})
        if repeated:
            raise ConfigError(f"columns lists {repeated} twice", "list each column once")
        unknown = sorted(set(wanted) - set(self.columns))
        if unknown:
            raise ConfigError(
                f"{self.table} dt={self.date} has no columns {unknown}", f"choose from {self.columns}"
            )
