"""Newest: proposes the items whose first row in the log is the latest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nightrank.extending import F, SourceInputs, WindowedSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Settings(WindowedSource):
    """The source `newest`: the items whose first row in the log is the latest."""

    clicked: bool = Field(default=False, description="Whether only rows with a click count.")


def propose(settings: Settings, inputs: SourceInputs) -> DataFrame:
    """Returns one row for each proposed pair: user_key, item_key and score."""
    rows = inputs.rows.where("label = 1") if settings.clicked else inputs.rows
    first = rows.groupBy("item_key").agg(F.min("features_dt").alias("first"))
    day = F.datediff(F.to_date("first"), F.lit("1970-01-01").cast("date"))
    newest = first.select("item_key", day.alias("score"))
    return inputs.users.crossJoin(F.broadcast(newest)).select("user_key", "item_key", "score")
