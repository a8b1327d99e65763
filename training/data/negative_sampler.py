"""Draws negatives on the device: for each positive row of a batch, items that its user did not choose.

Draw n of a row in an epoch depends only on (seed, epoch, day, row id, n). So it is the same for every number
of ranks, on every device, and after a resumption. No negative uses rows of a later day. Items and their
features are those of the row's day. Only pairs of that day and of earlier train days are rejected.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from conf.types import MultiHot, TrainNegatives
from storage.feature_spec import FeatureSpec
from training.data.batch import Batch, DrawnItems
from training.data.item_catalogue import (
    ItemCatalogue,
    ItemPositions,
    columns_of_items,
    find_positive_rows,
    pair_hash,
    spread,
)
from training.data.row_keys import mix, split_row_keys, uniform
from training.data.unknown_ids import UnknownIds
from training.models.inputs import id_columns

# If a draw hits an item that the user chose, the draw is repeated at most this number of times. If all draws
# hit such items, the negative gets weight zero.
_ATTEMPTS = 8


class NegativeSampler:
    """Replaces the rows of a batch by its positive rows, each followed by its negatives.

    Args:
        catalogue: the items, on the device of the training.
        settings: the number of negatives, and how items are drawn.
        seed: seed of the draws.
        spec: the features.
        multi_hot: how many ids of each list are used.
        num_shards: number of this rank's shards.
        unknown: decides which ids of drawn items are replaced by OOV_ID; None replaces none.
        of_vectors: whether batches have the different items of a step once (`DrawnItems`), for a model whose
            logits are products of user vectors and item vectors. Without it, and if ids of drawn items are
            replaced or features depend on more than the user or the item, each negative is a row.
    """

    def __init__(
        self,
        catalogue: ItemCatalogue,
        settings: TrainNegatives,
        seed: int,
        spec: FeatureSpec,
        multi_hot: MultiHot,
        num_shards: int,
        unknown: UnknownIds | None = None,
        *,
        of_vectors: bool = False,
    ) -> None:
        self._catalogue = catalogue
        self._draws = settings.per_positive
        self._seed = seed
        self._num_shards = num_shards
        device = catalogue.items.device
        dense, ids = columns_of_items(spec, id_columns(spec, multi_hot))
        self._dense_columns = torch.tensor(dense, dtype=torch.int64, device=device)
        self._id_columns = torch.tensor(ids, dtype=torch.int64, device=device)
        self._unknown = unknown.only(ids) if unknown else None
        separate = {feature.scope for feature in spec.features} <= {"user", "item"}
        self._of_vectors = of_vectors and separate and not (self._unknown and len(self._unknown.places))
        self._shares, self._cumulative = _probabilities(catalogue, settings.popularity)
        self._equally_likely = settings.popularity == 0
        self._positions = ItemPositions(catalogue)

    def expand(self, batch: Batch) -> Batch:
        """Returns the batch of groups: each positive row, then its negatives with label 0; or `DrawnItems`.

        Rows of label 0 are left out. If there is no positive row, the batch has one group of weight zero. If
        rows have weights, negatives have the weight 1.

        Args:
            batch: rows on the device of the catalogue, shard after shard, with `row_keys`.
        """
        assert batch.row_keys is not None
        positive = find_positive_rows(batch, self._num_shards)
        rows = positive.rows
        size, group = len(rows), 1 + self._draws
        own, drawn, accepted = self._draw(batch.row_keys[rows], batch.epoch)
        weights = torch.cat([accepted.new_ones(size, 1), accepted], dim=1).float()
        expected, drawn_weight = self._catalogue.expected(batch)
        if batch.weighted:
            weights[:, 0] = batch.weights[rows]
        labels = torch.zeros(size, group, device=weights.device)
        labels[:, 0] = 1
        catalogue = self._catalogue
        shares = self._shares[torch.cat([own[:, None], drawn], dim=1)]
        log_draw = shares.clamp(min=1e-30).log().float()  # an item without clicks may have share 0
        grouped = replace(
            batch,
            labels=labels.flatten(),
            weights=(weights * positive.weight).flatten(),
            global_weight=expected,
            weighted=False,
            drawn_weight=None if drawn_weight is None else drawn_weight * self._draws,
            row_keys=None,
            group=group,
            log_draw=log_draw.flatten(),
        )
        dense, categorical = batch.dense[rows], batch.categorical[rows]
        if self._of_vectors:
            # The item of a positive row has the features of the row.
            places, index = drawn.unique(return_inverse=True)
            of_rows = torch.arange(size, device=index.device).unsqueeze(1)
            items = DrawnItems(
                _stacked(dense, self._dense_columns, catalogue.dense[places]),
                _stacked(categorical, self._id_columns, catalogue.ids[places]),
                torch.cat([of_rows, index + size], dim=1),
            )
            return replace(
                grouped, dense=dense, categorical=categorical, items=items, shard_rows=positive.of_shard
            )
        ids = catalogue.ids[drawn]  # (P, draws, columns of items)
        if self._unknown:
            keys = self._unknown.keys_of_rows(batch.row_keys[rows], batch.epoch)
            ids = self._unknown.replace(ids, self._unknown.keys_of_draws(keys, self._draws))
        return replace(
            grouped,
            dense=_groups(dense, self._dense_columns, catalogue.dense[drawn]),
            categorical=_groups(categorical, self._id_columns, ids),
            shard_rows=[count * group for count in positive.of_shard],
        )

    def _draw(self, row_keys: Tensor, epoch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draws items for (P, 7) rows.

        Returns:
            (P,) int64, the row's own item; (P, draws) int64, the drawn items, all as positions in the
            catalogue; and (P, draws) bool, whether the user did not choose the drawn item.
        """
        catalogue = self._catalogue
        row_id, user, item, day = split_row_keys(row_keys)
        position = torch.searchsorted(catalogue.days, day).clamp(max=len(catalogue.days) - 1)
        own = self._positions.find(item, day)
        number = torch.arange(self._draws, dtype=torch.int64, device=row_id.device)
        key = mix(mix(mix(row_id + mix(day)) + epoch) + self._seed)[:, None] + number * _ATTEMPTS
        first, last = catalogue.starts[position], catalogue.starts[position + 1] - 1
        keys, of_row = key.flatten(), torch.arange(len(key), device=key.device).repeat_interleave(self._draws)
        drawn = torch.zeros_like(keys)
        left = torch.arange(len(keys), device=keys.device)  # the draws without an accepted item
        for attempt in range(_ATTEMPTS):
            row = of_row[left]
            share = uniform(mix(keys[left] + attempt))
            if self._equally_likely:
                place = first[row] + (share * (last[row] - first[row] + 1)).long()
            else:
                place = torch.searchsorted(self._cumulative, position[row] + share, right=True)
            place = place.clamp(first[row], last[row])
            drawn[left] = place
            left = left[self._chosen(user[row], catalogue.items[place], day[row])]
            if not len(left):
                break
        accepted = torch.ones_like(keys, dtype=torch.bool)
        accepted[left] = False
        drawn, accepted = drawn.view_as(key), accepted.view_as(key)
        return own, drawn, accepted

    def _chosen(self, user: Tensor, items: Tensor, day: Tensor) -> Tensor:
        """Returns whether the user chose the item on a train day up to `day`. All arguments are int64."""
        pairs = self._catalogue.pairs
        wanted = pair_hash(user, items)
        place = torch.searchsorted(pairs, wanted).clamp(max=len(pairs) - 1)
        return (pairs[place] == wanted) & (self._catalogue.first_days[place] <= day)


