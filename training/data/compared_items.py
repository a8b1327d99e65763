"""The items with which the positive rows of a batch are compared by the losses over item vectors.

Notation: I items, P positive rows, D dense features, W columns of ids. Rows of items have zeros in the
columns of features that do not have the scope `item`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class CatalogueItems:
    """All items of the train rows, day after day. A row is compared with the items of its day.

    Attributes:
        dense: (I, D) float32, the features of the items on their day.
        categorical: (I, W) int32.
        starts: the first item of each day, and then I.
        own: (P,) int64, the position of each row's own item.
    """

    dense: Tensor
    categorical: Tensor
    starts: Sequence[int]
    own: Tensor


@dataclass(frozen=True)
class BatchItems:
    """The items of this rank's positive rows; I = P, and row p has item p.

    Attributes:
        dense: (P, D) float32, the features of the items on the day of the row.
        categorical: (P, W) int32.
        keys: (P,) int64, hashes of item keys.
        log_shares: (P,) float32, the logarithm of the item's share of all positive train rows.
    """

    dense: Tensor
    categorical: Tensor
    keys: Tensor
    log_shares: Tensor


ComparedItems = CatalogueItems | BatchItems
