"""Models for Triton's Python backend. The model.py files of a model repository import this module.

The Python of the server must have this package (docs/exports.md), but neither torch nor Spark. Triton passes
several requests to a model at once, each with some rows. The model computes the rows of all requests
together, and returns one response per request.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from conf.errors import ConfigError, DataError, NightrankError
from nightrank.workflow import Workflow
from storage.feature_spec import ITEM_KEY, USER_KEY, pad_lists

_VARIABLES, _OPTIONS = "NIGHTRANK_ONLINE_", ("prefix", "user", "password", "ca_file")

_LISTS: Mapping[str, pa.DataType] = {"ints": pa.list_(pa.int64()), "strings": pa.list_(pa.string())}
_UNPAIRED = re.compile("[\ud800-\udfff]")  # JSON can escape surrogates that UTF-8 cannot encode
Arrays = dict[str, np.ndarray]


class _PythonModel(ABC):
    """The base class of all models. It passes the rows of several requests to `compute` together."""

    def initialize(self, arguments: Mapping[str, str]) -> None:
        """Loads the model from its folder. Triton calls this method once for each instance."""
        self._triton: Any = importlib.import_module("triton_python_backend_utils")
        config = json.loads(arguments["model_config"])
        self._names = [entry["name"] for entry in config["input"]]
        self._load(Path(arguments["model_repository"], arguments["model_version"]))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Returns a response for each request. Only requests with a wrong value get an error."""
        inputs = [self._arrays(request) for request in requests]
        ends = np.cumsum([len(next(iter(arrays.values()))) for arrays in inputs])[:-1]
        try:
            together = {name: np.concatenate([arrays[name] for arrays in inputs]) for name in self._names}
            outputs = self.compute(together)
        except NightrankError as error:
            if isinstance(error, DataError) and len(inputs) > 1:
                return [self._one_response(arrays) for arrays in inputs]
            return [self._refusal(error) for _ in inputs]
        parts = {name: np.split(values, ends) for name, values in outputs.items()}
        return [
            self._response({name: values[place] for name, values in parts.items()})
            for place in range(len(inputs))
        ]

    @abstractmethod
    def compute(self, inputs: Arrays) -> Arrays:
        """Returns the outputs for n rows. Raises NightrankError if they cannot be computed."""

    @abstractmethod
    def _load(self, folder: Path) -> None:
        """Loads the model of a version from its folder."""

    def _one_response(self, inputs: Arrays) -> Any:
        try:
            return self._response(self.compute(inputs))
        except NightrankError as error:
            return self._refusal(error)

    def _refusal(self, error: NightrankError) -> Any:
        codes = self._triton.TritonError
        code = codes.INVALID_ARG if isinstance(error, DataError) else codes.UNAVAILABLE
        text = f"{error.problem}; {error.remedy}"
        return self._triton.InferenceResponse([], error=self._triton.TritonError(text, code))

    def _response(self, outputs: Arrays) -> Any:
        tensors = [
            self._triton.Tensor(name, np.ascontiguousarray(values)) for name, values in outputs.items()
        ]
        return self._triton.InferenceResponse(tensors)

    def _arrays(self, request: Any) -> Arrays:
        get: Callable[[Any, str], Any] = self._triton.get_input_tensor_by_name
        return {name: get(request, name).as_numpy() for name in self._names}


class EncodeRows(_PythonModel):
    """Computes the inputs of the ranker from raw columns, each of the shape (n, 1).

    The inputs are `dense` (n, D) float32 and `categorical` (n, W) int64: D dense features, and W columns of
    ids.

    Columns of numbers are float64, and NaN is null. Other columns are strings in UTF-8, and an empty
    string is null. A list is passed as a string that contains JSON, such as [17, 4].
    """

    def compute(self, inputs: Arrays) -> Arrays:
        """Returns the inputs of the ranker; see `_PythonModel.compute`."""
        features = self._workflow.encode_to_arrow(_raw_rows(inputs, self._workflow), self._layout.features)
        return self._layout.arrays(features)

    def _load(self, folder: Path) -> None:
        self._workflow, self._layout = _load_workflow(folder)


