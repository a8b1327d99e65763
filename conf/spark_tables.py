"""Splits the path of a table of Spark's catalogue, such as `shop.clicks/dt={date}`."""

from __future__ import annotations

import re

from conf.names import scheme_of

SPARK_TABLE = "spark_table"  # the format
_NAME = re.compile(r"(?:`[^`]+`|[^`.]+)(?:\.(?:`[^`]+`|[^`.]+))*")
_PART = re.compile(r"`([^`]+)`|([^`.]+)")
_FILTER = re.compile(r"([^=]+)=(.+)")
_NOT_IN_PATH = re.compile(r"[*?\[\]\s]")
_HELP = (
    "write the name of the table, such as shop.clicks, and after it the column of the day, such as "
    "shop.clicks/dt={date}"
)


def split_table_path(path: str) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Returns the parts of a table's name, and the (column, value) pairs that its rows must have.

    A part of the name may be in backticks. Then it may contain dots.

    Raises:
        ValueError: the path is not the name of a table, followed by any number of `/column=value`.
    """
    name, *conditions = path.split("/")
    matches = [_FILTER.fullmatch(condition) for condition in conditions]
    if (
        scheme_of(path)
        or "{lake}" in path
        or "{data}" in path
        or _NOT_IN_PATH.search(path)
        or not _NAME.fullmatch(name)
        or None in matches
    ):
        raise ValueError(f"{path!r} is not a table of Spark's catalogue: {_HELP}")
    parts = tuple(quoted or plain for quoted, plain in _PART.findall(name))
    return parts, tuple((match[1], match[2]) for match in matches if match)
