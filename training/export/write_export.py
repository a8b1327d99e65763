"""Writes a trained model as ONNX and torch.export programs, after comparing them with the model."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from conf.errors import ConfigError, InfrastructureError
from conf.types import MultiHot
from storage.feature_spec import PAD_ID, FeatureSpec
from training.export.exported_forms import CATEGORICAL, DENSE, Ranker, forms_of
from training.models.inputs import id_columns

DESCRIPTION = "export.json"
# Largest difference between an exported program and the model: of probabilities, and of numbers of a vector
# relative to the largest one.
TOLERANCE = 1e-5
# Numbers of rows with which the programs are compared. A program is traced with _TRACED rows.
_COMPARED, _TRACED = (1, 7, 300), 3
# ONNX files cannot be larger than 2 GB; weights of larger models stand in a file beside the model.
_MOST_BYTES_INSIDE = 1_500_000_000


@dataclass(frozen=True)
class ExportedModel:
    """The model to export.

    Attributes:
        model: the module, on the CPU, in evaluation mode. Its table rows are in memory.
        spec, multi_hot: its features, and how lists of ids are padded.
        version: its version.
    """

    model: nn.Module
    spec: FeatureSpec
    multi_hot: MultiHot
    version: str

    @property
    def widths(self) -> dict[str, int]:
        """Returns the number of columns of each input."""
        columns = id_columns(self.spec, self.multi_hot)
        return {DENSE: len(self.spec.dense), CATEGORICAL: columns[-1][1].stop if columns else 0}


def write_export(exported: ExportedModel, folder: str) -> dict[str, Any]:
    """Writes the programs of a model, and export.json, which describes them, to a new folder.

    The folder has for each form (`ranker`, and for models of user and item vectors `user` and `item`) the
    files `<form>.onnx` and `<form>.pt2`. Nothing is left in the folder if a program differs from the model.

    Args:
        exported: the model.
        folder: a folder that does not exist yet.

    Returns:
        The content of export.json.

    Raises:
        ConfigError: the folder exists.
        InfrastructureError: the folder cannot be written, or a program differs from the model.
    """
    target = Path(folder).absolute()
    if target.exists():
        raise ConfigError(f"{target} exists already", "pass a folder that does not exist, or remove it")
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        scratch.mkdir(parents=True)
        description = _write(exported, scratch)
        scratch.rename(target)
    except OSError as error:
        raise InfrastructureError(
            f"{target} cannot be written: {error}", "choose another folder, or free disk space"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return description


def _write(exported: ExportedModel, folder: Path) -> dict[str, Any]:
    programs = {}
    opset = 0
    for name, form in forms_of(exported.model, exported.widths).items():
        with _quiet():
            opset = _write_programs(form, _example(exported, _TRACED, form), folder / name)
            differences = _compare(exported, form, folder / name)
        programs[name] = {"output": form.output, "greatest_difference": differences}
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
    description = {
        "model_version": exported.version,
        "workflow_version": exported.spec.workflow_version,
        "opset": opset,
        "torch": torch.__version__,
        "inputs": _layout(exported),
        "programs": programs,
        "sha256": files,
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    return description


def _write_programs(form: Ranker, example: tuple[Tensor, ...], path: Path) -> int:
    """Writes the two programs of a form, and returns ONNX's opset."""
    rows = torch.export.Dim.DYNAMIC
    shapes = (tuple({0: rows} for _ in example),)
    program = torch.export.export(form, example, dynamic_shapes=shapes, strict=False)
    torch.export.save(program, path.with_suffix(".pt2"))
    converted = torch.onnx.export(
        program, (), dynamo=True, input_names=list(form.inputs), output_names=[form.output], verbose=False
    )
    if converted is None:
        raise RuntimeError("internal error, please report: torch.onnx.export returned no program")
    size = sum(tensor.numel() * tensor.element_size() for tensor in form.state_dict().values())
    converted.save(path.with_suffix(".onnx"), external_data=size > _MOST_BYTES_INSIDE)
    return int(converted.model.opset_imports[""])


def _compare(exported: ExportedModel, form: Ranker, path: Path) -> dict[str, float]:
    """Returns the greatest difference of each program from the model.

    Raises:
        InfrastructureError: a difference is larger than TOLERANCE.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(path.with_suffix(".onnx"), providers=["CPUExecutionProvider"])
    program = torch.export.load(path.with_suffix(".pt2")).module()
    differences = {"onnx": 0.0, "pt2": 0.0}
    for rows in _COMPARED:
        inputs = _example(exported, rows, form)
        with torch.inference_mode():
            expected = form(*inputs).numpy()
            results = {"pt2": program(*inputs).numpy()}
        named = {name: values.numpy() for name, values in zip(form.inputs, inputs, strict=True)}
        results["onnx"] = session.run([form.output], named)[0]
        for kind, result in results.items():
            scale = max(1.0, float(np.abs(expected).max()))
            difference = float(np.abs(result - expected).max()) / scale
            if not difference <= TOLERANCE:  # also if it is NaN
                raise InfrastructureError(
                    f"{path.name}.{kind} differs from model {exported.version} by {difference:.2g} "
                    f"(at most {TOLERANCE} is allowed) on {rows} rows",
                    "please report this; nothing was exported",
                )
            differences[kind] = max(differences[kind], difference)
    return differences


def _example(exported: ExportedModel, rows: int, form: Ranker) -> tuple[Tensor, ...]:
    """Returns random inputs of a form: all ids can occur, and lists have all lengths from 0 on."""
    generator = torch.Generator().manual_seed(rows)
    columns = [torch.zeros(rows, 0, dtype=torch.int64)]
    for feature, span in id_columns(exported.spec, exported.multi_hot):
        width = span.stop - span.start
        cardinality, is_list = feature.cardinality or 1, feature.kind == "multi_hot"
        lowest = min(int(is_list), cardinality - 1)  # within a list, no id is PAD_ID
        ids = torch.randint(lowest, cardinality, (rows, width), generator=generator)
        if is_list:
            lengths = torch.randint(0, width + 1, (rows, 1), generator=generator)
            ids = torch.where(torch.arange(width) < lengths, ids, PAD_ID)
        columns.append(ids)
    dense = torch.randn(rows, exported.widths[DENSE], generator=generator)
    by_name = {DENSE: dense, CATEGORICAL: torch.cat(columns, dim=1)}
    return tuple(by_name[name] for name in form.inputs)


def _layout(exported: ExportedModel) -> Mapping[str, Any]:
    """Returns which feature stands in which columns of the two inputs."""
    return {
        DENSE: {"dtype": "float32", "columns": [feature.name for feature in exported.spec.dense]},
        CATEGORICAL: {
            "dtype": "int64",
            "padding": PAD_ID,
            "columns": [
                {"feature": feature.name, "first": span.start, "number": span.stop - span.start}
                | {"cardinality": feature.cardinality}
                for feature, span in id_columns(exported.spec, exported.multi_hot)
            ],
        },
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides warnings of torch's exporter, which are about its own code."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
