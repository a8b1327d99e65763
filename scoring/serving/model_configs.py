"""Makes config.pbtxt for Triton Inference Server: the message ModelConfig in protobuf's text format.

    workflow          raw columns               -> dense (D,) float32, categorical (W,) int64
    ranker            dense, categorical        -> probability; see `Backend`
    nightrank         raw columns               -> probability; ensemble of workflow and ranker
    lookup            keys, columns of context  -> dense, categorical
    nightrank_online  keys, columns of context  -> probability; ensemble of lookup and ranker

During an experiment, nightrank_treatment and nightrank_treatment_online are the same ensembles, but use the
treatment's versions of workflow and ranker.

Each input and output has one row of numbers or strings for each row of a request. The names of the fields of
ModelConfig are defined in
https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias, assert_never

from conf.errors import ConfigError, DataError
from storage.feature_spec import ITEM_KEY, USER_KEY

WORKFLOW, RANKER, ENSEMBLE = "workflow", "ranker", "nightrank"
LOOKUP, ONLINE_ENSEMBLE = "lookup", "nightrank_online"
TREATMENT_ENSEMBLE, TREATMENT_ONLINE_ENSEMBLE = "nightrank_treatment", "nightrank_treatment_online"
PROGRAM = "ranker.onnx"
MAX_BATCH_ROWS = 4096

# Triton scores waiting requests in one batch, and serves all versions in the repository.
_BATCHED = "dynamic_batching { }\nversion_policy { all { } }"
Tensor: TypeAlias = tuple[str, str, int]  # name, data type, columns
_DATA_TYPES: Mapping[str, str] = {"dense": "TYPE_FP32", "categorical": "TYPE_INT64"}


def workflow_config(inputs: ServedInputs) -> str:
    """Returns Triton's configuration of the model that computes features from raw rows."""
    return _joined(_of_features(WORKFLOW, _raw(inputs), inputs), _warm_up(_raw(inputs)))


def lookup_config(inputs: ServedInputs) -> str:
    """Returns the configuration of the model that looks up features of users and items.

    There is no warm-up, because the server may start before the store.
    """
    return _of_features(LOOKUP, _looked_up(inputs), inputs)


def ranker_config(inputs: ServedInputs) -> str:
    """Returns Triton's configuration of the model that computes click probabilities from features."""
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

    The version is fixed for two reasons. The ids of a workflow are valid only for the ranker that was trained
    with it. In addition, Triton does not load new versions of two models at the same time.
    """
    return _ensemble(name, WORKFLOW, _raw(inputs), inputs, version)


def online_ensemble_config(inputs: ServedInputs, version: int, name: str = ONLINE_ENSEMBLE) -> str:
    """Returns Triton's configuration of the ensemble of one version of look-up and ranker."""
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
    """Returns the data type of Triton's input for a raw column.

    Numbers are doubles, so that NaN can represent a missing value. Lists are strings in JSON, because all
    rows of an input must have the same number of elements.
    """
    if kind in ("int", "float"):
        return "TYPE_FP64"
    return "TYPE_STRING"


def quoted(text: str) -> str:
    """Returns a quoted string of protobuf's text format."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _raw(inputs: ServedInputs) -> list[Tensor]:
    return [(name, raw_type(kind), 1) for name, kind in inputs.raw_columns.items()]


def _looked_up(inputs: ServedInputs) -> list[Tensor]:
    """Returns the inputs of the look-up: the keys, as in the tables of users and items, and the context."""
    context = [(name, raw_type(kind), 1) for name, kind in (inputs.context or {}).items()]
    return [(USER_KEY, "TYPE_STRING", 1), (ITEM_KEY, "TYPE_STRING", 1), *context]


def _of_features(name: str, columns: Sequence[Tensor], inputs: ServedInputs) -> str:
    """Returns Triton's configuration of a Python model that computes the inputs of the ranker."""
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
    """Returns the warm-up request of a Triton model: one row of zeros and empty strings."""
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
    """Returns `name`, with as many underscores in front as it needs to differ from all `names`."""
    taken = set(names)
    while name in taken:
        name = f"_{name}"
    return name


def _joined(*lines: str) -> str:
    return "\n".join(lines)


# The code below defines the inputs and outputs of the models of a repository. All versions in a repository
# have the same inputs.

