"""Encodes the values of the context features (features of scope `context`) for one model."""

from __future__ import annotations

from typing import Any

from etl.workflow.fitted_workflow import load_local
from scoring.inputs.requests import require_context
from scoring.model.model_info import ModelInfo
from storage.run_context import RunContext


def encoded_context(context: RunContext, model: ModelInfo) -> dict[str, Any]:
    """Returns the values of score.context, encoded by the workflow of the model.

    The result maps the name of each context feature to its encoded value. A list of ids becomes a tuple.

    Raises:
        ConfigError: score.context does not name exactly the raw columns of the model's context features.
    """
    names = [feature.name for feature in model.spec.scoped("context")]
    raw_values = context.config.score.context
    if not names:
        require_context([], raw_values)
        return {}
    workflow = load_local(context.lake, model.spec.workflow_version)
    require_context(workflow.raw_columns(names), raw_values)
    encoded = workflow.encode_values(raw_values, names)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in encoded.items()}
