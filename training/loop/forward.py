"""Forward and backward pass of a step. The dense part may be compiled, or recorded as a CUDA graph.

The dense part of a model is a function of tensors of fixed shapes, which follows the lookups:

    dense (B, D), vectors of each table (B, C, E) → logits (B,)

torch.compile and CUDA graphs get this part. Weights, gradients, lookups and the loss are float32 in every
precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from conf.errors import ConfigError
from conf.types import Train
from training.data.batch import Batch
from training.device.precision import mixed_precision
from training.models.click_model import ClickModel


class DensePart(nn.Module):
    """The dense part of a model as a module, called with the tensors of `embed` in place of ids.

    Its parameters are those of the model. A CUDA graph records gradients of a module's parameters only, so
    `forward_dense` by itself would not do.
    """

    def __init__(self, model: ClickModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, dense: Tensor, *vectors: Tensor) -> Tensor:
        """Logits (B,) of dense (B, D) and the vectors (B, C, E) of each table."""
        return self.model.forward_dense(dense, vectors)


class Forward:
    """Runs a model forward and backward.

    Args:
        model: on the device on which it stays, with dense parameters in float32.
        train: its precision, compile and cuda_graphs.

    Raises:
        ConfigError: CUDA graphs without a GPU; or the model to compile or record is no ClickModel, or it
            computes with ids beside its tables.
    """

    def __init__(self, model: nn.Module, train: Train) -> None:
        self._model = model
        self._train = train
        self._device = next(model.parameters()).device
        self._separate = _require_separate(model) if train.compile or train.cuda_graphs else None
        self._prepared: nn.Module | None = None
        if train.cuda_graphs and self._device.type != "cuda":
            raise ConfigError(
                f"train.cuda_graphs=true needs a GPU, this rank trains on {self._device}",
                "--set train.cuda_graphs=false, or run under a Spark profile whose executors have GPUs",
            )

    def backward(self, batch: Batch, scale: Tensor | None = None) -> Tensor:
        """Computes the gradients of this rank's share of the mean loss; returns that share, a scalar.

        The gradients are added to `grad` of the parameters.

        Args:
            batch: this rank's rows.
            scale: multiplies the loss before the backward pass; the returned loss is not scaled.

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
        if self._separate is None:
            with self._autocast():
                return self._model(batch.dense, batch.categorical).float()
        vectors = self._separate.embed(batch.categorical)
        with self._autocast():
            if self._prepared is None:
                self._prepared = self._prepare(DensePart(self._separate), batch.dense, vectors)
            return self._prepared(batch.dense, *vectors).float()

    def _autocast(self) -> AbstractContextManager[object]:
        # A recorded graph reads weights at fixed addresses, so the casts of weights must be part of it.
        return mixed_precision(self._train.precision, self._device, cached=not self._train.cuda_graphs)

    def _prepare(self, part: DensePart, dense: Tensor, vectors: Sequence[Tensor]) -> nn.Module:
        """Compiles or records the dense part for batches of these shapes; returns it."""
        if self._train.compile:
            mode = "reduce-overhead" if self._train.cuda_graphs else None  # the compiler records by itself
            part.compile(dynamic=False, mode=mode)
            return part
        # The graph keeps the memory of the samples, and later batches are copied there.
        samples = (dense.clone(), *(vector.detach().clone().requires_grad_() for vector in vectors))
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


def _require_separate(model: nn.Module) -> ClickModel:
    """The model, if its dense part can be separated from lookups; ConfigError if not."""
    if not isinstance(model, ClickModel):
        raise ConfigError(
            f"{type(model).__name__} does not separate lookups from its dense part, as train.compile and "
            "train.cuda_graphs require",
            "--set train.compile=false and train.cuda_graphs=false, or derive the model from ClickModel "
            "(training/models/click_model.py)",
        )
    if any(getattr(module, "reads_ids", False) for module in model.modules()):
        raise ConfigError(
            f"{type(model).__name__} computes with ids beside its tables (products of features), which "
            "train.compile and train.cuda_graphs cannot take",
            "--set train.compile=false and train.cuda_graphs=false, or leave out model.crosses",
        )
    return model


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
