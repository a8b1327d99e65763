"""Reads the file model.json of a trained model, without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conf.train_types import ScoreKind
from conf.types import Config, ModelConfig, MultiHot, Score
from scoring.requests import ModelRequest
from storage import format_versions
from storage.feature_spec import FeatureSpec
from storage.format_versions import typed
from storage.lineage import NOT_RECORDED, LineageRecorder
from training.registry.model_json import MODEL_JSON, read_description, score_kind


@dataclass(frozen=True)
class ModelInfo:
    """A trained model, as its file model.json describes it.

    Attributes:
        path: folder of the model.
        version: the model's version, 16 hexadecimal digits.
        spec: the features that the model was trained on.
        description: the content of model.json.
    """

    path: str
    version: str
    spec: FeatureSpec
    description: Mapping[str, Any]

    @property
    def refit_of(self) -> str | None:
        """Returns the version of the champion that this model refits; None if this model is not a refit."""
        return self.description.get("refit_of")

    def score_kind(self, config: Config) -> ScoreKind:
        """Returns the kind of this model's scores.

        `config` determines the kind if model.json does not contain it.
        """
        return score_kind(self.description, config)

    @property
    def multi_hot(self) -> MultiHot:
        """Returns how features that are lists of ids are padded and pooled."""
        return ModelConfig(**self.description["model"]).multi_hot

    def request(self, score: Score) -> ModelRequest:
        """Returns a request to load this model with the settings of the section `score`.

        The driver sends the request to the workers.
        """
        return ModelRequest(
            self.path,
            score.device,
            score.rows_per_step,
            score.precision,
            embeddings=score.embeddings,
            kernels=score.kernels,
            rows_mib=score.rows_mib,
        )

    def require_spec(self, features: FeatureSpec) -> None:
        """Checks that `features` are the features of this model, computed by the same workflow version.

        Raises:
            DataError: `features` has another workflow version or other features.
        """
        self.spec.require_same(features, f"model {self.version}", "the features to score")


def read_model_info(path: str, recorder: LineageRecorder = NOT_RECORDED) -> ModelInfo:
    """Reads the file model.json in the folder `path`.

    Args:
        path: folder of the model.
        recorder: records the model as an input of the run, for lineage.

    Raises:
        DataError: the folder has no model.json, so the model is not complete; or it is damaged.
    """
    description = read_description(path)
    with format_versions.MODEL.parsing(f"{path}/{MODEL_JSON}"):
        typed(description, version=str, feature_spec=dict)
        spec = FeatureSpec.from_json(description["feature_spec"])
    recorder.record_read(path, description["version"])
    return ModelInfo(path, description["version"], spec, description)
