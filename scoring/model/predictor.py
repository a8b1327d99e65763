"""The predictor: a loaded model on its device. In scoring, only this file calls a torch model directly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from conf.freed_memory import keep_freed_memory
from conf.types import MultiHot
from scoring.inputs.requests import ModelRequest, Precision
from scoring.model.micro_batch import MicroBatch, default_rows
from storage.feature_spec import FeatureSpec
from storage.id_lists import pad_lists
from training.checkpoints import load_model
from training.device.choose_device import choose_device
from training.device.precision import mixed_precision
from training.models.inputs import id_columns

_LIST = pa.list_(pa.int32())


@dataclass(frozen=True)
class Predictor:
    """A model that is ready to score.

    Attributes:
        model: the torch module, in evaluation mode, on the device.
        spec: the features that the model was trained on.
        multi_hot: how lists of ids are padded to equal length, and whether their vectors are summed or
            averaged.
        version: version of the model.
        device: the device that the model is on.
        micro_batch: the number of rows that go through the model in one call.
        precision: precision of the matrix products. Logits are always float32.
    """

    model: nn.Module
    spec: FeatureSpec
    multi_hot: MultiHot
    version: str
    device: torch.device
    micro_batch: MicroBatch
    precision: Precision = "fp32"

    @torch.inference_mode()
    def probabilities(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns the click probabilities of P rows, shape (P,), float32, on the predictor's device.

        The rows go through the model in micro-batches, which get smaller if memory runs out.

        Args:
            dense: (P, D) float32. The columns have the order of `spec.dense`.
            categorical: (P, W) int64 ids. W is the number of id columns of the model;
                training/models/inputs.py defines their order.

        Raises:
            InfrastructureError: the device has too little memory even for one row.
        """
        scored = torch.empty(dense.shape[0], dtype=torch.float32, device=self.device)

        def score(rows: slice) -> None:
            logits = self.logits(dense[rows].to(self.device), categorical[rows].to(self.device))
            scored[rows] = torch.sigmoid(logits)

        self.micro_batch.over(dense.shape[0], score)
        return scored

    def logits(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns the float32 logits of P rows, shape (P,), computed in one call of the model."""
        with mixed_precision(self.precision, self.device):
            return self.model(dense, categorical).float()


def load_predictor(request: ModelRequest, gpu: int | None, threads: int) -> Predictor:
    """Loads a model onto its device and sets torch's number of CPU threads.

    Args:
        request: the model to load, and the settings to run it with.
        gpu: index of the GPU that Spark assigned to the caller; None for the first GPU.
        threads: number of CPU threads that torch may use: the number of cores of the caller's task.

    Raises:
        ConfigError: the requested device or the requested kernels are not available.
    """
    torch.set_num_threads(threads)
    device = choose_device(request.device, gpu, "score.device")
    loaded = load_model(request.path, device, request.embeddings, request.kernels, request.rows_mib)
    if device.type == "cpu":
        keep_freed_memory()
    model = loaded.model.eval()
    micro_batch = MicroBatch(request.step_rows or default_rows(model, device))
    return Predictor(
        model, loaded.spec, loaded.multi_hot, loaded.version, device, micro_batch, request.precision
    )


def model_inputs(
    columns: Mapping[str, Any], spec: FeatureSpec, multi_hot: MultiHot, rows: int
) -> tuple[Tensor, Tensor]:
    """Builds the inputs of a model on the CPU from named columns. Inputs of missing columns are zeros.

    Args:
        columns: maps the name of a feature to an Arrow column of length `rows`, or to one value for all rows.
            Such a value is a number or a list of ids.
        spec: the model's features.
        multi_hot: how lists of ids are padded.
        rows: number of rows.

    Returns:
        Two tensors. The dense inputs are (rows, D) float32, in the order of the spec. The categorical inputs
        are (rows, W) int64; training/models/inputs.py defines the order of these W columns.
    """
    dense = np.zeros((rows, len(spec.dense)), dtype=np.float32)
    for index, feature in enumerate(spec.dense):
        if feature.name in columns:
            dense[:, index] = _values(columns[feature.name])
    layout = id_columns(spec, multi_hot)
    categorical = np.zeros((rows, layout[-1][1].stop if layout else 0), dtype=np.int64)
    for feature, span in layout:
        if feature.name in columns and feature.kind == "multi_hot":
            categorical[:, span] = pad_lists(_lists(columns[feature.name]), span.stop - span.start)
        elif feature.name in columns:
            categorical[:, span.start] = _values(columns[feature.name])
    return torch.from_numpy(dense), torch.from_numpy(categorical)


def _values(column: Any) -> Any:
    """Returns an Arrow column of numbers as a NumPy array. A single number is returned unchanged."""
    return column.to_numpy() if isinstance(column, pa.ChunkedArray) else column


def _lists(column: Any) -> pa.ListArray:
    """Returns an Arrow column of lists as one array. A single list becomes an array of length 1."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else pa.array([column], _LIST)
