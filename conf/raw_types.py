"""The typed configuration of raw data: paths, format, and the meaning of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from conf.names import (
    SPARK_TABLE,
    ColumnName,
    PlainText,
    RawLocation,
    column_name,
    expand_range,
    fits_column,
    has_date,
    split_table_path,
)
from conf.plugins import READER, PluginNames, description
from conf.time_notation import ISO, UTC, ColumnFormat, TimeZone, only_date, only_time_of_day, time_format

# Types of columns in files.
ColumnType = Literal[
    "int", "float", "string", "bool", "date", "timestamp", "time", "decimal", "list<int>", "list<string>"
]

# The types of values in operators. The last two are lists.
OperatorType = Literal["int", "float", "string", "ints", "strings"]
_OPERATOR_TYPES: Mapping[ColumnType, OperatorType] = {
    "int": "int",
    "float": "float",
    "string": "string",
    "bool": "int",
    "date": "int",
    "timestamp": "int",
    "time": "int",
    "decimal": "float",
    "list<int>": "ints",
    "list<string>": "strings",
}
TIME_TYPES = ("date", "timestamp", "time")
NUMBER_TYPES = ("int", "float", "decimal")
LIST_TYPES = ("list<int>", "list<string>")
_LONGEST_ELEMENT_SEPARATOR = 8
MAX_EXPANSION = 200.0  # default limit of a file's decompressed bytes per compressed byte

# The allowed separators. Letters, digits, signs and quotes cannot separate values, because they are parts of
# values.
SEPARATORS = ("\t", ",", ";", "|", ":", "^", "~", "\x01", "\x1f", " ")


def _known_separator(separator: str) -> str:
    if separator not in SEPARATORS:
        raise ValueError(f"a separator must be one of {list(SEPARATORS)}")
    return separator


Separator = Annotated[str, AfterValidator(_known_separator)]


def _element_separator(separator: str) -> str:
    fits = 1 <= len(separator) <= _LONGEST_ELEMENT_SEPARATOR
    if not fits or any(char.isalnum() or char in '"\r\n' for char in separator):
        raise ValueError(
            f"a separator of elements has 1 to {_LONGEST_ELEMENT_SEPARATOR} characters, without letters, "
            "digits, double quotes or line breaks"
        )
    return separator


ElementSeparator = Annotated[str, AfterValidator(_element_separator)]


def _null_values(values: Any) -> Any:
    """Puts the empty string before the strings of `null_values`, and removes repeated strings.

    Raises ValueError if a value is not a string. For example, YAML reads NULL and ~ without quotes as null.
    """
    if not isinstance(values, list | tuple):
        return values
    for value in values:
        if not isinstance(value, str) or "\n" in value or "\r" in value:
            raise ValueError(
                f"{value!r} is not a string of one line; quote each value, as in ['', 'NULL', '-1']"
            )
    return list(dict.fromkeys(["", *values]))


NullValues = Annotated[list[str], BeforeValidator(_null_values)]
DecimalSeparator = Literal[".", ","]
Encoding = Literal["utf-8", "windows-1252"]
UTF8: Encoding = "utf-8"
POINT: DecimalSeparator = "."


def _expand_names(names: list[str]) -> list[str]:
    return [column for name in names for column in expand_range(name)]


Names = Annotated[list[str], AfterValidator(_expand_names)]
PositiveInt = Annotated[int, Field(gt=0, lt=2**31)]
PositiveLong = Annotated[int, Field(gt=0, lt=2**63)]
Days = Annotated[int, Field(gt=0, le=36_500)]  # up to 100 years, so that computed dates cannot overflow
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Strict(BaseModel):
    """A frozen section that rejects unknown keys, infinity and NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def annotation_of(cls, key: str) -> Any:
        """Returns the type of a key; None if the section does not have it."""
        field = cls.model_fields.get(key)
        return None if field is None else field.annotation


def without_defaults(
    values: Mapping[str, Any], defaults: Mapping[str, Any], info: SerializationInfo
) -> dict[str, Any]:
    """Returns the dumped values of a section without those settings that have their default value.

    With `exclude_unset`, all values stay, because pydantic then dumps only values that the user has set.
    """
    if info.exclude_unset:
        return dict(values)
    return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}


