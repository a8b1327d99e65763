"""Measures the lists that champion and challenger would have made before the test days.

Each model ranks all items for a sample of users, with features from before the test rows. The lists are
compared with the users' clicks in the test split. Each Spark task reduces its users to one row of integer
sums. So the driver's memory does not grow with the number of users, and the partitioning does not change the
sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from conf.errors import ConfigError
from conf.types import Split
from etl.latest.latest_features import latest_rules, missing_mode
from etl.raw.files import require_raw
from metrics.bootstrap import Resample, combine_means, reduce_means
from scoring.candidates.candidate_items import number_items
from scoring.candidates.clicks import CLICK_COLUMNS
from scoring.candidates.exclusions import exclude, known_items
from scoring.candidates.sources.all_items import all_items
from scoring.evaluation.features_before_test import BEFORE_TEST, rows_before_test, values_before
from scoring.evaluation.measured_lists import UNITS, user_relevance
from scoring.evaluation.prediction_quality import UNIT
from scoring.evaluation.rows_of_day import rows_after
from scoring.feature_rows import read_split
from scoring.model.context_features import encoded_context
from scoring.model.model_info import ModelInfo
from scoring.requests import ITEM_INDEX, ListRequest
from scoring.spark.score_frames import score_lists
from spark.rows import (
    Rows,
    count,
    map_rows,
    persist,
    query,
    read_rows,
    records,
    spread,
    unpersist,
    with_hash,
)
from storage.dataset import Dataset
from storage.feature_spec import EVENT_TIME, ITEM_KEY, USER_KEY
from storage.manifest import Manifest, current_manifest, data_files
from storage.publish import publish_rows
from storage.run_context import RunContext

_UNITS = {"hit_rate": 1, "ndcg": UNITS}

_COLUMNS = {
    **dict.fromkeys(("users", *_UNITS), pa.int64()),
    **{f"replicate_{name}": pa.list_(pa.int64()) for name in ("weights", *_UNITS)},
}
_PARTIAL = pa.schema(_COLUMNS)


@dataclass(frozen=True)
class ListFigures:
    """The figures of one model's lists.

    Attributes:
        items: number of items that were ranked for each user.
        hit_rate: HR@k, the share of the users who have a positive in their list.
        ndcg: NDCG@k, the mean over the users (scoring.evaluation.measured_lists).
        replicates: maps `hit_rate` and `ndcg` to a float64 array with one value for each bootstrap replicate;
            empty without a bootstrap.
    """

    items: int
    hit_rate: float
    ndcg: float
    replicates: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def to_facts(self) -> dict[str, Any]:
        """Returns the figures as JSON values."""
        return {"items": self.items, "hit_rate": self.hit_rate, "ndcg": self.ndcg}


@dataclass(frozen=True)
class ListMeasurement:
    """The figures of the lists of one or two models, for the same users.

    Attributes:
        k: maximum length of a list.
        users: number of users whose lists were measured.
        models: maps the version of each model to the figures of its lists; empty if lists were not measured.
        skipped: the reason why lists were not measured; None if they were.
        level: the level of the gate's check if lists were not measured.
    """

    k: int
    users: int = 0
    models: Mapping[str, ListFigures] = field(default_factory=dict)
    skipped: str | None = None
    level: Literal["ok", "warn"] = "ok"


def measure_lists_of(
    context: RunContext, dataset: Dataset, models: Sequence[ModelInfo], after: int | None = None
) -> ListMeasurement:
    """Measures the lists of each model.

    The users are those with a click in the test split and a row in the train or validation split. If there
    are more than `gate.lists_users` of them, the function takes the users with the smallest hashes of their
    keys. All items with a row before the test are ranked. A user's list consists of the k items with the
    highest probabilities. A list does not contain items that are excluded because of the user's rows before
    the test. The candidate sources, filters and business rules of published lists do not apply. A click on an
    item that is not ranked counts as missed. If `after` is set, test rows with an event time (µs) up to
    `after` are left out.
    """
    k, most_users = context.config.score.k, context.config.gate.lists_users
    reason = reason_against_lists(context, models)
    if reason is not None or most_users is None:
        return ListMeasurement(k, skipped=reason or "gate.lists_users is null")
    with context.phase("list users"):
        columns = CLICK_COLUMNS if after is None else (*CLICK_COLUMNS, EVENT_TIME)
        clicked = rows_after(read_split(context, dataset, ["test"], columns), after)
        positives = query(
            "SELECT DISTINCT user_key, item_key FROM {clicked} WHERE label = 1", clicked=clicked
        )
        users = persist(sampled_users(context, dataset, positives, most_users))
        number = count(users)
        positives = persist(_of_users(positives, users))
    if not number:
        reason = "no user with a click in the test split has a row in the train or validation split"
        return ListMeasurement(k, skipped=reason, level="warn")
    resample = Resample(context.config.gate.replicates, context.config.gate.seed) if len(models) > 1 else None
    figures = {}
    for model in models:
        with context.phase("list items"):
            items = publish_items(context, dataset, model)
        with context.phase("lists"):
            lists = lists_of(context, dataset, model, items, users)
            relevance = user_relevance(lists, positives, k)
            figures[model.version] = _figures(users, relevance, items.rows, resample)
    unpersist(users)
    unpersist(positives)
    return ListMeasurement(k, number, figures)


def _of_users(rows: Rows, users: Rows) -> Rows:
    """Returns the rows whose user_key is in `users`."""
    text = "SELECT /*+ BROADCAST(users) */ * FROM {rows} AS rows SEMI JOIN {users} AS users USING (user_key)"
    return query(text, rows=rows, users=users)


def reason_against_lists(context: RunContext, models: Sequence[ModelInfo]) -> str | None:
    """Returns the reason why these models cannot make lists with this configuration; None if they can."""
    if context.config.keys is None:
        return "the log has no users and items (section `keys`)"
    pairs = sorted({feature.name for model in models for feature in model.spec.scoped("pair")})
    if pairs:
        return f"the features {pairs} may differ for every (user, item) pair"
    try:
        for model in models:
            encoded_context(context, model)
    except ConfigError as error:
        return str(error)
    return None


def sampled_users(
    context: RunContext,
    dataset: Dataset,
    positives: Rows,
    most: int,
    known_in: Sequence[Split] = BEFORE_TEST,
) -> Rows:
    """Returns the users whose lists are measured: rows with the distinct user_key.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        dataset: the splits that build_features published for the run date.
        positives: rows with the column user_key, one or more for each user with a click in the measured
            split.
        most: maximum number of users. Those with the smallest hashes of their keys are returned.
        known_in: only users with a row in at least one of these splits are returned.
    """
    known = read_split(context, dataset, known_in, [USER_KEY])
    users = query(
        "SELECT DISTINCT user_key FROM {positives} AS clicked SEMI JOIN {known} AS known USING (user_key)",
        positives=positives,
        known=known,
    )
    return query(
        f"SELECT user_key FROM {{users}} ORDER BY {UNIT}, user_key LIMIT {most}",
        users=with_hash(users, USER_KEY, UNIT),
    )


def publish_items(context: RunContext, dataset: Dataset, model: ModelInfo) -> Manifest:
    """Publishes the ranked items as the table `gate_items`, if they are not published yet.

    Workers read the items from these files. The features are those that `rows_before_test` returns.
    """
    version, attributes = model.spec.workflow_version, context.config.items
    inputs = {"dataset": dataset.digest, "workflow": version}
    if attributes is not None:
        raw = require_raw(context.config, attributes, context.run_date, "items.path", context.recorder)
        inputs |= {"attributes": raw.digest, "missing": missing_mode(context.config, "items")}
    values = values_before(context)
    if values is not None:
        inputs["last_values"] = values.digest
    partition = context.lake.gate_items(version).partition(context.run_date)
    current = current_manifest(partition, inputs)
    if current is not None:
        return current
    columns = [feature.name for feature in model.spec.scoped("item")]
    return publish_rows(
        number_items(rows_before_test(context, dataset, model.spec, "item")),
        partition,
        inputs=inputs,
        row_group_rows=context.config.output.row_group_rows,
        sort_by=ITEM_INDEX,
        rules=latest_rules(ITEM_KEY, columns, model.spec),
        grace_hours=context.config.output.grace_hours,
    )


def lists_of(context: RunContext, dataset: Dataset, model: ModelInfo, items: Manifest, users: Rows) -> Rows:
    """Returns the lists of the users: user_key, position (from 1) and item_key, one row per list entry.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        dataset: the splits that build_features published for the run date.
        model: the model that ranks.
        items: the manifest of the table `gate_items` of the model's workflow.
        users: rows with the distinct user_key.
    """
    partition = context.lake.gate_items(model.spec.workflow_version).partition(context.run_date)
    numbered = read_rows(context, partition, items, columns=[ITEM_INDEX, ITEM_KEY])
    splits = [split for split in context.config.candidates.exclude_clicked if split in BEFORE_TEST]
    known, known_as = known_items(context, dataset, numbered, splits, users)
    excluded = exclude(users, numbered, known, [], known_as=known_as)
    features = rows_before_test(context, dataset, model.spec, "user")
    candidates = query(
        "SELECT * FROM {listed} AS listed JOIN {features} AS features USING (user_key)",
        listed=all_items(excluded),
        features=features,
    )
    score = context.config.score
    request = ListRequest(
        model.request(score),
        tuple(data_files(partition, items)),
        tuple(sorted(encoded_context(context, model).items())),
        score.k,
    )
    lists = score_lists(spread(candidates, USER_KEY), model.spec, request)
    return query("SELECT user_id AS user_key, position, item_id AS item_key FROM {lists}", lists=lists)


def _figures(users: Rows, relevance: Rows, items: int, resample: Resample | None) -> ListFigures:
    """Returns the figures of a model's lists, with the replicates of a bootstrap.

    Args:
        users: rows with the distinct user_key of all measured users.
        relevance: the result of `user_relevance`. A user without a list has no row.
        items: number of items that were ranked.
        resample: the settings of the bootstrap; None computes no replicates.
    """
    rows = query(
        f"""
        SELECT {UNIT}, CAST(CASE WHEN hits > 0 THEN 1 ELSE 0 END AS BIGINT) AS hit_rate,
            coalesce(ndcg_units, CAST(0 AS BIGINT)) AS ndcg
        FROM {{users}} AS users LEFT JOIN {{relevance}} AS measured ON measured.user_key = users.user_key
        """,
        users=with_hash(users, USER_KEY, UNIT),
        relevance=relevance,
    )
    partials = records(map_rows(rows, _reducer(resample), _PARTIAL))
    number = sum(sums["users"] for sums in partials)
    means = {name: sum(sums[name] for sums in partials) / units / number for name, units in _UNITS.items()}
    replicates = [{name: sums[f"replicate_{name}"] for name in ("weights", *_UNITS)} for sums in partials]
    resampled = combine_means(replicates, _UNITS) if resample else {}
    return ListFigures(items, means["hit_rate"], means["ndcg"], resampled)


def _reducer(
    resample: Resample | None,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function for `map_rows` that reduces the users of one task to one row of sums."""

    def reduce_users(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        if tables:
            rows = pa.concat_tables(tables)
            values = {name: rows.column(name).to_numpy() for name in _UNITS}
            sums: dict[str, Any] = {"users": rows.num_rows}
            sums |= {name: int(value.sum()) for name, value in values.items()}
            resampled: Mapping[str, list[int]] = {name: [] for name in ("weights", *_UNITS)}
            if resample is not None:
                resampled = reduce_means(rows.column(UNIT).to_numpy(), values, resample)
            sums |= {f"replicate_{name}": resampled[name] for name in resampled}
            yield pa.RecordBatch.from_pylist([sums], schema=_PARTIAL)

    return reduce_users
