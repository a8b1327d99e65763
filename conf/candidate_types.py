"""The typed configuration of the candidate stage: which items each user is scored against."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from conf.raw_types import Days, PositiveInt, RawTable, Strict
from conf.split_types import SPLITS, Split
from conf.train_types import ModelConfig


class AllItems(Strict):
    """Every item except those excluded for a user. It cannot be combined with another source."""

    source: Literal["all_items"] = Field(description="Every item.")

    @property
    def name(self) -> str:
        """The name of this object in messages and tables."""
        return self.source


class Popular(Strict):
    """The items with most clicks. Items with equally many clicks are ordered by their key."""

    source: Literal["popular"] = Field(description="The items with most clicks.")
    n: PositiveInt = Field(default=500, description="Number of items.")
    segment: str | None = Field(
        default=None,
        description="A feature of scope `user` or a column of `user_attributes`. Clicks are counted among "
        "users with the same value, and items that none of them clicked are left out. Null: "
        "clicks of all users.",
    )
    window_days: Days | None = Field(
        default=None, description="Days up to the run date whose clicks count. Null: all days of the splits."
    )

    @property
    def name(self) -> str:
        """The name of this object in messages and tables."""
        return f"{self.source} by {self.segment}" if self.segment else self.source


class Covisitation(Strict):
    """Items that were clicked by users who clicked the same items (docs/candidates.md has the formula)."""

    source: Literal["covisitation"] = Field(description="Items clicked by users with the same clicks.")
    n: PositiveInt = Field(default=100, description="Number of items.")
    window_days: Days | None = Field(
        default=None, description="Days up to the run date whose clicks count. Null: all days of the splits."
    )
    clicks_per_user: PositiveInt = Field(
        default=50,
        description="Number of a user's latest distinct items that are used. It limits the number of item "
        "pairs of very active users.",
    )
    neighbours: PositiveInt = Field(
        default=100, description="Number of most similar items that are kept for each item."
    )

    @property
    def name(self) -> str:
        """The name of this object in messages and tables."""
        return self.source


class Retrieval(Strict):
    """The items whose vectors have the largest dot product with the user's vector.

    train_retriever trains the model with the settings of the section `train`.
    """

    source: Literal["retrieval"] = Field(description="The items that a two-tower model finds.")
    n: PositiveInt = Field(default=200, description="Number of items.")
    model: ModelConfig = Field(
        description="The two-tower model: a section or the name of a file, as in the section `model`."
    )

    @property
    def name(self) -> str:
        """The name of this object in messages and tables."""
        return self.source

    @model_validator(mode="after")
    def _has_towers(self) -> Retrieval:
        if self.model.architecture != "two_tower":
            raise ValueError(f"model.architecture={self.model.architecture!r} has no vectors; use two_tower")
        return self


Source = Annotated[AllItems | Popular | Covisitation | Retrieval, Field(discriminator="source")]


class UserAttributes(RawTable):
    """Raw values of users, one row per user, for segments and filters."""

    key: str = Field(description="Column with the key of the user.")

    @model_validator(mode="after")
    def _has_its_key(self) -> UserAttributes:
        _require_columns(self, [self.key])
        return self


class NotAllowed(RawTable):
    """Items that must not be shown to some users, depending on an attribute of the user."""

    filter: Literal["not_allowed"] = Field(description="Excludes items by an attribute of the user.")
    item: str = Field(description="Column of the table with the item.")
    value: str = Field(description="Column of the table with the value.")
    attribute: str = Field(description="Column of `user_attributes`.")
    rule: Literal["deny", "allow", "at_least"] = Field(
        description="`deny`: a row (item, value) excludes the item for users with that value. `allow`: if "
        "the table has rows of an item, only users with one of these values may get the item. "
        "`at_least`: the user's number must be at least the item's number. For a user without a value, "
        "`allow` and `at_least` exclude the items of the table, and `deny` excludes none."
    )

    @property
    def name(self) -> str:
        """The name of this object in messages and tables."""
        return f"{self.filter} by {self.attribute}"

    @model_validator(mode="after")
    def _has_its_columns(self) -> NotAllowed:
        _require_columns(self, [self.item, self.value])
        kinds = {column.name: column.type for column in self.columns}
        if self.rule == "at_least" and kinds[self.value] == "string":
            raise ValueError(f"value={self.value!r} is a string column; rule=at_least compares numbers")
        return self


class OutOfStock(RawTable):
    """Items that must not be shown to any user."""

    filter: Literal["out_of_stock"] = Field(description="Excludes the items of a table for all users.")
    item: str = Field(description="Column of the table with the item.")

    @property
    def name(self) -> str:
        """The name of this object in messages and tables."""
        return self.filter

    @model_validator(mode="after")
    def _has_its_column(self) -> OutOfStock:
        _require_columns(self, [self.item])
        return self


Filter = Annotated[NotAllowed | OutOfStock, Field(discriminator="filter")]


# Which items in the user's own rows may be offered to the user again: none, those without a click, or all.
Repeats = Literal["none", "unclicked", "all"]


class Candidates(Strict):
    """The items that are scored for each user: those of the sources, in order.

    If several sources give the same item, it counts for the first of them.
    """

    sources: Annotated[list[Source], Field(min_length=1)] = Field(
        default=[AllItems(source="all_items")],
        description="The sources of candidates, in order. Each gives at most its `n` items after the "
        "exclusions.",
    )
    max: PositiveInt | None = Field(
        default=None, description="Largest number of candidates of a user over all sources. Null: no limit."
    )
    splits: Annotated[list[Split], Field(min_length=1)] = Field(
        default=["train"],
        description="Splits whose clicks the sources count, and whose rows `active_days` examines.",
    )
    active_days: Days | None = Field(
        default=None,
        description="Days up to the run date in which an item must have a row (shown or clicked). Null: any "
        "item.",
    )
    exclude_clicked: list[Split] = Field(
        default=list(SPLITS),
        description="Splits whose clicked items are not offered again to the user. Empty: none.",
    )
    repeats: Literal["auto", "none", "unclicked", "all"] = Field(
        default="auto",
        description="Which items of a user's rows in the splits of `exclude_clicked` may be offered again. "
        "`none`: no item. `unclicked`: items without a click, such as impressions. `all`: every "
        "item, for logs in which users choose the same items again. `auto`: `none` if the log records "
        "choices (with `negatives` or `label.positive_at_least`), otherwise `unclicked`.",
    )
    user_attributes: UserAttributes | None = Field(
        default=None, description="Table of user attributes for segments and filters. Null: none."
    )
    filters: list[Filter] = Field(default=[], description="Further exclusions, by tables.")

    @property
    def retrieval(self) -> Retrieval | None:
        """The retrieval source; None if there is none."""
        return next((source for source in self.sources if isinstance(source, Retrieval)), None)

    @property
    def counts_days(self) -> list[str]:
        """The keys of the configuration that limit days. They need rows with a date."""
        windows = [f"sources.{source.name}.window_days" for source in self.sources if _window_days(source)]
        return [*windows, *(["active_days"] if self.active_days else [])]

    @model_validator(mode="after")
    def _fits_together(self) -> Candidates:
        names = [source.name for source in self.sources]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"sources names {repeated} twice")
        if "all_items" in names and (len(names) > 1 or self.max is not None):
            raise ValueError("sources: all_items gives every item, so remove the other sources and max")
        filters = [rule.name for rule in self.filters]
        again = sorted({name for name in filters if filters.count(name) > 1})
        if again:
            raise ValueError(f"filters names {again} twice")
        for rule in self.filters:
            if isinstance(rule, NotAllowed):
                self._require_attribute(rule)
        return self

    def _require_attribute(self, rule: NotAllowed) -> None:
        known = self.user_attributes
        if known is None or rule.attribute not in known.names:
            raise ValueError(
                f"filters: attribute={rule.attribute!r} is not a column of user_attributes "
                f"({known.names if known else 'which is missing'})"
            )
        kinds = {column.name: column.type for column in known.columns}
        if rule.rule == "at_least" and kinds[rule.attribute] == "string":
            raise ValueError(
                f"filters: attribute={rule.attribute!r} is a string column; rule=at_least compares numbers"
            )


def _window_days(source: AllItems | Popular | Covisitation | Retrieval) -> int | None:
    return source.window_days if isinstance(source, Popular | Covisitation) else None


def _require_columns(table: RawTable, names: list[str]) -> None:
    missing = [name for name in names if name not in table.names]
    if missing:
        raise ValueError(f"columns must contain {missing}; it has {table.names}")
