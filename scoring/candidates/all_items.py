"""The source `all_items`: proposes all items except the excluded items.

A null array of candidates stands for all these items.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from scoring.candidates.filters import Exclusions
from scoring.inputs.requests import CANDIDATES, EXCLUDED, SOURCES
from storage.feature_spec import USER_KEY


def all_items(exclusions: Exclusions) -> DataFrame:
    """Returns the candidates table of the source `all_items`, one row per user.

    The columns are user_key, candidates, excluded and sources. `candidates` and `sources` are null.
    `excluded` is null if no item is excluded for the user.
    """
    null = F.lit(None)
    return exclusions.users.select(
        USER_KEY,
        null.cast("array<int>").alias(CANDIDATES),
        EXCLUDED,
        null.cast("array<tinyint>").alias(SOURCES),
    )
