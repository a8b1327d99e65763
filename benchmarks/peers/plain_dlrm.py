"""DLRM written plainly in torch: 26 EmbeddingBags with sparse gradients, and no fused operators.

The network (except for its initial weights) and the loss are those of training/architectures/dlrm.py. One optimizer
updates the embedding tables, and another one updates the dense part, that is all other layers. The tables use torch's Adagrad or SGD. Adagrad,
with one accumulator per weight, is the optimizer of torch that is most similar to our row-wise Adagrad. SGD
is cheaper. The dense part uses Adam in the fastest implementation for the device (`fused`). With bf16, the
model runs under autocast. As in published implementations, the interaction is a batched matrix product whose
lower triangle is selected by index.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.data.batch import Batch


class PlainDLRM(nn.Module):
    """A DLRM in plain torch. It computes logits (B,) from dense features (B, D) and ids (B, C)."""

    def __init__(
        self,
        num_dense: int,
        cardinalities: Sequence[int],
        dim: int,
        bottom: Sequence[int],
        top: Sequence[int],
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(cardinality, dim, mode="sum", sparse=True) for cardinality in cardinalities
        )
        self.bottom = _mlp([num_dense, *bottom])
        num_vectors = len(cardinalities) + 1
        self.lower = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        width = dim + num_vectors * (num_vectors - 1) // 2
        self.top = nn.Sequential(_mlp([width, *top]), nn.Linear([width, *top][-1], 1))

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        first = self.bottom(dense)
        looked_up = [table(categorical[:, [place]]) for place, table in enumerate(self.tables)]
        vectors = torch.stack([first, *(vector.to(first.dtype) for vector in looked_up)], dim=1)  # (B, F, E)
        dots = torch.bmm(vectors, vectors.transpose(1, 2))
        pairs = dots[:, self.lower[0], self.lower[1]]  # (B, F * (F - 1) // 2)
        logits: Tensor = self.top(torch.cat([first, pairs], dim=1))
        return logits.squeeze(1)


def _mlp(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(widths):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return nn.Sequential(*layers)


class PlainStep:
    """A training step of the plain model. A call trains the model on a batch and returns the loss."""

    def __init__(
        self,
        model: PlainDLRM,
        device: torch.device,
        precision: Literal["fp32", "bf16"],
        sparse_optimizer: Literal["adagrad", "sgd"],
        learning_rate: float,
        embedding_learning_rate: float,
    ) -> None:
        self.model = model.to(device)
        self.model.lower = model.lower.to(device)
        self._autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
        tables = list(model.tables.parameters())
        dense = [*model.bottom.parameters(), *model.top.parameters()]
        kind = torch.optim.Adagrad if sparse_optimizer == "adagrad" else torch.optim.SGD
        self._optimizers = [
            kind(tables, lr=embedding_learning_rate),
            torch.optim.Adam(dense, lr=learning_rate, fused=True),
        ]

    def __call__(self, batch: Batch) -> Tensor:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        with self._autocast:
            logits = self.model(batch.dense, batch.categorical)
        loss = functional.binary_cross_entropy_with_logits(logits.float(), batch.labels)
        loss.backward()
        for optimizer in self._optimizers:
            optimizer.step()
        return loss.detach()
