"""Models and checkpoints on disk: safetensors and JSON, each complete or absent.

A model's folder holds its weights and `model.json`, which is written last: a folder without it is no model.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from conf import storage
from conf.errors import DataError, InfrastructureError
from conf.feature_spec import FeatureSpec
from conf.types import ModelConfig, MultiHot
from training.description import MODEL_JSON, read_description
from training.embedding.table import tables_of
from training.models import build_model

_DENSE = "dense.safetensors"
_EMBEDDINGS = "embeddings-00000.safetensors"
_OPTIMIZER = "optimizer.safetensors"


@dataclass(frozen=True)
class LoadedModel:
    """A trained model, ready to score: `model` is in evaluation mode, `description` is its model.json.

    `multi_hot` says how the model takes lists of ids.
    """

    model: nn.Module
    spec: FeatureSpec
    multi_hot: MultiHot
    version: str
    description: dict[str, Any]


def save_model(
    path: str,
    model: nn.Module,
    description: Mapping[str, Any],
    optimizer_state: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes a model's folder: weights, the optimisers' state, and model.json, which lists these files.

    Without the optimisers' state a model can score, and no training can start from it. Embedding tables lie in files
    of their own, so that they can be many where a table is spread over ranks.
    """
    tables = tables_of(model)
    state = model.state_dict()
    weights = {
        _DENSE: {name: value for name, value in state.items() if name not in tables},
        _EMBEDDINGS: {name: value for name, value in state.items() if name in tables},
    }
    optimizer = {} if optimizer_state is None else {_OPTIMIZER: optimizer_state}
    for file, tensors in {**weights, **optimizer}.items():
        _replace_tensors(Path(path) / file, tensors)
    listed = {"weights": list(weights), "optimizer": list(optimizer)}
    storage.replace_json(f"{path}/{MODEL_JSON}", {**description, **listed})


def _read_tensors(path: str, files: Sequence[str], device: torch.device) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for file in files:
        try:
            found |= load_file(f"{path}/{file}", device=str(device))
        except FileNotFoundError as error:
            raise DataError(
                f"{path}/{file} is missing", "delete the model's folder and run train_model again"
            ) from error
    return found


def load_training_state(path: str, device: torch.device) -> tuple[dict[str, Tensor], FeatureSpec]:
    """What a further training starts from: `Trainer.state()` as it was at the model's end, and the model's spec.

    Raises:
        DataError: the folder holds no whole model, or one that an older version of this code wrote.
    """
    description = read_description(path)
    if "optimizer" not in description:
        raise DataError(
            f"{path}/{MODEL_JSON} names no optimiser state: an older version of this code wrote it",
            "train afresh once with --set train.retrain.start=fresh",
        )
    weights = _read_tensors(path, description["weights"], device)
    state = {f"model.{name}": value for name, value in weights.items()}
    return {**state, **_read_tensors(path, description["optimizer"], device)}, FeatureSpec.from_json(
        description["feature_spec"]
    )


def load_model(path: str, device: torch.device) -> LoadedModel:
    """The model of a folder `models/<name>/<version>`.

    Raises:
        DataError: the folder holds no complete model, or its weights are not those of its architecture.
    """
    description = read_description(path)
    spec = FeatureSpec.from_json(description["feature_spec"])
    config = ModelConfig(**description["model"])
    model = build_model(config, spec).to(device)
    try:
        model.load_state_dict(_read_tensors(path, description["weights"], device))
    except RuntimeError as error:
        raise DataError(
            f"{path}: the weights do not fit architecture {description['architecture']}: {error}",
            "train the model again with this code",
        ) from error
    return LoadedModel(model.eval(), spec, config.multi_hot, description["version"], description)


@dataclass(frozen=True)
class Position:
    """Where a training stands: steps done, seconds they took, log entries so far."""

    step: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


class Checkpoints:
    """The checkpoints of one training: `step-<n>.safetensors`, the newest two kept.

    Args:
        folder: local path, made when it is first needed.
        writes: whether this rank is the one that saves.
    """

    kept = 2

    def __init__(self, folder: str, writes: bool) -> None:
        self._folder = Path(folder)
        self._writes = writes

    def save(self, state: Mapping[str, Tensor], position: Position) -> None:
        """Writes a checkpoint, whole or not at all, and deletes those it makes superfluous."""
        if not self._writes:
            return
        path = self._folder / f"step-{position.step:012d}.safetensors"
        about = {"step": position.step, "seconds": position.seconds, "history": position.history}
        _replace_tensors(path, state, {"position": json.dumps(about)})
        for old in self._files()[: -self.kept]:
            old.unlink(missing_ok=True)

    def latest(self, device: torch.device) -> tuple[dict[str, Tensor], Position] | None:
        """State and position of the newest checkpoint; None when there is none."""
        files = self._files()
        if not files:
            return None
        with safe_open(files[-1], framework="pt", device=str(device)) as opened:
            position = Position(**json.loads(opened.metadata()["position"]))
            return {name: opened.get_tensor(name) for name in opened.keys()}, position  # noqa: SIM118 (not a dict)

    def delete(self) -> None:
        """Removes the folder: the training it belongs to is complete."""
        if self._writes and self._folder.exists():
            for path in self._folder.iterdir():
                path.unlink(missing_ok=True)
            self._folder.rmdir()

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("step-*.safetensors"))


def _replace_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Writes a safetensors file under another name, then renames it: a reader never sees half of one."""
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in tensors.items()}, scratch, metadata=metadata)
        with scratch.open("rb") as written:
            os.fsync(written.fileno())
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise InfrastructureError(
            f"cannot write {path}: {error}", "check disk space and permissions, then rerun"
        ) from error
