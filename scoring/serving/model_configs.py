"""Texts of config.pbtxt for Triton Inference Server, in the text format of its message ModelConfig.

    workflow          raw columns               -> dense (D,) float32, categorical (W,) int64
    ranker            dense, categorical        -> probability; see `Backend`
    nightrank         raw columns               -> probability; ensemble of workflow and ranker
    lookup            keys, columns of context  -> dense, categorical
    nightrank_online  keys, columns of context  -> probability; ensemble of lookup and ranker

During an experiment, nightrank_treatment and nightrank_treatment_online are the same ensembles with the
versions of workflow and ranker of the treatment.

Every input and output has a row of numbers or texts for each row of a request. Names of ModelConfig:
https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, assert_never

from scoring.serving.served_inputs import PROBABILITY, Backend, ServedInputs
from storage.feature_spec import ITEM_KEY, USER_KEY

WORKFLOW, RANKER, ENSEMBLE = "workflow", "ranker", "nightrank"
LOOKUP, ONLINE_ENSEMBLE = "lookup", "nightrank_online"
TREATMENT_ENSEMBLE, TREATMENT_ONLINE_ENSEMBLE = "nightrank_treatment", "nightrank_treatment_online"
PROGRAM = "ranker.onnx"
MAX_BATCH_ROWS = 4096
# Waiting requests are computed together, and all versions in the repository are served.
_BATCHED = "dynamic_batching { }\nversion_policy { all { } }"
Tensor: TypeAlias = tuple[str, str, int]  # name, data type, columns
_DATA_TYPES: Mapping[str, str] = {"dense": "TYPE_FP32", "categorical": "TYPE_INT64"}


def workflow_config(inputs: ServedInputs) -> str:
    """Returns the configuration of the model that computes features of raw rows."""
    return _joined(_of_features(WORKFLOW, _raw(inputs), inputs), _warm_up(_raw(inputs)))


def lookup_config(inputs: ServedInputs) -> str:
    """Returns the configuration of the model that looks up features of users and items.

    There is no warm-up, because the server may start before the store.
    """
    return _of_features(LOOKUP, _looked_up(inputs), inputs)


def ranker_config(inputs: ServedInputs) -> str:
    """Returns the configuration of the model that computes click probabilities of features."""
    return _joined(
        _head(RANKER, *_backend(inputs.backend)),
        _tensors("input", _of_ranker(inputs)),
        # The program returns (rows,). Triton adds the second dimension.
        f"output [ {{ name: {quoted(PROBABILITY)} data_type: TYPE_FP32 dims: [ 1 ] "
        "reshape { shape: [ ] } } ]",
        _BATCHED,
        _warm_up(_of_ranker(inputs)),
    )


def ensemble_config(inputs: ServedInputs, version: int, name: str = ENSEMBLE) -> str:
    """Returns the configuration of the ensemble, which uses one version of workflow and ranker.

    The version is fixed, because ids of a workflow are right only for the ranker that was trained with it.
    Triton loads the newest versions of two models one after the other.
    """
    return _ensemble(name, WORKFLOW, _raw(inputs), inputs, version)


def online_ensemble_config(inputs: ServedInputs, version: int, name: str = ONLINE_ENSEMBLE) -> str:
    """Returns the configuration of the ensemble of one version of look-up and ranker."""
    return _ensemble(name, LOOKUP, _looked_up(inputs), inputs, version)


def _ensemble(name: str, source: str, columns: Sequence[Tensor], inputs: ServedInputs, version: int) -> str:
    names = [column for column, _, _ in columns]
    between = {tensor: _unused(tensor, names) for tensor in inputs.widths}
    first = _step(source, version, {column: column for column in names}, between)
    second = _step(RANKER, version, between, {PROBABILITY: PROBABILITY})
    return _joined(
        _head(name, 'platform: "ensemble"'),
        _tensors("input", columns),
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


def _raw(inputs: ServedInputs) -> list[Tensor]:
    return [(name, raw_type(kind), 1) for name, kind in inputs.raw_columns.items()]


def _looked_up(inputs: ServedInputs) -> list[Tensor]:
    """Returns the inputs of the look-up: the keys, as in the tables of users and items, and the context."""
    context = [(name, raw_type(kind), 1) for name, kind in (inputs.context or {}).items()]
    return [(USER_KEY, "TYPE_STRING", 1), (ITEM_KEY, "TYPE_STRING", 1), *context]


def _of_features(name: str, columns: Sequence[Tensor], inputs: ServedInputs) -> str:
    """Returns the configuration of a model in Python that computes the inputs of the ranker."""
    return _joined(
        _head(name, 'backend: "python"'),
        _tensors("input", columns),
        _tensors("output", _of_ranker(inputs)),
        "instance_group [ { kind: KIND_CPU count: 1 } ]",
        _BATCHED,
    )


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


def _of_ranker(inputs: ServedInputs) -> list[Tensor]:
    return [(name, _DATA_TYPES[name], width) for name, width in inputs.widths.items()]


def _head(name: str, *lines: str) -> str:
    return _joined(f"name: {quoted(name)}", *lines, f"max_batch_size: {MAX_BATCH_ROWS}")


def _tensors(role: str, tensors: Iterable[Tensor]) -> str:
    entries = [
        f"  {{ name: {quoted(name)} data_type: {kind} dims: [ {width} ] }}" for name, kind, width in tensors
    ]
    return f"{role} [\n" + ",\n".join(entries) + "\n]"


def _warm_up(inputs: Iterable[Tensor]) -> str:
    """Returns a first request of one row of zeros and empty texts."""
    zeros = [
        f"  inputs {{ key: {quoted(name)} value {{ data_type: {kind} dims: [ {width} ] zero_data: true }} }}"
        for name, kind, width in inputs
    ]
    return 'model_warmup [ {\n  name: "zeros"\n  batch_size: 1\n' + "\n".join(zeros) + "\n} ]"


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
