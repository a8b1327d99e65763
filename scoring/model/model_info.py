"""What a driver knows of a trained model: its model.json, read without loading torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conf.errors import DataError
from conf.types import Score
from scoring.inputs.requests import ModelRequest
from storage import file_io, format_versions
from storage.feature_spec import FeatureSpec
from storage.lineage import NOT_RECORDED, LineageRecorder


@dataclass(frozen=True)
class ModelInfo:
    """A complete model: its folder, version, the spec it was trained on, and its whole model.json."""

    path: str
    version: str
    spec: FeatureSpec
    description: Mapping[str, Any]

    def request(self, score: Score) -> ModelRequest:
        """This model for the workers, run as the config says."""
        return ModelRequest(
            self.path,
            score.device,
            score.rows_per_step,
            score.precision,
            embeddings=score.embeddings,
            kernels=score.kernels,
        )

    def require_spec(self, features: FeatureSpec) -> None:
        """Raises DataError unless the features come from the workflow version this model was trained on."""
        self.spec.require_same(features, f"model {self.version}", "the features to score")


def read_model_info(path: str, recorder: LineageRecorder = NOT_RECORDED) -> ModelInfo:
    """What stands in a model folder's model.json. `recorder` notes the model as an input of the run.

    Raises:
        DataError: the folder holds no complete model.
    """
    file = f"{path}/model.json"
    try:
        description = format_versions.MODEL.check(file_io.read_json(file), file)
    except FileNotFoundError as error:
        raise DataError(
            f"{path} holds no complete model ({file} does not exist)", "run train_model first"
        ) from error
    recorder.record_read(path, description["version"])
    return ModelInfo(
        path, description["version"], FeatureSpec.from_json(description["feature_spec"]), description
    )
