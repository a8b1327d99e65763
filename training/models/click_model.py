"""The base class of models, which separates lookups from the rest of the model.

The separation is that of torchrec's models: `embed` is the sparse architecture, `forward_dense` has the dense
architecture, the interaction and the over architecture.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class ClickModel(nn.Module):
    """A model of clicks: ids become vectors, and vectors and dense features become logits.

    `forward_dense` is a function of tensors of fixed shapes, so it can be compiled or recorded
    (training/loop/forward.py).

    Notation: B rows, D dense features, C features made of ids, W columns of ids.
    """

    def embed(self, categorical: Tensor) -> list[Tensor]:
        """The vectors (B, C, E) of each table, of categorical (B, W) int64."""
        raise NotImplementedError(f"{type(self).__name__} has no method embed")

    def forward_dense(self, dense: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Logits (B,) of dense (B, D) float32 and of the vectors that `embed` returned."""
        raise NotImplementedError(f"{type(self).__name__} has no method forward_dense")

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Logits (B,) of dense (B, D) float32 and categorical (B, W) int64."""
        return self.forward_dense(dense, self.embed(categorical))
