"""The weights of a field-weighted factorization machine (FwFM; Pan et al. 2018, arXiv:1806.03514).

    y = Σ_{i<j} r_ij ⟨e_i, e_j⟩

Here e_i is the vector of feature i. The paper calls a feature a field. Each pair of features has one weight
r_ij. If all weights are 1, this is the second-order term of a factorization machine.

Notation: V vectors, R rows, E numbers per vector.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class FieldWeights(nn.Module):
    """The weights r_ij of all pairs i < j of V vectors, ordered by i, then by j. All weights are 1 at first.

    Args:
        num_vectors: V.
    """

    places: Tensor

    def __init__(self, num_vectors: int) -> None:
        super().__init__()
        rows, columns = torch.triu_indices(num_vectors, num_vectors, 1)
        self.weights = nn.Parameter(torch.ones(len(rows)))
        places = torch.full((num_vectors, num_vectors), len(rows))
        places[rows, columns] = torch.arange(len(rows))
        self.register_buffer("places", places, persistent=False)

    def matrix(self) -> Tensor:
        """Returns a matrix (V, V) with r_ij in row i and column j if i < j, and with 0 elsewhere."""
        padded = torch.cat([self.weights, self.weights.new_zeros(1)])
        return padded.index_select(0, self.places.flatten()).view_as(self.places)

    def forward(self, vectors: Tensor) -> Tensor:
        """Returns the weighted sum (R,) of the dot products of all pairs of `vectors` (R, V, E) float32.

        The sum is computed in float32 even under mixed precision.
        """
        with torch.autocast(vectors.device.type, enabled=False):
            return weighted_pair_sum(vectors, self.matrix())


def weighted_pair_sum(vectors: Tensor, matrix: Tensor) -> Tensor:
    """Returns Σ_ij m_ij ⟨v_i, v_j⟩ (R,) of `vectors` (R, V, E); `matrix` is (V, V)."""
    return (vectors * mix_vectors(vectors, matrix)).sum(dim=(1, 2))


def mix_vectors(vectors: Tensor, matrix: Tensor) -> Tensor:
    """Returns (R, N, E), where vector n is Σ_v m_nv · vector v, from (R, V, E) and `matrix` (N, V)."""
    return functional.linear(vectors.transpose(1, 2), matrix).transpose(1, 2)


def weights_between(matrix: Tensor, left: Sequence[int], right: Sequence[int]) -> Tensor:
    """Returns the weights (L, N) of the pairs of a vector of `left` and a vector of `right`.

    Args:
        matrix: the result of `FieldWeights.matrix`.
        left, right: the positions of L and N vectors; no position is in both.
    """
    symmetric = matrix + matrix.t()
    rows, columns = (torch.tensor(side, dtype=torch.int64, device=matrix.device) for side in (left, right))
    return symmetric.index_select(0, rows).index_select(1, columns)
