"""The typed configuration of the candidate stage: which items each user is scored against."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from conf.raw_types import Days, PositiveInt, RawTable, Strict
from conf.split_types import SPLITS, Split
from conf.train_types import ModelConfig


class AllItems(Strict):
    """Every item but those excluded for a user. It stands alone: no other source could add to it."""

    source: Literal["all_items"]

    @property
    def name(self) -> str:
        return self.source


class Popular(Strict):
    """The `n` items with most clicks, ties by item.

    `segment`: a feature of scope `user` or a column of `user_attributes`; clicks are then counted among users who share its
    value, and items that none of them clicked are not listed. `window_days`: only clicks of so many days up to the run date.
    """

    source: Literal["popular"]
    n: PositiveInt = 500
    segment: str | None = None
    window_days: Days | None = None

    @property
    def name(self) -> str:
        return f"{self.source} by {self.segment}" if self.segment else self.source


class Covisitation(Strict):
    """The `n` items that users with the same clicks clicked as well (docs/candidates.md has the formula).

    `window_days`: as for `popular`. `clicks_per_user`: of each user, the latest so many distinct items count, which bounds the
    pairs an active user makes. `neighbours`: most similar items kept of each item.
    """

    source: Literal["covisitation"]
    n: PositiveInt = 100
    window_days: Days | None = None
    clicks_per_user: PositiveInt = 50
    neighbours: PositiveInt = 100

    @property
    def name(self) -> str:
        return self.source


class Retrieval(Strict):
    """The `n` items whose vectors have the largest dot product with the user's, by a model of the architecture `two_tower`.

    `model` may name a file, as the section `model` does. train_retriever trains it with the settings of the section `train`.
    """

    source: Literal["retrieval"]
    n: PositiveInt = 200
    model: ModelConfig

    @property
    def name(self) -> str:
        return self.source

    @model_validator(mode="after")
    def _has_towers(self) -> Retrieval:
        if self.model.architecture != "two_tower":
            raise ValueError(f"model.architecture={self.model.architecture!r} has no vectors; use two_tower")
        return self


Source = Annotated[AllItems | Popular | Covisitation | Retrieval, Field(discriminator="source")]


class UserAttributes(RawTable):
    """Raw values of users, one row a user: what a segment or a filter may name. `key`: the column with the user's key."""

    key: str

    @model_validator(mode="after")
    def _has_its_key(self) -> UserAttributes:
        _require_columns(self, [self.key])
        return self


class NotAllowed(RawTable):
    """Items that some users may not be shown, by an `attribute` of `user_attributes`.

    `rule`: `deny`, a row (item, value) bars the item for users with that value; `allow`, an item that has rows is only for users
    with one of its values; `at_least`, an item's value is a number that the user's must reach. A user whose attribute is not known
    is barred by `allow` and `at_least`, not by `deny`. `item`, `value`: the table's columns.
    """

    filter: Literal["not_allowed"]
    item: str
    value: str
    attribute: str
    rule: Literal["deny", "allow", "at_least"]

    @property
    def name(self) -> str:
        return f"{self.filter} by {self.attribute}"

    @model_validator(mode="after")
    def _has_its_columns(self) -> NotAllowed:
        _require_columns(self, [self.item, self.value])
        kinds = {column.name: column.type for column in self.columns}
        if self.rule == "at_least" and kinds[self.value] == "string":
            raise ValueError(f"value={self.value!r} is a string column; rule=at_least compares numbers")
        return self


class OutOfStock(RawTable):
    """Items that nobody is shown: those of a table's column `item`."""

    filter: Literal["out_of_stock"]
    item: str

    @property
    def name(self) -> str:
        return self.filter

    @model_validator(mode="after")
    def _has_its_column(self) -> OutOfStock:
        _require_columns(self, [self.item])
        return self


Filter = Annotated[NotAllowed | OutOfStock, Field(discriminator="filter")]


# Which items that a user has a row of may be offered again: none, those without a click, or all.
Repeats = Literal["none", "unclicked", "all"]


class Candidates(Strict):
    """Which items each user is scored against: those of `sources` in order, an item that several give counted for the first.

    Each source gives at most its `n` after what is excluded, all together at most `max`. `splits`: whose clicks the sources count,
    and whose rows `active_days` looks at. `active_days`: an item without a row (shown or clicked) in so many days up to the run date
    is no candidate. `exclude_clicked`: a user is not offered what they clicked in these splits. `repeats`: what of their rows in
    these splits may be offered again; `unclicked`, items without a click, such as impressions; `none`, nothing; `all`, everything, for
    logs where users choose the same items again; `auto`, none for a log of choices (with `negatives` or `label.positive_at_least`) and
    unclicked for all others. `filters`: further exclusions by tables; `user_attributes`: what these and segments know of users.
    """

    sources: Annotated[list[Source], Field(min_length=1)] = [AllItems(source="all_items")]
    max: PositiveInt | None = None
    splits: Annotated[list[Split], Field(min_length=1)] = ["train"]
    active_days: Days | None = None
    exclude_clicked: list[Split] = list(SPLITS)
    repeats: Literal["auto", "none", "unclicked", "all"] = "auto"
    user_attributes: UserAttributes | None = None
    filters: list[Filter] = []

    @property
    def retrieval(self) -> Retrieval | None:
        """The retrieval source; None if there is none."""
        return next((each for each in self.sources if isinstance(each, Retrieval)), None)

    @property
    def counts_days(self) -> list[str]:
        """The keys given that count days, so that rows must have a date."""
        windows = [f"sources.{each.name}.window_days" for each in self.sources if _window_days(each)]
        return [*windows, *(["active_days"] if self.active_days else [])]

    @model_validator(mode="after")
    def _fits_together(self) -> Candidates:
        names = [each.name for each in self.sources]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"sources names {repeated} twice")
        if "all_items" in names and (len(names) > 1 or self.max is not None):
            raise ValueError("sources: all_items gives every item: name no other source and no max beside it")
        filters = [each.name for each in self.filters]
        again = sorted({name for name in filters if filters.count(name) > 1})
        if again:
            raise ValueError(f"filters names {again} twice")
        for each in self.filters:
            if isinstance(each, NotAllowed):
                self._require_attribute(each)
        return self

    def _require_attribute(self, rule: NotAllowed) -> None:
        known = self.user_attributes
        if known is None or rule.attribute not in known.names:
            raise ValueError(
                f"filters: attribute={rule.attribute!r} is no column of user_attributes {known.names if known else 'which is missing'}"
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
        raise ValueError(f"columns must hold {missing}; it has {table.names}")