class FormatSettings(Strict):
    """Base of the settings of a format of raw files. The reference tables show the docstring of a format.

    Attributes:
        is_text: whether files have lines of text. Rows of other formats have no text; errors show them as
            JSON.
        is_separated: whether a line has fields with a separator between them.
        has_null_values: whether files store all values as text, so that some strings can mean null.
        is_positional: whether columns have no names in the files, so that `columns` lists all of them.
        is_row_per_line: whether a line of a separated format is one row.
    """

    is_text: ClassVar[bool] = False
    is_separated: ClassVar[bool] = False
    has_null_values: ClassVar[bool] = False
    is_positional: ClassVar[bool] = False
    is_row_per_line: ClassVar[bool] = True


def format_settings(name: str) -> type[FormatSettings]:
    """Returns the class with the settings of a format. The format must exist.

    Raises:
        ConfigError: the module of a package's reader cannot be imported.
    """
    settings: type[FormatSettings] = getattr(READER.get(name).load(), "Settings", FormatSettings)
    return settings


def _known_format(name: str) -> str:
    if READER.find(name) is None:
        raise ValueError(f"there is no such format; known: {READER.names()}")
    return name


# The name of a reader: a module of etl/readers/formats, or of another package. The JSON schema for editors
# lists only the readers of the checkout.
Format = Annotated[str, AfterValidator(_known_format), PluginNames(READER)]


def _describe_formats(schema: dict[str, Any]) -> None:
    """Adds a description of each file format of the checkout to the description of the key `format`."""
    formats = {one.name: one.settings(FormatSettings) for one in READER.plugins()}
    meanings = [f"`{name}`: {description(settings)}" for name, settings in formats.items()]
    schema["description"] = " ".join([*meanings, schema["description"]])


class Column(Strict):
    """One raw column, or several columns of the same type if `name` has a range such as `C{1..26}`."""

    name: ColumnName = Field(
        description="Name of the column in the configuration. A range such as `C{1..26}` declares several "
        "columns."
    )
    type: ColumnType = Field(
        description="Type of the values. `int`: 64 bits. `float`: a double. `string`: UTF-8 text. `bool`: "
        "read as 1 or 0; in text files true, t, yes, y, 1 or false, f, no, n, 0, in any case. `date`: read "
        "as days since 1970-01-01. `timestamp`: read as µs since 1970-01-01 00:00 UTC. `time`: a time of day "
        "without a date, read as µs since midnight (`log.event_time.time_of_day`). `decimal`: at most 38 "
        "digits without an exponent, rounded to the nearest double. `list<int>`: a list of integers. "
        "`list<string>`: a list of strings; in text files, `separator` divides the elements of a list."
    )
    format: ColumnFormat = Field(
        default=ISO,
        description="How a `date`, `timestamp` or `time` column is written as text. `iso`: ISO 8601, such as "
        "2026-01-31 for a date, 2026-01-31T13:45:00.123Z for a timestamp, and 13:45 or 13:45:00.123 for a "
        "time. A timestamp may have a blank instead of T, and lack seconds, fraction and offset. Any other "
        'value is a strptime pattern of Python, such as `"%d/%m/%Y %H:%M:%S"` or, for a time, `"%I:%M %p"`.',
    )
    separator: ElementSeparator | None = Field(
        default=None,
        description="Separator of the elements of a list that is written as text. An empty element is left "
        "out, and an empty field is null. Null: a vertical bar. Only for lists.",
    )
    source: PlainText | None = Field(
        default=None,
        description="Name of the column in the CSV header or Parquet schema of the raw files, if it differs "
        "from `name`. Null: the name is the same.",
    )
    optional: bool = Field(
        default=False,
        description="Whether files may lack the column. True: its values are null for the rows of a file "
        "without it. False: such a file is an error. With `tsv` and `displays`, no column can be optional, "
        "because the columns have no names.",
    )

    @property
    def source_name(self) -> str:
        """Returns the name of the column in the CSV header or Parquet schema of the raw files."""
        return self.source or self.name

    @property
    def element_separator(self) -> str:
        """Returns the string between the elements of a list: `separator`, or `|` if it is null."""
        return self.separator or "|"

    @model_validator(mode="after")
    def _fitting_settings(self) -> Column:
        if self.format != ISO and self.type not in TIME_TYPES:
            raise ValueError(
                f"column {self.name!r}: `format` says how times are written, but the type is {self.type}: "
                "remove `format`, or give the column the type timestamp, date or time"
            )
        if self.type == "time" and not only_time_of_day(self.format):
            raise ValueError(
                f"column {self.name!r}: the format {self.format!r} reads more than a time of day: give the "
                "column the type timestamp, or write a format with hour, minute and second only"
            )
        if self.type != "time":
            time_format(self.format)
        if self.type == "date" and not only_date(self.format):
            raise ValueError(
                f"column {self.name!r}: the format {self.format!r} reads more than a date: give the column "
                "the type timestamp, or write a format with year, month and day only"
            )
        if self.separator is not None and self.type not in LIST_TYPES:
            raise ValueError(
                f"column {self.name!r}: `separator` divides the elements of a list, but the type is "
                f"{self.type}: remove `separator`, or give the column the type list<int> or list<string>"
            )
        return self


