"""Forward and backward pass of a step: in which precision, and whether compiled or recorded.

Lookups run first and by themselves; what follows them, the dense part, is a function of tensors of fixed shapes:

    dense (B, D), vectors of each table (B, C, E) → logits (B,)

That is what torch.compile and CUDA graphs get. Weights, gradients, lookups and the loss are float32 in every precision.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from conf.errors import ConfigError
from conf.types import Train
from training.data.batch import Batch
from training.device.precision import mixed_precision
from training.embeddings.table import tables_of
from training.models.layers import Dropout


class _Given(nn.Module):
    """Stands in a model where a table stood, and hands out the vectors that were looked up before."""

    def __init__(self, index: int, may_use_kernels: bool) -> None:
        super().__init__()
        self.index = index
        self.may_use_kernels = may_use_kernels

    def forward(self, vectors: Sequence[Tensor]) -> Tensor:
        return vectors[self.index]


class DensePart(nn.Module):
    """A model without its tables: the same parameters, called with the vectors of all tables in place of ids.

    It relies on what training/models/__init__.py asks of a model: ids go to the tables and nowhere else. A module that
    computes with ids says so by an attribute `reads_ids`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        kept: list[object] = [*model.parameters(), *model.buffers()]
        kept += [each for each in model.modules() if isinstance(each, Dropout)]
        memo: dict[int, object] = {id(each): each for each in kept}
        memo |= {
            id(each): _Given(index, each.may_use_kernels)
            for index, each in enumerate(tables_of(model).values())
        }
        self.body = copy.deepcopy(model, memo)  # what is in the memo is not copied

    def forward(self, dense: Tensor, *vectors: Tensor) -> Tensor:
        return self.body(dense, vectors)


class Forward:
    """Runs a model forward and backward.

    Args:
        model: on the device it stays on, its dense parameters float32.
        train: its precision, compile and cuda_graphs.

    Raises:
        ConfigError: CUDA graphs are asked for where there is no GPU; or compiling or recording a model that computes with ids.
    """

    def __init__(self, model: nn.Module, train: Train) -> None:
        self._model = model
        self._train = train
        self._tables = list(tables_of(model).values())
        self._device = next(model.parameters()).device
        self._prepared: nn.Module | None = None
        if (train.compile or train.cuda_graphs) and any(
            getattr(each, "reads_ids", False) for each in model.modules()
        ):
            raise ConfigError(
                f"{type(model).__name__} computes with ids beside its tables (products of features), which train.compile and "
                "train.cuda_graphs cannot take",
                "--set train.compile=false and train.cuda_graphs=false, or leave out model.crosses",
            )
        if train.cuda_graphs and self._device.type != "cuda":
            raise ConfigError(
                f"train.cuda_graphs=true needs a GPU, this rank trains on {self._device}",
                "--set train.cuda_graphs=false, or run under a Spark profile whose executors have GPUs",
            )

    def backward(self, batch: Batch, scale: Tensor | None = None) -> Tensor:
        """Leaves the gradients of this rank's share of the mean loss at the parameters; returns that share, a scalar.

        Args:
            scale: of the loss before it is differentiated; the returned one is not scaled.

        Raises:
            ConfigError: the model's dense part does not compile.
        """
        with _float32_products(self._train.precision, self._device), self._compiler_errors():
            logits = self._logits(batch)
            losses = functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
            loss: Tensor = (losses * batch.weights).sum() / batch.global_weight
            (loss if scale is None else loss * scale).backward()
        return loss.detach()

    def _logits(self, batch: Batch) -> Tensor:
        """(L,) float32."""
        if not (self._train.compile or self._train.cuda_graphs):
            with self._autocast():
                return self._model(batch.dense, batch.categorical).float()
        vectors = [table(batch.categorical) for table in self._tables]
        with self._autocast():
            if self._prepared is None:
                self._prepared = self._prepare(batch.dense, vectors)
            return self._prepared(batch.dense, *vectors).float()

    def _autocast(self) -> AbstractContextManager[object]:
        # A recorded graph reads cast weights where they lay when it was recorded: the casts must be part of it.
        return mixed_precision(self._train.precision, self._device, cached=not self._train.cuda_graphs)

    def _prepare(self, dense: Tensor, vectors: Sequence[Tensor]) -> nn.Module:
        """The dense part, compiled or recorded for batches of these shapes."""
        part = DensePart(self._model).train()
        if self._train.compile:
            mode = "reduce-overhead" if self._train.cuda_graphs else None  # the compiler records by itself
            part.compile(dynamic=False, mode=mode)
            return part
        # The samples become the graph's own memory; later batches are copied there.
        samples = (dense.clone(), *(each.detach().clone().requires_grad_() for each in vectors))
        torch.cuda.make_graphed_callables(part, samples, allow_unused_input=True)  # replaces its forward
        return part

    @contextmanager
    def _compiler_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if self._train.compile and _is_compiler_error(error):
                raise ConfigError(
                    f"train.compile=true: {type(self._model).__name__} does not compile: {error}",
                    "install a C++ compiler (g++) on every node, or --set train.compile=false",
                ) from error
            raise


@contextmanager
def _float32_products(precision: str, device: torch.device) -> Iterator[None]:
    """In which a GPU computes float32 matrix products in TF32, if that is the precision."""
    before = torch.get_float32_matmul_precision()
    if precision == "tf32" and device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _is_compiler_error(error: RuntimeError) -> bool:
    from torch._dynamo.exc import TorchDynamoException  # importing the compiler takes a rank seconds

    return isinstance(error, TorchDynamoException)
