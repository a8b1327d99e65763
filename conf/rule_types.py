"""The typed configuration of business rules, which change lists after the ranking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, assert_never

from pydantic import ConfigDict, Field, model_validator

from conf.names import PlainText, RawLocation
from conf.plugins import RULE, Plugin
from conf.raw_types import PositiveInt, Seed, Strict, TableOfRoles
from conf.spark_tables import SPARK_TABLE

# Maps the keys of the section that no rule of another package may have to their modules.
_BUILT_IN: Mapping[str, str] = {
    "attributes": "conf.rule_types",
    "boost": "scoring.rules.boost",
    "exploration": "scoring.rules.exploration",
    "max_per_category": "scoring.rules.category",
}
_MOST_LOG_ODDS = 50  # moves any float32 probability past any other


class Attribute(TableOfRoles):
    """An attribute of items, from a table with one row per item.

    If an item is not in the table, or if its value is null, no rule on the attribute applies to the item.
    The format `spark_table` is refused. Rules compare texts: a bool is `true` or `false`, a date is written
    as 2026-01-31, and a number without a fraction as 7.
    """

    path: RawLocation = Field(
        description="Path or URI of the files, or of a folder of files. It may contain globs, `{data}`, "
        "`{lake}` and `{date}`. Text files whose names end in .gz, .bz2 or .zst are decompressed."
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


class Boost(Strict):
    """A rule that moves items up or down by the value of an attribute.

    The published scores are still the probabilities of the model.
    """

    attribute: str = Field(description="Name of an attribute in `attributes`.")
    by: Literal["factor", "log_odds"] = Field(
        default="factor",
        description="`factor`: for the ranking, the probability is multiplied by the number in `values`. "
        "`log_odds`: the number in `values` is added to the log-odds of the probability.",
    )
    values: Annotated[dict[str, Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1)] = Field(
        description="Maps each value of the attribute to its factor or log-odds. Items with other values are "
        "not moved."
    )

    @model_validator(mode="after")
    def _amounts_are_usable(self) -> Boost:
        if self.by == "factor":
            wrong = {name: value for name, value in self.values.items() if value <= 0}
            if wrong:
                raise ValueError(f"factors must be above 0: {wrong}; a factor below 1 moves items down")
        elif self.by == "log_odds":
            wrong = {name: value for name, value in self.values.items() if abs(value) > _MOST_LOG_ODDS}
            if wrong:
                raise ValueError(f"log-odds must be from -{_MOST_LOG_ODDS} to {_MOST_LOG_ODDS}: {wrong}")
        else:
            assert_never(self.by)
        return self


class MaxPerCategory(Strict):
    """A rule that limits how many items of a list have the same value of an attribute."""

    attribute: str = Field(description="Name of an attribute in `attributes`.")
    max: PositiveInt = Field(description="Largest number of items in a list that have the same value.")


class Exploration(Strict):
    """A rule that fills the last ceil(share × k) positions of a list with items drawn from other candidates.

    These are candidates of the user that the list would not contain otherwise. Items are drawn by a hash of
    seed, user, item and run date. So a rerun draws the same items, and other run dates draw other items.
    """

    share: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        description="Share of the k positions that get drawn items."
    )
    seed: Seed = Field(default=0, description="Seed of the draws.")


def rule_extension(name: str) -> Plugin | None:
    """Returns the extension of another package that adds the rule; None if there is none.

    Raises:
        ConfigError: two rules have the name of an installed extension.
    """
    return RULE.find_in_package(name, _BUILT_IN)


class ListRules(Strict):
    """Business rules, applied after the ranking in this order: boost, maximum per category, exploration.

    Other keys are names of rules of other packages (docs/extending.md), with their settings. These rules
    change ranking scores after the boost, and leave out items before the maximum per category.
    """

    # Editors know only the keys below.
    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": False})

    attributes: dict[str, Attribute] = Field(
        default={}, description="Maps a name to an attribute of items. Rules refer to it by this name."
    )
    boost: Boost | None = Field(
        default=None,
        description="Moves items up or down by the value of an attribute. Null: no item is moved.",
    )
    max_per_category: MaxPerCategory | None = Field(
        default=None,
        description="Limits the number of items in a list with the same value of an attribute. Null: no "
        "limit.",
    )
    exploration: Exploration | None = Field(
        default=None,
        description="Draws items for the last positions of a list. Null: no items are drawn.",
    )

    @property
    def packages(self) -> dict[str, dict[str, Any]]:
        """Returns the settings of each rule of another package by its name, in the order of the file."""
        return {name: dict(settings or {}) for name, settings in (self.model_extra or {}).items()}

    @model_validator(mode="before")
    @classmethod
    def _rules_exist(cls, values: Any) -> Any:
        names = [str(name) for name in values if name not in _BUILT_IN] if isinstance(values, dict) else []
        if unknown := [name for name in names if rule_extension(name) is None]:
            known = sorted({*RULE.names(_BUILT_IN)} - {"attributes"})
            raise ValueError(f"there are no rules {unknown}; known: {known}")
        if wrong := [name for name in names if not isinstance(values.get(name), dict | None)]:
            raise ValueError(f"the rules {wrong} need a section with their settings, such as {{weight: 2}}")
        return values

    @model_validator(mode="after")
    def _attributes_are_used(self) -> ListRules:
        used = {rule.attribute for rule in (self.boost, self.max_per_category) if rule is not None}
        if unknown := sorted(used - set(self.attributes)):
            raise ValueError(
                f"attributes {unknown} are not defined: define them under `attributes`, or use one of "
                f"{sorted(self.attributes)}"
            )
        if idle := sorted(set(self.attributes) - used):
            raise ValueError(f"no rule uses the attributes {idle}: remove them, or name them in a rule")
        if not used and self.exploration is None and not self.packages:
            raise ValueError(
                "the section contains no rule: add `boost`, `max_per_category` or `exploration`, or remove "
                "the section"
            )
        return self
