"""Item-based nearest neighbours with cosine similarity.

Source: Deshpande and Karypis 2004, "Item-Based Top-N Recommendation Algorithms", ACM TOIS 22(1), section 4. The
similarity of items i and j is c_ij / (√(c_i c_j) + shrink), where c_ij is the number of users who chose both, and c_i the
number of users who chose i. Each item keeps its most similar items only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def item_knn_weights(interactions: Matrix, neighbours: int, shrink: float) -> Matrix:
    """Returns the weights (I, I). The scores of all items for all users are `interactions @ weights`.

    Args:
        interactions: (U, I), 1 where the user chose the item, otherwise 0.
        neighbours: number of most similar items that each item keeps.
        shrink: added to the denominator, so that items with few users are less similar.
    """
    together = interactions.T @ interactions
    norm = np.sqrt(np.diag(together))
    similarity = together / (np.outer(norm, norm) + shrink + 1e-12)
    np.fill_diagonal(similarity, 0.0)
    if neighbours < len(similarity):
        order = np.argsort(-similarity, axis=1, kind="stable")
        np.put_along_axis(similarity, order[:, neighbours:], 0.0, axis=1)
    return similarity.T.copy()
