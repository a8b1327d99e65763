"""The ids of one batch, the table rows that they look up, and the vectors to which these rows contribute.

Notation: B rows of a batch; C features that are ids, of which the last G are lists; E numbers per vector. The
N elements of a batch are all ids that contribute to a vector; padding is not an element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, assert_never

import torch
from torch import Tensor
from torch.nn import functional

from storage.feature_spec import PAD_ID
from training.embeddings.exchange import ExchangedRows
from training.embeddings.rows import Groups

Pooling = Literal["sum", "mean"]


@dataclass(frozen=True)
class ListElements:
    """The ids in list features, one feature after the other, and row by row within a feature.

    An element is one id of a list. Padding is not an element.

    Attributes:
        ids, features: (n,) int64, the id of each element, and the index of the feature that contains the
            element.
        counts: (G, B) int64, the number of ids in each list.
    """

    ids: Tensor
    features: Tensor
    counts: Tensor

    @classmethod
    def of(cls, ids: Tensor, lengths: Sequence[int], first_feature: int) -> ListElements:
        """Returns the elements of `ids` (B, Σ lengths), which has the columns of all list features."""
        lists = ids.split(list(lengths), dim=1)
        masks = [columns != PAD_ID for columns in lists]
        elements = [columns[mask] for columns, mask in zip(lists, masks, strict=True)]
        features = [torch.full_like(ids, first_feature + index) for index, ids in enumerate(elements)]
        counts = torch.stack([mask.sum(dim=1) for mask in masks])
        return cls(torch.cat(elements), torch.cat(features), counts)

    @property
    def num_lists(self) -> int:
        """Returns G."""
        return len(self.counts)

    @cached_property
    def bags(self) -> Tensor:
        """Returns for each element the index of its list among the G * B lists, (n,) int64."""
        counts = self.counts.flatten()
        return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)

    def pool(self, table: Tensor, positions: Tensor, pooling: Pooling) -> Tensor:
        """Returns the pooled vector of each list, (B, G, E); zeros for an empty list.

        `table` is (rows, E) float32. `positions` (n,) contains the index of each element's row in `table`.
        """
        lists, rows = self.counts.shape
        counts = self.counts.flatten()
        if not len(positions):
            return torch.zeros(rows, lists, table.shape[1], device=table.device)
        starts = counts.cumsum(0) - counts
        summed = functional.embedding_bag(positions, table, starts, mode="sum")  # (G * B, E)
        if pooling == "mean":
            summed /= counts.clamp(min=1).unsqueeze(1)
        elif pooling != "sum":
            assert_never(pooling)
        return summed.view(lists, rows, table.shape[1]).transpose(0, 1)

    def sources(self, num_vectors: int, num_single: int, pooling: Pooling) -> tuple[Tensor, Tensor | None]:
        """Returns for each element the index of the vector whose gradient it receives, and a factor.

        The gradient that an element receives is multiplied by the factor of the element.

        Args:
            num_vectors: B * C.
            num_single: number of features with one id. The elements of these features come first, row by row.
            pooling: how the vectors of a list were pooled.

        Returns:
            First, the indices of the vectors, (N,) int64. Second, the factors, (N,) float32, or None if all
            factors are 1.
        """
        lists, rows = self.counts.shape
        vectors = torch.arange(num_vectors, device=self.ids.device).view(rows, num_single + lists)
        list_vectors = vectors[:, num_single:].t().flatten()[self.bags]  # (n,)
        source = torch.cat([vectors[:, :num_single].flatten(), list_vectors])
        if pooling == "sum":
            return source, None
        if pooling == "mean":
            shares = 1 / self.counts.flatten()[self.bags].float()
            return source, torch.cat([torch.ones(rows * num_single, device=shares.device), shares])
        assert_never(pooling)


@dataclass(frozen=True)
class PaddedLists:
    """The columns of list features with their padding. No shape depends on ids, so nothing waits for a GPU.

    All ids of a batch are elements, row by row. Padding belongs to the padding row of its feature, and the
    factor of its gradient is 0.

    Attributes:
        filled: (B, Σ lengths), whether a column has an id.
        lengths: number of columns of each list feature.
    """

    filled: Tensor
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, ids: Tensor, lengths: Sequence[int]) -> PaddedLists:
        """Returns the list columns of `ids` (B, W), which are the last ones."""
        return cls(ids[:, ids.shape[1] - sum(lengths) :] != PAD_ID, tuple(lengths))

    @property
    def num_lists(self) -> int:
        """Returns G."""
        return len(self.lengths)

    def features(self, num_single: int) -> Tensor:
        """Returns the feature of each column of ids, (W,) int64; the first columns have one id each."""
        features = [*range(num_single)]
        for index, length in enumerate(self.lengths):
            features += [num_single + index] * length
        return _constant(tuple(features), self.filled.device)

    def sources(self, num_vectors: int, num_single: int, pooling: Pooling) -> tuple[Tensor, Tensor | None]:
        """Returns the same as `ListElements.sources`, for all ids."""
        starts = torch.arange(0, num_vectors, num_single + self.num_lists, device=self.filled.device)
        source = (starts.unsqueeze(1) + self.features(num_single)).flatten()
        factors = self.filled.float()
        if pooling == "mean":
            lists = self.filled.split(self.lengths, dim=1)
            counts = [filled.sum(dim=1, keepdim=True).expand_as(filled) for filled in lists]
            factors /= torch.cat(counts, dim=1).clamp(min=1)
        elif pooling != "sum":
            assert_never(pooling)
        ones = factors.new_ones(len(factors), num_single)
        return source, torch.cat([ones, factors], dim=1).flatten()


@cache
@torch.inference_mode(False)  # a later training could not use inference tensors
def _constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Returns numbers on a device, cached because each copy would wait for the device."""
    return torch.tensor(values, dtype=torch.int64, device=device)


@dataclass(frozen=True)
class BatchLookup:
    """The lookup of one batch. The table keeps this object until the gradient of the batch is read.

    Attributes:
        vectors: (B, C, E), the looked-up vectors, a leaf of autograd.
        ids: the ids that were looked up.
        keys: (N,), the keys that `Router` computes for the ids. If no rows are exchanged, a key is the index
            of a row of this rank's matrix.
        lists: the elements of lists, or their columns with padding; None if no feature is a list.
        groups, exchanged: the elements grouped by key, and the rows that the ranks exchanged. Both are None
            if no rows are exchanged.
    """

    vectors: Tensor
    ids: Tensor
    keys: Tensor
    lists: ListElements | PaddedLists | None = None
    groups: Groups | None = None
    exchanged: ExchangedRows | None = None

    def gradients(self, pooling: Pooling) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Returns the gradients of the vectors, and which gradient each element receives.

        Returns:
            The gradients (B * C, E), zeros if the loss did not depend on the vectors; and the sources and
            factors of the elements, as in `ListElements.sources`. If no feature is a list, sources are None,
            and element n receives gradient n.
        """
        vectors = self.vectors
        gradient = torch.zeros_like(vectors) if vectors.grad is None else vectors.grad
        flat = gradient.reshape(-1, vectors.shape[2])
        if self.lists is None:
            return flat, None, None
        num_single = vectors.shape[1] - self.lists.num_lists
        return (flat, *self.lists.sources(flat.shape[0], num_single, pooling))
