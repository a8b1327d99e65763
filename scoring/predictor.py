"""A loaded model and the device it runs on: the only place where scoring meets torch modules. Knows nothing of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from conf.errors import ConfigError
from conf.feature_spec import FeatureSpec
from scoring.contract import DeviceKind, ModelRequest
from training.checkpoint import load_model

# A step's activations stay in a core's cache: a small DLRM scores 2,048 rows at a time twice as fast as 131,072.
_CPU_STEP_ROWS = 2_048
_GPU_STEP_ROWS = 131_072


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
    """A model ready to score. `step_rows` bounds how many rows are on the device at once."""

    model: nn.Module
    spec: FeatureSpec
    version: str
    device: torch.device
    step_rows: int

    @torch.inference_mode()
    def probabilities(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Click probability of each row: (P,) float32 on the predictor's device.

        Rows go through the model `step_rows` at a time, whatever P is.

        Args:
            dense: (P, D) float32, columns in the order of `spec.dense`.
            categorical: (P, C) int64 ids, columns in the order of `spec.categorical`.
        """
        scored = torch.empty(dense.shape[0], dtype=torch.float32, device=self.device)
        for start in range(0, dense.shape[0], self.step_rows):
            rows = slice(start, start + self.step_rows)
            logits = self.model(dense[rows].to(self.device), categorical[rows].to(self.device))
            scored[rows] = torch.sigmoid(logits.float())
        return scored


@lru_cache(maxsize=2)
def predictor_of_process(request: ModelRequest, gpu: int | None, threads: int) -> Predictor:
    """The predictor of this process, its model loaded once; the two latest stay (champion and challenger).

    Args:
        gpu: index of the GPU assigned to the caller.
        threads: CPU threads torch may use: those of the caller's slot, as its neighbours use theirs.
    """
    torch.set_num_threads(threads)
    device = choose_device(request.device, gpu)
    loaded = load_model(request.path, device)
    steps = request.step_rows or (_GPU_STEP_ROWS if device.type == "cuda" else _CPU_STEP_ROWS)
    return Predictor(loaded.model.eval(), loaded.spec, loaded.version, device, steps)


def model_inputs(columns: Mapping[str, Any], spec: FeatureSpec, rows: int) -> tuple[Tensor, Tensor]:
    """Model inputs on the CPU from named columns, those that are missing filled with zeros.

    Args:
        columns: feature name → NumPy array of length `rows`, or one number for all of them.

    Returns:
        dense (rows, D) float32 and categorical (rows, C) int64, columns in the spec's order.
    """
    dense = np.zeros((rows, len(spec.dense)), dtype=np.float32)
    categorical = np.zeros((rows, len(spec.categorical)), dtype=np.int64)
    for matrix, features in ((dense, spec.dense), (categorical, spec.categorical)):
        for place, feature in enumerate(features):
            if feature.name in columns:
                matrix[:, place] = columns[feature.name]
    return torch.from_numpy(dense), torch.from_numpy(categorical)
