"""Fits a blend, which ranks candidates by the model's logit and the scores of the sources.

The blend is a linear function of a pair's features (`features`). Its weights w minimize

    Σ_u ( log Σ_i exp(w·x_ui) − mean of w·x_ui over the clicked items i of user u ) + λ/2 ‖w‖²

where i runs over the candidates of user u that the model or a source ranks high. The sum over u is the
cross-entropy of a softmax over these candidates (the listwise loss of Z. Cao et al., Learning to Rank: From
Pairwise Approach to Listwise Approach, ICML 2007). Other candidates enter no list, so their order does not
matter. The function is convex, and Newton's method finds its minimum without random numbers.

`learn` compares these contenders: rankings by the model alone, by each source alone, and by the blend. Users
are divided into folds. The lists of a fold's users are made with weights that are fitted to the users of the
other folds.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from conf.types import Candidates, Split
from etl.latest.latest_features import latest_rules
from scoring.candidates.build import make_candidates
from scoring.candidates.candidate_items import available_items, number_items
from scoring.candidates.candidate_tables import (
    CandidateTables,
    candidate_rows,
    column_names,
    last_counted_days,
    segment_of,
)
from scoring.candidates.clicks import CLICK_COLUMNS, within
from scoring.candidates.exclusions import exclude, known_items
from scoring.candidates.lists_in_spark import VectorStore, release, vector_store
from scoring.candidates.retrieved import retrieve
from scoring.candidates.source_tables import SourceTables
from scoring.evaluation.features_before_test import rows_before_test
from scoring.evaluation.gate_lists import sampled_users
from scoring.evaluation.measured_lists import ideal_gains
from scoring.feature_rows import read_split
from scoring.model.context_features import encoded_context
from scoring.model.model_info import ModelInfo
from scoring.requests import ITEM_INDEX, POSITIVES, BlendRequest, ListRequest
from scoring.spark.score_frames import measure_candidates
from spark.rows import (
    Rows,
    collected,
    count,
    frame_of,
    persist,
    query,
    quoted,
    read_rows,
    records,
    spread,
    unpersist,
)
from storage.dataset import Dataset
from storage.feature_spec import ITEM_KEY, USER_KEY
from storage.manifest import Manifest, data_files
from storage.publish import publish_rows
from storage.run_context import RunContext

MODEL, BLEND = "model", "blend"
FOLDS = 5
L2 = 1.0
Vector = NDArray[np.float64]

# A contender that ranks by one source adds the logit times `_LOGIT_SHARE` to the score of the source. The
# logit then orders items with equal scores, and items that the source did not propose. Items that the source
# did not propose get the source's smallest score minus `_DISTANCE`.
_LOGIT_SHARE = 1e-3
_DISTANCE = 10.0

# A candidate counts in the loss if the model or a source ranks it among the _DEPTH · k best of the user.
_DEPTH = 10
_MOST_STEPS, _SMALL_STEP = 50, 1e-9
_MOST_HALVINGS, _BISECTIONS = 30, 60


@dataclass(frozen=True)
class MeasuredPairs:
    """The candidates of U users, with the logits and scores that may rank them. S is the number of sources.

    Attributes:
        starts: (U + 1,) int64, the index of the first candidate of each user; the last number is P.
        items: (P,) int32, the item index of each candidate.
        logits: (P,) float32, the logits of the model.
        scores: (P, S) float32, the scores of the sources; NaN where the source did not propose the item.
        clicked: (P,) bool, whether the user clicked the item in the validation split.
        positives: (U,) int64, number of items that the user clicked in the validation split, candidates or
            not; at least 1.
        folds: (U,) int64, the fold of each user, below FOLDS.
    """

    starts: NDArray[np.int64]
    items: NDArray[np.int32]
    logits: NDArray[np.float32]
    scores: NDArray[np.float32]
    clicked: NDArray[np.bool_]
    positives: NDArray[np.int64]
    folds: NDArray[np.int64]

    @property
    def user(self) -> NDArray[np.int64]:
        """Returns the number of the user of each candidate, (P,)."""
        return np.repeat(np.arange(len(self.positives)), np.diff(self.starts))


@dataclass(frozen=True)
class ContenderFigures:
    """HR@k and NDCG@k of one contender's lists: means over all users, including users without candidates."""

    hit_rate: float
    ndcg: float