class LookUpFeatures(_PythonModel):
    """Looks up the features of users and items by `user_key` and `item_key`, each of the shape (n, 1).

    Features of the context are computed from raw columns. The outputs are those of `EncodeRows`.

    Features of users and items come from the last delivery of the sink `redis`. These environment variables
    of the server name the store: NIGHTRANK_ONLINE_URL, and NIGHTRANK_ONLINE_PREFIX, …_USER, …_PASSWORD and
    …_CA_FILE, with the defaults of `open_online`.
    """

    def compute(self, inputs: Arrays) -> Arrays:
        """Returns the inputs of the ranker; see `_PythonModel.compute`.

        Raises:
            DataError: a user or an item is not in the store, the store has features of another workflow, or a
                value of the context is wrong.
            InfrastructureError: the store cannot be read.
        """
        keys = {
            name: _column(name, inputs[name][:, 0], "string").to_pylist() for name in (USER_KEY, ITEM_KEY)
        }
        self._require_version()
        tables = {USER_KEY: self._store.users(keys[USER_KEY]), ITEM_KEY: self._store.items(keys[ITEM_KEY])}
        self._require_version()  # again: a delivery may have replaced the tables in the meantime
        columns: dict[str, pa.ChunkedArray] = {}
        for name, table in tables.items():
            places = _places(name, keys[name], table.column(0).to_pylist())
            for column in set(table.column_names[1:]) & set(self._layout.features):
                columns[column] = table.column(column).take(places)
        if self._context:
            context = {name: values for name, values in inputs.items() if name not in keys}
            encoded = self._workflow.encode_to_arrow(_raw_rows(context, self._workflow), self._context)
            columns |= {name: encoded.column(name) for name in self._context}
        return self._layout.arrays(pa.table(columns))

    def _load(self, folder: Path) -> None:
        from nightrank.online import open_online  # needs redis-py, which other models do not need

        self._workflow, self._layout = _load_workflow(folder.parents[1] / "workflow" / folder.name)
        self._context = [feature.name for feature in self._workflow.spec.scoped("context")]
        url = os.environ.get(f"{_VARIABLES}URL")
        if not url:
            raise ConfigError(
                f"the environment variable {_VARIABLES}URL is not set",
                "set it to the URL of the store, such as redis://localhost:6379/0, and restart the server",
            )
        options = {name: os.environ.get(f"{_VARIABLES}{name.upper()}") for name in _OPTIONS}
        self._store = open_online(url, **{name: text for name, text in options.items() if text})

    def _require_version(self) -> None:
        delivered = self._store.current().workflow_version
        if delivered != self._workflow.version:
            raise DataError(
                f"the store has features of workflow {delivered}, but the model needs those of "
                f"{self._workflow.version}",
                "export the model whose lists were delivered last, or deliver lists of this model",
            )


class RunProgram(_PythonModel):
    """Computes probabilities (n,) float32 with ONNX Runtime on CPUs, without Triton's ONNX backend."""

    def compute(self, inputs: Arrays) -> Arrays:
        """Returns the probabilities; see `_PythonModel.compute`."""
        return {"probability": self._session.run(["probability"], inputs)[0]}

    def _load(self, folder: Path) -> None:
        onnxruntime: Any = importlib.import_module("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # log only errors: otherwise each call logs warnings about constants
        # Waiting threads do not spin, because the server and other models need the cores.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            folder / "ranker.onnx", options, providers=["CPUExecutionProvider"]
        )


