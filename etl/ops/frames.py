"""The base classes of the operators in the section `prepare`, which run before features are computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from conf.errors import ConfigError
from etl.ops.base import Type
from etl.ops.parameters import Parameters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class FrameOperator(Parameters, ABC):
    """An operator over rows. It is not fitted, and it processes one day at a time.

    Attributes:
        page: the page of docs/operators that describes the operator (`PAGES` in etl/ops/pages.py).
    """

    page: ClassVar[str] = "rows"

    @abstractmethod
    def bind(self, columns: Mapping[str, Type]) -> Mapping[str, Type]:
        """Returns the columns that rows have after the operator, and their types.

        Raises:
            ConfigError: a column in a parameter does not exist or has a wrong type.
        """


class RowFilter(FrameOperator):
    """An operator that drops rows. The day's row counts contain the number of dropped rows as `reason`."""

    @property
    @abstractmethod
    def reason(self) -> str:
        """Returns the name under which the day's row counts contain the number of dropped rows."""

    def inputs(self, columns: Mapping[str, Type]) -> tuple[str, ...]:
        """Returns the raw columns that the condition reads.

        Args:
            columns: the type of each raw column.

        Raises:
            ConfigError: the operator does not define this method.
        """
        raise self._no_form("inputs")

    def keeps_rows(
        self, rows: Mapping[str, pa.Array], count: int, columns: Mapping[str, Type]
    ) -> pa.BooleanArray:
        """Returns for each row whether it is kept: `count` booleans.

        A row for which the result is null is dropped.

        Args:
            rows: maps each column of `inputs` to an array of `count` values without a dictionary.
            count: number of rows.
            columns: the type of each raw column.

        Raises:
            ConfigError: the operator does not define this method.
        """
        raise self._no_form("keeps_rows")

    def _no_form(self, method: str) -> ConfigError:
        return ConfigError(
            f"the operator {self.name} cannot filter rows of a log: it does not define `{method}`",
            f"define the methods `inputs` and `keeps_rows` of {self.name} (etl.ops.frames.RowFilter); a "
            "condition on a Spark frame, `keeps`, is not used any more",
        )


class RowChanger(FrameOperator):
    """An operator that adds columns or combines rows.

    `apply` processes Spark frames, and `apply_table` processes Arrow tables. Both return the same rows, in
    any order.
    """

    @abstractmethod
    def apply(self, rows: DataFrame) -> DataFrame:
        """Returns the rows after the operator."""

    def apply_table(self, rows: pa.Table) -> pa.Table:
        """Returns the rows after the operator. `rows` has all rows of a day for some keys (`key_columns`).

        A column of `rows` is a plain array, a dictionary array or an array of lists, in one or more chunks.

        Raises:
            ConfigError: the operator does not define this method.
        """
        raise ConfigError(
            f"the operator {self.name} changes rows only in Spark: it does not define `apply_table`",
            f"define the method `apply_table` of {self.name}, which takes and returns a pyarrow.Table, or "
            "set workflow.engine=sql",
        )

    def key_columns(self) -> tuple[str, ...]:
        """Returns the key columns. All rows of a day with equal values in these columns are passed together.

        The result of a row must depend only on these rows. If there are no key columns, all rows of the day
        are passed together.
        """
        return ()