@dataclass(frozen=True)
class LearnedBlend:
    """The result of `learn`: the chosen contender and the figures of all contenders.

    Attributes:
        chosen: the contender with the highest NDCG@k; with equal values, the first one in the order of
            `figures`.
        figures: maps each contender to its figures: `model`, the sources in the order of their indices, and
            `blend`.
        request: the weights with which a blend ranks like the chosen contender; None for `model`. The weights
            of `blend` are fitted to all users.
    """

    chosen: str
    figures: Mapping[str, ContenderFigures]
    request: BlendRequest | None


def learn(pairs: MeasuredPairs, sources: Sequence[str], k: int) -> LearnedBlend:
    """Measures all contenders and chooses the best one.

    Args:
        pairs: the measured pairs.
        sources: the names of the S sources.
        k: length of the lists.
    """
    x, scales = features(pairs)
    weights = {MODEL: np.eye(1, x.shape[1])[0]}
    weights |= {name: _source_weights(pairs, scales, number) for number, name in enumerate(sources)}
    positions = {name: _positions(pairs, x @ w) for name, w in weights.items()}
    figures = {name: _figures(pairs, places, k) for name, places in positions.items()}
    counted = np.min(list(positions.values()), axis=0) < _DEPTH * k
    held_out = np.empty(len(x))
    user = pairs.user
    for fold in range(FOLDS):
        measured = pairs.folds[user] == fold
        held_out[measured] = x[measured] @ fit(x, pairs, counted & (pairs.folds != fold)[user])
    figures[BLEND] = _figures(pairs, _positions(pairs, held_out), k)
    chosen = max(figures, key=lambda name: figures[name].ndcg)  # `max` returns the first of equal contenders
    if chosen == MODEL:
        return LearnedBlend(chosen, figures, None)
    best = fit(x, pairs, counted) if chosen == BLEND else weights[chosen]
    return LearnedBlend(chosen, figures, _request(best, scales, _intercept(x @ best, pairs.clicked)))


def features(pairs: MeasuredPairs) -> tuple[Vector, Vector]:
    """Returns the features (P, 1 + 2 S) of the pairs, and the scales (1 + S,) of logit and scores.

    The first feature is the logit. The next S features are the scores of the sources, or 0 where a source did
    not propose the item. The last S features are 1 where a source did not propose the item, and 0 elsewhere.
    Logit and scores are divided by their standard deviation over all pairs.
    """
    proposed = ~np.isnan(pairs.scores)
    columns = [pairs.logits, *(pairs.scores[here, s] for s, here in enumerate(proposed.T))]
    deviations = [float(column.std(dtype=np.float64)) if len(column) else 0.0 for column in columns]
    scales = np.array([deviation or 1.0 for deviation in deviations])
    x = np.zeros((len(pairs.logits), 1 + 2 * pairs.scores.shape[1]))
    x[:, 0] = pairs.logits / scales[0]
    x[:, 1 : len(scales)] = np.where(proposed, pairs.scores, 0) / scales[1:]
    x[:, len(scales) :] = ~proposed
    return x, scales


def fit(x: Vector, pairs: MeasuredPairs, counted: NDArray[np.bool_]) -> Vector:
    """Returns the weights (D,) that minimize the loss of some candidates.

    Args:
        x: (P, D) features.
        pairs: the pairs.
        counted: (P,) bool, whether a candidate is in the loss. Users without a clicked candidate among these
            candidates are left out.
    """
    user = pairs.user
    clicks = np.bincount(user[pairs.clicked & counted], minlength=len(pairs.positives))
    kept = counted & (clicks > 0)[user]
    lengths = np.bincount(user[kept], minlength=len(clicks))[clicks > 0]
    x, share = x[kept], np.where(pairs.clicked, 1 / np.maximum(clicks, 1)[user], 0)[kept]
    target = share @ x
    w, (loss, gradient, hessian) = np.zeros(x.shape[1]), _loss(x, lengths, target, np.zeros(x.shape[1]))
    for _ in range(_MOST_STEPS):
        step = np.linalg.solve(hessian, -gradient)
        for _ in range(_MOST_HALVINGS):
            following = _loss(x, lengths, target, w + step)
            if following[0] <= loss:
                break
            step /= 2
        else:
            break
        w, (loss, gradient, hessian) = w + step, following
        if np.abs(step).max() < _SMALL_STEP:
            break
    return w


