"""Forward and backward pass of a step, with the loss. The dense part may be compiled, or be a CUDA graph.

The dense part of a model comes after the lookups. It is a function of tensors of fixed shapes:

    inputs:  dense features (B, D), and the vectors of each lookup (B, C, E)
    output:  logits (B,)

torch.compile and CUDA graphs are applied to this part. B is the number of rows, D the number of dense
features, C the number of features that are ids, and E the width of a vector. Weights, their gradients and the
loss are float32 in every precision.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from conf.errors import ConfigError
from conf.plugins import LOSS
from conf.train_types import loss_name, loss_settings
from conf.types import Train
from training.collectives import ALONE, Collectives
from training.data.batch import Batch, CatalogueItems, DrawnItems, Vectors
from training.device import mixed_precision
from training.embeddings.table import tables_of
from training.models.click_model import BagModel, ClickModel, PenalizedModel
from training.models.factorization import VectorModel
from training.native.library import BEST, address, library, required_library
from training.settings.check_settings import vectors_missing

MeanLoss = Callable[[Tensor | Vectors, Batch], Tensor]

# Let each user have G items. If there are at most this number times G distinct items, one matrix product with
# all distinct items is faster than looking up G vectors for each user.
_ITEMS_PER_DRAW = 16
# Further threads are used only if each thread then does at least this number of multiplications.
_PRODUCTS_OF_A_THREAD = 500_000


class DensePart(nn.Module):
    """The dense part of a model as a module. Its inputs are the tensors that `embed` returns, not ids.

    It has the parameters of the model. This module is needed because a CUDA graph records only the gradients
    of a module's parameters.
    """

    def __init__(self, model: ClickModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, dense: Tensor, *vectors: Tensor) -> Tensor:
        """Returns the logits (B,) from `dense` (B, D) and the vectors (B, C, E) of each lookup."""
        return self.model.forward_dense(dense, vectors)


class _Compiled(nn.Module):
    """The compiled layers after a model's table lookups, in a module that a CUDA graph can record."""

    def __init__(self, part: DensePart) -> None:
        super().__init__()
        self.part = part
        self._run = torch.compile(part.forward, dynamic=False)

    def forward(self, dense: Tensor, *vectors: Tensor) -> Tensor:
        logits: Tensor = self._run(dense, *vectors)
        return logits


