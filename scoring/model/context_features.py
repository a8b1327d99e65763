"""The values of the features of scope `context`, encoded for one model."""

from __future__ import annotations

from typing import Any

from etl.workflow.fitted_workflow import load_local
from scoring.inputs.requests import require_context
from scoring.model.model_info import ModelInfo
from storage.run_context import RunContext


def encoded_context(context: RunContext, model: ModelInfo) -> dict[str, Any]:
    """Tonight's values of the context features, encoded by the model's workflow; a list of ids as a tuple.

    Raises:
        ConfigError: score.context does not give exactly the raw columns they are made of.
    """
    names = [each.name for each in model.spec.scoped("context")]
    given = context.config.score.context
    if not names:
        require_context([], given)
        return {}
    workflow = load_local(context.lake, model.spec.workflow_version)
    require_context(workflow.raw_columns(names), given)
    encoded = workflow.encode_values(given, names)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in encoded.items()}
