"""The typed configuration of raw data: its paths, its format, and the meaning of its columns."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from conf.names import ColumnName, PlainText, RawLocation

_RANGE = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
_MOST_NAMES = 10_000  # of one range
# Separators that occur in practice. Letters, digits, signs and quotes are parts of values.
SEPARATORS = ("\t", ",", ";", "|", ":", "^", "~", "\x01", "\x1f")


def expand_range(name: str) -> list[str]:
    """`C{1..3}` → `[C1, C2, C3]`; a name without a range → a list of only this name."""
    match = _RANGE.search(name)
    if match is None:
        return [name]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < _MOST_NAMES:
        raise ValueError(
            f"{name!r}: a range must ascend, as in {{1..13}}, and have at most {_MOST_NAMES} numbers"
        )
    return [f"{name[: match.start()]}{i}{name[match.end() :]}" for i in range(first, last + 1)]


def fits_column(name: str) -> bool:
    """Whether a raw column or a feature may have this name. Internal names begin with an underscore."""
    return name not in ("", "*") and not name.startswith("_") and "." not in name and "`" not in name


def _expand_names(names: list[str]) -> list[str]:
    return [column for name in names for column in expand_range(name)]


Names = Annotated[list[str], AfterValidator(_expand_names)]
PositiveInt = Annotated[int, Field(gt=0, lt=2**31)]
PositiveLong = Annotated[int, Field(gt=0, lt=2**63)]
Days = Annotated[int, Field(gt=0, le=36_500)]  # 100 years: dates computed with it cannot overflow
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Strict(BaseModel):
    """A frozen section that rejects unknown keys, infinity and NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Column(Strict):
    """One raw column, or several columns of one type by a range such as `C{1..26}` in `name`."""

    name: ColumnName = Field(
        description="Name of the column in the configuration. A range such as `C{1..26}` declares several "
        "columns."
    )
    type: Literal["int", "float", "string"] = Field(
        description="Type of the values: `int` has 64 bits, `float` is a double, `string` is UTF-8 text."
    )
    source: PlainText | None = Field(
        default=None, description="Name in a CSV header or a Parquet schema. Null: it is `name`."
    )

    @property
    def source_name(self) -> str:
        """Name in a CSV header or a Parquet schema."""
        return self.source or self.name


class RawTable(Strict):
    """Where raw rows are and how they are laid out."""

    path: RawLocation = Field(
        description="Path or URI of the files. It may contain globs, `{lake}`, `{data}` and, for a log with "
        "files by day, `{date}` (YYYY-MM-DD). Files that end in .gz are decompressed."
    )
    format: Literal["tsv", "csv", "parquet"] = Field(
        description="`tsv`: no header, and a double quote is an ordinary character. `csv`: a header line "
        "and quotes by RFC 4180. A value must not contain a line break; a line that breaks this rule "
        "is quarantined with the reason `quote`. `parquet`: columns are matched by name."
    )
    separator: str = Field(
        default="\t", description="Character between two fields of a line. The default is a tab."
    )
    columns: list[Column] = Field(description="The columns. For tsv, they are in the order of the file.")

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
            proposal = unfit[0].strip("_*").replace(".", "_").replace("`", "")
            raise ValueError(
                f"columns names {unfit}: a name must not be empty or '*', must not contain a dot or a "
                "backtick, and must not begin with an underscore; choose another name, and give the name in "
                "the file as source: "
                f"{{name: {proposal or 'other'}, source: '{unfit[0]}'}}"
            )
        return self

    @field_validator("separator")
    @classmethod
    def _is_known(cls, separator: str) -> str:
        if separator not in SEPARATORS:
            raise ValueError(f"a separator must be one of {list(SEPARATORS)}")
        return separator

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]


class Label(Strict):
    """The click: 0 or 1, or a number that is compared with `positive_at_least`."""

    column: str = Field(description="Column of the log with the label.")
    positive_at_least: float | None = Field(
        default=None, description="Smallest value that counts as a click. Null: the column must hold 0 or 1."
    )


class EventTime(Strict):
    """The column with the time of an event, an integer since 1970-01-01 UTC."""

    column: str = Field(description="Column of the log with the time.")
    unit: Literal["s", "ms", "us"] = Field(
        default="s", description="Unit of the integer: seconds, milliseconds or microseconds."
    )


class Log(RawTable):
    """The click log.

    Without `event_time`, rows are assumed to be in order of time, by file name and then by position.
    """

    label: Label = Field(description="How a click is defined.")
    event_time: EventTime | None = Field(
        default=None, description="When an event happened. Null: the log has no such column."
    )

    @property
    def by_day(self) -> bool:
        """Whether the log has files by day."""
        return "{date}" in self.path


class Keys(Strict):
    """The raw columns that identify a user, an item and, if the log has such a column, a group of rows."""

    user: str = Field(description="Column with the key of the user.")
    item: str = Field(description="Column with the key of the item.")
    group: str | None = Field(
        default=None,
        description="Column that identifies a group. The rows of a group competed for one click, such as "
        "the ads of one display. If it is given, evaluate_model measures the ranking in each group. "
        "Null: there are no groups.",
    )

    @model_validator(mode="after")
    def _differ(self) -> Keys:
        if self.item == self.user:
            raise ValueError(
                f"item={self.item!r} is also the column of user: users and items need different columns"
            )
        return self

    @property
    def columns(self) -> list[str]:
        """The columns that are named."""
        return [self.user, self.item, *([self.group] if self.group else [])]


class JoinedTable(RawTable):
    """Attributes of users or of items, joined with the log by the key column of users or items."""


class Negatives(Strict):
    """Unobserved items, added as negatives to logs that record only what users chose.

    For each positive row, items are drawn by a hash of (row, draw, seed) from the items of its split and of
    earlier splits. If the user has a row with the drawn item in these splits, the draw is skipped. If the log
    has files by day (split.by=day), only the rows of the same day are used. An added row has the user, the
    time and the split of its positive row.
    """

    per_positive: PositiveInt = Field(description="Number of items that are drawn for each positive row.")
    seed: Seed = Field(default=0, description="Seed of the draws.")
