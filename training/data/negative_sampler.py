"""Draws negatives on the device: for each positive row of a batch, items that its user did not choose.

The n-th draw for a row in an epoch depends only on (seed, epoch, day, row id, n). So it does not depend on
the number of ranks, on the device, or on whether the training was resumed. Negatives use no rows of a later
day: items are drawn from those of the row's day, and have the features of this day. An item is rejected only
if the user chose it on that day or on an earlier train day.
"""

from __future__ import annotations

import ctypes
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
    spread,
)
from training.data.row_keys import mix, split_row_keys, uniform
from training.data.unknown_ids import UnknownIds
from training.models.inputs import id_columns
from training.native.library import address, library, required_library

# Largest number of draws for a negative. If the user chose the drawn item, another item is drawn. If all
# draws return such items, the negative gets weight zero.
_ATTEMPTS = 8
# Size of the table of flags in `ChosenPairs`: at least this number for each pair of user and item, but at
# most 2 ** _MOST_FLAG_BITS in total.
_FLAGS_PER_PAIR, _MOST_FLAG_BITS = 16, 26
# If the catalogue has at most this number of items per draw, distinct items are found by counting the draws
# of each item.
_ITEMS_PER_PLACE = 8
# Further threads are used only if each thread then makes at least this number of draws.
_DRAWS_OF_A_THREAD = 5_000