def _loss(x: Vector, lengths: NDArray[np.int64], target: Vector, w: Vector) -> tuple[float, Vector, Vector]:
    """Returns the loss, its gradient (D,) and its Hessian matrix (D, D).

    Args:
        x: (P, D) features of the candidates, user after user.
        lengths: (U,) number of candidates of each user, at least 1.
        target: (D,) sum over the users of the mean features of the clicked items.
        w: (D,) weights.
    """
    if not len(lengths):
        return L2 / 2 * float(w @ w), L2 * w, L2 * np.eye(len(w))
    starts = np.cumsum(lengths) - lengths
    scores = x @ w
    highest = np.maximum.reduceat(scores, starts)
    exponentials = np.exp(scores - np.repeat(highest, lengths))
    totals = np.add.reduceat(exponentials, starts)
    weighted = x * (exponentials / np.repeat(totals, lengths))[:, None]
    means = np.add.reduceat(weighted, starts)  # (U, D)
    loss = float((highest + np.log(totals)).sum() - target @ w + L2 / 2 * (w @ w))
    hessian = x.T @ weighted - means.T @ means + L2 * np.eye(len(w))
    return loss, means.sum(axis=0) - target + L2 * w, hessian


def _source_weights(pairs: MeasuredPairs, scales: Vector, source: int) -> Vector:
    """Returns the weights (1 + 2 S,) of a blend that ranks by the score of one of S sources."""
    weights = np.zeros(2 * len(scales) - 1)
    weights[0], weights[1 + source] = _LOGIT_SHARE, 1.0
    of_source = pairs.scores[:, source]
    known = of_source[~np.isnan(of_source)]
    lowest = known.min() / scales[1 + source] if len(known) else 0.0
    weights[len(scales) + source] = lowest - _DISTANCE
    return weights


def _positions(pairs: MeasuredPairs, scores: Vector) -> NDArray[np.int64]:
    """Returns the position (P,) of each candidate in the user's ranking, from 0.

    If scores are equal, the smaller item index comes first.
    """
    user = pairs.user
    order = np.lexsort((pairs.items, -scores, user))
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order)) - pairs.starts[user[order]]
    return positions


def _figures(pairs: MeasuredPairs, positions: NDArray[np.int64], k: int) -> ContenderFigures:
    """Returns HR@k and NDCG@k of lists that consist of each user's candidates at positions below k."""
    user = pairs.user
    hit = pairs.clicked & (positions < k)
    gains = np.bincount(user[hit], 1 / np.log2(positions[hit] + 2), len(pairs.positives))
    ideal = np.array(ideal_gains(k))[np.minimum(pairs.positives, k) - 1]
    hits = np.bincount(user[hit], minlength=len(pairs.positives)) > 0
    return ContenderFigures(float(hits.mean()), float((gains / ideal).mean()))


def _intercept(scores: Vector, clicked: NDArray[np.bool_]) -> float:
    """Returns the number b for which the sigmoids of scores + b add up to the number of clicked items.

    So the sigmoids are small, and float32 can distinguish them.
    """
    wanted = max(float(clicked.sum()), 0.5)
    low, high = -float(scores.max()) - 50.0, -float(scores.min()) + 50.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        total = (1 / (1 + np.exp(-np.clip(scores + middle, -500, 500)))).sum()
        low, high = (middle, high) if total < wanted else (low, middle)
    return (low + high) / 2


