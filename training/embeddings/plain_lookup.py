"""Lookups by plain torch operators whose shapes depend on no id, for exported models (training/export).

Notation: B rows, C features that are ids, of which the last G are lists, W columns of ids, E numbers per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from storage.feature_spec import PAD_ID


def plain_vectors(
    weight: Tensor,
    scales: Tensor | None,
    ids: Tensor,
    first_rows: Tensor,
    lengths: Sequence[int],
    *,
    mean: bool,
) -> Tensor:
    """Returns the vectors (B, C, E) float32 of ids (B, W), equal to those of `StackedEmbedding.forward`.

    Args:
        weight: (rows, E), the matrix of the table.
        scales: (rows,), the factor of each row; None if all factors are 1.
        ids: the ids, in [0, cardinality of the feature).
        first_rows: (C,) int64, the row of the id 0 of each feature.
        lengths: number of columns of each list feature.
        mean: whether the vectors of a list are averaged; otherwise they are summed.
    """
    num_single = len(first_rows) - len(lengths)
    vectors = [plain_rows(weight, scales, ids[:, :num_single] + first_rows[:num_single])]
    ends = [num_single]
    for length in lengths:
        ends.append(ends[-1] + length)
    for index, (start, end) in enumerate(pairwise(ends)):
        columns = ids[:, start:end]
        filled = (columns != PAD_ID).unsqueeze(2).float()  # (B, length, 1)
        rows = plain_rows(weight, scales, columns + first_rows[num_single + index])
        pooled = (rows * filled).sum(dim=1, keepdim=True)
        if mean:
            pooled = pooled / filled.sum(dim=1, keepdim=True).clamp(min=1)
        vectors.append(pooled)
    return torch.cat(vectors, dim=1)


def plain_rows(weight: Tensor, scales: Tensor | None, places: Tensor) -> Tensor:
    """Returns the rows of a matrix, (…, E) float32, with the indices `places` (…) int64."""
    rows = functional.embedding(places, weight).float()
    return rows if scales is None else rows * functional.embedding(places, scales.unsqueeze(1))
