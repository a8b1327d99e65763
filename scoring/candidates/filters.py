"""What single users are not offered: items they clicked or have any row of, and items not allowed for their attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from scoring.inputs.requests import EXCLUDED, ITEM_INDEX
from storage.feature_spec import ITEM_KEY, USER_KEY

CLICKED, OBSERVED = "clicked", "observed"
_VALUE, _NEEDED = "_value", "_needed"


@dataclass(frozen=True)
class Rule:
    """One filter by a user attribute (conf: NotAllowed).

    Attributes:
        rows: (item_key, value), distinct, no nulls; for `at_least` one row an item, value a number.
        attribute: the column of the users' attributes it is held against.
    """

    name: str
    kind: Literal["deny", "allow", "at_least"]
    rows: DataFrame
    attribute: str


@dataclass(frozen=True)
class Exclusions:
    """Per user the items that no source may give.

    Attributes:
        users: (user_key, excluded array<int>: ascending item indices, null for none), one row a user.
        most: the length of the longest list.
        counts: filter → (user, item) pairs it excludes; a pair may be excluded by several.
    """

    users: DataFrame
    most: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)


def exclude(
    users: DataFrame,
    items: DataFrame,
    known: DataFrame | None,
    rules: list[Rule],
    attributes: DataFrame | None = None,
    known_as: str = CLICKED,
) -> Exclusions:
    """The exclusions of every user.

    Args:
        users: user_key.
        items: numbered, with item_key.
        known: (user_key, item_index), distinct: what users are not offered again; None excludes nothing.
        attributes: user_key and the rules' attributes, one row a user; a user without a row has null ones.
        known_as: the name under which the pairs of `known` are counted.
    """
    lists: dict[str, Column] = {}
    frame = users.select(USER_KEY)
    if known is not None:
        own = known.groupBy(USER_KEY).agg(F.sort_array(F.collect_list(ITEM_INDEX)).alias("_known"))
        frame, lists[known_as] = frame.join(own, USER_KEY, "left"), F.col("_known")
    if rules and attributes is not None:
        wanted = {rule.attribute: F.col(rule.attribute) for rule in rules}
        frame = frame.join(attributes.select(USER_KEY, *wanted.values()), USER_KEY, "left")
    wanting = frame
    for number, rule in enumerate(rules):
        column = f"_barred_{number}"
        values = wanting.select(_typed(rule, F.col(rule.attribute)).alias(_VALUE)).distinct()
        barred = barred_items(rule, values, items).withColumnsRenamed(
            {EXCLUDED: column, _VALUE: f"{column}_of"}
        )
        same = _typed(rule, F.col(rule.attribute)).eqNullSafe(F.col(f"{column}_of"))
        frame, lists[rule.name] = frame.join(barred, same, "left"), F.col(column)
    if not lists:
        return Exclusions(frame.select(USER_KEY, _no_items().alias(EXCLUDED)))
    together = next(iter(lists.values()))
    if len(lists) > 1:
        filled = [F.coalesce(each, F.array().cast("array<int>")) for each in lists.values()]
        joined = F.sort_array(F.array_distinct(F.concat(*filled)))
        together = F.when(F.size(joined) > 0, joined)
    kept = frame.select(
        USER_KEY,
        together.alias(EXCLUDED),
        *(_length(each).alias(f"_{n}") for n, each in enumerate(lists.values())),
    ).persist()
    sums = (F.sum(f"_{number}").alias(f"_{number}") for number in range(len(lists)))
    found = kept.agg(F.max(_length(F.col(EXCLUDED))).alias("most"), *sums).collect()[0]
    counts = {name: int(found[f"_{number}"] or 0) for number, name in enumerate(lists)}
    return Exclusions(kept.select(USER_KEY, EXCLUDED), int(found["most"] or 0), counts)


def barred_items(rule: Rule, values: DataFrame, items: DataFrame) -> DataFrame:
    """Which items each value of the attribute bars: (_value, excluded ascending), values that bar none left out.

    Args:
        values: distinct `_value`, null among them where users have none.
    """
    numbered = rule.rows.withColumnRenamed("value", _NEEDED).join(
        items.select(ITEM_KEY, ITEM_INDEX), ITEM_KEY
    )
    needed = _typed(rule, F.col(_NEEDED))
    if rule.kind == "deny":
        pairs = values.join(numbered, F.col(_VALUE) == needed)
    elif rule.kind == "at_least":
        pairs = values.join(numbered, F.col(_VALUE).isNull() | (F.col(_VALUE) < needed))
    else:
        allowed = numbered.select(needed.alias(_VALUE), ITEM_INDEX)
        listed = numbered.select(ITEM_INDEX).distinct()
        pairs = values.crossJoin(listed).join(allowed, [_VALUE, ITEM_INDEX], "left_anti")
    return pairs.groupBy(_VALUE).agg(F.sort_array(F.collect_set(ITEM_INDEX)).alias(EXCLUDED))


def _typed(rule: Rule, value: Column) -> Column:
    """Numbers are compared as numbers, everything else as text."""
    return value.cast("double" if rule.kind == "at_least" else "string")


def _length(items: Column) -> Column:
    return F.when(items.isNotNull(), F.size(items)).otherwise(0)


def _no_items() -> Column:
    return F.lit(None).cast("array<int>")
