"""First step of the gate: measures both models on the same raw test rows.

The workflow of each model encodes the test rows for this model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from conf.errors import DataError
from conf.train_types import ScoreKind
from etl.build import encode_split
from etl.workflow.feature_plan import plan_of
from etl.workflow.fitted_workflow import load_workflow
from metrics.bootstrap import Interval, Resample, interval
from metrics.ranking import map_at_k, ndcg_at_k
from scoring.evaluation.gate import ChallengerComparison, ModelFigures
from scoring.evaluation.prediction_quality import UNIT, PredictionQuality, measure_predictions
from scoring.feature_rows import read_split
from scoring.model.model_info import ModelInfo
from scoring.requests import PROBABILITY
from scoring.spark.score_frames import score_rows
from spark.choose_workers import choose_workers
from spark.rows import (
    ReadableRows,
    Rows,
    count,
    map_rows,
    persist,
    query,
    quoted,
    read_in_pieces,
    records,
    select,
    unpersist,
    with_hash,
)
from storage.dataset import Dataset, read_spec
from storage.feature_spec import GROUP_KEY, LABEL, ROW_ID, USER_KEY, FeatureSpec
from storage.run_context import RunContext

_OF_PROBABILITIES = ("log_loss", "normalized_entropy")
_OF_CLICK_PROBABILITIES = ("predicted_over_observed", "calibration")


@dataclass(frozen=True)
class ModelMeasures:
    """The measures of one model on the test rows.

    Attributes:
        version: version of the model.
        workflow_version: version of the workflow that encoded the test rows.
        quality: the quality of the predicted probabilities.
        oov_shares: maps each id feature to the share of its ids in the test rows that the vocabulary of the
            workflow does not contain.
        ranking: MAP@k and NDCG@k of the groups of rows (`measure_groups`); empty if keys.group is not
            configured.
        scores: the kind of the model's scores. Facts that are undefined for this kind are None in the result
            of `to_facts`.
    """

    version: str
    workflow_version: str
    quality: PredictionQuality
    oov_shares: Mapping[str, float]
    ranking: Mapping[str, Any] = field(default_factory=dict)
    scores: ScoreKind = "click_probability"

    @property
    def figures(self) -> ModelFigures | None:
        """Returns the figures that the gate compares; None if the AUC is undefined on the test rows."""
        if self.quality.unmeasured is not None:
            return None
        facts = self.facts
        return ModelFigures(facts["auc"], facts["log_loss"], facts["predicted_over_observed"])

    @property
    def facts(self) -> dict[str, Any]:
        """Returns the quality of the predictions.

        Facts that are undefined for the model's kind of scores are None.

        Scores that only order rows have no log loss. Only click probabilities can be compared with a click
        rate.
        """
        missing: tuple[str, ...] = _OF_CLICK_PROBABILITIES if self.scores != "click_probability" else ()
        missing += _OF_PROBABILITIES if self.scores == "ranking" else ()
        return {**self.quality.facts, **dict.fromkeys(missing)}

    def to_facts(self) -> dict[str, Any]:
        """Returns the measures as JSON values for the facts of the evaluation."""
        return {
            "version": self.version,
            "workflow_version": self.workflow_version,
            "oov_shares": dict(self.oov_shares),
            "scores": self.scores,
            **self.facts,
            **({"ranking": dict(self.ranking)} if self.ranking else {}),
        }


@dataclass(frozen=True)
class Measurement:
    """The measures of one or two models on the same rows.

    Attributes:
        models: maps the version of each model to its measures.
        users: number of users that were resampled. If the log has no user column, this is the number of
            distinct row ids. If only one model was measured, this is 0.
    """

    models: Mapping[str, ModelMeasures]
    users: int


def measure_models(context: RunContext, dataset: Dataset, models: list[ModelInfo]) -> Measurement:
    """Measures each model on the test rows.

    If there are two models, both are also measured on the same bootstrap resamples of the users. The test
    rows are encoded once for each workflow version.

    Raises:
        DataError: the models were measured on different numbers of rows or clicks, so the raw log has
            changed.
    """
    gate = context.config.gate
    resample = Resample(gate.replicates, gate.seed) if len(models) > 1 else None
    rows: dict[str, ReadableRows] = {}  # maps a workflow version to the test rows that it encoded
    oov: dict[str, dict[str, float]] = {}
    units = 0
    measures: dict[str, ModelMeasures] = {}
    for model in models:
        version = model.spec.workflow_version
        model.require_spec(read_spec(context.lake, version))
        if version not in rows:
            rows.clear()
            with context.phase("encode"):
                rows[version] = encoded_test_rows(context, dataset, version)
                oov[version] = oov_shares(rows[version], model.spec)
        with context.phase("score"):
            grouped = GROUP_KEY in model.spec.key_columns
            keep = [LABEL, *([_unit_of(model.spec)] if resample else []), *([GROUP_KEY] if grouped else [])]
            scored = score_rows(rows[version], model.spec, model.request(context.config.score), keep)
            predictions = persist(with_hash(scored, _unit_of(model.spec), UNIT) if resample else scored)
            quality = measure_predictions(predictions, resample)
            ranking = measure_groups(predictions, context.config.measure.group_k) if grouped else {}
            if resample and not units:
                units = _count_units(predictions)
            unpersist(predictions)
        measures[model.version] = ModelMeasures(
            model.version, version, quality, oov[version], ranking, model.score_kind(context.config)
        )
    counts = {(model.quality.facts["rows"], model.quality.facts["positives"]) for model in measures.values()}
    if len(counts) > 1:
        raise DataError(
            "champion and challenger were measured on different rows; their numbers of (rows, clicks) are "
            f"{sorted(counts)}",
            f"the raw log changed after build_features ran: run build_features for {context.run_date} again",
        )
    return Measurement(measures, units)


def compare(
    confidence: float, challenger: ModelMeasures, champion: ModelMeasures, users: int
) -> ChallengerComparison | None:
    """Compares two models: computes the differences of their measures, challenger minus champion.

    Each difference has a confidence interval. A measure that is undefined for one of the models is not
    compared. Returns None if the AUC of a model is undefined on the test rows.
    """
    of_champion = champion.figures
    if of_champion is None:
        return None

    def difference(name: str) -> Interval | None:
        ours, theirs = challenger.facts[name], champion.facts[name]
        if ours is None or theirs is None:
            return None
        replicates = challenger.quality.replicates[name], champion.quality.replicates[name]
        return interval(ours - theirs, *replicates, confidence)

    rows = int(challenger.quality.facts["rows"])
    return ChallengerComparison(of_champion, difference("auc"), difference("log_loss"), rows, users)


def oov_shares(rows: ReadableRows, spec: FeatureSpec) -> dict[str, float]:
    """Returns the share of out-of-vocabulary ids of each id feature.

    The result maps the name of the feature to this share. An id is out of vocabulary if it represents an
    unknown or rare value. The function runs one query.
    """
    if not spec.embedded:
        return {}
    sums = []
    for number, feature in enumerate(spec.embedded):
        name = quoted(feature.name)
        ids, unknown = "count(1)", f"count(CASE WHEN {name} = {spec.oov_id} THEN 1 END)"
        if feature.kind == "multi_hot":
            known = f"size(array_remove({name}, {spec.oov_id}))"
            ids = f"sum(CASE WHEN {name} IS NULL THEN 0 ELSE size({name}) END)"
            unknown = f"sum(CASE WHEN {name} IS NULL THEN 0 ELSE size({name}) - {known} END)"
        sums += [f"{ids} AS ids_{number}", f"{unknown} AS oov_{number}"]
    names = [feature.name for feature in spec.embedded]
    (totals,) = records(query(f"SELECT {', '.join(sums)} FROM {{rows}}", rows=select(rows, names)))
    return {
        name: (totals[f"oov_{number}"] or 0) / (totals[f"ids_{number}"] or 1)
        for number, name in enumerate(names)
    }


def _count_units(rows: Rows) -> int:
    """Returns the number of units that a bootstrap resamples."""
    return count(query(f"SELECT DISTINCT {UNIT} FROM {{rows}}", rows=select(rows, [UNIT])))


def _unit_of(spec: FeatureSpec) -> str:
    """Returns the column whose hash is UNIT: the user, or the row id if the log has no user column.

    Rows with equal UNIT are resampled together. Row ids start at 0 on each day. So without a user column,
    rows of different test days with equal row ids are also resampled together.
    """
    return USER_KEY if USER_KEY in spec.key_columns else ROW_ID


# Encodes the test rows of a run date by the workflow of each model that the gate compares.


def encoded_test_rows(context: RunContext, dataset: Dataset, workflow_version: str) -> ReadableRows:
    """Returns the test split of the run date, encoded by the workflow with this version.

    If this workflow made the dataset, the function reads the published features. Otherwise it encodes the raw
    rows again (etl.build.encode_split).
    """
    if workflow_version == dataset.workflow_version:
        return read_split(context, dataset, ["test"])
    config = context.config
    engine = config.workflow.engine
    workers = choose_workers(engine, lambda: context.spark)
    workflow = load_workflow(
        context.lake, workflow_version, config.output.broadcast_max_rows, engine, workers
    )
    read = partial(read_in_pieces, context)
    return encode_split(workers, plan_of(config), context.lake, workflow, context.run_date, "test", read)


# Measures MAP@k and NDCG@k of ranked groups of rows, such as ads that were displayed together.
#
# All rows of a group are in one Spark task. Each task reduces its groups to one row of integer sums, and the
# driver adds the rows of all tasks. So the result does not depend on the order of the tasks, and the driver's
# memory does not grow with the number of groups.

_UNITS = 2**32
_SUMS = pa.schema([("groups", pa.int64()), ("map_units", pa.int64()), ("ndcg_units", pa.int64())])


def measure_groups(predictions: Rows, k: int) -> dict[str, Any]:
    """Measures MAP@k and NDCG@k of the rows of each group, ranked by descending probability.

    Args:
        predictions: rows with the columns group_key, label and probability. The label is 0 or 1.
        k: number of top positions that are measured.

    Returns:
        A dictionary with the keys `k`, `groups`, `map` and `ndcg`. `groups` is the number of groups with a
        click; all other groups are ignored. `map` and `ndcg` are the means of AP@k and NDCG@k over the groups
        with a click (metrics.ranking); None if no group has a click.
    """
    rows = select(predictions, [GROUP_KEY, LABEL, PROBABILITY])
    of_group = rows.repartition(GROUP_KEY) if isinstance(rows, DataFrame) else rows
    partials = records(map_rows(of_group, _reducer(k), _SUMS))
    groups = sum(sums["groups"] for sums in partials)
    means = {
        name: sum(sums[f"{name}_units"] for sums in partials) / _UNITS / groups if groups else None
        for name in ("map", "ndcg")
    }
    return {"k": k, "groups": groups, **means}


def _reducer(k: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function for `map_rows` that reduces the groups of one task to one row of sums."""

    def reduce(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        if tables:
            sums = reduce_groups(pa.concat_tables(tables), k)
            yield pa.RecordBatch.from_pylist([sums], schema=_SUMS)

    return reduce


def reduce_groups(rows: pa.Table, k: int) -> dict[str, int]:
    """Returns the number of groups with a click, and the sums of AP@k and of NDCG@k over these groups.

    The sums are integers in units of 2⁻³².

    Args:
        rows: a table with the columns group_key, label and probability, and at least one row. A group with a
            row in the table must have all its rows in the table.
        k: number of top positions that are measured.
    """
    group = rows.column(GROUP_KEY).combine_chunks().dictionary_encode().indices.to_numpy()
    label = rows.column(LABEL).to_numpy()
    score = rows.column(PROBABILITY).to_numpy()
    groups = len(np.unique(group[label > 0]))
    if not groups:
        return {"groups": 0, "map_units": 0, "ndcg_units": 0}
    means = {"map": map_at_k(label, score, group, k), "ndcg": ndcg_at_k(label, score, group, k)}
    return {
        "groups": groups,
        **{f"{name}_units": round(mean * groups * _UNITS) for name, mean in means.items()},
    }