class Forward:
    """Computes the forward pass and the backward pass of a model.

    Args:
        model: the model, with dense parameters in float32. It must stay on its device.
        train: the settings; `precision`, `loss`, `compile` and `cuda_graphs` are used.
        collectives: the ranks' collectives. They are used by a loss that compares a row with the items of the
            step.

    Raises:
        ConfigError: `train.cuda_graphs` is true without a GPU, or the loss compares vectors, but the model
            has none. Also raised if `train.compile` or `train.cuda_graphs` is true, but the model is not a
            ClickModel or uses ids outside of table lookups.
    """

    def __init__(self, model: nn.Module, train: Train, collectives: Collectives = ALONE) -> None:
        self._model = model
        self._train = train
        self._collectives = collectives
        self._mean_loss = read_loss(train.loss)
        self._vectors = _require_vectors(model, train.loss_name) if train.compares_vectors else None
        self._device = next(model.parameters()).device
        self._separate = _require_separate(model) if train.compile or train.cuda_graphs else None
        self._prepared: nn.Module | None = None
        if train.cuda_graphs and self._device.type != "cuda":
            raise ConfigError(
                f"train.cuda_graphs=true needs a GPU, but this rank trains on {self._device}",
                "pass --set train.cuda_graphs=false, or run under a Spark profile whose executors have GPUs",
            )
        for table in tables_of(model).values() if train.cuda_graphs else ():
            table.reuses_memory = True

    def backward(
        self,
        batch: Batch,
        scale: Tensor | None = None,
        progress: float = 1.0,
        before_backward: Callable[[], None] | None = None,
    ) -> Tensor:
        """Computes the gradients of this rank's share of the mean loss. Returns this share, a scalar.

        The gradients are added to the parameters' attribute `grad`.

        Args:
            batch: this rank's rows.
            scale: the loss is multiplied by this factor before the backward pass. The returned loss is not
                scaled.
            progress: the share of the training's steps that are done; see `PenalizedModel`.
            before_backward: called between the forward pass and the backward pass.

        Raises:
            ConfigError: the model's dense part does not compile.
        """
        with _float32_products(self._train.precision, self._device), self._compiler_errors():
            compared = self._logits(batch) if self._vectors is None else self._compared(self._vectors, batch)
            loss = self._mean_loss(compared, batch)
            if isinstance(self._model, PenalizedModel):
                loss = loss + mean_penalty(self._model.take_penalty(progress), batch)
            if before_backward is not None:
                before_backward()
            (loss if scale is None else loss * scale).backward()
        return loss.detach()

    def _logits(self, batch: Batch) -> Tensor:
        """Returns the logits of this rank's rows, (L,) float32."""
        if isinstance(batch.items, DrawnItems):
            return self._drawn_logits(batch, batch.items)
        if self._separate is None:
            with self._autocast():
                return self._model(batch.dense, batch.categorical).float()
        with self._autocast():
            vectors = self._separate.embed(batch.categorical)
            if self._prepared is None:
                self._prepared = self._prepare(DensePart(self._separate), batch.dense, vectors)
            return self._prepared(batch.dense, *vectors).float()

    def _drawn_logits(self, batch: Batch, drawn: DrawnItems) -> Tensor:
        """Returns the logits of positive rows and their drawn items, (P · G,) float32, without a bias."""
        model = self._model
        assert isinstance(model, VectorModel)
        with self._autocast():
            users = model.user_vectors(batch.dense, batch.categorical)
            items = model.item_vectors(drawn.dense, drawn.categorical)
        return sampled_products(users.float(), items.float(), drawn.index).flatten()

    def _compared(self, model: VectorModel, batch: Batch) -> Vectors:
        """Returns the vectors of users and items that the loss compares, as float32."""
        assert batch.items is not None
        with self._autocast():
            users = model.user_vectors(batch.dense, batch.categorical)
            items = model.item_vectors(batch.items.dense, batch.items.categorical)
        bags = None
        if isinstance(batch.items, CatalogueItems) and isinstance(model, BagModel):
            bags = model.bags(batch.categorical, batch.items.categorical)
        return Vectors(users.float(), items.float(), batch.items, self._collectives, bags)

    def _autocast(self) -> AbstractContextManager[object]:
        # A recorded graph reads weights at fixed addresses. So it must contain the casts of the weights, and
        # these casts must not be cached.
        return mixed_precision(self._train.precision, self._device, cached=not self._train.cuda_graphs)

    def _prepare(self, part: DensePart, dense: Tensor, vectors: Sequence[Tensor]) -> nn.Module:
        """Compiles or records the dense part for batches with these shapes, and returns it."""
        if not self._train.cuda_graphs:
            part.compile(dynamic=False)
            return part
        recorded = _Compiled(part) if self._train.compile else part
        # In each step, the graph reads its inputs from the memory of `samples`. Tables write the vectors of
        # each step directly to that memory (`reuses_memory`). The other inputs are copied to it.
        samples = (dense.clone(), *(vector.detach().requires_grad_() for vector in vectors))
        # Recording and steps use different streams. Without this call, torch would warn about that.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        record(recorded, samples)
        return recorded

    @contextmanager
    def _compiler_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if self._train.compile and _is_compiler_error(error):
                raise ConfigError(
                    f"train.compile=true: {type(self._model).__name__} does not compile: {error}",
                    "install a C++ compiler (g++) on every node, or pass --set train.compile=false",
                ) from error
            raise


