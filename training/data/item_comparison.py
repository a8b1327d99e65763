"""Batches for the losses that compare the user vector of a positive row with vectors of items.

A loss such as `full_softmax` compares a row with the catalogue: all items that have a train row on the row's
day. The items have the features of that day. A loss such as `in_batch_softmax` compares a row with the batch:
the items of the step's other positive rows. The other rows of a step may be of any train day, so their items
may have features of a later day. In all other cases, a row uses no features of a day after the row's day.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from conf.errors import ConfigError
from conf.types import MultiHot, Train
from storage.feature_spec import FeatureSpec
from training.data.batch import Batch, BatchItems, CatalogueItems
from training.data.item_catalogue import (
    ItemCatalogue,
    ItemPositions,
    columns_of_items,
    find_positive_rows,
    spread,
)
from training.data.row_keys import split_row_keys
from training.data.unknown_ids import UnknownIds
from training.models.inputs import id_columns


class ItemComparison:
    """Replaces the rows of a batch by its positive rows, and adds the items to compare them with.

    Args:
        catalogue: the items, on the device of the training.
        train: the section `train` of the configuration, with a loss that compares vectors.
        spec: the features.
        multi_hot: the number of ids of each list that are used.
        num_shards: number of this rank's shards.
        unknown: decides which ids of items of the catalogue are replaced by OOV_ID. None: no ids are
            replaced.

    Raises:
        ConfigError: the catalogue has too many items to compare rows with all of them.
    """

    def __init__(
        self,
        catalogue: ItemCatalogue,
        train: Train,
        spec: FeatureSpec,
        multi_hot: MultiHot,
        num_shards: int,
        unknown: UnknownIds | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._positions = ItemPositions(catalogue)
        self._num_shards = num_shards
        columns = id_columns(spec, multi_hot)
        # Keep these positions as tensors on the device, because a list would be copied to a GPU in every
        # step.
        self._dense_columns, self._id_columns = (
            torch.tensor(places, dtype=torch.int64, device=catalogue.items.device)
            for places in columns_of_items(spec, columns)
        )
        self._unknown = unknown
        self._full = train.loss_settings.compares == "catalogue"
        if self._full:
            _require_few(catalogue, train)
            width = columns[-1][1].stop if columns else 0
            self._starts = catalogue.starts.tolist()
            self._dense = spread(catalogue.dense, self._dense_columns, len(spec.dense))
            self._ids = spread(catalogue.ids, self._id_columns, width)
        elif train.compares_vectors:
            self._log_shares = _log_shares(catalogue)
        else:
            raise ValueError(f"internal error, please report: the loss {train.loss_name} compares no vectors")

    def expand(self, batch: Batch) -> Batch:
        """Returns the batch of the positive rows, with their items in `Batch.items`.

        Rows with label 0 are left out. If there is no positive row, the batch has one row with weight zero.

        Args:
            batch: rows on the device of the catalogue, shard after shard, with `row_keys`.
        """
        assert batch.row_keys is not None
        positive = find_positive_rows(batch, self._num_shards)
        rows = positive.rows
        _, _, items, days = split_row_keys(batch.row_keys[rows])
        own = self._positions.find(items, days)
        dense, categorical = batch.dense[rows], batch.categorical[rows]
        compared: CatalogueItems | BatchItems
        if self._full:
            compared = CatalogueItems(self._dense, self._catalogue_ids(batch.epoch), self._starts, own)
        else:
            compared = BatchItems(
                _columns_alone(dense, self._dense_columns),
                _columns_alone(categorical, self._id_columns),
                items,
                self._log_shares[own],
            )
        return replace(
            batch,
            dense=dense,
            categorical=categorical,
            labels=batch.labels[rows],
            # If the batch has no positive row, one of its rows is kept with weight zero.
            weights=batch.weights[rows] * positive.weight,
            global_weight=self._catalogue.expected(batch)[0],
            weighted=False,
            row_keys=None,
            items=compared,
            shard_rows=positive.of_shard,
        )

    def _catalogue_ids(self, epoch: int) -> Tensor:
        """Returns the ids of all items, (I, W). All steps of an epoch replace the same ids by OOV_ID."""
        if self._unknown is None:
            return self._ids
        catalogue = self._catalogue
        days = catalogue.days.repeat_interleave(catalogue.starts.diff())
        return self._unknown.replace(self._ids, self._unknown.keys(catalogue.items, days, epoch))


def _columns_alone(values: Tensor, columns: Tensor) -> Tensor:
    """Returns a copy of `values` (R, W) with zeros in all columns but `columns`."""
    return spread(values.index_select(1, columns), columns, values.shape[1])


def _log_shares(catalogue: ItemCatalogue) -> Tensor:
    """Returns, for each entry (N,) of the catalogue, the logarithm of its item's share of positive rows.

    The share is computed from the positive rows of all train days, because a batch can have rows of all these
    days.
    """
    _, item = catalogue.items.unique(return_inverse=True)
    clicks = torch.zeros(len(catalogue.items), dtype=torch.float64, device=item.device)
    clicks.index_add_(0, item, catalogue.clicks.double())
    # The minimum makes the logarithm finite for an item without clicks. Its value does not matter, because no
    # positive row has such an item.
    return (clicks[item] / clicks.sum()).clamp(min=1e-30).log().float()


def _require_few(catalogue: ItemCatalogue, train: Train) -> None:
    """Raises ConfigError if each step would have to compute the vectors of too many items."""
    if len(catalogue.items) > train.max_softmax_items:
        raise ConfigError(
            f"train.loss={train.loss_name} would compute vectors of {len(catalogue.items)} items in each "
            f"step: all items of {len(catalogue.days)} train day(s), where an item counts once per day. "
            f"train.max_softmax_items allows {train.max_softmax_items}",
            "set train.loss=in_batch_softmax, or train.loss=softmax with train.negatives, or raise "
            "train.max_softmax_items",
        )
