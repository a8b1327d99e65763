"""`model.json`: what a model is, how it was made and what it measured. It is written last: without it there is no model."""

from __future__ import annotations

from typing import Any

from conf import format_versions, storage
from conf.errors import DataError

MODEL_JSON = "model.json"


def is_complete(path: str) -> bool:
    """Whether a model's folder holds a whole model."""
    return storage.exists(f"{path}/{MODEL_JSON}")


def read_description(path: str) -> dict[str, Any]:
    """The model.json of a model's folder.

    Raises:
        DataError: there is no whole model in that folder, or a newer release wrote it.
    """
    try:
        file = f"{path}/{MODEL_JSON}"
        return format_versions.MODEL.check(storage.read_json(file), file)
    except FileNotFoundError as error:
        raise DataError(
            f"{path} holds no whole model ({MODEL_JSON} is missing)", "run train_model first"
        ) from error
