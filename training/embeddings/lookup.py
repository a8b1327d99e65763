"""The ids of one batch: which elements are looked up, and into which vector each of them goes.

Notation: B rows of a batch, C features made of ids, of which the last G are lists, E numbers a vector, N elements: every
id that a vector depends on, which padding is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from storage.feature_spec import PAD_ID


@dataclass(frozen=True)
class ListElements:
    """The elements of lists, one feature after the other, row by row.

    Attributes:
        ids, features: (n,) int64.
        counts: (G, B) int64, how many ids each list has.
    """

    ids: Tensor
    features: Tensor
    counts: Tensor

    @classmethod
    def of(cls, ids: Tensor, lengths: Sequence[int], first_feature: int) -> ListElements:
        """Of the columns (B, Σ lengths) that hold lists."""
        lists = ids.split(list(lengths), dim=1)
        held = [each != PAD_ID for each in lists]
        found = [each[mask] for each, mask in zip(lists, held, strict=True)]
        features = [torch.full_like(each, first_feature + index) for index, each in enumerate(found)]
        return cls(torch.cat(found), torch.cat(features), torch.stack([each.sum(dim=1) for each in held]))

    @cached_property
    def bags(self) -> Tensor:
        """(n,) int64, which of the G * B lists each element is of."""
        counts = self.counts.flatten()
        return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)

    def pool(self, table: Tensor, positions: Tensor, pooling: Literal["sum", "mean"]) -> Tensor:
        """(B, G, E) float32: the pooled rows `positions` (n,) of a float32 table (rows, E); zero for an empty list."""
        lists, rows = self.counts.shape
        counts = self.counts.flatten()
        if not len(positions):
            return torch.zeros(rows, lists, table.shape[1], device=table.device)
        starts = counts.cumsum(0) - counts
        summed = functional.embedding_bag(positions, table, starts, mode="sum")  # (G * B, E)
        if pooling == "mean":
            summed /= counts.clamp(min=1).unsqueeze(1)
        return summed.view(lists, rows, table.shape[1]).transpose(0, 1)

    def sources(
        self, vectors: int, single: int, pooling: Literal["sum", "mean"]
    ) -> tuple[Tensor, Tensor | None]:
        """Which vector's gradient each element of the batch takes, and times what.

        Args:
            vectors: B * C of them, of which the first `single` of each row are of one id each: those elements come first.

        Returns:
            (N,) int64; and (N,) float32, or None where all take it as it is.
        """
        lists, rows = self.counts.shape
        place = torch.arange(vectors, device=self.ids.device).view(rows, single + lists)
        of_lists = place[:, single:].t().flatten()[self.bags]  # (n,)
        source = torch.cat([place[:, :single].flatten(), of_lists])
        if pooling == "sum":
            return source, None
        shares = 1 / self.counts.flatten()[self.bags].float()
        return source, torch.cat([torch.ones(rows * single, device=shares.device), shares])
