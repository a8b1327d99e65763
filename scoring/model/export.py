"""Exports a model of the registry to files for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scoring.model.model_info import ModelInfo
from training.checkpoints import load_model
from training.export.write_export import ExportedModel, Format, write_export


def export(
    info: ModelInfo, folder: str, formats: Sequence[Format] = (), *, compiled: bool = False
) -> dict[str, Any]:
    """Writes a model's ONNX and torch.export programs to a new folder; returns the content of export.json.

    Args:
        info: the model.
        folder: a folder that does not exist yet.
        formats: number formats with fewer bits; each ONNX program is also written in each of these formats.
        compiled: whether each program is also compiled for the processor of this machine.

    Raises:
        ConfigError: the folder exists, or there is no C++ compiler for compiled programs.
        DataError: the model is damaged.
        InfrastructureError: see `write_export`.
    """
    loaded = load_model(info.path, torch.device("cpu"), kernels="torch")
    model = ExportedModel(loaded.model.eval(), loaded.spec, loaded.multi_hot, loaded.version)
    return write_export(model, folder, formats, compiled=compiled)
