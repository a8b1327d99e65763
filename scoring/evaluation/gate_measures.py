"""First step of the gate: measures of both models on the same raw test rows.

Each model scores the rows in the encoding of its own workflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import DataError
from etl.build import encode_split
from etl.workflow.fitted_workflow import load_workflow
from metrics.bootstrap import Interval, Resample, interval
from scoring.evaluation.gate import Comparison, Figures
from scoring.evaluation.group_ranking import measure_groups
from scoring.evaluation.prediction_quality import UNIT, PredictionQuality, measure_predictions
from scoring.inputs.feature_rows import read_split
from scoring.model.model_info import ModelInfo
from scoring.spark.score_frames import score_rows
from storage.dataset import Dataset, read_spec
from storage.feature_spec import GROUP_KEY, LABEL, ROW_ID, USER_KEY, FeatureSpec
from storage.run_context import RunContext


@dataclass(frozen=True)
class ModelMeasures:
    """Measures of one model on the test rows.

    Attributes:
        version: version of the model.
        workflow_version: version of the workflow that encoded the rows.
        quality: the quality of the predicted probabilities.
        oov_shares: maps each id feature to the share of its ids in the test rows that are not in the
            workflow's vocabulary.
        ranking: MAP@k and NDCG@k of the groups of rows (scoring/evaluation/group_ranking.py); empty if
            keys.group is not configured.
    """

    version: str
    workflow_version: str
    quality: PredictionQuality
    oov_shares: Mapping[str, float]
    ranking: Mapping[str, Any] = field(default_factory=dict)

    @property
    def figures(self) -> Figures:
        """The figures that the gate compares."""
        facts = self.quality.facts
        return Figures(facts["auc"], facts["log_loss"], facts["predicted_over_observed"])

    def to_facts(self) -> dict[str, Any]:
        """The measures as JSON values, for the facts of the evaluation."""
        return {
            "version": self.version,
            "workflow_version": self.workflow_version,
            "oov_shares": dict(self.oov_shares),
            **self.quality.facts,
            **({"ranking": dict(self.ranking)} if self.ranking else {}),
        }


@dataclass(frozen=True)
class Measurement:
    """Measures of several models on the same rows.

    Attributes:
        models: maps the version of each model to its measures.
        users: number of users that were resampled, or number of distinct row ids if the log has no user
            column; 0 if only one model was measured.
    """

    models: Mapping[str, ModelMeasures]
    users: int


def measure_models(
    spark: SparkSession, context: RunContext, dataset: Dataset, models: list[ModelInfo]
) -> Measurement:
    """Measures each model on the test rows.

    Two models are also measured on bootstrap resamples of the users, the same for both models. The test rows
    are encoded once for each workflow version.

    Raises:
        DataError: the models were measured on different numbers of rows or clicks, so the raw log has
            changed.
    """
    gate = context.config.gate
    resample = Resample(gate.replicates, gate.seed) if len(models) > 1 else None
    rows: dict[str, DataFrame] = {}
    oov: dict[str, dict[str, float]] = {}
    measures: dict[str, ModelMeasures] = {}
    for model in models:
        version = model.spec.workflow_version
        model.require_spec(read_spec(context.lake, version))
        if version not in rows:
            with context.phase("encode"):
                rows[version] = _with_unit(rows_to_judge(spark, context, dataset, version), model.spec)
                oov[version] = oov_shares(rows[version], model.spec)
        with context.phase("score"):
            grouped = GROUP_KEY in model.spec.key_columns
            keep = [LABEL, *([UNIT] if resample else []), *([GROUP_KEY] if grouped else [])]
            predictions = score_rows(
                rows[version], model.spec, model.request(context.config.score), keep
            ).persist()
            quality = measure_predictions(predictions, resample)
            ranking = measure_groups(predictions, context.config.measure.group_k) if grouped else {}
            predictions.unpersist()
        measures[model.version] = ModelMeasures(model.version, version, quality, oov[version], ranking)
    counts = {(model.quality.facts["rows"], model.quality.facts["positives"]) for model in measures.values()}
    if len(counts) > 1:
        raise DataError(
            "champion and challenger were measured on different rows; their numbers of (rows, clicks) are "
            f"{sorted(counts)}",
            f"the raw log changed after build_features ran: run build_features for {context.run_date} again",
        )
    first = next(iter(rows.values()))
    return Measurement(measures, first.select(UNIT).distinct().count() if resample else 0)


def compare(confidence: float, challenger: ModelMeasures, champion: ModelMeasures, users: int) -> Comparison:
    """The differences challenger minus champion, each with its confidence interval."""

    def difference(name: str) -> Interval | None:
        ours, theirs = challenger.quality, champion.quality
        return interval(
            ours.facts[name] - theirs.facts[name], ours.replicates[name], theirs.replicates[name], confidence
        )

    rows = int(challenger.quality.facts["rows"])
    return Comparison(champion.figures, difference("auc"), difference("log_loss"), rows, users)


def rows_to_judge(
    spark: SparkSession, context: RunContext, dataset: Dataset, workflow_version: str
) -> DataFrame:
    """The test split of the run date, encoded by this workflow.

    If the dataset was made with this workflow, its published features are read. Otherwise the raw rows are
    encoded.
    """
    if workflow_version == dataset.workflow_version:
        return read_split(spark, context.lake, dataset, ["test"])
    workflow = load_workflow(context.lake, workflow_version, context.config.output.broadcast_max_rows)
    return encode_split(spark, context.config, workflow, context.run_date, "test", context.recorder).persist()


def oov_shares(rows: DataFrame, spec: FeatureSpec) -> dict[str, float]:
    """Maps each id feature to the share of its ids that stand for unknown or rare values. One Spark job."""
    if not spec.embedded:
        return {}
    sums = []
    for feature in spec.embedded:
        name = F.col(feature.name)
        if feature.kind == "multi_hot":
            ids, unknown = F.size(name), F.size(F.filter(name, lambda value: value == F.lit(spec.oov_id)))
            ids, unknown = (
                F.when(name.isNull(), 0).otherwise(ids),
                F.when(name.isNull(), 0).otherwise(unknown),
            )
        else:
            ids, unknown = F.lit(1), F.when(name == spec.oov_id, 1).otherwise(0)
        sums += [F.sum(ids).alias(f"{feature.name}:ids"), F.sum(unknown).alias(f"{feature.name}:oov")]
    totals = rows.agg(*sums).collect()[0]
    return {
        feature.name: (totals[f"{feature.name}:oov"] or 0) / (totals[f"{feature.name}:ids"] or 1)
        for feature in spec.embedded
    }


def _with_unit(rows: DataFrame, spec: FeatureSpec) -> DataFrame:
    """Adds the column UNIT: the hash of the user, or of the row id if the log has no user column.

    Rows with the same UNIT are resampled together. Row ids count from 0 on each day, so this includes rows of
    different test days that have the same row id.
    """
    return rows.withColumn(UNIT, F.xxhash64(USER_KEY if USER_KEY in spec.key_columns else ROW_ID))
