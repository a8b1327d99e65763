"""Makes candidates from proposals: scored (user, item) pairs that a source returns as a Spark frame.

The function `propose` of a source returns one row for each proposed pair: user_key (string), item_key
(string) and score (a number). For each user, the n items with the highest scores become candidates. Pairs of
unknown users and items, excluded items, and pairs whose score is null, infinite or NaN are left out. So
`propose` need not consider the exclusions. But it should propose more than n items to users for whom many
items are excluded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conf.errors import ConfigError
from conf.lazy_imports import F, Window
from conf.plugins import Plugin
from conf.raw_types import Strict
from scoring.requests import CANDIDATES, EXCLUDED, ITEM_INDEX, SCORES
from storage.feature_spec import ITEM_KEY, USER_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCORE = "score"
_COLUMNS = (USER_KEY, ITEM_KEY, _SCORE)


@dataclass(frozen=True)
class SourceInputs:
    """The inputs of the function `propose` of a source.

    Attributes:
        rows: the feature rows of the configured splits and of the last `window_days` days. The columns are
            user_key, item_key, label (1 for a click) and features_dt, and also event_time if the log has it.
        users: a frame with the column user_key: the users that get candidates.
        items: a frame with the columns item_index and item_key: the items that may be candidates.
        run_date: the last day whose clicks may be counted.
        n: the largest number of candidates of a user.
    """

    rows: DataFrame
    users: DataFrame
    items: DataFrame
    run_date: str
    n: int


def proposed_items(plugin: Plugin, settings: Strict, inputs: SourceInputs, users: DataFrame) -> DataFrame:
    """Returns the candidates of a source that proposes pairs: user_key, candidates and scores.

    Args:
        plugin: the source.
        settings: its settings.
        inputs: the inputs of its function `propose`.
        users: a frame with the columns user_key and excluded, one row per user.

    Raises:
        ConfigError: the source returns a frame without the columns user_key, item_key and score.
    """
    pairs = plugin.member("propose")(settings, inputs)
    _require_columns(plugin, getattr(pairs, "columns", None), pairs)
    score = F.col(_SCORE).cast("float")
    finite = score.isNotNull() & ~F.isnan(score) & (F.abs(score) < float("inf"))
    scored = (
        pairs.select(F.col(USER_KEY).cast("string"), F.col(ITEM_KEY).cast("string"), score.alias(_SCORE))
        .where(finite)
        .join(inputs.items, ITEM_KEY)
        .groupBy(USER_KEY, ITEM_INDEX)
        .agg(F.max(_SCORE).alias(_SCORE))
        .join(users.select(USER_KEY, EXCLUDED), USER_KEY)
        .where(~F.coalesce(F.array_contains(EXCLUDED, F.col(ITEM_INDEX)), F.lit(False)))
    )
    place = F.row_number().over(Window.partitionBy(USER_KEY).orderBy(F.desc(_SCORE), F.asc(ITEM_INDEX)))
    best = scored.withColumn("_place", place).where(F.col("_place") <= inputs.n)
    lists = best.groupBy(USER_KEY).agg(
        F.sort_array(F.collect_list(F.struct("_place", ITEM_INDEX, _SCORE))).alias("_items")
    )
    return lists.select(
        USER_KEY,
        F.col(f"_items.{ITEM_INDEX}").cast("array<int>").alias(CANDIDATES),
        F.col(f"_items.{_SCORE}").alias(SCORES),
    )


def _require_columns(extension: Plugin, columns: Sequence[str] | None, returned: Any) -> None:
    from pyspark.sql import DataFrame

    missing = [name for name in _COLUMNS if name not in (columns or ())]
    if missing or not isinstance(returned, DataFrame):
        what = f"a {type(returned).__name__}" if columns is None else f"a frame with the columns {columns}"
        raise ConfigError(
            f"{extension} returned {what}, but its function propose must return a frame of Spark with the "
            f"columns {list(_COLUMNS)}",
            "correct the module; docs/extending.md describes the contract of nightrank.candidate_sources",
        )
