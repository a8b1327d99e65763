"""Models of Triton's Python backend, which the files model.py of a model repository import (docs/exports.md).

The server's Python needs this package, and neither torch nor Spark. A model is called with requests, each of
some rows, and returns one response per request. All requests of a call are computed together.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from conf.errors import DataError
from nightrank.workflow import Workflow
from storage.id_lists import pad_lists

_LISTS: Mapping[str, pa.DataType] = {"ints": pa.list_(pa.int64()), "strings": pa.list_(pa.string())}
Arrays = dict[str, np.ndarray]


class _PythonModel:
    """What both models share: requests of different lengths go through `compute` together."""

    def initialize(self, arguments: Mapping[str, str]) -> None:
        """Loads the model from its folder. Triton calls this once for each instance."""
        self._triton: Any = importlib.import_module("triton_python_backend_utils")
        config = json.loads(arguments["model_config"])
        self._names = [entry["name"] for entry in config["input"]]
        self._load(Path(arguments["model_repository"], arguments["model_version"]))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Returns a response for each request. A request with a wrong value gets an error, others do not."""
        inputs = [self._arrays(request) for request in requests]
        ends = np.cumsum([len(next(iter(arrays.values()))) for arrays in inputs])[:-1]
        try:
            together = {name: np.concatenate([arrays[name] for arrays in inputs]) for name in self._names}
            outputs = self.compute(together)
        except DataError:
            return [self._one_response(arrays) for arrays in inputs]
        parts = {name: np.split(values, ends) for name, values in outputs.items()}
        return [
            self._response({name: values[place] for name, values in parts.items()})
            for place in range(len(inputs))
        ]

    def compute(self, inputs: Arrays) -> Arrays:
        """Returns the outputs for n rows. Raises DataError if a value is wrong."""
        raise NotImplementedError

    def _load(self, folder: Path) -> None:
        raise NotImplementedError

    def _one_response(self, inputs: Arrays) -> Any:
        try:
            return self._response(self.compute(inputs))
        except DataError as error:
            wrong = self._triton.TritonError(
                f"{error.problem}; {error.remedy}", self._triton.TritonError.INVALID_ARG
            )
            return self._triton.InferenceResponse([], error=wrong)

    def _response(self, outputs: Arrays) -> Any:
        tensors = [
            self._triton.Tensor(name, np.ascontiguousarray(values)) for name, values in outputs.items()
        ]
        return self._triton.InferenceResponse(tensors)

    def _arrays(self, request: Any) -> Arrays:
        get: Callable[[Any, str], Any] = self._triton.get_input_tensor_by_name
        return {name: get(request, name).as_numpy() for name in self._names}


class EncodeRows(_PythonModel):
    """Computes features: raw columns (n, 1) -> `dense` (n, D) float32 and `categorical` (n, W) int64.

    Columns of numbers are float64, and NaN is null. Other columns are texts in UTF-8, and an empty text is
    null. The text of a list is a list in JSON.
    """

    def compute(self, inputs: Arrays) -> Arrays:
        """Returns the inputs of the ranker; see `_PythonModel.compute`."""
        types = self._workflow.raw_columns
        rows = pa.table({name: _column(name, values[:, 0], types[name]) for name, values in inputs.items()})
        features = self._workflow.encode_to_arrow(
            rows, [*self._dense, *(entry["feature"] for entry in self._ids)]
        )
        count = len(rows)
        outputs: Arrays = {}
        if self._dense:
            outputs["dense"] = np.empty((count, len(self._dense)), dtype=np.float32)
            for place, name in enumerate(self._dense):
                outputs["dense"][:, place] = features.column(name).to_numpy()
        if self._ids:
            outputs["categorical"] = np.empty((count, self._width), dtype=np.int64)
            for entry in self._ids:
                first, number = entry["first"], entry["number"]
                outputs["categorical"][:, first : first + number] = _ids(
                    features.column(entry["feature"]), number
                )
        return outputs

    def _load(self, folder: Path) -> None:
        self._workflow = Workflow.load(folder / "workflow")
        layout = json.loads((folder / "export.json").read_text(encoding="utf-8"))["inputs"]
        self._dense: list[str] = layout["dense"]["columns"]
        self._ids: list[dict[str, Any]] = layout["categorical"]["columns"]
        self._width = sum(entry["number"] for entry in self._ids)


class RunProgram(_PythonModel):
    """Computes probabilities (n,) float32 by ONNX Runtime on CPUs, where Triton has no backend for it."""

    def compute(self, inputs: Arrays) -> Arrays:
        """Returns the probabilities; see `_PythonModel.compute`."""
        return {"probability": self._session.run(["probability"], inputs)[0]}

    def _load(self, folder: Path) -> None:
        onnxruntime: Any = importlib.import_module("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only: it warns of constants that it computes at each call
        # Waiting threads do not spin, because the cores have work of the server and of other models.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            folder / "ranker.onnx", options, providers=["CPUExecutionProvider"]
        )


def _column(name: str, values: np.ndarray, kind: str) -> pa.Array:
    """Returns a raw column from the values of an input (n,). Raises DataError if a text is wrong."""
    if kind in ("int", "float"):
        return pa.array(values)
    try:
        texts = pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise DataError(f"column {name} has a text that is not UTF-8", "encode texts as UTF-8") from error
    return (
        pa.array([_list(name, *row, kind) for row in enumerate(texts.to_pylist())], _LISTS[kind])
        if kind in _LISTS
        else texts
    )


def _list(name: str, row: int, text: str, kind: str) -> list[Any] | None:
    """Returns the list of a text in JSON; None for an empty text."""
    if not text:
        return None
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, list) or not all(_is_element(value, kind) for value in values):
        wanted = "integers" if kind == "ints" else "texts"
        raise DataError(
            f"column {name}, row {row}: {text[:60]!r} is not a list of {wanted} in JSON",
            'pass a text such as [17, 4] or ["a", "b"]; an empty text is null',
        )
    return values


def _is_element(value: Any, kind: str) -> bool:
    if kind == "ints":
        return value is None or (type(value) is int and -(2**63) <= value < 2**63)
    return value is None or isinstance(value, str)


def _ids(column: pa.ChunkedArray, number: int) -> np.ndarray:
    """Returns the ids of a feature, (n,) or, for lists, (n, `number`)."""
    values = column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks)
    return pad_lists(values, number) if pa.types.is_list(values.type) else values.to_numpy()[:, None]
