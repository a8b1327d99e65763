"""The predictor: a loaded model on its device. In scoring, only this file calls a torch model directly.

A worker process keeps loaded models from one Spark task to the next.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from conf.errors import InfrastructureError
from conf.process import keep_freed_memory
from conf.types import MultiHot
from scoring.requests import ModelRequest, Precision
from storage.feature_spec import FeatureSpec, pad_lists
from training.checkpoints import load_model
from training.device import choose_device, mixed_precision
from training.kernels.choice import use_kernels
from training.models.inputs import id_columns

# Micro-batches: a micro-batch is the group of rows or pairs that go through a model in one call.
#
# The size of a micro-batch is halved when the device's memory runs out.

log = logging.getLogger("nightrank.scoring")
Result = TypeVar("Result")

# The activations of this number of rows fit into a core's cache. Larger batches are slower.
_CPU_ROWS = 1_024
_GPU_LEAST_ROWS, _GPU_MOST_ROWS = 8_192, 1_048_576

# A micro-batch may use 1 / 4 of a GPU's free memory. Other tasks may share the GPU, and the size of a row is
# an estimate.
_GPU_SHARE = 4

# Part of the message of the RuntimeError that torch raises when the CPU's memory runs out.
_CPU_OUT_OF_MEMORY = "can't allocate memory"


class MicroBatch:
    """The size of a micro-batch: the number of rows that go through a model in one call.

    The size is halved when the device's memory runs out. It is never increased.

    Args:
        rows: initial number of rows, at least 1.

    Attributes:
        rows: the current number of rows.
        halvings: how often the size was halved.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.halvings = 0

    def within_memory(self, work: Callable[[int], Result]) -> Result:
        """Calls `work` with the number of rows of a micro-batch, and returns its result.

        If memory runs out, this method halves the number of rows and calls `work` again. The repeated call
        must do the complete work again.

        Raises:
            InfrastructureError: memory runs out even with one row at a time.
        """
        while True:
            try:
                return work(self.rows)
            except RuntimeError as error:
                if not isinstance(error, torch.OutOfMemoryError) and _CPU_OUT_OF_MEMORY not in str(error):
                    raise
                if self.rows == 1:
                    raise InfrastructureError(
                        f"the device has too little memory to score even one row: {error}",
                        "let fewer tasks share the device (spark.task.resource.gpu.amount, "
                        "spark.executor.cores), or give it more memory",
                    ) from error
                reason = str(error)
            # Halve here, after the `except` block. At this point the error and the tensors of its traceback
            # are freed.
            self._halve(reason)

    def over(self, total: int, work: Callable[[slice], None]) -> None:
        """Calls `work` with consecutive slices of [0, total), which have at most `self.rows` rows.

        If memory runs out for a slice, `work` is called again with a smaller slice that has the same start.

        Args:
            total: number of rows.
            work: function that processes the rows of one slice.

        Raises:
            InfrastructureError: memory runs out even with one row at a time.
        """
        start = 0
        while start < total:
            start = self.within_memory(partial(_step, work, start, total))

    def _halve(self, reason: str) -> None:
        """Halves the number of rows, logs a warning, and frees the GPU memory that torch has cached."""
        self.rows //= 2
        self.halvings += 1
        log.warning("the device is out of memory; micro-batches now have %d rows (%s)", self.rows, reason)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _step(work: Callable[[slice], None], start: int, total: int, rows: int) -> int:
    """Calls `work` with the next slice of at most `rows` rows, and returns the end of this slice."""
    stop = min(start + rows, total)
    work(slice(start, stop))
    return stop


