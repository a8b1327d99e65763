"""Measures the candidates of users with validation clicks, as they would have been before these clicks.

The sources count the rows of the train split only, and only these rows exclude items. The features of users
and items are from before the validation rows. Otherwise a source or the features could contain the clicks
from which the blend is learned, and the blend would trust them too much.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from conf.types import Candidates, Split
from etl.latest.latest_features import latest_rules
from scoring.candidates.build import make_candidates
from scoring.candidates.candidate_tables import CandidateTables, candidate_rows, column_names, segment_of
from scoring.candidates.clicks import CLICK_COLUMNS, within
from scoring.candidates.filters import exclude, known_items
from scoring.candidates.items import available_items, number_items
from scoring.candidates.lists_in_spark import VectorStore
from scoring.candidates.retrieved import retrieve
from scoring.candidates.source_tables import SourceTables
from scoring.candidates.vector_tables import release, vector_store
from scoring.evaluation.blend_fit import FOLDS, MeasuredPairs
from scoring.evaluation.features_before_test import rows_before_test
from scoring.evaluation.gate_lists import sampled_users
from scoring.inputs.feature_rows import read_split
from scoring.inputs.requests import ITEM_INDEX, POSITIVES, ListRequest
from scoring.model.context_features import encoded_context
from scoring.model.model_info import ModelInfo
from scoring.spark.score_frames import measure_candidates
from spark.arrow_frames import collected, frame_of
from spark.rows import (
    Rows,
    count,
    persist,
    query,
    quoted,
    read_rows,
    records,
    spread,
    unpersist,
)
from storage.dataset import Dataset
from storage.feature_spec import EVENT_TIME, ITEM_KEY, USER_KEY
from storage.manifest import Manifest, data_files
from storage.publish_rows import publish_rows
from storage.run_context import RunContext

BEFORE: tuple[Split, ...] = ("train",)
# Largest number of pairs that are measured. The driver needs about 100 bytes for a pair with four sources.
MOST_PAIRS = 2_000_000
_LEAST_USERS = 200


def measured_pairs(
    context: RunContext, dataset: Dataset, model: ModelInfo, tables: CandidateTables
) -> MeasuredPairs | None:
    """Returns the candidates of users with validation clicks, with the logits of a model.

    The users have a click in the validation split and a row in the train split. If they have more than about
    MOST_PAIRS candidates together, those with the smallest hashes of their keys are measured. Returns None if
    there is no such user.

    Args:
        context: the context of the run.
        dataset: the dataset of the run date.
        model: the model that ranks.
        tables: the tables of the section `candidates`.
    """
    config = context.config.candidates
    clicked = read_split(context, dataset, ["validation"], CLICK_COLUMNS)
    text = "SELECT DISTINCT user_key, item_key FROM {clicked} WHERE label = 1"
    positives = persist(query(text, clicked=clicked))
    users = persist(sampled_users(context, dataset, positives, most_users(config), BEFORE))
    if not count(users):
        return None
    numbered = publish_items(context, dataset, model, tables)
    partition = context.lake.blend_items(dataset.workflow_version).partition(context.run_date)
    items = read_rows(context, partition, numbered, columns=[ITEM_INDEX, ITEM_KEY])
    features = persist(_features_before(context, dataset, model, "user"))
    store = vector_store(context, dataset, numbered, tables.retriever, purpose="before_validation")
    try:
        candidates = _candidates(context, dataset, tables, items, users, features, numbered, store)
        text = f"""
            SELECT listed.*, {POSITIVES}, {_features(model)}
            FROM {{candidates}} AS listed
            JOIN (
                SELECT user_key, collect_list(coalesce(item_index, -1)) AS {POSITIVES}
                FROM {{positives}} AS positives LEFT JOIN {{items}} AS items USING (item_key)
                GROUP BY user_key
            ) AS wanted ON wanted.user_key = listed.user_key
            JOIN {{features}} AS features ON features.user_key = listed.user_key
        """
        rows = query(text, candidates=candidates, positives=positives, items=items, features=features)
        files = tuple(data_files(partition, numbered))
        context_values = tuple(sorted(encoded_context(context, model).items()))
        request = ListRequest(model.request(context.config.score), files, context_values, 1)
        measured = records(
            measure_candidates(spread(rows, USER_KEY), model.spec, request, len(config.sources))
        )
    finally:
        release(store)
        for kept in (positives, users, features):
            unpersist(kept)
    return pairs_of_rows(measured, len(config.sources))


def _features_before(
    context: RunContext, dataset: Dataset, model: ModelInfo, side: Literal["user", "item"]
) -> Rows:
    """Returns the features of users or items from before the validation rows, as the stage keeps its rows."""
    rows = rows_before_test(context, dataset, model.spec, side, before="validation")
    if not context.in_process:
        return frame_of(context.spark, rows)
    return rows if isinstance(rows, pa.Table) else collected(rows)


def _features(model: ModelInfo) -> str:
    """Returns the features of users as columns of a query."""
    names = [feature.name for feature in model.spec.scoped("user")]
    return ", ".join(f"features.{quoted(name)}" for name in names) or "1 AS no_feature"


def most_users(config: Candidates) -> int:
    """Returns the largest number of users whose candidates are measured."""
    longest = config.max or sum(getattr(source, "n", 0) for source in config.sources)
    return max(MOST_PAIRS // longest, _LEAST_USERS)


def publish_items(
    context: RunContext, dataset: Dataset, model: ModelInfo, tables: CandidateTables
) -> Manifest:
    """Publishes the items that could be candidates before the validation split, as the table `blend_items`.

    Workers read the items from these files.
    """
    lake, config = context.lake, context.config.candidates
    items, seen = _features_before(context, dataset, model, "item"), None
    if config.active_days is not None:
        rows = candidate_rows(context, dataset, list(BEFORE))
        seen = within(rows, config.active_days, last_day(context, dataset))
    kept, _ = available_items(items, seen, tables.out_of_stock)
    return publish_rows(
        number_items(kept),
        lake.blend_items(dataset.workflow_version).partition(context.run_date),
        inputs=tables.inputs(context, dataset),
        row_group_rows=context.config.output.row_group_rows,
        sort_by=[ITEM_INDEX],
        rules=latest_rules(ITEM_KEY, [feature.name for feature in model.spec.scoped("item")], model.spec),
        grace_hours=context.config.output.grace_hours,
    )


def last_day(context: RunContext, dataset: Dataset) -> str:
    """Returns the day of the last train row, up to which sources with `window_days` count days."""
    if context.config.split.by == "day":
        return dataset.splits["train"][-1].dt
    rows = candidate_rows(context, dataset, list(BEFORE))
    (latest,) = records(query(f"SELECT max({EVENT_TIME}) AS latest FROM {{rows}}", rows=rows))
    return (date(1970, 1, 1) + timedelta(microseconds=latest["latest"])).isoformat()


def pairs_of_rows(rows: Sequence[Mapping[str, Any]], sources: int) -> MeasuredPairs:
    """Returns the pairs in rows of `measure_candidates`, ordered by user key and item.

    A hash of the user key decides the fold of a user, so that folds do not depend on the order of rows.
    """
    rows = sorted(rows, key=lambda row: str(row[USER_KEY]))
    hashes = np.array([zlib.crc32(str(row[USER_KEY]).encode()) for row in rows])
    folds = np.empty(len(rows), np.int64)
    folds[np.argsort(hashes, kind="stable")] = np.arange(len(rows)) % FOLDS
    lengths = [len(row["clicked"]) for row in rows]

    def joined(name: str, dtype: type) -> np.ndarray:
        return np.frombuffer(b"".join(bytes(row[name]) for row in rows), dtype)

    return MeasuredPairs(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        joined("items", np.int32),
        joined("logits", np.float32),
        joined("scores", np.float32).reshape(-1, sources),
        joined("clicked", np.bool_),
        np.array([row[POSITIVES] for row in rows]),
        folds,
    )


def _candidates(
    context: RunContext,
    dataset: Dataset,
    tables: CandidateTables,
    items: Rows,
    users: Rows,
    features: Rows,
    numbered: Manifest,
    store: VectorStore,
) -> Rows:
    """Returns the candidates of the users with the scores of the sources, from train rows only.

    There are eight parameters, because all of them are rows or tables that `measured_pairs` also needs.
    """
    config, version = context.config.candidates, dataset.workflow_version
    splits = [split for split in config.exclude_clicked if split in BEFORE]
    known, known_as = known_items(context, dataset, items, splits, users)
    excluding = exclude(users, items, known, tables.filters, tables.attributes, known_as)
    partition = context.lake.blend_items(version).partition(context.run_date)
    counted_to = last_day(context, dataset) if config.counts_days else context.run_date
    retrieved = retrieve(
        context, version, tables, numbered, excluding, store, users=features, items=partition
    )
    sources = SourceTables(
        excluding,
        items,
        candidate_rows(context, dataset, list(BEFORE)),
        counted_to,
        _segments(tables.segments, tables.attributes, features),
        retrieved.lists if retrieved else None,
        store,
    )
    return make_candidates(config, sources, with_scores=True)


def _segments(segments: Mapping[str, Rows], attributes: Rows | None, features: Rows) -> dict[str, Rows]:
    """Returns the segments of users, with features from before the validation split.

    Args:
        segments: maps the name of each segment to rows with the columns user_key and segment, on the run
            date.
        attributes: the table of user attributes, if it is configured. Segments of its columns stay unchanged.
        features: the features of all users from before the validation split.
    """
    known = column_names(attributes) if attributes is not None else []
    return {name: rows if name in known else segment_of(features, name) for name, rows in segments.items()}
