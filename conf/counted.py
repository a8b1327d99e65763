"""Counted nouns for messages and pages: `1 row`, `2 rows`."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Returns a whole number with thousands separators, and the noun in singular or plural.

    Args:
        count: the number.
        noun: the noun in singular.
        plural: the plural; None for one that adds an s.
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
