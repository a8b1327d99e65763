"""EASE, an item-to-item linear model that is computed in closed form.

Source: Steck 2019, "Embarrassingly Shallow Autoencoders for Sparse Data". EASE finds the matrix B that
minimises ||X - X B||² + λ ||B||², where the diagonal of B is zero. Each row of X belongs to a user. Its
element is 1 for each item that the user chose, otherwise 0. With P = (XᵀX + λ I)⁻¹, the solution is
B_ij = -P_ij / P_jj for i ≠ j (equation 8 of the paper).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.sparse import csr_matrix

Matrix = NDArray[np.float64]


def ease_weights(interactions: csr_matrix, penalty: float) -> Matrix:
    """Returns the weights B (I, I). The scores of all items for all users are `interactions @ B`.

    Args:
        interactions: the matrix X (U, I): 1 where the user has the item, otherwise 0.
        penalty: λ, greater than 0.
    """
    gram = (interactions.T @ interactions).toarray()
    gram[np.diag_indices_from(gram)] += penalty
    # The matrix is symmetric and positive definite, so its Cholesky factor gives the inverse with the fewest operations.
    factor, failed = dpotrf(gram.T, lower=1, overwrite_a=1)
    inverse, singular = dpotri(factor, lower=1, overwrite_c=1)  # its lower triangle; the rest is zero
    if failed or singular:
        raise ValueError(f"penalty={penalty}: the matrix has no inverse; the penalty must be greater than 0")
    weights = inverse + np.tril(inverse, -1).T
    weights /= -np.diag(weights).copy()
    np.fill_diagonal(weights, 0.0)
    return weights
