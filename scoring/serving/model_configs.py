"""Texts of config.pbtxt for Triton Inference Server, in the text format of its message ModelConfig.

    workflow   raw columns                -> dense (D,) float32, categorical (W,) int64     Python backend
    ranker     dense, categorical         -> probability                                    see `Backend`
    nightrank  raw columns                -> probability                                    ensemble of both

Every input and output has a row of numbers or texts for each row of a request. Names of ModelConfig:
https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_never

from scoring.serving.served_inputs import PROBABILITY, Backend, ServedInputs

WORKFLOW, RANKER, ENSEMBLE = "workflow", "ranker", "nightrank"
PROGRAM = "ranker.onnx"
MAX_BATCH_ROWS = 4096
_DATA_TYPES: Mapping[str, str] = {"dense": "TYPE_FP32", "categorical": "TYPE_INT64"}


def workflow_config(inputs: ServedInputs) -> str:
    """Returns the configuration of the model that computes features of raw rows."""
    raw = [(name, raw_type(kind), 1) for name, kind in inputs.raw_columns.items()]
    return _joined(
        _head(WORKFLOW, 'backend: "python"'),
        _tensors("input", raw),
        _tensors("output", _of_ranker(inputs)),
        "instance_group [ { kind: KIND_CPU count: 1 } ]",
        _batched_and_warm(raw),
    )


def ranker_config(inputs: ServedInputs) -> str:
    """Returns the configuration of the model that computes click probabilities of features."""
    return _joined(
        _head(RANKER, *_backend(inputs.backend)),
        _tensors("input", _of_ranker(inputs)),
        # The program returns (rows,). Triton adds the second dimension.
        f"output [ {{ name: {quoted(PROBABILITY)} data_type: TYPE_FP32 dims: [ 1 ] "
        "reshape { shape: [ ] } } ]",
        _batched_and_warm(_of_ranker(inputs)),
    )


def ensemble_config(inputs: ServedInputs, version: int) -> str:
    """Returns the configuration of the ensemble, which uses one version of workflow and ranker.

    The version is fixed, because ids of a workflow are right only for the ranker that was trained with it.
    Triton loads the newest versions of two models one after the other.
    """
    raw = [(name, raw_type(kind), 1) for name, kind in inputs.raw_columns.items()]
    between = {name: _unused(name, inputs.raw_columns) for name in inputs.widths}
    first = _step(WORKFLOW, version, {name: name for name in inputs.raw_columns}, between)
    second = _step(RANKER, version, between, {PROBABILITY: PROBABILITY})
    return _joined(
        _head(ENSEMBLE, 'platform: "ensemble"'),
        _tensors("input", raw),
        _tensors("output", [(PROBABILITY, "TYPE_FP32", 1)]),
        f"version_policy {{ specific {{ versions: [ {version} ] }} }}",
        f"ensemble_scheduling {{ step [\n{first},\n{second}\n] }}",
    )


def raw_type(kind: str) -> str:
    """Returns the data type of a raw column's input.

    Numbers are doubles, so that NaN can say that a value is missing. Lists are texts in JSON, because the
    rows of an input have the same number of elements.
    """
    if kind in ("int", "float"):
        return "TYPE_FP64"
    return "TYPE_STRING"


def quoted(text: str) -> str:
    """Returns a text as a string of the text format."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _backend(backend: Backend) -> list[str]:
    if backend == "python":
        return ['backend: "python"', "instance_group [ { kind: KIND_CPU count: 1 } ]"]
    lines = ['backend: "onnxruntime"', f"default_model_filename: {quoted(PROGRAM)}"]
    if backend == "onnxruntime":
        return [*lines, "instance_group [ { kind: KIND_AUTO count: 1 } ]"]
    if backend == "tensorrt":
        accelerator = 'gpu_execution_accelerator [ { name: "tensorrt" } ]'
        return [
            *lines,
            "instance_group [ { kind: KIND_GPU count: 1 } ]",
            f"optimization {{ execution_accelerators {{ {accelerator} }} }}",
        ]
    assert_never(backend)


def _of_ranker(inputs: ServedInputs) -> list[tuple[str, str, int]]:
    return [(name, _DATA_TYPES[name], width) for name, width in inputs.widths.items()]


def _head(name: str, *lines: str) -> str:
    return _joined(f"name: {quoted(name)}", *lines, f"max_batch_size: {MAX_BATCH_ROWS}")


def _tensors(role: str, tensors: Iterable[tuple[str, str, int]]) -> str:
    entries = [
        f"  {{ name: {quoted(name)} data_type: {kind} dims: [ {width} ] }}" for name, kind, width in tensors
    ]
    return f"{role} [\n" + ",\n".join(entries) + "\n]"


def _batched_and_warm(inputs: Iterable[tuple[str, str, int]]) -> str:
    """Returns dynamic batching, all versions, and a first request of one row of zeros and empty texts."""
    zeros = [
        f"  inputs {{ key: {quoted(name)} value {{ data_type: {kind} dims: [ {width} ] zero_data: true }} }}"
        for name, kind, width in inputs
    ]
    return _joined(
        "dynamic_batching { }",
        "version_policy { all { } }",
        'model_warmup [ {\n  name: "zeros"\n  batch_size: 1\n' + "\n".join(zeros) + "\n} ]",
    )


def _step(model: str, version: int, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    maps = [
        f"    {role} {{ key: {quoted(key)} value: {quoted(value)} }}"
        for role, of_role in (("input_map", inputs), ("output_map", outputs))
        for key, value in of_role.items()
    ]
    return _joined(f"  {{ model_name: {quoted(model)} model_version: {version}", *maps, "  }")


def _unused(name: str, names: Iterable[str]) -> str:
    """Returns a name for a tensor of the ensemble that no raw column has."""
    taken = set(names)
    while name in taken:
        name = f"_{name}"
    return name


def _joined(*lines: str) -> str:
    return "\n".join(lines)
