"""What a worker needs to know of the rules: paths and numbers only, so that it travels to any process and serves as a cache key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from conf.types import ListRules


@dataclass(frozen=True)
class AttributeTable:
    """Where the values of an attribute of items stand."""

    path: str
    format: Literal["parquet", "csv"]
    key: str
    column: str


@dataclass(frozen=True)
class BoostRequest:
    """`values`: attribute value → factor or log-odds."""

    table: AttributeTable
    by: Literal["factor", "log_odds"]
    values: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class CapRequest:
    """At most `most` items of a list with the same value."""

    table: AttributeTable
    most: int


@dataclass(frozen=True)
class RulesRequest:
    """The rules of one night.

    Attributes:
        explore: how many of the k places go to drawn items.
        salt: what the draw depends on beside user and item.
    """

    boost: BoostRequest | None
    cap: CapRequest | None
    explore: int
    salt: str


def rules_request(
    rules: ListRules | None, k: int, run_date: str, folders: Mapping[str, str]
) -> RulesRequest | None:
    """The rules of a configuration; None where there are none.

    Args:
        folders: what stands for `{name}` in a path.
    """
    if rules is None:
        return None
    tables = {}
    for name, each in rules.attributes.items():
        path = each.path
        for word, value in {**folders, "date": run_date}.items():
            path = path.replace(f"{{{word}}}", value)
        tables[name] = AttributeTable(path, each.format, each.key, each.column)
    boost, cap, exploration = rules.boost, rules.max_per_category, rules.exploration
    return RulesRequest(
        BoostRequest(tables[boost.attribute], boost.by, tuple(sorted(boost.values.items())))
        if boost
        else None,
        CapRequest(tables[cap.attribute], cap.max) if cap else None,
        places_to_explore(exploration.share, k) if exploration else 0,
        f"{exploration.seed}|{run_date}" if exploration else "",
    )


def places_to_explore(share: float, k: int) -> int:
    """ceil(share × k), where a share such as 0.1 means the decimal that was written: 3 of 30 and not 4."""
    return math.ceil(round(share * k, 9))
