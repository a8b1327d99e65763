"""Writes a trained model as ONNX and torch.export programs, after comparing them with the model."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from conf.errors import ConfigError, InfrastructureError
from conf.types import MultiHot
from storage.feature_spec import PAD_ID, FeatureSpec
from storage.file_io import local_folder
from training.embeddings.int8 import to_int8
from training.export.compare_programs import Sample
from training.export.compiled_programs import COMPILED, instruction_set, write_compiled
from training.export.exported_forms import CATEGORICAL, DENSE, Ranker, forms_of
from training.export.smaller_programs import Format, write_smaller
from training.models.inputs import id_columns

DESCRIPTION = "export.json"
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


def write_export(
    exported: ExportedModel, folder: str, formats: Sequence[Format] = (), *, compiled: bool = False
) -> dict[str, Any]:
    """Writes the programs of a model, and export.json, which describes them, to a new folder.

    The folder has for each form (`ranker`, and for models of user and item vectors `user` and `item`) the
    files `<form>.onnx` and `<form>.pt2`, for each of `formats` the file `<form>.<format>.onnx`, and if
    `compiled` is true, `<form>.aotinductor.pt2`. Nothing is left in the folder if a program differs too much
    from the model.

    Args:
        exported: the model. If `formats` contains `int8`, its tables are int8 afterwards.
        folder: a folder that does not exist yet.
        formats: number formats with fewer bits, in which each ONNX program is also written.
        compiled: whether each program is also compiled for the processor of this machine.

    Returns:
        The content of export.json.

    Raises:
        ConfigError: the folder exists or is no local path, there is no such format, or no C++ compiler
            for compiled programs.
        InfrastructureError: the folder cannot be written, or a program differs too much from the model.
    """
    unknown = [name for name in formats if name not in get_args(Format)]
    if isinstance(formats, str) or unknown:
        raise ConfigError(
            f"formats={formats!r} is no list of number formats",
            f"pass a list with some of {list(get_args(Format))}",
        )
    target = local_folder(folder)
    if target.exists():
        raise ConfigError(f"{target} exists already", "pass a folder that does not exist, or remove it")
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        scratch.mkdir(parents=True)
        description = _write(exported, scratch, formats, compiled)
        scratch.rename(target)
    except OSError as error:
        raise InfrastructureError(
            f"{target} cannot be written: {error}", "choose another folder, or free disk space"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return description


def _write(
    exported: ExportedModel, folder: Path, formats: Sequence[Format], compiled: bool
) -> dict[str, Any]:
    programs: dict[str, Any] = {}
    opset = 0
    forms = forms_of(exported.model, exported.widths)
    samples = {
        name: Sample.of(form, exported.version, [_example(exported, rows, form) for rows in _COMPARED])
        for name, form in forms.items()
    }
    with _quiet():
        for name, sample in samples.items():
            example = _example(exported, _TRACED, sample.form)
            opset = _write_programs(sample.form, example, folder / name)
            if compiled:
                write_compiled(folder / f"{name}.pt2", folder / f"{name}.{COMPILED}")
            programs[name] = {
                "output": sample.form.output,
                "greatest_difference": sample.greatest_differences(folder / name),
            }
        for number_format in sorted(set(formats)):  # fp16 first: int8 changes the tables
            _write_smaller(exported, samples, folder, number_format)
        for name, sample in samples.items() if formats else ():
            programs[name]["mean_difference"] = {
                it: sample.mean_difference(folder / f"{name}.{it}.onnx", it) for it in formats
            }
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
    description = {
        "model_version": exported.version,
        "workflow_version": exported.spec.workflow_version,
        "opset": opset,
        "torch": torch.__version__,
        **({"compiled_for": instruction_set()} if compiled else {}),
        "inputs": _layout(exported),
        "programs": programs,
        "sha256": files,
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    return description


def _write_programs(form: Ranker, example: tuple[Tensor, ...], path: Path) -> int:
    """Writes the two programs of a form, and returns ONNX's opset."""
    program = _program(form, example)
    torch.export.save(program, path.with_suffix(".pt2"))
    return _write_onnx(form, program, path.with_suffix(".onnx"))


def _program(form: Ranker, example: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    shapes = (tuple({0: torch.export.Dim.DYNAMIC} for _ in example),)
    return torch.export.export(form, example, dynamic_shapes=shapes, strict=False)


def _write_onnx(form: Ranker, program: torch.export.ExportedProgram, path: Path) -> int:
    """Writes a program as ONNX, and returns the opset."""
    converted = torch.onnx.export(
        program, (), dynamo=True, input_names=list(form.inputs), output_names=[form.output], verbose=False
    )
    if converted is None:
        raise RuntimeError("internal error, please report: torch.onnx.export returned no program")
    converted.save(path, external_data=_is_large(form))
    return int(converted.model.opset_imports[""])


def _is_large(form: Ranker) -> bool:
    """Returns whether the weights of a form stand in a file of their own."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in form.state_dict().values())
    return size > _MOST_BYTES_INSIDE


def _write_smaller(
    exported: ExportedModel, samples: Mapping[str, Sample], folder: Path, number_format: Format
) -> None:
    """Writes the program of each form in a number format. For int8, this changes the tables of the model."""
    if number_format == "int8":
        to_int8(exported.model)
    for name, sample in samples.items():
        source = folder / f"{name}.onnx"
        if number_format == "int8":
            source = folder / f"{name}.tables.onnx"
            _write_onnx(sample.form, _program(sample.form, _example(exported, _TRACED, sample.form)), source)
        large = _is_large(sample.form)
        write_smaller(source, folder / f"{name}.{number_format}.onnx", number_format, separate_weights=large)
        if number_format == "int8":
            for path in folder.glob(f"{source.name}*"):
                path.unlink()


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
