"""The rules for rows. A rule computes a column from a raw column, and can reject a row.

The computed columns are the label, the weight, the ids of user, item and group, and the time.
etl/text/parse_block.py applies the rules to arrays of raw values. `row_rules` returns the rules in the order
in which rows are checked. If several rules reject a row, the reason of the first rule is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from conf.names import days_since_epoch
from conf.raw_types import OTHER_EVENT, ColumnType, EventTime, Label, RawTable
from conf.time_notation import UTC
from conf.types import Config, Keys
from etl.raw.text_values import numbers, text_array
from etl.raw.time_text import FIRST_DAY, LAST_DAY, instants, starts_of_days
from storage.feature_spec import EVENT_TIME, LABEL, WEIGHT, raw_keys

# The functions below check ids of users, items and groups: their length, and that they have no control
# characters.

MAX_KEY_BYTES = 256  # maximum number of bytes of an id in UTF-8
RULE = (
    "an id must not contain a control character (U+0000 to U+001F, U+007F to U+009F) "
    f"or have more than {MAX_KEY_BYTES} bytes of UTF-8"
)
_CONTROL = r"[\x00-\x1f\x7f-\x{9f}]"


def reason(column: str) -> str:
    """Returns the reason for rejecting a row if its id in the column `column` violates `RULE`."""
    return f"key:{column}"


def are_bad_keys(texts: pa.StringArray) -> pa.BooleanArray:
    """Returns an array of n booleans that are true for ids that violate `RULE`, and null for null."""
    return pc.or_(
        pc.match_substring_regex(texts, _CONTROL), pc.greater(pc.binary_length(texts), MAX_KEY_BYTES)
    )


# Output of the rule for the time of day, from which `with_times_of_day` computes the event time.
TIME_OF_DAY = "time_of_day"

# Length in nanoseconds of each unit of `log.event_time.unit`.
NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class RowCheck:
    """A condition that rejects a row.

    Attributes:
        reason: the reason in the quarantine.
        rejects: takes an array of n raw values, some of them null. Returns n booleans: whether the row is
            rejected. A row with null is not rejected.
    """

    reason: str
    rejects: Callable[[pa.Array], pa.Array]


@dataclass(frozen=True)
class RowRule:
    """A column that is computed from one raw column.

    Attributes:
        output: the name of the computed column.
        column: the raw column.
        checks: the conditions that reject a row, in the order in which they are checked.
        compute: takes an array of n raw values, and returns the n computed values.
        of_null: the computed value of rows without a raw value; None if these rows get no value.
    """

    output: str
    column: str
    checks: tuple[RowCheck, ...]
    compute: Callable[[pa.Array], pa.Array]
    of_null: float | None = None


def row_rules(
    types: Mapping[str, str],
    label: Label,
    keys: Keys | None,
    event_time: EventTime | None,
    log: RawTable | None = None,
) -> tuple[RowRule, ...]:
    """Returns the rules of a log, in the order of their checks.

    Args:
        types: maps each raw column to the type that operators receive: int, float or string.
        label, keys, event_time: sections of the configuration.
        log: the table of the rows. The declared types of its columns show whether times are integers,
            timestamps or dates. If it is None, times are integers.
    """
    rules = _label_rules(label, keys, types)
    rules += [
        _key(output, column, is_text=types[column] == "string") for output, column in raw_keys(keys).items()
    ]
    if event_time is None:
        return tuple(rules)
    if event_time.time_of_day is not None:
        # `with_times_of_day` adds the date and the time of day, and applies the time zone.
        return (*rules, _date_rule(event_time.column, UTC), _time_of_day_rule(event_time.time_of_day))
    kind, zone = (log.type_of(event_time.column), log.time_zone) if log else ("int", UTC)
    return (*rules, time_rule(event_time, kind, zone))


def reasons_left_out(label: Label, keys: Keys | None) -> tuple[str, ...]:
    """Returns the reasons for which `label` and `keys` leave out rows without quarantining them."""
    others = [OTHER_EVENT] if label.weights is not None and label.other_events == "drop" else []
    if keys is not None and keys.rows_without_user == "leave_out":
        others.append(_missing_key(keys.user))
    return tuple(others)


def _missing_key(column: str) -> str:
    return f"missing_key:{column}"


def bad_key(column: str) -> RowCheck:
    """Returns the check for ids of the type `string`. Ids that are numbers always obey `RULE`."""
    return RowCheck(reason(column), are_bad_keys)


def _label_rules(label: Label, keys: Keys | None, types: Mapping[str, str]) -> list[RowRule]:
    """Returns the rule that computes the label and, with `label.weights`, the rule for the row's weight."""
    column = label.column
    if column is None:
        return [_always_one(keys.item if keys else next(iter(types)))]
    is_text = types[column] == "string"
    if label.rows_without_value == "not_clicked":
        rule = (_label if label.positive is None else _label_of_event)(label, column, is_text)
        checks = [replace(check, rejects=_only_values(check.rejects)) for check in rule.checks]
        return [replace(rule, checks=tuple(checks), of_null=0.0)]
    if label.positive is None:
        return [_label(label, column, is_text)]
    by_event = [_label_of_event(label, column, is_text)]
    return by_event if label.weights is None else [*by_event, _weight_of_event(label, column, is_text)]


