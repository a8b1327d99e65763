"""The typed configuration of business rules, which change lists after the ranking."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, model_serializer, model_validator
from pydantic import SerializerFunctionWrapHandler as Handler

from conf.names import PlainText, RawLocation
from conf.plugins import RULE
from conf.raw_types import Strict, TableOfRoles
from conf.spark_tables import SPARK_TABLE

# Keys whose value is null in dumps if the rule is not configured. Digests of earlier releases depend on
# this.
_DUMPED_AS_NULL = ("boost", "exploration", "max_per_category")


class Attribute(TableOfRoles):
    """An attribute of items, from a table with one row per item.

    If an item is not in the table, or if its value is null, no rule on the attribute applies to the item.
    The format `spark_table` is refused. Rules compare texts: a bool is `true` or `false`, a date is written
    as 2026-01-31, and a number without a fraction as 7.
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
        """Returns the columns that are read: the id of the item, and the value."""
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
        """Returns the name of the attribute."""
        return [self.attribute]


class ListRules(Strict):
    """Business rules, which change lists after the ranking.

    Each key other than `attributes` is the name of a rule, and its value has the settings of the rule.
    `boost` is applied first. Then come the rules of other packages (docs/extending.md), in the order of the
    file. All these rules may change ranking scores and leave out items. `max_per_category` and `exploration`
    are applied last.
    """

    # The rules are extra keys, because they are found by name. The JSON schema lists the checkout's rules.
    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": False})

    attributes: dict[str, Attribute] = Field(
        default={}, description="Maps a name to an attribute of items. Rules refer to it by this name."
    )

    @classmethod
    def annotation_of(cls, key: str) -> Any:
        """Returns the type of a key; None if it is unknown, or a rule of another package."""
        return super().annotation_of(key) or built_in_rules().get(key)

    @property
    def configured(self) -> dict[str, RuleSettings | dict[str, Any]]:
        """Returns the rules by name, in the order of the file.

        The settings of a rule of another package are a mapping that has not been checked yet.
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
        """Returns the names of the rules of other packages, in the order of the file."""
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
            raise ValueError(f"there are no rules {unknown}; known: {RULE.names()}")
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
    """Returns a type with one key for each of these rules; null means that a rule is not configured."""
    fields: dict[str, Any] = {name: (kind | None, None) for name, kind in kinds}
    return create_model("Rules", **fields)
