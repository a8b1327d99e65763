"""A loaded model and the device it runs on: the only place where scoring meets torch modules. Knows nothing of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from conf.errors import ConfigError
from conf.types import MultiHot
from scoring.inputs.requests import DeviceKind, ModelRequest, Precision
from scoring.model.micro_batch import Steps, default_rows
from storage.feature_spec import FeatureSpec
from training.checkpoints import load_model
from training.device.memory import keep_freed_memory
from training.device.precision import mixed_precision
from training.models.inputs import id_columns, pad_lists

_LIST = pa.list_(pa.int32())


def choose_device(kind: DeviceKind, gpu: int | None = None) -> torch.device:
    """The device to score on.

    Args:
        kind: `auto` takes a GPU where torch sees one.
        gpu: index of the GPU that was assigned to the caller; None takes the first.

    Raises:
        ConfigError: `cuda` is asked for and torch sees no GPU, or not that many.
    """
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cpu" or (kind == "auto" and available == 0):
        return torch.device("cpu")
    index = gpu or 0
    if index >= available:
        raise ConfigError(
            f"score.device={kind}: GPU {index} was assigned, torch sees {available} GPUs",
            "set score.device to auto or cpu, or run under a Spark profile whose executors have GPUs",
        )
    return torch.device("cuda", index)


@dataclass(frozen=True)
class Predictor:
    """A model ready to score.

    Attributes:
        multi_hot: how lists of ids enter the model.
        steps: how many rows go through the model at once.
        precision: of the model's products of matrices; logits are float32.
    """

    model: nn.Module
    spec: FeatureSpec
    multi_hot: MultiHot
    version: str
    device: torch.device
    steps: Steps
    precision: Precision = "fp32"

    @torch.inference_mode()
    def probabilities(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Click probability of each row: (P,) float32 on the predictor's device.

        Rows go through the model `steps.rows` at a time, whatever P is, and fewer where memory runs out.

        Args:
            dense: (P, D) float32, columns in the order of `spec.dense`.
            categorical: (P, W) int64 ids, as training/models/inputs.py lays them out.

        Raises:
            InfrastructureError: the device has no memory for one row.
        """
        scored = torch.empty(dense.shape[0], dtype=torch.float32, device=self.device)

        def score(rows: slice) -> None:
            logits = self.logits(dense[rows].to(self.device), categorical[rows].to(self.device))
            scored[rows] = torch.sigmoid(logits)

        self.steps.over(dense.shape[0], score)
        return scored

    def logits(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """(P,) float32 of rows on the device, all at once."""
        with mixed_precision(self.precision, self.device):
            return self.model(dense, categorical).float()


def load_predictor(request: ModelRequest, gpu: int | None, threads: int) -> Predictor:
    """Loads a model onto its device and sets torch's number of CPU threads.

    Args:
        request: the model and how to run it.
        gpu: index of the GPU assigned to the caller; None for the first.
        threads: CPU threads torch may use: the CPU cores of the caller's task.

    Raises:
        ConfigError: the device or the kernels asked for are not available.
    """
    torch.set_num_threads(threads)
    device = choose_device(request.device, gpu)
    loaded = load_model(request.path, device, request.embeddings, request.kernels)
    if device.type == "cpu":
        keep_freed_memory()
    model = loaded.model.eval()
    steps = Steps(request.step_rows or default_rows(model, device))
    return Predictor(model, loaded.spec, loaded.multi_hot, loaded.version, device, steps, request.precision)


def model_inputs(
    columns: Mapping[str, Any], spec: FeatureSpec, multi_hot: MultiHot, rows: int
) -> tuple[Tensor, Tensor]:
    """Model inputs on the CPU from named columns, those that are missing filled with zeros.

    Args:
        columns: feature name → Arrow column of length `rows`, or one value for all of them: a number, or a list of ids.

    Returns:
        dense (rows, D) float32 in the spec's order, and categorical (rows, W) int64 as training/models/inputs.py lays it out.
    """
    dense = np.zeros((rows, len(spec.dense)), dtype=np.float32)
    for index, feature in enumerate(spec.dense):
        if feature.name in columns:
            dense[:, index] = _values(columns[feature.name])
    placed = id_columns(spec, multi_hot)
    categorical = np.zeros((rows, placed[-1][1].stop if placed else 0), dtype=np.int64)
    for feature, place in placed:
        if feature.name in columns and feature.kind == "multi_hot":
            categorical[:, place] = pad_lists(_lists(columns[feature.name]), place.stop - place.start)
        elif feature.name in columns:
            categorical[:, place.start] = _values(columns[feature.name])
    return torch.from_numpy(dense), torch.from_numpy(categorical)


def _values(column: Any) -> Any:
    """A scalar column as NumPy; one number as it is."""
    return column.to_numpy() if isinstance(column, pa.ChunkedArray) else column


def _lists(column: Any) -> pa.ListArray:
    """A column of lists as one array; one list as an array of it."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else pa.array([column], _LIST)
