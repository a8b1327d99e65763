"""The source `all_items`: all items except the excluded ones, written as a null array of candidates."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from scoring.candidates.filters import Exclusions
from scoring.inputs.requests import CANDIDATES, EXCLUDED, SOURCES
from storage.feature_spec import USER_KEY


def all_items(exclusions: Exclusions) -> DataFrame:
    """(user_key, candidates null, excluded, sources null); excluded is null if no item is excluded."""
    null = F.lit(None)
    return exclusions.users.select(
        USER_KEY,
        null.cast("array<int>").alias(CANDIDATES),
        EXCLUDED,
        null.cast("array<tinyint>").alias(SOURCES),
    )
