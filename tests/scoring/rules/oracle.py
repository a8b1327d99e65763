"""Business rules in plain Python, one user and one list at a time: the expected results of the tests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

_WORD = 2**64


@dataclass(frozen=True)
class PlainRules:
    """The rules of a case.

    Attributes:
        by: `factor` or `log_odds`.
        boosts: attribute value → amount.
        values, categories: item → attribute value.
        most: largest number of items of a category.
        explore: number of positions that are drawn.
        salt: of the draw.
    """

    by: str = "factor"
    boosts: Mapping[str, float] | None = None
    values: Mapping[str, str] | None = None
    most: int | None = None
    categories: Mapping[str, str] | None = None
    explore: int = 0
    salt: str = ""


def hash_of(text: str, salt: str = "") -> int:
    """64 bits of BLAKE2b."""
    return int.from_bytes(blake2b(salt.encode() + b"\0" + text.encode(), digest_size=8).digest(), "little")


def draw_of(user: str, item: str, salt: str) -> int:
    """The upper 63 bits of SplitMix64's finaliser of both hashes, as a signed number."""
    mixed = hash_of(user, salt) ^ hash_of(item)
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % _WORD
    mixed ^= mixed >> 31
    return (mixed - _WORD if mixed >= _WORD // 2 else mixed) >> 1


def key_of(rules: PlainRules, item: str, score: float) -> float:
    """The ranking score of an item."""
    amount = (rules.boosts or {}).get((rules.values or {}).get(item, ""))
    if amount is None:
        return score
    if rules.by == "factor":
        return float(np.float32(score * amount))
    odds = score * math.exp(amount)
    return float(np.float32(odds / (1 - score + odds)))


def list_of(
    rules: PlainRules, user: str, scored: Sequence[tuple[str, float]], k: int
) -> list[tuple[str, str]]:
    """The list of a user: (item, reason) in order.

    Args:
        rules: of the case.
        user: its key.
        scored: (item, probability) of the user's candidates.
        k: length of the list.
    """
    ranking = sorted(scored, key=lambda pair: (-key_of(rules, *pair), pair[0]))
    taken: list[tuple[str, str]] = []
    counts: Counter[str] = Counter()

    def take(item: str, reason: str) -> None:
        category = (rules.categories or {}).get(item)
        if rules.most is not None and category is not None:
            if counts[category] == rules.most:
                return
            counts[category] += 1
        taken.append((item, reason))

    for item, _ in ranking:
        if len(taken) == k - rules.explore:
            break
        value = (rules.values or {}).get(item)
        take(item, f"boost:{value}" if value in (rules.boosts or {}) else "ranked")
    listed = {item for item, _ in taken}
    rest = sorted(
        (item for item, _ in ranking if item not in listed), key=lambda item: draw_of(user, item, rules.salt)
    )
    for item in rest if rules.explore else []:
        if len(taken) == k:
            break
        take(item, "explore")
    return taken