def operator_type(column: Column) -> OperatorType:
    """Returns the type that the values of a raw column have in operators.

    A bool is an int (0 or 1), a date an int (days since 1970-01-01), a timestamp an int (µs since 1970-01-01
    00:00 UTC), and a decimal a float.
    """
    return _OPERATOR_TYPES[column.type]


class RawTable(Strict):
    """The location, format and columns of raw files."""

    path: RawLocation = Field(
        description="Path or URI of the files. It may contain globs. `{lake}` and `{data}` are replaced by "
        "the values of these keys. If the files are stored by day, write `{date}` for the day (YYYY-MM-DD), "
        "or another notation, such as `{date:%Y%m%d}`. A path may have the parts of a day in several places: "
        "`{date:%Y}/{date:%m}/{date:%d}`. Text files whose names end in .gz, .bz2 or .zst are decompressed."
    )
    format: Format = Field(
        description="A reader from another package has the name of its entry point (docs/extending.md).",
        json_schema_extra=_describe_formats,
    )
    separator: Separator | None = Field(
        default=None,
        description="Character between two fields of a line; `\\t` is a tab. Null: a comma for `csv`, a tab "
        "for `tsv` and `displays`. Only for these formats.",
    )
    null_values: NullValues = Field(
        default=[""],
        description="Strings that stand for null in every column of text files, even if they are in quotes "
        'there. An empty field is always null. Write each string in quotes, such as `["", "\\\\N", "NULL"]`.',
    )
    decimal_separator: DecimalSeparator = Field(
        default=POINT,
        description="Character before the decimals of a number in text files. `.`: numbers such as 1234.50. "
        "`,`: numbers such as 1234,50 or 1.234,50, in which points may separate groups of three digits; a "
        "number with a point and no comma, such as 12.5 or 1.234, is rejected, because it is ambiguous. In "
        "JSON lines, such a number is read as 12.5 or 1.234.",
    )
    encoding: Encoding = Field(
        default=UTF8,
        description="Encoding of text files. `utf-8`: also ASCII. `windows-1252`: used by many exports of "
        "Excel and other programs in Western Europe; also reads Latin-1. A byte order mark of UTF-8 is "
        "ignored.",
    )
    time_zone: TimeZone = Field(
        default=UTC,
        description="Time zone in which dates, and times without an offset, are interpreted: a name of the "
        "IANA database, such as Europe/Berlin. If a time occurs twice because clocks are set back, the first "
        "of the two is used. A time that clocks skip is moved forward by the length of the gap. In the "
        "section `log`, it is also the time zone in which a day of `{date}` begins and ends, for the check "
        "of `quality.max_misdated_share`.",
    )
    max_expansion: float = Field(
        default=MAX_EXPANSION,
        ge=1,
        description="The largest allowed size of a decompressed text file, or of the Avro blocks of a "
        "task, as a multiple of the compressed size. If it is larger, the job ends with exit code 3. Sizes "
        "up to 256 MiB are always allowed.",
    )
    columns: list[Column] = Field(
        description="The columns. With `tsv` and `displays`, list all columns, in their order. With all "
        "other formats, list only the columns to read, in any order."
    )

    @model_serializer(mode="wrap")
    def _without_defaults(
        self, values_of: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        """Dumps newer settings only if they are not default, so upgrades keep the digest of the section."""
        return without_defaults(values_of(self), {"decimal_separator": POINT, "encoding": UTF8}, info)

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
    def _fitting_format(self) -> RawTable:
        if self.format == SPARK_TABLE:
            split_table_path(self.path)
        if self.separator is not None and not format_settings(self.format).is_separated:
            raise ValueError(
                f"separator divides the fields of text files, but the format is {self.format}: remove it"
            )
        if self.null_values != [""] and not format_settings(self.format).has_null_values:
            raise ValueError(
                "null_values are strings that stand for null in text files, but the format is "
                f"{self.format}, whose files store nulls: remove null_values"
            )
        if self.decimal_separator != POINT and not format_settings(self.format).has_null_values:
            raise ValueError(
                f"decimal_separator says how text files write numbers, but the format is {self.format}, "
                "whose files do not store numbers as text: remove decimal_separator"
            )
        if self.encoding != UTF8 and not format_settings(self.format).is_text:
            raise ValueError(f"encoding is only for text files, but the format is {self.format}: remove it")
        if self.decimal_separator == self.field_separator and format_settings(self.format).is_positional:
            raise ValueError(
                f"decimal_separator and separator are both a comma. Fields of {self.format} files have no "
                "quotes, so a number with a comma would become two fields: correct one of the two"
            )
        for column in self.columns:
            if (
                column.type in LIST_TYPES
                and self.field_separator in column.element_separator
                and format_settings(self.format).is_positional
            ):
                raise ValueError(
                    f"column {column.name!r}: the `separator` of its elements, {column.element_separator!r}, "
                    f"contains the separator of the fields, {self.field_separator!r}; choose another "
                    "`separator` for the elements"
                )
        return self

    @model_validator(mode="after")
    def _unique(self) -> RawTable:
        optional = [column.name for column in self.columns if column.optional]
        if optional and format_settings(self.format).is_positional:
            raise ValueError(
                f"columns {optional} are optional, but the columns of {self.format} files have no names: "
                "remove `optional`, or use the format csv or parquet"
            )
        names = [column.name for column in self.columns]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"columns appear twice: {repeated}; remove or rename one of the two")
        unfit = [name for name in names if not fits_column(name)]
        if unfit:
            proposal = unfit[0].strip("_*").replace(".", "_").replace("`", "")
            raise ValueError(
                f"columns names {unfit}: a name must not be empty or '*', must not contain a dot or a "
                "backtick, and must not begin with an underscore; write another name as `name`, and the "
                f"name in the raw files as `source`: {{name: {proposal or 'other'}, source: '{unfit[0]}'}}"
            )
        return self

    @property
    def names(self) -> list[str]:
        """Returns the names of the columns."""
        return [column.name for column in self.columns]

    @property
    def types(self) -> dict[str, OperatorType]:
        """Maps the name of each column to the type of its values in operators (`operator_type`)."""
        return {column.name: operator_type(column) for column in self.columns}

    def type_of(self, name: str) -> ColumnType:
        """Returns the declared type of a column, which must exist."""
        return next(column.type for column in self.columns if column.name == name)

    @property
    def field_separator(self) -> str:
        """Returns the character between fields: `separator`, or the default of the format if it is null."""
        if self.separator is not None:
            return self.separator
        return "," if self.format == "csv" else "\t"

    def require_present(self, where: str, names: Sequence[str]) -> None:
        """Raises ValueError if one of the columns is optional. `where` is the key that names the columns."""
        for column in self.columns:
            if column.name in names and column.optional:
                raise ValueError(
                    f"{where} names the column {column.name!r}, without which no row can be used: remove "
                    "`optional` from this column"
                )

    def require_types(
        self,
        where: str,
        names: Sequence[str],
        types: Sequence[str],
        otherwise: str = "",
        section: str = "log",
    ) -> None:
        """Raises ValueError if one of the columns has a type that is not in `types`.

        `where` is the key that names the columns. `otherwise` is appended to the message: further advice,
        such as how to declare a time. `section` is the section of the table, for the message.
        """
        for column in self.columns:
            if column.name in names and column.type not in types:
                raise ValueError(
                    f"{where} names the column {column.name!r}, which has the type {column.type}: give it "
                    f"the type {' or '.join(types)} in {section}.columns{otherwise}"
                )


