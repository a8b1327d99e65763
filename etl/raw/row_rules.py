"""The rules of a row: which columns are computed from raw columns, and for what reasons a row is rejected.

Each rule stands here once, with its two forms side by side: for Spark expressions (etl/spark/read_log.py) and
for Arrow arrays (etl/text/parse_block.py). A rule computes the label, the id of a user, item or group, or the
time. `row_rules` returns them in the order in which rows are checked: the first reason counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from conf.raw_types import ColumnType, EventTime, Label, RawTable
from conf.time_types import UTC
from conf.types import Keys
from etl.raw import key_rule
from etl.raw.number_text import number_of, numbers
from etl.raw.time_text import FIRST_DAY, LAST_DAY, US_OF_DAY, starts_of_days
from etl.raw.value_text import text_array
from storage.feature_spec import EVENT_TIME, LABEL, raw_keys

# Length of the units of `log.event_time.unit`.
NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Check:
    """A condition that rejects a row.

    Attributes:
        reason: the reason in the quarantine.
        in_spark: returns an expression for the raw column: whether the row is rejected. Null means no.
        in_arrow: returns the same for an array of n values, some of them null.
    """

    reason: str
    in_spark: Callable[[Column], Column]
    in_arrow: Callable[[pa.Array], pa.Array]


@dataclass(frozen=True)
class RowRule:
    """A column that is computed from one raw column.

    Attributes:
        output: the name of the computed column.
        column: the raw column.
        checks: the conditions that reject a row, in order.
        in_spark: returns the expression of the computed column.
        in_arrow: returns the computed values of an array of n raw values.
    """

    output: str
    column: str
    checks: tuple[Check, ...]
    in_spark: Callable[[Column], Column]
    in_arrow: Callable[[pa.Array], pa.Array]


def row_rules(
    types: Mapping[str, str],
    label: Label,
    keys: Keys | None,
    event_time: EventTime | None,
    log: RawTable | None = None,
) -> tuple[RowRule, ...]:
    """Returns the rules of a log, in the order of their checks.

    Args:
        types: maps each raw column to the type that operators see: int, float or string.
        label, keys, event_time: sections of the configuration.
        log: the table of the rows. Its declared types say whether times are integers, timestamps or dates.
            None: they are integers.
    """
    rules = [_label(label, is_text=types[label.column] == "string")]
    rules += [
        _key(output, column, is_text=types[column] == "string") for output, column in raw_keys(keys).items()
    ]
    if event_time is None:
        return tuple(rules)
    kind, zone = (log.type_of(event_time.column), log.time_zone) if log else ("int", UTC)
    return (*rules, time_rule(event_time, kind, zone))


def bad_key(column: str) -> Check:
    """Returns the check of ids that have the type `string`. Ids that are numbers always obey the rule."""
    return Check(key_rule.reason(column), key_rule.is_bad_key, key_rule.are_bad_keys)


def _label(label: Label, is_text: bool) -> RowRule:
    """Returns the rule of the label: 0 or 1, or whether a number reaches `positive_at_least`."""
    threshold = label.positive_at_least

    def number(raw: Column) -> Column:
        return number_of(raw) if is_text else raw.cast("double")

    def array(values: pa.Array) -> pa.Array:
        return numbers(values) if is_text else values.cast(pa.float64(), safe=False)

    if threshold is None:
        return RowRule(
            LABEL,
            label.column,
            (
                Check(
                    f"label:{label.column}",
                    lambda raw: ~F.coalesce(number(raw).isin(0.0, 1.0), F.lit(False)),
                    # Not is_in, for which -0.0 is not 0.0.
                    lambda values: pc.invert(pc.fill_null(_is_zero_or_one(array(values)), False)),
                ),
            ),
            lambda raw: number(raw).cast("float"),
            lambda values: array(values).cast(pa.float32(), safe=False),
        )
    return RowRule(
        LABEL,
        label.column,
        (
            Check(
                f"label:{label.column}",
                lambda raw: number(raw).isNull(),
                lambda values: array(values).is_null(),
            ),
        ),
        lambda raw: (number(raw) >= threshold).cast("float"),
        lambda values: pc.greater_equal(array(values), float(threshold)).cast(pa.float32()),
    )


def _is_zero_or_one(values: pa.Array) -> pa.Array:
    return pc.or_(pc.equal(values, 0.0), pc.equal(values, 1.0))


def _key(output: str, column: str, is_text: bool) -> RowRule:
    """Returns the rule of an id (an integer or a text): its text, which must obey etl/raw/key_rule.py."""
    missing = Check(f"missing_key:{column}", lambda raw: raw.isNull(), lambda values: values.is_null())
    checks = (missing, bad_key(column)) if is_text else (missing,)
    return RowRule(output, column, checks, lambda raw: raw.cast("string"), text_array)


def time_rule(event_time: EventTime, kind: ColumnType = "int", time_zone: str = UTC) -> RowRule:
    """Returns the rule of the event time: µs since 1970-01-01 UTC in 64 bits.

    Args:
        event_time: column of the time, and unit of integers. Nanoseconds are rounded down.
        kind: the declared type of the column: int, timestamp (already µs), or date (days since 1970-01-01,
            each of which stands for its first instant).
        time_zone: the IANA name of the zone in which dates begin.
    """
    if kind == "date":
        return _date_rule(event_time.column, time_zone)
    if kind == "timestamp":
        event_time = EventTime(column=event_time.column, unit="us")
    column, length = event_time.column, NANOSECONDS[event_time.unit]
    scale, parts = max(1, length // 1000), max(1, 1000 // length)
    last = _LARGEST // scale  # a larger product would overflow 64 bits

    def beyond(values: pa.Array) -> pa.Array:
        instants = values.cast(pa.int64(), safe=False)
        return pc.or_(pc.greater(instants, last), pc.less(instants, -last))

    def microseconds(values: pa.Array) -> pa.Array:
        instants = pc.if_else(
            beyond(values), pa.scalar(None, pa.int64()), values.cast(pa.int64(), safe=False)
        )
        return pc.multiply(floor_divide_array(instants, parts), scale)

    return RowRule(
        EVENT_TIME,
        column,
        (
            Check(f"missing_time:{column}", lambda raw: raw.isNull(), lambda values: values.is_null()),
            Check(
                f"time_range:{column}",
                lambda raw: ~raw.cast("bigint").between(-last, last),
                beyond,
            ),
        ),
        lambda raw: floor_divide(raw.cast("bigint"), parts) * scale,
        microseconds,
    )


def _date_rule(column: str, time_zone: str) -> RowRule:
    """Returns the rule of an event time that is a date, from year 1 to year 9999."""

    def beyond(values: pa.Array) -> pa.Array:
        return pc.or_(pc.less(values, FIRST_DAY), pc.greater(values, LAST_DAY))

    def microseconds(values: pa.Array) -> pa.Array:
        valid = pc.invert(pc.fill_null(beyond(values), True)).to_numpy(zero_copy_only=False)
        days = np.where(valid, values.fill_null(0).to_numpy(zero_copy_only=False), 0)
        return pa.array(starts_of_days(days, time_zone), pa.int64(), mask=~valid)

    def in_spark(raw: Column) -> Column:
        # The instant whose clock shows this midnight in UTC; Spark's rules for skipped times are ours.
        midnight = F.timestamp_micros(raw * F.lit(US_OF_DAY))
        return F.unix_micros(F.to_utc_timestamp(midnight, time_zone))

    return RowRule(
        EVENT_TIME,
        column,
        (
            Check(f"missing_time:{column}", lambda raw: raw.isNull(), lambda values: values.is_null()),
            Check(f"time_range:{column}", lambda raw: ~raw.between(FIRST_DAY, LAST_DAY), beyond),
        ),
        in_spark,
        microseconds,
    )


def floor_divide(value: Column, divisor: int) -> Column:
    """Returns the quotient of integers, rounded down, so that times before 1970 stay in order."""
    if divisor == 1:
        return value
    quotient = F.call_function("div", value, F.lit(divisor))
    return quotient - (value < quotient * divisor).cast("bigint")


def floor_divide_array(values: pa.Array, divisor: int) -> pa.Array:
    """Does the same as `floor_divide` for an array of int64."""
    if divisor == 1:
        return values
    quotients = pc.divide(values, pa.scalar(divisor, pa.int64()))
    return pc.subtract(quotients, pc.less(values, pc.multiply(quotients, divisor)).cast(pa.int64()))