def _probabilities(catalogue: ItemCatalogue, popularity: float) -> tuple[Tensor, Tensor]:
    """Returns (N,) float64 probabilities of the items of each day, and their cumulative sums.

    The sums of day k rise from k to k + 1.
    """
    shares, sums = [], []
    starts = catalogue.starts.tolist()
    for index, (start, stop) in enumerate(pairwise(starts)):
        weights = catalogue.clicks[start:stop].double() ** popularity
        if float(weights.sum()) == 0:  # a day without positive rows, for which nothing is drawn
            weights = torch.ones_like(weights)
        share = weights / weights.sum()
        shares.append(share)
        sums.append(index + share.cumsum(0))
    return torch.cat(shares), torch.cat(sums)


def _stacked(rows: Tensor, columns: Tensor, of_drawn: Tensor) -> Tensor:
    """Returns (P + I, W): `columns` of (P, W) rows, then those of I drawn items (I, C); zeros elsewhere."""
    return spread(torch.cat([rows.index_select(1, columns), of_drawn]), columns, rows.shape[1])


def _groups(rows: Tensor, columns: Tensor, of_drawn: Tensor) -> Tensor:
    """Returns (P · group, W): each of (P, W) rows, then its copies with the columns of the drawn items.

    Args:
        rows: (P, W), the positive rows.
        columns: (C,) int64, the columns that depend on the item.
        of_drawn: (P, group - 1, C), the values of the drawn items in these columns.
    """
    grouped = rows[:, None, :].repeat(1, 1 + of_drawn.shape[1], 1)
    if len(columns):
        grouped[:, 1:, columns] = of_drawn
    return grouped.flatten(0, 1)