def record(part: nn.Module, samples: tuple[Tensor, ...]) -> None:
    """Replaces the method `forward` of a module by CUDA graphs of its forward and backward pass.

    While graphs are recorded, other threads may allocate memory and use other streams, as the loader does. By
    default, torch records in a mode in which such calls fail and also make the recording fail.
    `make_graphed_callables` has no parameter for the mode (docs/decisions/training-on-gpus.md#0158), so
    `torch.cuda.graph`, which it calls, is replaced until it returns.

    Args:
        part: the module.
        samples: inputs with the shapes of all later inputs. The graphs read their inputs from this memory.
    """
    graph = torch.cuda.graph
    torch.cuda.graph = partial(graph, capture_error_mode="thread_local")  # type: ignore[assignment,misc]
    try:
        torch.cuda.make_graphed_callables(part, samples, allow_unused_input=True)
    finally:
        torch.cuda.graph = graph  # type: ignore[misc]


def _require_separate(model: nn.Module) -> ClickModel:
    """Returns the model. Raises ConfigError if its dense part cannot be separated from its lookups."""
    if not isinstance(model, ClickModel):
        raise ConfigError(
            f"{type(model).__name__} does not separate lookups from its dense part, as train.compile and "
            "train.cuda_graphs require",
            "pass --set train.compile=false --set train.cuda_graphs=false, or derive the model from "
            "ClickModel (training/models/click_model.py)",
        )
    if any(getattr(module, "reads_ids", False) for module in model.modules()):
        raise ConfigError(
            "train.compile and train.cuda_graphs do not support model.crosses, because "
            f"{type(model).__name__} needs the raw ids to compute them",
            "pass --set train.compile=false --set train.cuda_graphs=false, or remove model.crosses",
        )
    return model


def _require_vectors(model: nn.Module, loss: str) -> VectorModel:
    """Returns the model. Raises ConfigError if it has no user vectors and item vectors."""
    if not isinstance(model, VectorModel):
        raise vectors_missing(loss, type(model).__name__)
    return model


@contextmanager
def _float32_products(precision: str, device: torch.device) -> Iterator[None]:
    """A context in which a GPU computes float32 matrix products in TF32, if `precision` is `tf32`."""
    before = torch.get_float32_matmul_precision()
    if precision == "tf32" and device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _is_compiler_error(error: RuntimeError) -> bool:
    from torch._dynamo.exc import TorchDynamoException  # this import takes seconds

    return isinstance(error, TorchDynamoException)


# The code below computes the dot products of user vectors with the vectors of drawn items. On a CPU, a
# compiled function computes them (native/sampled_products.cpp).
#
# Notation: P users, G items of each user, I different items, E numbers per vector.


def sampled_products(users: Tensor, items: Tensor, index: Tensor) -> Tensor:
    """Returns the dot products of each user's vector and the vectors of G items, (P, G) float32.

    Args:
        users: (P, E).
        items: (I, E).
        index: (P, G) int64, the items of each user.
    """
    if is_compiled(users, items):
        products: Tensor = _SampledProducts.apply(users, items, index)
        return products
    if items.shape[0] <= _ITEMS_PER_DRAW * index.shape[1]:
        # One matrix product computes more numbers than are needed. But it is faster than looking up a vector
        # for each draw, if there are not many more items than draws.
        return (users @ items.t()).float().gather(1, index)
    # (P, G, E). `functional.embedding` is used because its backward pass is fast.
    of_rows = functional.embedding(index, items)
    return torch.bmm(of_rows, users.unsqueeze(2)).squeeze(2).float()


def is_compiled(users: Tensor, items: Tensor) -> bool:
    """Returns whether `sampled_products` uses compiled code: only on a CPU, without mixed precision."""
    return (
        users.dtype == items.dtype == torch.float32
        and users.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and library() is not None
    )


class _SampledProducts(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, users: Tensor, items: Tensor, index: Tensor) -> Tensor:
        users, items, index = users.contiguous(), items.contiguous(), index.contiguous()
        context.save_for_backward(users, items, index)
        return compiled_products(users, items, index)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        users, items, index = context.saved_tensors
        return *compiled_products_backward(users, items, index, gradient.contiguous()), None


