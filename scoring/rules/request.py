"""The request for business rules. It has only paths and numbers, so it can be pickled and hashed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from conf.types import ListRules


@dataclass(frozen=True)
class AttributeTable:
    """Where to read an attribute of the items.

    Attributes:
        path: path of a file, or of a folder of files.
        format: format of the files.
        key: name of the column with the item id.
        column: name of the column with the attribute.
    """

    path: str
    format: Literal["parquet", "csv"]
    key: str
    column: str


@dataclass(frozen=True)
class BoostRequest:
    """The request for a boost.

    Attributes:
        table: the table with the attribute.
        by: whether the numbers in `values` are factors or log-odds.
        values: pairs of an attribute value and its factor or log-odds.
    """

    table: AttributeTable
    by: Literal["factor", "log_odds"]
    values: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class CapRequest:
    """A maximum per category: at most `most` items of a list have the same value of the attribute."""

    table: AttributeTable
    most: int


@dataclass(frozen=True)
class RulesRequest:
    """The rules of one run.

    Attributes:
        boost: the request for the boost; None if there is no boost.
        cap: the request for the maximum per category; None if there is no maximum.
        explore: how many of the k positions get items drawn at random.
        salt: seed and date of the random draw.
    """

    boost: BoostRequest | None
    cap: CapRequest | None
    explore: int
    salt: str


def rules_request(
    rules: ListRules | None, k: int, run_date: str, folders: Mapping[str, str]
) -> RulesRequest | None:
    """The request for the rules of a configuration; None if no rule is configured.

    Args:
        rules: the section `score.rules`.
        k: length of the lists.
        run_date: the date that replaces `{date}` in a path.
        folders: maps a name, such as `lake`, to the folder that replaces `{name}` in a path.
    """
    if rules is None:
        return None
    tables = {}
    for name, table in rules.attributes.items():
        path = table.path
        for placeholder, value in {**folders, "date": run_date}.items():
            path = path.replace(f"{{{placeholder}}}", value)
        tables[name] = AttributeTable(path, table.format, table.key, table.column)
    boost, cap, exploration = rules.boost, rules.max_per_category, rules.exploration
    return RulesRequest(
        BoostRequest(tables[boost.attribute], boost.by, tuple(sorted(boost.values.items())))
        if boost
        else None,
        CapRequest(tables[cap.attribute], cap.max) if cap else None,
        positions_to_explore(exploration.share, k) if exploration else 0,
        f"{exploration.seed}|{run_date}" if exploration else "",
    )


def positions_to_explore(share: float, k: int) -> int:
    """ceil(share × k), corrected for floating-point error: a share of 0.1 of k = 30 gives 3, not 4."""
    return math.ceil(round(share * k, 9))
