"""The versions of the methods that prepare rows. They are inputs of everything that is computed from rows."""

from __future__ import annotations

from conf.types import Config
from etl.ops import operator_digests
from etl.raw.click_days import GROUP_METHOD, METHOD
from etl.split.negatives import DRAW
from etl.split.time_split import CUT
from storage.manifest import digest_of

# Part of the digest of prepared rows. Change it when the code would compute other positions for the same log.
_POSITIONS = "last impression before the row, or smallest position of the day"


def preparation(config: Config) -> dict[str, str]:
    """Returns the versions of the methods that draw negatives, divide rows into splits and add columns.

    The added columns are histories and positions of impressions. The result also contains the digest of the
    operators of `prepare` that other packages add.

    The result is part of the inputs of workflows, profiles and feature partitions. So jobs compute these
    again if a method has changed since they were written. The result contains only methods that differ from
    those of an earlier release. If there are none, the result is empty, and partitions of the earlier release
    remain valid.
    """
    by_position = config.split.by == "fraction" and config.log.event_time is None
    operators = operator_digests(
        entry if isinstance(entry, str) else next(iter(entry)) for entry in config.prepare
    )
    method = GROUP_METHOD if config.keys and config.keys.group else METHOD
    positions = _positions_method(config)
    return {
        **({"negatives": DRAW} if config.negatives else {}),
        **({"split": CUT} if by_position else {}),
        **({"history": f"{method}, {digest_of(config.history.model_dump())}"} if config.history else {}),
        **({"shown_positions": positions} if positions else {}),
        **({"operators": digest_of(operators)} if operators else {}),
    }


def _positions_method(config: Config) -> str | None:
    """Returns the version of the method and a digest of its settings; None without the column.

    The unit of the times is a setting of the click log.
    """
    settings = config.serving.row_positions
    if settings is None:
        return None
    names = {"format", "separator", "user", "item", "position", "time", "row_column"}
    names |= {"null_values", "time_zone", "columns"}
    values = {"separator": ",", **settings.model_dump(include=names)}  # as in earlier releases
    return f"{_POSITIONS}, {digest_of(values)}"
