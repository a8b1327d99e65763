"""EASE: an item-to-item linear model in closed form (Steck 2019, "Embarrassingly Shallow Autoencoders for
Sparse Data").

EASE minimises ||X - X B||² + λ ||B||² over B with a zero diagonal. X holds a binary row of items for each
user. With P = (XᵀX + λ I)⁻¹ the solution is B_ij = -P_ij / P_jj off the diagonal (equation 8 of the paper).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def ease_weights(interactions: Matrix, penalty: float) -> Matrix:
    """Returns the weights B (I, I) of interactions (U, I). The scores of all users are interactions @ B.

    Args:
        penalty: λ, above 0.
    """
    gram = interactions.T @ interactions
    gram[np.diag_indices_from(gram)] += penalty
    inverse = np.linalg.inv(gram)
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    return weights