class NegativeSampler:
    """Replaces the rows of a batch by its positive rows, each followed by its negatives.

    Args:
        catalogue: the items, on the device of the training.
        settings: the number of negatives, and how items are drawn.
        seed: seed of the draws.
        spec: the features.
        multi_hot: the number of ids of each list that are used.
        num_shards: number of this rank's shards.
        unknown: decides which ids of drawn items are replaced by OOV_ID. None: no ids are replaced.
        of_vectors: whether batches contain each distinct item of a step once (`DrawnItems`), for a model
            whose logits are products of user vectors and item vectors. Each negative becomes a row of its own
            in three cases: `of_vectors` is False, ids of drawn items are replaced, or features depend on both
            user and item.
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
        shares, self._cumulative = _probabilities(catalogue, settings.popularity)
        self._log_shares = shares.clamp(min=1e-30).log().float()  # an item without clicks may have share 0
        self._equally_likely = settings.popularity == 0
        self._positions = ItemPositions(catalogue)
        self._chosen = ChosenPairs(catalogue)

    def expand(self, batch: Batch) -> Batch:
        """Returns a batch with groups (a positive row and its negatives with label 0), or with `DrawnItems`.

        Rows with label 0 are left out. If there is no positive row, the batch has one group with weight zero.
        If rows have weights, negatives have the weight 1.

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
        log_draw = self._log_shares[torch.cat([own[:, None], drawn], dim=1)]
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
            places, index = _distinct(drawn, len(catalogue.items))
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
        """Draws items for P rows, from the rows' keys (P, 7).

        Returns:
            (P,) int64, the row's item; (P, draws) int64, the drawn items; and (P, draws) bool, whether the
            user did not choose the drawn item. Items are positions in the catalogue.
        """
        catalogue = self._catalogue
        row_id, user, item, day = split_row_keys(row_keys)
        position = torch.searchsorted(catalogue.days, day).clamp(max=len(catalogue.days) - 1)
        own = self._positions.find(item, day)
        number = torch.arange(self._draws, dtype=torch.int64, device=row_id.device)
        key = mix(mix(mix(row_id + mix(day)) + epoch) + self._seed)[:, None] + number * _ATTEMPTS
        first, last = catalogue.starts[position], catalogue.starts[position + 1] - 1
        if row_id.device.type == "cpu" and library() is not None:
            return own, *self._compiled_draw(key[:, 0], first, last, position, user, day)
        of_row = (first[:, None], last[:, None], position[:, None])
        drawn = self._places(key, *of_row)
        rejected = self._chosen.find(user[:, None], drawn, day[:, None])
        # Few draws return an item that the user chose. Only these draws are repeated.
        left = rejected.flatten().nonzero().squeeze(1)
        row = left // self._draws
        for attempt in range(1, _ATTEMPTS):
            if not len(left):
                break
            place = self._places(key.flatten()[left] + attempt, first[row], last[row], position[row])
            drawn.view(-1)[left] = place
            again = self._chosen.find(user[row], place, day[row])
            left, row = left[again], row[again]
        accepted = torch.ones(drawn.shape, dtype=torch.bool, device=drawn.device)
        accepted.view(-1)[left] = False
        return own, drawn, accepted

    def _compiled_draw(
        self, keys: Tensor, first: Tensor, last: Tensor, position: Tensor, user: Tensor, day: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Computes the drawn items and the flags that `_draw` returns, in training/native/draw.cpp.

        Args:
            keys: (P,) int64, the hashes of the first draws of the rows.
            first, last, position: the first and the last item of the days of the rows, and the days' indices.
            user, day: the hashes of users, and the days.
        """
        size = (len(keys), self._draws)
        drawn = torch.empty(size, dtype=torch.int64)
        accepted = torch.empty(size, dtype=torch.bool)
        per_row = [values.contiguous() for values in (keys, first, last, position, user, day)]
        names = ("keys", "firsts", "lasts", "positions", "users", "days")
        chosen = self._chosen
        draws = _Draws(
            rows=len(keys),
            draws=self._draws,
            attempts=_ATTEMPTS,
            items=len(chosen.hashes),
            pairs=len(chosen.pairs),
            **{name: address(values, torch.int64) for name, values in zip(names, per_row, strict=True)},
            hashes=address(chosen.hashes, torch.int64),
            cumulative=None if self._equally_likely else address(self._cumulative, torch.float64),
            chosen=address(chosen.pairs, torch.int64),
            first_days=address(chosen.first_days, torch.int64),
            flags=address(chosen.flags, torch.bool),
            mask=chosen.mask,
            drawn=address(drawn, torch.int64),
            accepted=address(accepted, torch.bool),
        )
        threads = min(torch.get_num_threads(), max(drawn.numel() // _DRAWS_OF_A_THREAD, 1))
        required_library().nightrank_draw(ctypes.byref(draws), threads)
        return drawn, accepted

    def _places(self, keys: Tensor, first: Tensor, last: Tensor, position: Tensor) -> Tensor:
        """Returns the items that the hashes `keys` select, as positions in the catalogue, int64.

        Args:
            keys: int64.
            first, last: the first and the last item of the day of each key.
            position: the index of the day.
        """
        share = uniform(mix(keys))
        if self._equally_likely:
            place = first + (share * (last - first + 1)).long()
        else:
            place = torch.searchsorted(self._cumulative, position + share, right=True)
        return place.clamp(first, last)


class _Draws(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "draws", "attempts", "items", "pairs")),
        *(
            (name, ctypes.c_void_p)
            for name in ("keys", "firsts", "lasts", "positions", "users", "days", "hashes", "cumulative")
        ),
        *((name, ctypes.c_void_p) for name in ("chosen", "first_days", "flags")),
        ("mask", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("drawn", "accepted")),
    )


class ChosenPairs:
    """The pairs of users and items in a catalogue.

    A pair is searched in `pairs` only if its flag in `flags` is set. A pair outside the catalogue rarely has
    the same flag as a pair of the catalogue, so most lookups read only one byte.

    Args:
        catalogue: the pairs, and the items that are drawn.

    Attributes:
        pairs: (M,) int64 ascending, the pairs of the catalogue.
        first_days: (M,) int64, the first train day on which the user chose the item.
        hashes: (N,) int64, for each item, the part of a pair's hash that depends on the item.
        flags: (F,) bool. Flag f says whether the hash of any pair has the remainder f modulo F. F is a power
            of two.
        mask: F - 1.
    """

    def __init__(self, catalogue: ItemCatalogue) -> None:
        self.pairs, self.first_days = catalogue.pairs, catalogue.first_days
        self.hashes = mix(catalogue.items)
        bits = min(max(len(self.pairs) * _FLAGS_PER_PAIR - 1, 1).bit_length(), _MOST_FLAG_BITS)
        self.mask = 2**bits - 1
        self.flags = torch.zeros(2**bits, dtype=torch.bool, device=self.pairs.device)
        self.flags[self.pairs & self.mask] = True

    def find(self, users: Tensor, places: Tensor, days: Tensor) -> Tensor:
        """Returns whether users chose items on the given days or on earlier train days, shaped like `places`.

        Args:
            users: hashes of user keys, int64.
            places: positions of items in the catalogue, int64.
            days: days since 1970-01-01, int64.
        """
        wanted = mix(users + self.hashes[places])  # `pair_hash`
        found = self.flags[wanted & self.mask]
        possible = found.flatten().nonzero().squeeze(1)
        pairs = wanted.flatten()[possible]
        place = torch.searchsorted(self.pairs, pairs).clamp(max=len(self.pairs) - 1)
        known = self.first_days[place] <= days.expand(places.shape).flatten()[possible]
        found.view(-1)[possible] = (self.pairs[place] == pairs) & known
        return found


def _distinct(places: Tensor, end: int) -> tuple[Tensor, Tensor]:
    """Returns the distinct `places` in ascending order, and the index of each of `places` in this result.

    Args:
        places: (P, draws) int64 in [0, end).
        end: number of items of the catalogue.
    """
    if end > _ITEMS_PER_PLACE * places.numel():
        distinct, index = places.unique(return_inverse=True)
        return distinct, index
    # Counting is faster than sorting, unless there are many more items than draws.
    is_drawn = torch.zeros(end, dtype=torch.bool, device=places.device)
    is_drawn[places] = True
    return is_drawn.nonzero().squeeze(1), (is_drawn.cumsum(0) - 1)[places]


def _probabilities(catalogue: ItemCatalogue, popularity: float) -> tuple[Tensor, Tensor]:
    """Returns (N,) float64 probabilities of the items of each day, and their cumulative sums.

    The sums of day k rise from k to k + 1.
    """
    shares, sums = [], []
    starts = catalogue.starts.tolist()
    for index, (start, stop) in enumerate(pairwise(starts)):
        weights = catalogue.clicks[start:stop].double() ** popularity
        # On a day without positive rows, no items are drawn. So any weights will do.
        if float(weights.sum()) == 0:
            weights = torch.ones_like(weights)
        share = weights / weights.sum()
        shares.append(share)
        sums.append(index + share.cumsum(0))
    return torch.cat(shares), torch.cat(sums)


def _stacked(rows: Tensor, columns: Tensor, of_drawn: Tensor) -> Tensor:
    """Returns the items of P rows (P, W), then I drawn items (I, C), as a matrix (P + I, W).

    All columns that are not in `columns` are zero.
    """
    return spread(torch.cat([rows.index_select(1, columns), of_drawn]), columns, rows.shape[1])


def _groups(rows: Tensor, columns: Tensor, of_drawn: Tensor) -> Tensor:
    """Returns each of P rows, followed by a copy of it for each of its drawn items, (P * group, W).

    Args:
        rows: (P, W), the positive rows.
        columns: (C,) int64, the columns that depend on the item.
        of_drawn: (P, group - 1, C), the values of the drawn items in these columns. In the copies, they
            replace the values of the row.
    """
    grouped = rows[:, None, :].repeat(1, 1 + of_drawn.shape[1], 1)
    if len(columns):
        grouped[:, 1:, columns] = of_drawn
    return grouped.flatten(0, 1)