@dataclass(frozen=True)
class _Layout:
    """The columns of the ranker's inputs: `inputs` of export.json.

    Attributes:
        dense: (D,), the dense features.
        ids: one mapping per feature with ids: its name (`feature`), the position of its first column in
            `categorical` (`first`), and its number of columns (`number`).
    """

    dense: Sequence[str]
    ids: Sequence[Mapping[str, Any]]

    @property
    def features(self) -> list[str]:
        """Returns the names of all features."""
        return [*self.dense, *(entry["feature"] for entry in self.ids)]

    def arrays(self, features: pa.Table) -> Arrays:
        """Returns `dense` (n, D) float32 and `categorical` (n, W) int64.

        Arrays without columns are left out.
        """
        arrays: Arrays = {}
        if self.dense:
            arrays["dense"] = np.empty((len(features), len(self.dense)), dtype=np.float32)
            for place, name in enumerate(self.dense):
                arrays["dense"][:, place] = features.column(name).to_numpy()
        if self.ids:
            width = sum(entry["number"] for entry in self.ids)
            arrays["categorical"] = np.empty((len(features), width), dtype=np.int64)
            for entry in self.ids:
                first, number = entry["first"], entry["number"]
                ids = _ids(features.column(entry["feature"]), number)
                arrays["categorical"][:, first : first + number] = ids
        return arrays


def _load_workflow(folder: Path) -> tuple[Workflow, _Layout]:
    """Returns the workflow, and the layout of the ranker's inputs, from the folder of a model version."""
    layout = json.loads((folder / "export.json").read_text(encoding="utf-8"))["inputs"]
    return (
        Workflow.load(folder / "workflow"),
        _Layout(layout["dense"]["columns"], layout["categorical"]["columns"]),
    )


def _raw_rows(inputs: Arrays, workflow: Workflow) -> pa.Table:
    types = workflow.raw_columns
    return pa.table({name: _column(name, values[:, 0], types[name]) for name, values in inputs.items()})


def _places(name: str, keys: Sequence[str], present: Sequence[str]) -> list[int]:
    """Returns the position of each key in `present`. Raises DataError if a key is not in it."""
    places = {key: place for place, key in enumerate(present)}
    missing = [(row, key) for row, key in enumerate(keys) if key not in places]
    if missing:
        row, key = missing[0]
        raise DataError(
            f"column {name}, row {row}: {key[:60]!r} is not in the store",
            "pass users and items of the tables that were delivered last",
        )
    return [places[key] for key in keys]


def _column(name: str, values: np.ndarray, kind: str) -> pa.Array:
    """Returns a raw column from the values of an input (n,). Raises DataError if a value is wrong."""
    if kind in ("int", "float"):
        return pa.array(values)
    try:
        texts = pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise DataError(f"column {name} has a value that is not UTF-8", "encode strings as UTF-8") from error
    return (
        pa.array([_list(name, *row, kind) for row in enumerate(texts.to_pylist())], _LISTS[kind])
        if kind in _LISTS
        else texts
    )


def _list(name: str, row: int, text: str, kind: str) -> list[Any] | None:
    """Parses a string of JSON as a list; returns None for an empty string."""
    if not text:
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list) or not all(_is_element(value, kind) for value in values):
        wanted = "integers" if kind == "ints" else "strings"
        raise DataError(
            f"column {name}, row {row}: {text[:60]!r} is not a list of {wanted} in JSON",
            'pass a string such as [17, 4] or ["a", "b"]; an empty string is null',
        )
    return values


def _is_element(value: Any, kind: str) -> bool:
    if kind == "ints":
        return value is None or (type(value) is int and -(2**63) <= value < 2**63)
    return value is None or (isinstance(value, str) and _UNPAIRED.search(value) is None)


def _ids(column: pa.ChunkedArray, number: int) -> np.ndarray:
    """Returns the ids of a feature, (n,) or, for lists, (n, `number`)."""
    values = column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks)
    return pad_lists(values, number) if pa.types.is_list(values.type) else values.to_numpy()[:, None]
