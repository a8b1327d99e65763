"""The typed configuration of lists: the items that are scored for each user, and business rules.

The candidate stage and its sources choose the items. Business rules change the lists after the ranking.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    SerializationInfo,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    model_serializer,
    model_validator,
)
from pydantic import SerializerFunctionWrapHandler as Handler
from pydantic_core import CoreSchema, core_schema

from conf.feature_types import SPLITS, Split
from conf.names import SPARK_TABLE, PlainText, RawLocation
from conf.plugins import RULE, SOURCE
from conf.raw_types import (
    POINT,
    UTF8,
    Days,
    Event,
    PositiveInt,
    RawTable,
    Strict,
    TableOfRoles,
    without_defaults,
)
from conf.train_types import ModelConfig

# The base classes of the settings of candidate sources, and the type of an entry of `candidates.sources`.
#
# Sources are found by name (scoring/candidates/sources). The settings of the checkout's sources are checked
# when the configuration is read. If a source is from another package, the package's own type checks its
# settings.


class SourceSettings(Strict):
    """Base of the settings of all sources.

    Attributes:
        every_item: whether the source proposes every item. Such a source cannot be combined with other
            sources, and returns null instead of a list of all items.
    """

    every_item: ClassVar[bool] = False
    source: str = Field(description="Name of the source.")

    @property
    def name(self) -> str:
        """Returns the name of the source in messages and tables. Two sources must not have the same name."""
        return self.source

    @property
    def segments(self) -> list[str]:
        """Returns the user features or columns of user_attributes whose values divide users into segments."""
        return []


class WindowedSource(SourceSettings):
    """Base of the settings of sources that count the clicks in a window of days."""

    n: PositiveInt = Field(default=100, description="Largest number of items of this source for a user.")
    window_days: Days | None = Field(
        default=None,
        description="Number of days, up to and including the run date, whose clicks are counted. With a "
        "split.by other than day, the last of these days is that of the last row of `splits`. Clicks on days "
        "of other splits are not counted. If there is no click on the counted days, build_candidates ends "
        "with exit code 3. Null: the clicks of all days of `splits` are counted.",
    )


class ModelSource(SourceSettings):
    """Base of the settings of a source with a model."""

    n: PositiveInt = Field(default=200, description="Largest number of items of this source for a user.")
    model: ModelConfig | None = Field(
        default=None,
        description="The model, which train_retriever trains. Its architecture must have vectors of users "
        "and items. Write a section with the keys of `model`, or the name of a model file. Null: the model "
        "that ranks the lists also retrieves, and no other model is trained.",
    )


class PackageSource(SourceSettings):
    """A source from another package (docs/extending.md), with its settings.

    All keys except those below are settings of the source. Every job checks these settings when it starts.
    """

    model_config = ConfigDict(extra="allow")

    source: str = Field(description="Name of an entry point of the group `nightrank.candidate_sources`.")
    n: PositiveInt = Field(default=100, description="Largest number of items of this source for a user.")
    window_days: Days | None = Field(
        default=None,
        description="Number of days, up to and including the run date, whose rows are passed to the "
        "source. With a split.by other than day, the last of these days is that of the last row of `splits`. "
        "Rows on days of other splits are not passed. Null: the rows of all days of `splits` are passed.",
    )

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the settings that are not checked here, but by the package that defines the source."""
        return dict(self.model_extra or {})


def window_days(source: SourceSettings) -> int | None:
    """Returns the number of days whose rows a source counts; None if it counts the rows of all days."""
    days: int | None = getattr(source, "window_days", None)
    return days


def built_in_sources() -> dict[str, type[SourceSettings]]:
    """Maps the name of each source of the checkout to the type of its settings."""
    return {one.name: one.settings(SourceSettings) for one in SOURCE.plugins()}


def _require_known(values: Any) -> Any:
    """Raises ValueError if no source of the checkout or of an installed package has this name."""
    name = values.get("source") if isinstance(values, dict) else getattr(values, "source", None)
    if name is None:
        raise ValueError("a source needs the key `source` with its name, such as {source: popular}")
    if not isinstance(name, str) or SOURCE.find(name) is None:
        raise ValueError(f"source={name!r} does not exist; known: {SOURCE.names()}")
    return values


