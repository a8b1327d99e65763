"""Sources of candidates of other packages: entry points of the group `nightrank.candidate_sources`.

The module of such a source contains

    class Settings(Strict)                                     the keys of the source, in addition to source,
                                                               n and window_days
    propose(settings: Settings, inputs: SourceInputs) -> DataFrame

`propose` returns a frame of Spark with one row for each proposed pair: user_key (string), item_key (string)
and score (a number). For each user, the n items with the highest scores become candidates. Pairs of unknown
users and items, excluded items, and pairs whose score is null, infinite or NaN are left out. So `propose`
need not know the exclusions, but it should propose more than n items to users for whom many are excluded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conf.errors import ConfigError
from conf.lazy_pyspark import F, Window
from conf.load import read_package_settings
from conf.package_source_types import PackageSource, source_extension
from conf.plugins import Plugin, digests_of
from conf.types import Candidates, Strict
from scoring.inputs.requests import CANDIDATES, EXCLUDED, ITEM_INDEX, SCORES
from storage.feature_spec import ITEM_KEY, USER_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCORE = "score"
_COLUMNS = (USER_KEY, ITEM_KEY, _SCORE)


@dataclass(frozen=True)
class SourceInputs:
    """What a source of another package computes its proposals from.

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


def read_package_sources(config: Candidates) -> list[tuple[Plugin, Strict]]:
    """Returns the extension and the checked settings of each source of another package, in order.

    Raises:
        ConfigError: a source does not exist or cannot be imported, a key is not one of its settings, or a
            value breaks its rule.
    """
    return [
        _read(source, index)
        for index, source in enumerate(config.sources)
        if isinstance(source, PackageSource)
    ]


def source_digests(config: Candidates) -> dict[str, str]:
    """Returns the digests of the code of sources of other packages; empty if there are none.

    Raises:
        ConfigError: a source does not exist or cannot be imported.
    """
    names = [source.source for source in config.sources if isinstance(source, PackageSource)]
    return digests_of(source_extension(name) for name in names)


def package_items(
    source: PackageSource, users: DataFrame, rows: DataFrame, items: DataFrame, run_date: str
) -> DataFrame:
    """Returns the candidates of a source of another package: user_key, candidates and scores.

    Args:
        source: the section of the source.
        users: a frame with the columns user_key and excluded, one row per user.
        rows: the rows that the source reads.
        items: a frame with the columns item_index and item_key, one row per item.
        run_date: the last day whose clicks a source counts.

    Raises:
        ConfigError: see `read_package_sources`; or the source returns a frame without the columns user_key,
            item_key and score.
    """
    extension, settings = _read(source)
    inputs = SourceInputs(
        rows, users.select(USER_KEY), items.select(ITEM_INDEX, ITEM_KEY), run_date, source.n
    )
    pairs = extension.member("propose")(settings, inputs)
    _require_columns(extension, getattr(pairs, "columns", None), pairs)
    score = F.col(_SCORE).cast("float")
    finite = score.isNotNull() & ~F.isnan(score) & (F.abs(score) < float("inf"))
    scored = (
        pairs.select(F.col(USER_KEY).cast("string"), F.col(ITEM_KEY).cast("string"), score.alias(_SCORE))
        .where(finite)
        .join(items.select(ITEM_KEY, ITEM_INDEX), ITEM_KEY)
        .groupBy(USER_KEY, ITEM_INDEX)
        .agg(F.max(_SCORE).alias(_SCORE))
        .join(users.select(USER_KEY, EXCLUDED), USER_KEY)
        .where(~F.coalesce(F.array_contains(EXCLUDED, F.col(ITEM_INDEX)), F.lit(False)))
    )
    place = F.row_number().over(Window.partitionBy(USER_KEY).orderBy(F.desc(_SCORE), F.asc(ITEM_INDEX)))
    best = scored.withColumn("_place", place).where(F.col("_place") <= source.n)
    lists = best.groupBy(USER_KEY).agg(
        F.sort_array(F.collect_list(F.struct("_place", ITEM_INDEX, _SCORE))).alias("_items")
    )
    return lists.select(
        USER_KEY,
        F.col(f"_items.{ITEM_INDEX}").cast("array<int>").alias(CANDIDATES),
        F.col(f"_items.{_SCORE}").alias(SCORES),
    )


def _read(source: PackageSource, index: int | None = None) -> tuple[Plugin, Strict]:
    extension = source_extension(source.source)
    if extension is None:
        raise ConfigError(
            f"candidates.sources: source={source.source!r} does not exist",
            "install the package that has this source",
        )
    extension.member("propose")
    place = () if index is None else (str(index),)
    path = ("candidates", "sources", *place, source.source)
    return extension, read_package_settings(extension, source.settings, path, ("n", "window_days"))


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