def _only_values(rejects: Callable[[pa.Array], pa.Array]) -> Callable[[pa.Array], pa.Array]:
    """Returns a condition that rejects the same rows as `rejects`, except rows without a value."""
    return lambda values: pc.and_(rejects(values), values.is_valid())


def _always_one(column: str) -> RowRule:
    """Returns a rule that computes the label 1 for every row.

    The values of `column` are not used, only their number.
    """
    return RowRule(LABEL, column, (), lambda values: pa.array(np.ones(len(values), np.float32)))


def _label_of_event(label: Label, column: str, is_text: bool) -> RowRule:
    """Returns a rule that computes the label: 1 if the event of the row is in `positive`, otherwise 0."""
    clicks = _events(label.positive or (), is_text)
    named = _events(label.event_weights, is_text)
    checks = [RowCheck(f"label:{column}", lambda values: values.is_null())]
    if label.weights is not None:
        checks.append(
            RowCheck(
                OTHER_EVENT if label.other_events == "drop" else f"event:{column}",
                lambda values: pc.and_(
                    values.is_valid(), pc.invert(pc.is_in(values, pa.array(named, values.type)))
                ),
            )
        )
    return RowRule(
        LABEL,
        column,
        tuple(checks),
        lambda values: pc.is_in(values, pa.array(clicks, values.type)).cast(pa.float32()),
    )


def _weight_of_event(label: Label, column: str, is_text: bool) -> RowRule:
    """Returns a rule that gives each row the weight of its event. The rule rejects no row."""
    named = _events(label.event_weights, is_text)
    weights = [*label.event_weights.values()]

    def compute(values: pa.Array) -> pa.Array:
        return pa.array(weights, pa.float32()).take(pc.index_in(values, pa.array(named, values.type)))

    return RowRule(WEIGHT, column, (), compute)


def _events(names: Iterable[str], is_text: bool) -> list[str] | list[int]:
    """Converts the names of events to the type of their column."""
    return [*names] if is_text else [int(name) for name in names]


def _label(label: Label, column: str, is_text: bool) -> RowRule:
    """Returns a rule that reads the label 0 or 1 from a column, or compares a number with a threshold."""
    threshold = label.positive_at_least

    def array(values: pa.Array) -> pa.Array:
        return numbers(values) if is_text else values.cast(pa.float64(), safe=False)

    if threshold is None:
        return RowRule(
            LABEL,
            column,
            (
                RowCheck(
                    f"label:{column}",
                    # Do not use is_in, because it treats -0.0 and 0.0 as different.
                    lambda values: pc.invert(pc.fill_null(_is_zero_or_one(array(values)), False)),
                ),
            ),
            lambda values: array(values).cast(pa.float32(), safe=False),
        )
    return RowRule(
        LABEL,
        column,
        (
            RowCheck(
                f"label:{column}",
                lambda values: array(values).is_null(),
            ),
        ),
        lambda values: pc.greater_equal(array(values), float(threshold)).cast(pa.float32()),
    )


def _is_zero_or_one(values: pa.Array) -> pa.Array:
    return pc.or_(pc.equal(values, 0.0), pc.equal(values, 1.0))


def _key(output: str, column: str, is_text: bool) -> RowRule:
    """Returns a rule that computes an id as a string. It rejects rows whose id is null or violates `RULE`."""
    missing = RowCheck(_missing_key(column), lambda values: values.is_null())
    checks = (missing, bad_key(column)) if is_text else (missing,)
    return RowRule(output, column, checks, text_array)