def _read(values: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Validates an entry of `candidates.sources` with the settings class of its source."""
    if isinstance(values, SourceSettings):
        return values
    plugin = SOURCE.get(values["source"])
    if plugin.package is not None:
        return _tagged(PackageSource, "package").validate_python(values)
    return _tagged(plugin.settings(SourceSettings), plugin.name).validate_python(values)


@lru_cache(maxsize=32)
def _tagged(kind: type[SourceSettings], tag: str) -> TypeAdapter[SourceSettings]:
    """Returns a pydantic adapter for one candidate source. Errors contain the source's index and `tag`."""

    def schema(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.tagged_union_schema({tag: handler(source)}, lambda values: tag)

    tagged: Any = Annotated[kind, GetPydanticSchema(schema)]
    return TypeAdapter(tagged)


Source = Annotated[SerializeAsAny[SourceSettings], WrapValidator(_read), BeforeValidator(_require_known)]


# The typed configuration of the candidate stage: which items are scored for each user.


class UserAttributes(RawTable):
    """A table of user attributes, one row per user, which segments and filters use."""

    key: str = Field(description="Column with the key of the user.")

    @model_validator(mode="after")
    def _has_its_key(self) -> UserAttributes:
        _require_columns(self, [self.key])
        return self


class NotAllowed(RawTable):
    """A table of items that must not be shown to users with a certain value of an attribute."""

    filter: Literal["not_allowed"] = Field(description="Excludes items by an attribute of the user.")
    item: str = Field(description="Column of this table with the key of the item.")
    value: str = Field(
        description="Column of this table with the value that is compared with the user's attribute."
    )
    attribute: str = Field(description="Column of `user_attributes` with the user's attribute.")
    rule: Literal["deny", "allow", "at_least"] = Field(
        description="`deny`: a row (item, value) excludes the item for users with that value. `allow`: if "
        "the table has rows of an item, only users with one of these values may get the item. "
        "`at_least`: the user's number must be at least the item's number. For a user without a value, "
        "`allow` and `at_least` exclude the items of the table, and `deny` excludes none."
    )

    @property
    def name(self) -> str:
        """Returns the name of the filter in messages and tables."""
        return f"{self.filter} by {self.attribute}"

    @model_validator(mode="after")
    def _has_its_columns(self) -> NotAllowed:
        _require_columns(self, [self.item, self.value])
        kind = self.types[self.value]
        if self.rule == "at_least" and kind not in ("int", "float"):
            raise ValueError(
                f"value={self.value!r} is a {kind} column, but rule=at_least compares numbers: give the "
                "column the type int or float, or use rule=allow or rule=deny"
            )
        return self


class OutOfStock(RawTable):
    """A table of items that must not be shown to any user, or a table of items with their stock."""

    filter: Literal["out_of_stock"] = Field(description="Excludes the items of this table for all users.")
    item: str = Field(description="Column of this table with the key of the item.")
    stock: str | None = Field(
        default=None,
        description="Column of this table with the stock of the item. Items with 0, a negative number, false "
        "or one of the strings in `sold_out` are excluded. An item without a value is not excluded. Null: "
        "all items of the table are excluded.",
    )
    sold_out: list[str] = Field(
        default=[],
        description="Values of the column `stock` that mean that the item is out of stock, such as [sold "
        "out]. Only for a column of type string.",
    )

    @property
    def name(self) -> str:
        """Returns the name of the filter in messages and tables."""
        return self.filter

    @model_serializer(mode="wrap")
    def _without_defaults(
        self, values_of: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        """Dumps newer settings only if they are not default, so upgrades keep the digest of the section."""
        new: dict[str, Any] = {"stock": None, "sold_out": [], "decimal_separator": POINT, "encoding": UTF8}
        return without_defaults(values_of(self), new, info)

    @model_validator(mode="after")
    def _has_its_columns(self) -> OutOfStock:
        _require_columns(self, [self.item, *([self.stock] if self.stock else [])])
        kind = self.types[self.stock] if self.stock else None
        if kind in ("ints", "strings"):
            raise ValueError(
                f"stock={self.stock!r} is a column of lists: give it the type int, float, bool or string"
            )
        if kind == "string" and not self.sold_out:
            raise ValueError(
                f"stock={self.stock!r} is a column of type string: list the strings that mean out of stock "
                "in `sold_out`"
            )
        if kind != "string" and self.sold_out:
            raise ValueError(
                f"sold_out={self.sold_out} lists strings, but stock={self.stock!r} is not a column of type "
                "string: remove sold_out, or give the column the type string"
            )
        return self


Filter = Annotated[NotAllowed | OutOfStock, Field(discriminator="filter")]

# The items in a user's rows that may be offered to the user again: none, items without a click, items without
# an event of `exclude_events`, or all.
Repeats = Literal["none", "unclicked", "without_event", "all"]


def _every_item() -> list[SourceSettings]:
    """Returns the sources of a configuration without the key `candidates.sources`."""
    adapter: TypeAdapter[SourceSettings] = TypeAdapter(Source)
    return [adapter.validate_python({"source": "all_items"})]


class Candidates(Strict):
    """The items that are scored for each user. The sources propose them, in the order of `sources`.

    If several sources propose the same item to a user, it counts as an item of the first of these sources.
    """

    sources: Annotated[list[Source], Field(min_length=1)] = Field(
        default_factory=_every_item,
        description="The sources of candidates, in order. Each source gives a user at most `n` items, not "
        "counting the items that are excluded for the user.",
    )
    max: PositiveInt | None = Field(
        default=None, description="Largest number of candidates of a user over all sources. Null: no limit."
    )
    splits: Annotated[list[Split], Field(min_length=1)] = Field(
        default=["train"],
        description="Splits whose clicks the sources count: `train`, `validation` and `test`, or some of "
        "them. `active_days` examines the rows of the same splits.",
    )
    active_days: Days | None = Field(
        default=None,
        description="An item can be a candidate only if it has a row (shown or clicked) on one of the last "
        "`active_days` days. The last of these days is the run date or, with a split.by other than day, the "
        "day of the last row of `splits`. Null: items need no such row.",
    )
    exclude_clicked: list[Split] = Field(
        default=list(SPLITS),
        description="Splits whose rows exclude their items for the user of the row: `train`, `validation` "
        "and `test`, or some of them. `repeats` decides which of these rows exclude their item. Empty: no "
        "row excludes its item.",
    )
    repeats: Literal["auto", "none", "unclicked", "all"] = Field(
        default="auto",
        description="Which items of a user's rows in the splits of `exclude_clicked` may be offered to the "
        "user again. `none`: no item. `unclicked`: items that the user was shown but did not click. `all`: "
        "every item, for logs in which users choose the same items again. `auto`: `none` if the log records "
        "only what users chose (`negatives` or `log.label.positive_at_least` is set, or `log.label` is left "
        "out), otherwise `unclicked`. "
        "With `log.label.positive`, rows of other events count as shown and not clicked.",
    )
    exclude_events: Annotated[list[Event], Field(min_length=1)] | None = Field(
        default=None,
        description="Events of `log.label.weights`, such as [purchase]. Only rows of these events exclude "
        "their item for the user. So items that the user only viewed may be offered again. The weight of "
        "each of these events must differ from the weights of all other events. Null: `repeats` decides.",
    )
    user_attributes: UserAttributes | None = Field(
        default=None, description="Table of user attributes for segments and filters. Null: none."
    )
    filters: list[Filter] = Field(
        default=[], description="Tables that exclude items from lists, in addition to `exclude_clicked`."
    )

    @model_serializer(mode="wrap")
    def _without_defaults(
        self, values_of: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        """Dumps newer settings only if they are not default, so upgrades keep the digest of the section."""
        return without_defaults(values_of(self), {"exclude_events": None}, info)

    @property
    def retrieval(self) -> ModelSource | None:
        """Returns the source `retrieval`, which has a model; None if the sources do not include it."""
        return next((source for source in self.sources if isinstance(source, ModelSource)), None)

    @property
    def retriever(self) -> ModelConfig | None:
        """Returns the model that train_retriever trains; None if no source has a model of its own."""
        return self.retrieval.model if self.retrieval is not None else None

    @property
    def counts_days(self) -> dict[str, int]:
        """Returns the number of days of each window, by the key that sets it, such as `active_days`.

        Only keys that are set are included. If one of them is set, each row of the log must have a date.
        """
        limits = {f"sources.{source.name}.window_days": window_days(source) for source in self.sources}
        limits["active_days"] = self.active_days
        return {name: days for name, days in limits.items() if days}

    @model_validator(mode="after")
    def _fits_together(self) -> Candidates:
        if self.exclude_events is not None and self.repeats != "auto":
            raise ValueError(
                f"exclude_events and repeats={self.repeats} contradict each other: remove one of the two"
            )
        if self.exclude_events is not None and not self.exclude_clicked:
            raise ValueError(
                "exclude_events has no effect, because exclude_clicked is empty, so that no row excludes its "
                "item: remove one of the two"
            )
        names = [source.name for source in self.sources]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"sources contains {repeated} twice: remove one of the two")
        every = [source.name for source in self.sources if source.every_item]
        if every and (len(names) > 1 or self.max is not None):
            raise ValueError(
                f"sources: {every[0]} offers every item to every user, so remove the other sources and the "
                "key `max`"
            )
        filters = [rule.name for rule in self.filters]
        again = sorted({name for name in filters if filters.count(name) > 1})
        if again:
            raise ValueError(f"filters contains {again} twice: merge the two tables into one")
        for rule in self.filters:
            if isinstance(rule, NotAllowed):
                self._require_attribute(rule)
        return self

    def _require_attribute(self, rule: NotAllowed) -> None:
        known = self.user_attributes
        if known is None or rule.attribute not in known.names:
            raise ValueError(
                f"filters: attribute={rule.attribute!r} is not a column of user_attributes "
                f"({known.names if known else 'which is missing'}): add the column there"
            )
        kind = known.types[rule.attribute]
        if rule.rule == "at_least" and kind not in ("int", "float"):
            raise ValueError(
                f"filters: attribute={rule.attribute!r} is a {kind} column of user_attributes, but "
                "rule=at_least compares numbers: give the column the type int or float"
            )


def _require_columns(table: RawTable, names: list[str]) -> None:
    missing = [name for name in names if name not in table.names]
    if missing:
        raise ValueError(
            f"columns must contain {missing}, but contains only {table.names}: declare the missing columns"
        )


# The typed configuration of business rules, which change lists after the ranking.

# Rules that dumps contain as null if they are not configured, because earlier releases computed the digest of
# the section with these nulls.
_DUMPED_AS_NULL = ("boost", "exploration", "max_per_category")


class Attribute(TableOfRoles):
    """An attribute of items, from a table with one row per item.

    If an item is not in the table, or if its value is null, no rule on the attribute applies to the item.
    The format `spark_table` is refused. Rules compare values as strings: a bool is `true` or `false`, a date
    is written as 2026-01-31, and a number without a fraction as 7.
    """

    path: RawLocation = Field(
        description="Path or URI of the files, or of a folder of files. It may contain globs, `{data}`, "
        "`{lake}` and `{date}` (or `{date:%Y%m%d}`). Text files whose names end in .gz, .bz2 or .zst are "
        "decompressed."
    )
    key: PlainText = Field(
        description="Column with the id of the item, as in the log. It is a `string`, unless `columns` gives "
        "it the type int."
    )
    column: PlainText = Field(
        description="Column with the value of the attribute. It is a `string`, unless `columns` gives it "
        "another type."
    )

    @property
    def roles(self) -> list[str]:
        """Returns the columns of the table that are read: the item's id, and the value of the attribute."""
        return list(dict.fromkeys([self.key, self.column]))

    @model_validator(mode="after")
    def _types_fit(self) -> Attribute:
        where = "score.rules.attributes"
        if self.format == SPARK_TABLE:
            raise ValueError(
                f"{where} cannot read tables of Spark's catalogue: write the attribute to Parquet files, and "
                "set `format: parquet`"
            )
        self.require_types(where, [self.key], ("string", "int"), section=where)
        self.require_types(
            where, [self.column], ("string", "int", "float", "decimal", "bool", "date"), section=where
        )
        return self


class RuleSettings(Strict):
    """Base of the settings of rules.

    Attributes:
        place: when the rule is applied. `first`: before all other rules. `middle`: in the order of the
            configuration. `last`: after all other rules.
        keeps_draws: whether exploration draws items with the same probabilities as it would without the rule.
    """

    place: ClassVar[Literal["first", "middle", "last"]] = "middle"
    keeps_draws: ClassVar[bool] = False

    @property
    def attributes_used(self) -> list[str]:
        """Returns the names of the attributes of `score.rules.attributes` that the rule needs."""
        return []


class AttributeRule(RuleSettings):
    """Base of the settings of rules that depend on an attribute of items."""

    attribute: str = Field(description="Name of an attribute in `attributes`.")

    @property
    def attributes_used(self) -> list[str]:
        """Returns the name of the only attribute that the rule needs, as a list."""
        return [self.attribute]


class ListRules(Strict):
    """Business rules, which change lists after the ranking.

    Each key other than `attributes` is the name of a rule, and its value has the settings of the rule.
    `boost` is applied first. Then come rules from other packages (docs/extending.md), in the order of the
    file. All these rules may change ranking scores and leave out items. `max_per_category` and `exploration`
    are applied last.
    """

    # pydantic accepts unknown keys here, because rules are found by name. The JSON schema lists the
    # checkout's rules.
    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": False})

    attributes: dict[str, Attribute] = Field(
        default={}, description="Maps a name to an attribute of items. Rules refer to it by this name."
    )

    @classmethod
    def annotation_of(cls, key: str) -> Any:
        """Returns the type of a key of `score.rules`; None for unknown keys and rules of other packages."""
        return super().annotation_of(key) or built_in_rules().get(key)

    @property
    def configured(self) -> dict[str, RuleSettings | dict[str, Any]]:
        """Returns the rules by name, in the order of the file.

        The settings of a rule from another package are a mapping that has not been checked yet.
        """
        declared = {name: getattr(self, name) for name in type(self).model_fields if name != "attributes"}
        named = {**declared, **(self.model_extra or {})}.items()
        return {
            name: {} if settings is None else settings
            for name, settings in named
            if settings is not None or name not in RULE.built_in()
        }

    @property
    def packages(self) -> list[str]:
        """Returns the names of the rules from other packages, in the order of the file."""
        return [name for name, settings in self.configured.items() if isinstance(settings, dict)]

    @model_validator(mode="before")
    @classmethod
    def _rules_exist(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        built_in = RULE.built_in()
        values = {name: rule for name, rule in values.items() if rule is not None or name not in built_in}
        names = [str(name) for name in values if name not in cls.model_fields]
        others = [name for name in names if name not in built_in]
        if unknown := [name for name in others if RULE.find(name) is None]:
            raise ValueError(f"the rules {unknown} do not exist; known: {RULE.names()}")
        if wrong := [name for name in others if not isinstance(values.get(name), dict | None)]:
            raise ValueError(f"the rules {wrong} need a section with their settings, such as {{weight: 2}}")
        ours = {name: values[name] for name in names if name in built_in}
        kinds = ((name, RULE.get(name).settings(RuleSettings)) for name in sorted(ours))
        typed = _section(tuple(kinds)).model_validate(ours)
        return {**values, **{name: getattr(typed, name) for name in ours}}

    @model_validator(mode="after")
    def _attributes_are_used(self) -> ListRules:
        used = {
            name
            for rule in self.configured.values()
            if isinstance(rule, RuleSettings)
            for name in rule.attributes_used
        }
        if unknown := sorted(used - set(self.attributes)):
            raise ValueError(
                f"attributes {unknown} are not defined: define them under `attributes`, or use one of "
                f"{sorted(self.attributes)}"
            )
        idle = sorted(set(self.attributes) - used)
        if idle and not self.packages:  # the packages check the settings of their rules later
            raise ValueError(f"no rule uses the attributes {idle}: remove them, or name them in a rule")
        if not self.configured:
            raise ValueError(
                "the section contains no rule: add `boost`, `max_per_category` or `exploration`, or remove "
                "the section"
            )
        return self

    @model_serializer(mode="wrap")
    def _with_nulls(self, values_of: Handler) -> dict[str, Any]:
        return {**dict.fromkeys(_DUMPED_AS_NULL), **values_of(self)}


def built_in_rules() -> dict[str, type[RuleSettings]]:
    """Maps the name of each rule of the checkout to the type of its settings."""
    return {one.name: one.settings(RuleSettings) for one in RULE.plugins()}


@lru_cache(maxsize=32)
def _section(kinds: tuple[tuple[str, type[RuleSettings]], ...]) -> type[BaseModel]:
    """Returns a type with one key for each rule in `kinds`; null means that a rule is not configured."""
    fields: dict[str, Any] = {name: (kind | None, None) for name, kind in kinds}
    return create_model("Rules", **fields)
