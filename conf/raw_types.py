"""The typed configuration of raw data: where it lies, how it is laid out, what its columns mean."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from conf.names import ColumnName, PlainText, RawLocation

_RANGE = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
_MOST_NAMES = 10_000  # of one range
# Characters that occur as separators in practice. Letters, digits, signs and quotes are parts of values.
SEPARATORS = ("\t", ",", ";", "|", ":", "^", "~", "\x01", "\x1f")


def expand_range(name: str) -> list[str]:
    """`C{1..3}` → `[C1, C2, C3]`; a name without a range is returned alone."""
    match = _RANGE.search(name)
    if match is None:
        return [name]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < _MOST_NAMES:
        raise ValueError(f"{name!r}: a range ascends, as in {{1..13}}, and has at most {_MOST_NAMES} numbers")
    return [f"{name[: match.start()]}{i}{name[match.end() :]}" for i in range(first, last + 1)]


def fits_column(name: str) -> bool:
    """Whether a raw column or a feature may have this name. Names of our own begin with an underscore."""
    return name not in ("", "*") and not name.startswith("_") and "." not in name and "`" not in name


def _expand_names(names: list[str]) -> list[str]:
    return [each for name in names for each in expand_range(name)]


Names = Annotated[list[str], AfterValidator(_expand_names)]
PositiveInt = Annotated[int, Field(gt=0, lt=2**31)]
PositiveLong = Annotated[int, Field(gt=0, lt=2**63)]
Days = Annotated[int, Field(gt=0, le=36_500)]  # 100 years: every date reckoned with it exists
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Strict(BaseModel):
    """A frozen section that rejects unknown keys, infinity and NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Column(Strict):
    """One raw column. `source` is its name in a CSV header or Parquet schema (default: `name`)."""

    name: ColumnName
    type: Literal["int", "float", "string"]
    source: PlainText | None = None

    @property
    def source_name(self) -> str:
        return self.source or self.name


class RawTable(Strict):
    """Where raw rows lie and how they are laid out.

    `path` may hold `{lake}`, `{data}` and, for a log kept by day, `{date}` (YYYY-MM-DD); globs are allowed.
    `tsv` is headerless, and a double quote in it is an ordinary character (Criteo's layout). `csv` has a header line. A
    field of csv that holds a double quote must begin and end with one and double those in between (RFC 4180), and no value
    spans lines: a line that breaks this is quarantined as `quote`. `parquet` is matched by column name. Files ending in
    .gz are decompressed.
    """

    path: RawLocation
    format: Literal["tsv", "csv", "parquet"]
    separator: str = "\t"
    columns: list[Column]

    @model_validator(mode="before")
    @classmethod
    def _expand_columns(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("columns"), list):
            expanded = []
            for column in values["columns"]:
                if isinstance(column, dict) and isinstance(column.get("name"), str):
                    expanded += [{**column, "name": name} for name in expand_range(column["name"])]
                else:
                    expanded.append(column)
            values = {**values, "columns": expanded}
        return values

    @model_validator(mode="after")
    def _unique(self) -> RawTable:
        names = [column.name for column in self.columns]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"columns appear twice: {repeated}")
        unfit = [name for name in names if not fits_column(name)]
        if unfit:
            raise ValueError(
                f"columns names {unfit}: a name is not empty or '*', holds no dot and no backtick, and begins with no underscore; "
                f"give another name, and the file's own as source: {{name: {unfit[0].strip('_*').replace('.', '_').replace('`', '') or 'other'}, "
                f"source: '{unfit[0]}'}}"
            )
        return self

    @field_validator("separator")
    @classmethod
    def _is_known(cls, separator: str) -> str:
        if separator not in SEPARATORS:
            raise ValueError(f"a separator is one of {list(SEPARATORS)}")
        return separator

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


class Label(Strict):
    """The click: `column` must be 0 or 1, or, with `positive_at_least`, any number compared with it."""

    column: str
    positive_at_least: float | None = None


class EventTime(Strict):
    """The column that holds the time of the event, as an integer of `unit` since 1970-01-01 UTC."""

    column: str
    unit: Literal["s", "ms", "us"] = "s"


class Log(RawTable):
    """The click log. Without `event_time`, the order of rows (by file name, then position) is time."""

    label: Label
    event_time: EventTime | None = None

    @property
    def by_day(self) -> bool:
        return "{date}" in self.path


class Keys(Strict):
    """The raw columns that identify a user and an item.

    `group`: the column whose equal values mark rows that competed for one click, such as the ads of one display;
    evaluate_model then measures how each group is ranked.
    """

    user: str
    item: str
    group: str | None = None

    @model_validator(mode="after")
    def _differ(self) -> Keys:
        if self.item == self.user:
            raise ValueError(
                f"item={self.item!r} is the column of user too: users and items need columns of their own"
            )
        return self

    @property
    def columns(self) -> list[str]:
        """The columns that are named."""
        return [self.user, self.item, *([self.group] if self.group else [])]


class JoinedTable(RawTable):
    """Attributes of users or of items, joined onto the log by the key column of that side."""


class Negatives(Strict):
    """Unobserved items added as negatives to logs that record only what users chose.

    For each positive row, `per_positive` items are drawn by a hash of (row, draw, seed) from the items of its own split
    and of earlier splits; a draw that the user has a row with in these splits is skipped. In a log kept by day
    (split.by=day) a row sees its own day alone. The added rows keep the user, the time and the split of their positive.
    """

    per_positive: PositiveInt
    seed: Seed = 0