def time_rule(event_time: EventTime, kind: ColumnType = "int", time_zone: str = UTC) -> RowRule:
    """Returns a rule that converts event times to µs since 1970-01-01 UTC in 64 bits.

    Args:
        event_time: column of the time, and unit of integers. Nanoseconds are rounded down.
        kind: the declared type of the column: int, timestamp (already µs), or date (days since 1970-01-01;
            the time is the first instant of the day).
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
            RowCheck(f"missing_time:{column}", lambda values: values.is_null()),
            RowCheck(
                f"time_range:{column}",
                beyond,
            ),
        ),
        microseconds,
    )


def _date_rule(column: str, time_zone: str) -> RowRule:
    """Returns a rule that converts dates to event times. It rejects dates beyond the years 1 to 9999."""

    def beyond(values: pa.Array) -> pa.Array:
        return pc.or_(pc.less(values, FIRST_DAY), pc.greater(values, LAST_DAY))

    def microseconds(values: pa.Array) -> pa.Array:
        valid = pc.invert(pc.fill_null(beyond(values), True)).to_numpy(zero_copy_only=False)
        days = np.where(valid, values.fill_null(0).to_numpy(zero_copy_only=False), 0)
        return pa.array(starts_of_days(days, time_zone), pa.int64(), mask=~valid)

    return RowRule(
        EVENT_TIME,
        column,
        (
            RowCheck(f"missing_time:{column}", lambda values: values.is_null()),
            RowCheck(f"time_range:{column}", beyond),
        ),
        microseconds,
    )


def _time_of_day_rule(column: str) -> RowRule:
    """Returns a rule for the time of day, in µs since midnight. It rejects rows without one."""
    missing = RowCheck(f"missing_time:{column}", lambda values: values.is_null())
    return RowRule(TIME_OF_DAY, column, (missing,), lambda values: values)


def with_times_of_day(midnights: pa.Array, times_of_day: pa.Array, time_zone: str) -> pa.Array:
    """Returns the event times of a log with dates and times of day in two columns.

    Args:
        midnights: n dates, as µs from 1970-01-01 00:00 to midnight of the date, both in local time.
        times_of_day: n times of day in µs since midnight.
        time_zone: the IANA name of the zone of both.

    Returns:
        n times in µs since 1970-01-01 UTC; null if the date or the time of day is null.
    """
    local = pc.add(midnights, times_of_day)
    nulls = local.is_null().to_numpy(zero_copy_only=False)
    times = instants(local.fill_null(0).to_numpy(zero_copy_only=False), time_zone)
    return pa.array(times, pa.int64(), mask=nulls)


def floor_divide_array(values: pa.Array, divisor: int) -> pa.Array:
    """Returns the quotients of int64 values, rounded down, so that times before 1970 stay in order."""
    if divisor == 1:
        return values
    quotients = pc.divide(values, pa.scalar(divisor, pa.int64()))
    return pc.subtract(quotients, pc.less(values, pc.multiply(quotients, divisor)).cast(pa.int64()))


# The code below counts the rows of a day's log whose event_time is outside this day. The day is in the time
# zone `log.time_zone` (default: UTC).
#
# A log may have some such rows: late events, or days of another time zone. If nearly all rows have such
# times, the configured unit is probably wrong, or the file belongs to another day.

# Key of the counts in `Manifest.facts` of a quarantine. Manifests of earlier releases lack this key.
MISDATED = "misdated"


@dataclass(frozen=True)
class Misdated:
    """The rows of a day whose event_time is outside the day.

    Attributes:
        rows: number of these rows.
        earliest, latest: the smallest and the largest event_time of these rows, in µs since 1970-01-01 UTC;
            None without such rows.
    """

    rows: int = 0
    earliest: int | None = None
    latest: int | None = None

    def __add__(self, other: Misdated) -> Misdated:
        """Returns the counts for the rows of both operands together."""
        earliest = [time for time in (self.earliest, other.earliest) if time is not None]
        latest = [time for time in (self.latest, other.latest) if time is not None]
        return Misdated(self.rows + other.rows, min(earliest, default=None), max(latest, default=None))

    def to_facts(self) -> dict[str, Any]:
        """Returns the counts as JSON values."""
        return {"rows": self.rows, "earliest": self.earliest, "latest": self.latest}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Misdated | None:
        """Reads the counts from `Manifest.facts` of a quarantine; None if the rows were not counted."""
        counted = facts.get(MISDATED)
        return None if counted is None else cls(**counted)


NO_ROWS = Misdated()


def bounds_of_day(config: Config, dt: str) -> tuple[int, int] | None:
    """Returns the first µs of a day in `log.time_zone`, and the first µs after the day, since 1970-01-01 UTC.

    A day on which clocks change has 23 or 25 hours. Returns None if the log is not stored by day, or has no
    event_time. In these cases, no time can be outside its day.
    """
    if not config.log.by_day or config.log.event_time is None:
        return None
    day = days_since_epoch(dt)
    first, end = starts_of_days(np.array([day, day + 1]), config.log.time_zone).tolist()
    return first, end


def count_misdated(times: NDArray[np.int64], bounds: tuple[int, int]) -> Misdated:
    """Counts the times outside a day.

    Args:
        times: (n,) µs since 1970-01-01 UTC.
        bounds: the result of `bounds_of_day`.
    """
    outside = times[(times < bounds[0]) | (times >= bounds[1])]
    return Misdated(len(outside), int(outside.min()), int(outside.max())) if len(outside) else NO_ROWS


def describe(event_time: EventTime, time: int, log: RawTable) -> str:
    """Returns the text that describes a time in error messages.

    If the column has integers, the text contains the raw value and the UTC day that it stands for. Otherwise,
    it contains the time in UTC.

    Args:
        event_time: column and unit of the time.
        time: µs since 1970-01-01 UTC.
        log: the table with the column.
    """
    if log.type_of(event_time.column) != "int":
        return f"{event_time.column}={np.datetime_as_string(np.datetime64(time, 'us'))}Z"
    value = time * 1000 // NANOSECONDS[event_time.unit]
    day = np.datetime_as_string(np.datetime64(time, "us"), unit="D")
    return f"{event_time.column}={value} was read as {day}"
