"""The typed configuration of business rules, which change lists after the ranking."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from conf.names import PlainText, RawLocation
from conf.raw_types import PositiveInt, Seed, Strict

_MOST_LOG_ODDS = 50  # moves any float32 probability past any other


class Attribute(Strict):
    """An attribute of items, from a table with one row per item.

    If an item is not in the table, or if its value is null, no rule on the attribute applies to the item.
    """

    path: RawLocation = Field(
        description="A file or a folder of files. It may contain `{data}`, `{lake}` and `{date}`."
    )
    format: Literal["parquet", "csv"] = Field(description="Format of the files. A csv file has a header.")
    key: PlainText = Field(description="Column with the id of the item, as in the log.")
    column: PlainText = Field(description="Column with the value.")


class Boost(Strict):
    """Moves items up or down by the value of an attribute.

    The published scores are still the probabilities of the model.
    """

    attribute: str = Field(description="Name of an attribute in `attributes`.")
    by: Literal["factor", "log_odds"] = Field(
        default="factor",
        description="`factor` multiplies the probability for the ranking. `log_odds` adds to its log-odds.",
    )
    values: Annotated[dict[str, Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1)] = Field(
        description="Value of the attribute → factor or log-odds. Items with other values are not moved."
    )

    @model_validator(mode="after")
    def _amounts_are_usable(self) -> Boost:
        wrong = {name: value for name, value in self.values.items() if value <= 0}
        if self.by == "factor" and wrong:
            raise ValueError(f"factors must be above 0: {wrong}; a factor below 1 moves items down")
        wrong = {name: value for name, value in self.values.items() if abs(value) > _MOST_LOG_ODDS}
        if self.by == "log_odds" and wrong:
            raise ValueError(f"log-odds must be within ±{_MOST_LOG_ODDS}: {wrong}")
        return self


class MaxPerCategory(Strict):
    """Limits how many items of a list have the same value of an attribute."""

    attribute: str = Field(description="Name of an attribute in `attributes`.")
    max: PositiveInt = Field(description="Largest number of items with one value.")


class Exploration(Strict):
    """The last ceil(share × k) positions of a list get items that are drawn from the user's other candidates.

    The draw is a hash of seed, user, item and run date: a rerun draws the same items, and other days draw
    other items.
    """

    share: Annotated[float, Field(gt=0.0, le=1.0)] = Field(description="Share of the positions.")
    seed: Seed = Field(default=0, description="Seed of the draws.")


class ListRules(Strict):
    """Business rules after the ranking, in this order: boost, maximum per category, exploration."""

    attributes: dict[str, Attribute] = Field(
        default={}, description="Name → attribute of items that a rule uses."
    )
    boost: Boost | None = Field(default=None, description="Moves items by an attribute. Null: none.")
    max_per_category: MaxPerCategory | None = Field(
        default=None, description="Limits items with the same attribute. Null: none."
    )
    exploration: Exploration | None = Field(
        default=None, description="Draws items for the last positions. Null: none."
    )

    @model_validator(mode="after")
    def _attributes_are_used(self) -> ListRules:
        used = {rule.attribute for rule in (self.boost, self.max_per_category) if rule is not None}
        if unknown := sorted(used - set(self.attributes)):
            raise ValueError(f"attributes {unknown} are not defined; known: {sorted(self.attributes)}")
        if idle := sorted(set(self.attributes) - used):
            raise ValueError(f"no rule uses the attributes {idle}: remove them, or name them in a rule")
        if not used and self.exploration is None:
            raise ValueError(
                "the section contains no rule: add boost, max_per_category or exploration, or remove rules"
            )
        return self
