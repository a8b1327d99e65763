"""Encodes the values of the context features (features of scope `context`) for one model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etl.workflow.local_workflow import load_local
from scoring.model.model_info import ModelInfo
from scoring.requests import require_context
from storage.paths import LakePaths
from storage.run_context import RunContext


def encoded_context(context: RunContext, model: ModelInfo) -> dict[str, Any]:
    """Returns the values of score.context, encoded by the workflow of the model; see `encode_context`."""
    return encode_context(context.lake, model, context.config.score.context)


def encode_context(lake: LakePaths, model: ModelInfo, raw_values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns encoded values of the model's context features.

    The result maps the name of each context feature to its encoded value. A list of ids becomes a tuple.

    Args:
        lake: the lake of the model.
        model: the model.
        raw_values: maps each raw column that context features are computed from to its value.

    Raises:
        ConfigError: the keys of `raw_values` are not exactly the raw columns of the model's context features.
    """
    names = [feature.name for feature in model.spec.scoped("context")]
    if not names:
        require_context([], raw_values)
        return {}
    workflow = load_local(lake, model.spec.workflow_version)
    require_context(workflow.raw_columns(names), raw_values)
    encoded = workflow.encode_values(raw_values, names)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in encoded.items()}