# Where the ranker runs: in Triton's backend of ONNX Runtime, in this backend with TensorRT on a GPU, or in
# ONNX Runtime in Triton's Python backend.
Backend = Literal["onnxruntime", "tensorrt", "python"]
PROBABILITY = "probability"


@dataclass(frozen=True)
class ServedInputs:
    """The inputs of a workflow and of a ranker: R raw columns, D dense features, W columns of ids.

    Attributes:
        backend: where the ranker runs.
        raw_columns: maps each raw column to its type.
        dense: (D,), the names of the dense features.
        categorical: for each feature that is an id or a list of ids, its name and its number of columns.
        context: maps the raw columns of context features to their types, if the repository has an ensemble
            that looks up the features of users and items; otherwise None.
    """

    backend: Backend
    raw_columns: Mapping[str, str]
    dense: tuple[str, ...]
    categorical: tuple[tuple[str, int], ...]
    context: Mapping[str, str] | None = None

    @classmethod
    def of(
        cls,
        backend: Backend,
        raw_columns: Mapping[str, str],
        layout: Mapping[str, Any],
        context: Mapping[str, str] | None,
    ) -> Self:
        """Returns the inputs of a model.

        Args:
            backend: where the ranker runs.
            raw_columns: maps each raw column of the workflow to its type.
            layout: `inputs` of the model's export.json.
            context: see the attribute.
        """
        ids = tuple((column["feature"], column["number"]) for column in layout["categorical"]["columns"])
        return cls(backend, dict(raw_columns), tuple(layout["dense"]["columns"]), ids, context)

    @property
    def widths(self) -> dict[str, int]:
        """Maps each input of the ranker to its number of columns. Inputs without columns are left out."""
        widths = {"dense": len(self.dense), "categorical": sum(number for _, number in self.categorical)}
        return {name: width for name, width in widths.items() if width}

    def to_json(self) -> dict[str, Any]:
        """Returns the inputs as JSON values. The order of raw columns is kept."""
        return {
            "backend": self.backend,
            "raw_columns": [list(column) for column in self.raw_columns.items()],
            "dense": list(self.dense),
            "categorical": [list(feature) for feature in self.categorical],
            "context": None if self.context is None else [list(column) for column in self.context.items()],
        }

    @classmethod
    def from_json(cls, stored: Any, path: str) -> Self:
        """Parses the JSON values that `to_json` returned. Raises DataError if the file `path` is damaged."""
        try:
            ids = tuple((name, number) for name, number in stored["categorical"])
            context = None if stored["context"] is None else dict(stored["context"])
            return cls(stored["backend"], dict(stored["raw_columns"]), tuple(stored["dense"]), ids, context)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} is damaged: {error!r}", "export the model to another folder") from error

    def require_equal(self, served: ServedInputs, repository: str) -> None:
        """Raises ConfigError if the inputs of a repository's models differ from those of this model."""
        different = list(self._differences(served))
        if different:
            raise ConfigError(
                f"the models in {repository} differ from the new one in {'; '.join(different)}",
                "export the model to another folder, and change the clients",
            )

    def _differences(self, served: ServedInputs) -> Iterator[str]:
        if self.backend != served.backend:
            yield f"backend ({served.backend}, new: {self.backend})"
        if (self.context is None) != (served.context is None):
            yield f"the look-up ({_has(served.context)}, new: {_has(self.context)})"
        for what, old, new in (
            ("raw columns", served.raw_columns.items(), self.raw_columns.items()),
            ("dense features", served.dense, self.dense),
            ("features of ids", served.categorical, self.categorical),
            ("context columns", (served.context or {}).items(), (self.context or {}).items()),
        ):
            if list(old) != list(new):
                changed = [value for value in old if value not in new] or list(old)
                added = [value for value in new if value not in old] or list(new)
                yield f"{what} ({_shown(changed)}, new: {_shown(added)})"


def _has(context: Mapping[str, str] | None) -> str:
    return "no" if context is None else "yes"


def _shown(values: list[Any]) -> str:
    shown = ", ".join(
        " ".join(str(part) for part in value) if isinstance(value, tuple) else value for value in values[:3]
    )
    return f"{shown} and {len(values) - 3} more" if len(values) > 3 else shown