class _Drawn(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("users", "group", "items", "dim")),
        *(
            (name, ctypes.c_void_p)
            for name in ("user_vectors", "item_vectors", "index", "products", "gradient")
        ),
        *((name, ctypes.c_void_p) for name in ("user_gradient", "item_gradient")),
    )


def compiled_products(users: Tensor, items: Tensor, index: Tensor, instructions: int = BEST) -> Tensor:
    """Computes `sampled_products` of contiguous float32 tensors on a CPU by compiled code.

    Args:
        users, items, index: see `sampled_products`.
        instructions: BEST, or the instructions to use.

    Raises:
        MemoryError: memory ran out.
    """
    products = users.new_empty(index.shape)
    _run_compiled(users, items, index, instructions, products=products)
    return products


def compiled_products_backward(
    users: Tensor, items: Tensor, index: Tensor, gradient: Tensor, instructions: int = BEST
) -> tuple[Tensor, Tensor]:
    """Computes the gradients (P, E) of users and (I, E) of items from the gradients (P, G) of the products.

    Sums are added in the order of the products, so they do not depend on the number of threads.

    Raises:
        MemoryError: memory ran out.
    """
    user_gradient, item_gradient = torch.empty_like(users), torch.zeros_like(items)
    gradients = {"gradient": gradient, "user_gradient": user_gradient, "item_gradient": item_gradient}
    _run_compiled(users, items, index, instructions, **gradients)
    return user_gradient, item_gradient


def _run_compiled(users: Tensor, items: Tensor, index: Tensor, instructions: int, **others: Tensor) -> None:
    drawn = _Drawn(
        users=users.shape[0],
        group=index.shape[1],
        items=items.shape[0],
        dim=users.shape[1],
        user_vectors=address(users),
        item_vectors=address(items),
        index=address(index, torch.int64),
        **{name: address(tensor) for name, tensor in others.items()},
    )
    threads = min(torch.get_num_threads(), max(index.numel() * users.shape[1] // _PRODUCTS_OF_A_THREAD, 1))
    backward = "gradient" in others
    if required_library().nightrank_sampled_products(ctypes.byref(drawn), backward, threads, instructions):
        raise MemoryError


def read_loss(loss: str | dict[str, dict[str, Any]]) -> MeanLoss:
    """Returns the function that computes this rank's share of the mean loss of a global batch, a scalar.

    Its first argument is the logits (L,) float32, or the vectors, of the L rows of this rank. Its second
    argument is the batch.

    Args:
        loss: the value of `train.loss`.

    Raises:
        ConfigError: the module of a package does not follow the contract of training/losses. The returned
            function raises this error too, if the loss does not return a scalar tensor.
    """
    plugin, settings = LOSS.get(loss_name(loss)), loss_settings(loss)
    mean_loss = plugin.member("mean_loss")

    def checked(compared: Tensor | Vectors, batch: Batch) -> Tensor:
        result = mean_loss(settings, compared, batch)
        if not isinstance(result, Tensor) or result.ndim:
            shown = f"shape {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
            raise ConfigError(
                f"{plugin} returned {shown}, not a scalar tensor",
                "let its function mean_loss return the sum over rows, divided by the weight of the batch",
            )
        return result

    return checked


def mean_penalty(penalties: Tensor, batch: Batch) -> Tensor:
    """Returns this rank's share of the mean penalty of a global batch, a scalar.

    A positive row and its negatives have the same user, so only the penalty of the positive row counts.

    Args:
        penalties: (L,) float32, the penalty of each of the L rows of this rank.
        batch: the rows.
    """
    of_groups, weights = penalties.view(-1, batch.group)[:, 0], batch.weights.view(-1, batch.group)[:, 0]
    return (of_groups * weights).sum() / batch.global_weight
