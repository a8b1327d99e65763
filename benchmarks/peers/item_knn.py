"""Item-based nearest neighbours with cosine similarity.

Source: Sarwar et al. 2001, "Item-Based Collaborative Filtering Recommendation Algorithms", section 3.2: the score of an item
for a user is the sum of the similarities of the user's items that are among the nearest neighbours of this item. The
similarity of items i and j is c_ij / (√(c_i c_j) + shrink), where c_ij is the number of users who chose both, and c_i the
number of users who chose i.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix


def item_knn_weights(interactions: csr_matrix, neighbours: int, shrink: float) -> csr_matrix:
    """Returns the weights (I, I). The scores of all items for all users are `interactions @ weights`.

    Args:
        interactions: (U, I), 1 where the user chose the item, otherwise 0.
        neighbours: number of nearest neighbours of each item; equal similarities by item.
        shrink: added to the denominator, so that items with few users are less similar.
    """
    together = (interactions.T @ interactions).tocsr()
    together.sort_indices()
    norm = np.sqrt(together.diagonal())
    values, columns, starts = [], [], [0]
    for item in range(together.shape[0]):
        row = slice(together.indptr[item], together.indptr[item + 1])
        is_other = together.indices[row] != item
        others, counts = together.indices[row][is_other], together.data[row][is_other]
        similarity = counts / (norm[item] * norm[others] + shrink)
        nearest = np.argsort(-similarity, kind="stable")[:neighbours]
        values.append(similarity[nearest])
        columns.append(others[nearest])
        starts.append(starts[-1] + len(nearest))
    kept = (np.concatenate(values), np.concatenate(columns), np.array(starts))
    return csr_matrix(kept, shape=together.shape).T.tocsr()