def _request(weights: Vector, scales: Vector, intercept: float) -> BlendRequest:
    """Returns the blend for the model's logits and the sources' scores, without the scales of the fit."""
    plain = weights[: len(scales)] / scales
    absent = weights[len(scales) :]
    return BlendRequest(intercept, float(plain[0]), tuple(plain[1:].tolist()), tuple(absent.tolist()))


# The code below measures the candidates of users with validation clicks, which are computed from earlier data
# only.
#
# The sources count the rows of the train split only, and only these rows exclude items. The features of users
# and items are from before the validation rows. Otherwise a source or the features could contain the clicks
# that the blend is fitted to. The blend would then give this source or the model too much weight.

BEFORE: tuple[Split, ...] = ("train",)

# Largest number of (user, candidate) pairs to which a blend is fitted. The driver needs about 100 bytes for a
# pair with four sources.
MOST_PAIRS = 2_000_000
_LEAST_USERS = 200


def measured_pairs(
    context: RunContext, dataset: Dataset, model: ModelInfo, tables: CandidateTables
) -> MeasuredPairs | None:
    """Returns the candidates of users with validation clicks, with the logits of a model.

    The users have a click in the validation split and a row in the train split. If they have more than about
    MOST_PAIRS candidates together, only the users whose keys have the smallest hashes are measured. Returns
    None if there is no such user.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        dataset: the splits that build_features published for the run date.
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
    """Returns the features of users or items, from rows before the validation rows, as a table or a frame."""
    rows = rows_before_test(context, dataset, model.spec, side, before="validation")
    if not context.in_process:
        return frame_of(context.spark, rows)
    return rows if isinstance(rows, pa.Table) else collected(rows)


def _features(model: ModelInfo) -> str:
    """Returns the model's user features as a list of columns in SQL."""
    names = [feature.name for feature in model.spec.scoped("user")]
    return ", ".join(f"features.{quoted(name)}" for name in names) or "1 AS no_feature"


def most_users(config: Candidates) -> int:
    """Returns the largest number of users whose candidates are used to fit a blend."""
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
        counted_to, time_zone = counted_until(context, dataset), context.config.log.time_zone
        seen = within(rows, config.active_days, counted_to, time_zone)
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


def counted_until(context: RunContext, dataset: Dataset) -> str:
    """Returns the last day of the windows of sources with `window_days`, in `log.time_zone`.

    It is the day of the last train row, plus `uncounted_days` if the log is divided by days. The windows of
    build_candidates end on the run date, and none of their last `uncounted_days` days has counted rows. So a
    window has the same number of days with rows here as in build_candidates.
    """
    if context.config.split.by == "day":
        last = date.fromisoformat(dataset.splits["train"][-1].dt)
        return (last + timedelta(days=context.config.uncounted_days)).isoformat()
    last_day, _ = last_counted_days(context, dataset, list(BEFORE))
    return last_day


def pairs_of_rows(rows: Sequence[Mapping[str, Any]], sources: int) -> MeasuredPairs:
    """Converts rows of `measure_candidates` to pairs, ordered by user key and item.

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

    The function has eight parameters, because the caller uses each of these values for other purposes too.
    """
    config, version = context.config.candidates, dataset.workflow_version
    splits = [split for split in config.exclude_clicked if split in BEFORE]
    known, known_as = known_items(context, dataset, items, splits, users)
    excluding = exclude(users, items, known, tables.filters, tables.attributes, known_as)
    partition = context.lake.blend_items(version).partition(context.run_date)
    counted_to = counted_until(context, dataset) if config.counts_days else context.run_date
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
        context.config.log.time_zone,
    )
    return make_candidates(config, sources, with_scores=True)


def _segments(segments: Mapping[str, Rows], attributes: Rows | None, features: Rows) -> dict[str, Rows]:
    """Returns the segments of users, with features from before the validation split.

    Args:
        segments: maps the name of each segment to rows with the columns user_key and segment, on the run
            date.
        attributes: the table of user attributes, if it is configured. Segments that are columns of this table
            are returned unchanged.
        features: the features of all users from before the validation split.
    """
    known = column_names(attributes) if attributes is not None else []
    return {name: rows if name in known else segment_of(features, name) for name, rows in segments.items()}
