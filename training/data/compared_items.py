"""The items with which the positive rows of a batch are compared by the losses over item vectors.

Notation: I items, P positive rows, D dense features, W columns of ids. Rows of items have zeros in the
columns of features that do not have the scope `item`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from training.distributed.collectives import Collectives
from training.models.objective import Bags


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


@dataclass(frozen=True)
class Vectors:
    """What a loss over item vectors compares.

    The logit of a user and an item is the dot product of their vectors. A model's constant bias is the same
    for all items, so it cancels.

    Attributes:
        users: (P, E) float32, the vectors of the users of this rank's positive rows.
        items: (I, E) float32, the vectors of the items of `compared`.
        compared: the items.
        collectives: the ranks' collectives. If a loss uses them, all ranks compute it, and run the backward
            pass.
        bags: the items that rows reconstruct in addition to their own, for a loss that compares the
            catalogue; None if each row has only its own item.
    """

    users: Tensor
    items: Tensor
    compared: ComparedItems
    collectives: Collectives
    bags: Bags | None = None

    @property
    def catalogue(self) -> CatalogueItems:
        """Returns the items of a loss that compares the catalogue."""
        assert isinstance(self.compared, CatalogueItems)
        return self.compared

    @property
    def of_batch(self) -> BatchItems:
        """Returns the items of a loss that compares the items of the step."""
        assert isinstance(self.compared, BatchItems)
        return self.compared