def default_rows(model: nn.Module, device: torch.device) -> int:
    """Returns the initial number of rows of a micro-batch.

    On a CPU, the number is constant: the activations of this many rows fit into the cache of a core. On a
    GPU, the number of rows is chosen so that the rows fit into 1/4 of the free memory.
    """
    if device.type != "cuda":
        return _CPU_ROWS
    free, _ = torch.cuda.mem_get_info(device)
    return rows_within(free // _GPU_SHARE, row_bytes(model))


def rows_within(free_bytes: int, bytes_a_row: int) -> int:
    """Returns the number of rows that fit into `free_bytes`, rounded down to a power of two.

    The result is at least 8,192 and at most 1,048,576.
    """
    fitting = max(free_bytes // max(bytes_a_row, 1), 1)
    return min(max(1 << (fitting.bit_length() - 1), _GPU_LEAST_ROWS), _GPU_MOST_ROWS)


def row_bytes(model: nn.Module) -> int:
    """Estimates how many bytes of memory one row needs.

    The estimate counts the inputs and outputs of all linear layers, and the embedding vectors.
    """
    return sum(_widths(model)) * 4


def _widths(model: nn.Module) -> Iterator[int]:
    """Yields the number of float32 values that one row needs in a layer.

    There is one number for each linear layer and each embedding table. A module with the attribute
    `calls_per_row` computes its layers that many times for one row.
    """
    calls = {
        inner: cast(int, module.calls_per_row)
        for module in model.modules()
        if hasattr(module, "calls_per_row")
        for inner in module.modules()
    }
    for module in model.modules():
        if isinstance(module, nn.Linear):
            yield (module.in_features + module.out_features) * calls.get(module, 1)
        if hasattr(module, "cardinalities"):  # an embedding table
            vectors, dim = len(cast(Sized, module.cardinalities)), cast(torch.Tensor, module.weight).shape[1]
            # The numbers of the vectors, of a concatenated copy of them, and of their dot products.
            yield 2 * vectors * dim + vectors * vectors


_LIST = pa.list_(pa.int32())


@dataclass(frozen=True)
class Predictor:
    """A model that is ready to score.

    Attributes:
        model: the torch module, in evaluation mode, on the device.
        spec: the features that the model was trained on.
        multi_hot: how lists of ids are padded to equal length, and whether the vectors of a list are summed
            or averaged.
        version: the model's version, 16 hexadecimal digits.
        device: the device that the model is on.
        micro_batch: the number of rows that go through the model in one call.
        precision: precision of the matrix products. Logits are always float32.
        kernels: whether Triton's kernels may run on the device.
    """

    model: nn.Module
    spec: FeatureSpec
    multi_hot: MultiHot
    version: str
    device: torch.device
    micro_batch: MicroBatch
    precision: Precision = "fp32"
    kernels: bool = False

    @torch.inference_mode()
    def probabilities(self, dense: Tensor, categorical: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns the click probabilities of P rows, shape (P,), on the predictor's device.

        The rows go through the model in micro-batches, which get smaller if memory runs out.

        Args:
            dense: (P, D) float32. The columns have the order of `spec.dense`.
            categorical: (P, W) int64 ids. W is the number of id columns of the model;
                training/models/inputs.py defines their order.
            dtype: float32 or float64, the dtype of the probabilities. The sigmoids are computed with it.

        Raises:
            InfrastructureError: the device has too little memory even for one row.
        """
        scored = torch.empty(dense.shape[0], dtype=dtype, device=self.device)

        def score(rows: slice) -> None:
            logits = self.logits(dense[rows].to(self.device), categorical[rows].to(self.device))
            scored[rows] = torch.sigmoid(logits.to(dtype))

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
        threads: number of CPU threads that torch may use. Pass the number of cores of the caller's task.

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
        *(model, loaded.spec, loaded.multi_hot, loaded.version, device, micro_batch, request.precision),
        kernels=use_kernels(request.kernels, device, "score.kernels"),
    )


def model_inputs(
    columns: Mapping[str, Any], spec: FeatureSpec, multi_hot: MultiHot, rows: int
) -> tuple[Tensor, Tensor]:
    """Builds the inputs of a model on the CPU from named columns. Inputs of missing columns are zeros.

    Args:
        columns: maps the name of a feature to an Arrow column of length `rows`, or to one value for all rows.
            Such a value is a number or a list of ids.
        spec: the model's features.
        multi_hot: the padding of lists of ids.
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


# The code below keeps loaded models in a Python worker process, from one Spark task to the next.

# Two models are kept, because evaluate_model scores with the champion and the challenger.
_PREDICTORS_KEPT = 2


class RequestWithModel(Protocol):
    """A hashable request that names the model to use.

    Such requests are ListRequest and RetrievalRequest.
    """

    @property
    def model(self) -> ModelRequest:
        """Returns the model to load."""


Request = TypeVar("Request", bound=RequestWithModel)
Loaded = TypeVar("Loaded")


class WorkerModels:
    """Loads models when they are needed, and keeps the most recently used models in memory.

    A Spark task uses the instance that `models_of_process()` returns. This instance exists as long as the
    Python worker process runs. Other callers create an instance. When an instance is freed, its models are
    freed too.
    """

    def __init__(self) -> None:
        self._load_predictor = lru_cache(maxsize=_PREDICTORS_KEPT)(load_predictor)
        self._latest: dict[Callable[..., Any], tuple[Any, Any]] = {}
        self._lock = threading.RLock()  # several threads of a job may score at the same time

    def predictor(self, request: ModelRequest, gpu: int | None, threads: int) -> Predictor:
        """Returns the predictor of a request, and loads it if necessary.

        The two most recently used predictors stay loaded. The arguments are those of `load_predictor`.
        """
        with self._lock:
            return self._load_predictor(request, gpu, threads)

    def latest(
        self, load: Callable[[Request, Predictor], Loaded], request: Request, gpu: int | None, threads: int
    ) -> Loaded:
        """Calls `load` with a request and the predictor of its model, and returns the result.

        For each function `load`, the latest result stays in memory. If the next call has the same request, it
        returns this result and does not call `load`.

        Args:
            load: `load_recommender` or `load_retriever`.
            request: the argument of `load`. It names the model to load.
            gpu, threads: the arguments of `load_predictor`.
        """
        key = (request, gpu, threads)
        with self._lock:
            kept = self._latest.get(load)
            if kept is None or kept[0] != key:
                kept = (key, load(request, self.predictor(request.model, gpu, threads)))
                self._latest[load] = kept
            return kept[1]


@cache
def models_of_process() -> WorkerModels:
    """Returns the instance of WorkerModels that all tasks of this Python worker process share."""
    return WorkerModels()


def rows_of_feature(path: str, feature: str) -> np.ndarray:
    """Returns a model's embedding rows for all ids of one feature: (cardinality, E) float32.

    Args:
        path: the model's folder.
        feature: a feature with ids.

    Raises:
        ConfigError: the model has no rows for the feature.
        DataError: a file of the model is missing or damaged.
    """
    return load_model(path, torch.device("cpu")).embedding_rows(feature).numpy()
