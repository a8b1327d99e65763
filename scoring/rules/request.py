"""The request for business rules: paths and numbers only, so that it can be pickled and hashed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from conf.types import ListRules


@dataclass(frozen=True)
class AttributeTable:
    """A table with an attribute of items.

    Attributes:
        path: of a file or a folder of files.
        format: of the files.
        key: column of the item id.
        column: column of the attribute.
    """

    path: str
    format: Literal["parquet", "csv"]
    key: str
    column: str


@dataclass(frozen=True)
class BoostRequest:
    """A boost.

    Attributes:
        table: of the attribute.
        by: what the numbers of `values` are.
        values: pairs of attribute value and factor or log-odds.
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
        boost: None for no boost.
        cap: None for no maximum per category.
        explore: number of the k positions that get items drawn at random.
        salt: seed and date of the draw.
    """

    boost: BoostRequest | None
    cap: CapRequest | None
    explore: int
    salt: str


def rules_request(
    rules: ListRules | None, k: int, run_date: str, folders: Mapping[str, str]
) -> RulesRequest | None:
    """The request for the rules of a configuration; None without rules.

    Args:
        rules: the section `score.rules`.
        k: length of the lists.
        run_date: replaces `{date}` in a path.
        folders: name → replacement of `{name}` in a path.
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
    """ceil(share × k) of the share as the decimal that was written: 0.1 of 30 is 3, and not 4."""
    return math.ceil(round(share * k, 9))
