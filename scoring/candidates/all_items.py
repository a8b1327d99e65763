"""Every item but those excluded: a null list."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from scoring.candidates.filters import Exclusions
from scoring.inputs.requests import CANDIDATES, EXCLUDED, SOURCES
from storage.feature_spec import USER_KEY


def all_items(excluding: Exclusions) -> DataFrame:
    """(user_key, candidates null, excluded, sources null): every item but those excluded; excluded is null for none."""
    nothing = F.lit(None)
    return excluding.users.select(
        USER_KEY,
        nothing.cast("array<int>").alias(CANDIDATES),
        EXCLUDED,
        nothing.cast("array<tinyint>").alias(SOURCES),
    )
