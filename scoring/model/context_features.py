"""Encodes the values of the context features (features of scope `context`) for one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conf.types import Split
from etl.quality.report import most_frequent_of_days
from etl.workflow.fitted_workflow import LocalWorkflow, load_local
from scoring.model.model_info import ModelInfo
from scoring.requests import require_context
from storage.dataset import read_dataset
from storage.manifest import is_published
from storage.paths import LakePaths
from storage.run_context import RunContext


@dataclass(frozen=True)
class TrainingRows:
    """The train split of a run date, whose most frequent values are the defaults of `score.context`.

    Attributes:
        config_name: the name of the configuration.
        run_date: the run date. Rows of later days, and rows of this date's validation and test splits, have
            no effect.
    """

    config_name: str
    run_date: str


def encoded_context(context: RunContext, model: ModelInfo) -> dict[str, Any]:
    """Returns the values of score.context, encoded by the workflow of the model; see `encode_context`."""
    defaults = TrainingRows(context.config.name, context.run_date)
    return encode_context(context.lake, model, context.config.score.context, defaults)


def raw_context(context: RunContext, model: ModelInfo) -> dict[str, Any]:
    """Returns the raw context values for a model's lists, from `score.context` or from the default values."""
    names = [feature.name for feature in model.spec.scoped("context")]
    if not names:
        return {}
    workflow = load_local(context.lake, model.spec.workflow_version)
    defaults = TrainingRows(context.config.name, context.run_date)
    return _with_defaults(context.lake, workflow, names, context.config.score.context, defaults)


def encode_context(
    lake: LakePaths,
    model: ModelInfo,
    raw_values: Mapping[str, Any],
    defaults: TrainingRows | None = None,
) -> dict[str, Any]:
    """Returns encoded values of the model's context features.

    The result maps the name of each context feature to its encoded value. A list of ids becomes a tuple.

    Args:
        lake: the lake of the model.
        model: the model.
        raw_values: a value for each raw column that context features are computed from.
        defaults: the rows whose most frequent value is taken for a column that is not in `raw_values`; None
            if `raw_values` must have all columns.

    Raises:
        ConfigError: `raw_values` names a column from which no context feature is computed, or a column has
            neither a value nor a default.
    """
    names = [feature.name for feature in model.spec.scoped("context")]
    if not names:
        require_context([], raw_values)
        return {}
    workflow = load_local(lake, model.spec.workflow_version)
    if defaults is not None:
        raw_values = _with_defaults(lake, workflow, names, raw_values, defaults)
    require_context(list(workflow.raw_types(names)), raw_values)
    encoded = workflow.encode_values(raw_values, names)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in encoded.items()}


def _with_defaults(
    lake: LakePaths,
    workflow: LocalWorkflow,
    names: list[str],
    raw_values: Mapping[str, Any],
    defaults: TrainingRows,
) -> dict[str, Any]:
    """Returns the raw values that the context features `names` need, with defaults for missing columns."""
    missing = {name: kind for name, kind in workflow.raw_types(names).items() if name not in raw_values}
    if not missing or not is_published(lake.datasets.partition(defaults.run_date)):
        return dict(raw_values)
    train = read_dataset(lake, defaults.run_date).splits["train"]
    days: list[tuple[str, Split | None]] = [
        (member.dt, "train" if member.label is not None else None) for member in train
    ]
    return {**most_frequent_of_days(lake, defaults.config_name, days, missing), **raw_values}