class TableOfRoles(RawTable):
    """A table whose columns are named by keys of its section, such as the key for the id of the item.

    `columns` declares the types of these columns. A column that is not in `columns` has a default type.
    """

    columns: list[Column] = Field(
        default=[],
        description="Types of the columns that other keys of this section name. A column that is not listed "
        "has the same name in the files. With `tsv` and `displays`, list all columns, in their order.",
    )

    @property
    def roles(self) -> list[str]:
        """Returns the names of the columns to read."""
        raise NotImplementedError("internal error, please report: this table has no roles")

    @model_validator(mode="after")
    def _declared(self) -> TableOfRoles:
        names = self.names
        if format_settings(self.format).is_positional:
            if missing := [name for name in self.roles if name not in names]:
                raise ValueError(
                    f"`columns` lacks {missing}: the columns of {self.format} files have no names, so list "
                    "all of them in `columns`, in their order"
                )
        elif unread := [name for name in names if name not in self.roles]:
            raise ValueError(f"`columns` lists {unread}, which are not read: remove them")
        return self

    @model_serializer(mode="wrap")
    def _without_defaults(
        self, values_of: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        """Dumps newer settings only if they are not default, so upgrades keep the digest of the section."""
        new = {
            "separator": None,
            "null_values": [""],
            "decimal_separator": POINT,
            "encoding": UTF8,
            "time_zone": UTC,
            "columns": [],
            "max_expansion": MAX_EXPANSION,
        }
        return without_defaults(values_of(self), new, info)

    def typed(self, defaults: Mapping[str, ColumnType]) -> tuple[RawTable, dict[str, str]]:
        """Returns a copy that declares all columns to read, and maps each column to its name in the copy.

        A column gets another name if `columns` does not declare it and its own name is not allowed there.

        Args:
            defaults: maps the name of a column to its default type, which is used if `columns` does not
                declare the column. It contains all columns that the caller reads.
        """
        declared = {column.name: column for column in self.columns}
        columns = list(self.columns) if format_settings(self.format).is_positional else []
        names = {}
        for index, (name, kind) in enumerate(defaults.items()):
            column = declared.get(name)
            if column is None:
                plain = name if _fits_everywhere(name) else f"column-{index}"
                column = Column(name=plain, type=kind, source=name)
            names[name] = column.name
            if column not in columns:
                columns.append(column)
        fields = {key: getattr(self, key) for key in RawTable.model_fields if key != "columns"}
        return RawTable(**fields, columns=columns), names


def _fits_everywhere(name: str) -> bool:
    """Returns whether a column's name in the files can also be its name in the configuration."""
    try:
        return fits_column(column_name(name))
    except ValueError:
        return False


_LEAST_WEIGHT, _MOST_WEIGHT = 1e-6, 1e6

# The reason for leaving out rows whose event `log.label` does not list. These rows are not quarantined.
OTHER_EVENT = "other_event"


def _event(value: Any) -> Any:
    """Returns an event as a string. The configuration may also contain an event as an integer."""
    if isinstance(value, bool) or value is None or isinstance(value, float):
        raise ValueError(
            f"{value!r} is neither a string nor an integer; write it in quotes if it is the name of an event"
        )
    return str(value) if isinstance(value, int) else value


def _event_weight(weight: float) -> float:
    """Checks that a weight, which is stored as a float32, is above 0 and finite."""
    if not _LEAST_WEIGHT <= weight <= _MOST_WEIGHT:
        raise ValueError(f"a weight must be from {_LEAST_WEIGHT:g} to {_MOST_WEIGHT:g}")
    return weight


Event = Annotated[str, BeforeValidator(_event, json_schema_input_type=str | int)]
EventWeight = Annotated[float, AfterValidator(_event_weight)]


class Label(Strict):
    """The column that says whether a row is a click.

    Leave the section out if every row is a click, as in a log of purchases or of songs that were played. The
    column contains one of three kinds of values: 0 or 1; a number, such as a rating, that is compared with
    `positive_at_least`; or an event, such as view, cart or purchase. For events, `positive` lists the events
    that are clicks, and `weights` sets the weight of the rows of each event.
    """

    column: str | None = Field(
        default=None,
        description="Column of the log with the label. Null: every row is a click. This needs the section "
        "`keys`.",
    )
    positive_at_least: float | None = Field(
        default=None,
        description="A row is a click if the value in the column is at least this number. Null: the column "
        "must hold 0 or 1, unless `positive` is set.",
    )
    positive: list[Event] | None = Field(
        default=None,
        min_length=1,
        description="The events that are clicks: values of the column, which must have the type string or "
        "int. The rows of other events have label 0. A row without an event is quarantined. Null: the column "
        "holds numbers.",
    )
    weights: dict[Event, EventWeight] | None = Field(
        default=None,
        min_length=1,
        description="Maps events to the weight of their rows, from 1e-6 to 1e6, such as {view: 0.1, cart: "
        "0.5, purchase: 1}. An event that is not in `positive` has label 0 and this weight. An event of "
        "`positive` that is missing here has the weight 1. Rows of all other events are left out (see "
        "`other_events`). Training losses and the sources `popular` and `als` use the weights "
        "(docs/training.md, docs/candidates.md). Null: all rows have the same weight, and none is left "
        "out.",
    )
    other_events: Literal["drop", "refuse"] = Field(
        default="drop",
        description="If `weights` is set, what happens to rows whose event is not listed in `positive` or "
        "`weights`. `drop`: they are left out, and counted under the reason `other_event`. `refuse`: they "
        "are quarantined with the reason `event:<column>`.",
    )
    rows_without_value: Literal["quarantine", "not_clicked"] = Field(
        default="quarantine",
        description="What happens to rows whose value in the column is empty. `quarantine`: they are errors, "
        "which count for `quality.max_bad_share`. `not_clicked`: they have label 0, as in a log that writes "
        "only clicks into the column. Not allowed with `weights`.",
    )

    @model_serializer(mode="wrap")
    def _without_defaults(
        self, values_of: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        """Dumps newer settings only if they are not default, so upgrades keep the digest of the section."""
        return without_defaults(values_of(self), {"rows_without_value": "quarantine"}, info)

    @model_validator(mode="after")
    def _one_rule(self) -> Label:
        rules = ("positive_at_least", "positive", "weights")
        ruled = [key for key in rules if getattr(self, key) is not None]
        if self.column is None and ruled:
            raise ValueError(f"{ruled} apply to the values of a column: set `column` to its name")
        if self.rows_without_value == "not_clicked" and (self.column is None or self.weights is not None):
            raise ValueError(
                "rows_without_value=not_clicked needs `column`, and rows without an event have no weight: "
                "set `column`, and remove `weights`"
            )
        if self.positive is None:
            if self.weights is not None:
                raise ValueError(
                    "weights belong to events: name the events that are clicks in `positive`, or remove "
                    "`weights`"
                )
        elif self.positive_at_least is not None:
            raise ValueError(
                "positive_at_least compares numbers, and positive names events: remove one of the two"
            )
        repeated = sorted({event for event in self.positive or () if (self.positive or []).count(event) > 1})
        if repeated:
            raise ValueError(f"positive names {repeated} twice: name each event once")
        if self.other_events == "refuse" and self.weights is None:
            raise ValueError(
                "other_events=refuse needs `weights`: without weights, all events that are not in "
                "`positive` have label 0. Set `weights`, or remove `other_events`"
            )
        return self

    @property
    def is_only_clicks(self) -> bool:
        """Returns whether every row is a click. This is true if the log has no column with a label."""
        return self.column is None

    @property
    def event_weights(self) -> dict[str, float]:
        """Returns the weight of each event in `positive` or in `weights`."""
        return {**dict.fromkeys(self.positive or (), 1.0), **(self.weights or {})}


# The remedy for times that are stored as strings.
DECLARE_TIME = (
    "declare the column as a time: `type: timestamp` reads ISO 8601 such as 2026-01-31T13:45:00Z; for "
    'another notation also set `format`, such as `format: "%d/%m/%Y %H:%M:%S"`; for times without an offset '
    "set log.time_zone, such as Europe/Berlin; whole numbers need `type: int` and log.event_time.unit"
)


class EventTime(Strict):
    """The column with the time of an event.

    The column has the type timestamp, date, or int. A date is the beginning of this day in `log.time_zone`,
    or a time on this day if `time_of_day` is set. An int is counted from 1970-01-01 00:00 UTC, in `unit`.
    """

    column: str = Field(description="Column of the log with the time.")
    time_of_day: str | None = Field(
        default=None,
        description="Column of type `time`, for a log that has the date and the time of day in two columns. "
        "`column` must then have the type date. Both are interpreted in `log.time_zone`. Null: one column "
        "has the whole time.",
    )
    unit: Literal["s", "ms", "us", "ns"] = Field(
        default="s",
        description="Unit of a column of type int. `s`: seconds. `ms`: milliseconds. `us`: microseconds. "
        "`ns`: nanoseconds, which are rounded down to microseconds. It has no effect on columns of type "
        "timestamp and date: a Parquet timestamp contains its unit. A Parquet timestamp without a time zone "
        "is interpreted in `log.time_zone`.",
    )

    @model_serializer(mode="wrap")
    def _without_defaults(
        self, values_of: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        """Dumps newer settings only if they are not default, so upgrades keep the digest of the section."""
        return without_defaults(values_of(self), {"time_of_day": None}, info)

    @property
    def columns(self) -> list[str]:
        """Returns the columns in this section: the time, and the time of day if there is one."""
        return [self.column, *([self.time_of_day] if self.time_of_day else [])]


class Log(RawTable):
    """The click log.

    Without `event_time`, the order of the rows must be their order in time: first by file name, then by the
    position in the file.
    """

    label: Label = Field(
        default=Label(),
        description="The column that says whether a row is a click. If it is left out, every row is a click.",
    )
    event_time: EventTime | None = Field(
        default=None, description="The column with the time of the event. Null: the log has no such column."
    )

    @property
    def by_day(self) -> bool:
        """Returns whether the files of the log are stored by day: its path contains `{date}`."""
        return has_date(self.path)


class Keys(Strict):
    """The raw columns that identify a user, an item and, if the log has such a column, a group of rows."""

    user: str = Field(description="Column with the key of the user.")
    item: str = Field(description="Column with the key of the item.")
    group: str | None = Field(
        default=None,
        description="Column that identifies a group. The rows of a group competed for one click, such as "
        "the ads of one display. With this key, evaluate_model also measures the ranking in each group. "
        "Null: there are no groups.",
    )
    rows_without_user: Literal["quarantine", "leave_out"] = Field(
        default="quarantine",
        description="What happens to rows whose user is empty, such as those of anonymous visitors. "
        "`quarantine`: they are errors, which count for `quality.max_bad_share`. `leave_out`: they are "
        "neither used nor quarantined, but counted under the reason `missing_key:<column>`.",
    )

    @model_serializer(mode="wrap")
    def _without_defaults(
        self, values_of: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        """Dumps newer settings only if they are not default, so upgrades keep the digest of the section."""
        return without_defaults(values_of(self), {"rows_without_user": "quarantine"}, info)

    @model_validator(mode="after")
    def _differ(self) -> Keys:
        if self.item == self.user:
            raise ValueError(
                f"item={self.item!r} is also the column of `user`: users and items need different columns"
            )
        return self

    @property
    def columns(self) -> list[str]:
        """Returns the columns in this section: user, item and, if there is one, group."""
        return [self.user, self.item, *([self.group] if self.group else [])]


class JoinedTable(RawTable):
    """A table of attributes of users or of items.

    The table is joined with the log by the column `keys.user` or `keys.item`.
    """


class ItemsTable(JoinedTable):
    """A table of attributes of items, which may be the catalogue of what can be recommended."""

    missing: Literal["serve", "leave_out"] = Field(
        default="leave_out",
        description="What happens to items of the log that have no row in this table. `leave_out`: the table "
        "is the catalogue, so these items are not recommended. `serve`: they are recommended too, with null "
        "attributes. Users without a row in the table of users always get lists.",
    )
    title: str | None = Field(
        default=None,
        description="Column of type string with the name of an item for people. The report, `show` and CSV "
        "files show this name beside the item's id. The column is a feature only if `features` names it. "
        "Null: only ids are shown.",
    )
    image: str | None = Field(
        default=None,
        description="Column of type string with the address of an item's picture. Null: no pictures.",
    )

    @model_validator(mode="after")
    def _columns_of_people(self) -> ItemsTable:
        for key, name in (("title", self.title), ("image", self.image)):
            if name is not None and self.types.get(name) != "string":
                raise ValueError(f"{key}={name!r} is not a column of type string in `columns`: add it there")
        return self
