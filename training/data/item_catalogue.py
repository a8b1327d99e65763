"""The catalogue from which negatives are drawn: the items of the train rows, with their features by day.

Each rank reads the item columns of its share of the row groups once, before the first step. Then all ranks
exchange the rows that they have read, so every rank has the complete catalogue. The catalogue takes 16 bytes
of memory for each pair of a user and an item that this user chose (a row with label 1). The catalogue also
has the features of each item for each day on which the item has a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError
from conf.names import days_since_epoch
from conf.types import MultiHot, Reading
from storage import file_io
from storage.feature_spec import ITEM_KEY, ROW_ID, USER_KEY, Feature, FeatureSpec
from training.collectives import Collectives
from training.data.batch import Batch
from training.data.columns import read_columns
from training.data.loader import read_groups
from training.data.row_keys import hash_keys, mix, read_columns_of_group
from training.data.sharding import DataFile, RowGroup, row_groups


@dataclass(frozen=True)
class ItemCatalogue:
    """The items of each train day, and the pairs of a user and an item that this user chose.

    There are K days with N items in total, and M pairs. All tensors are on one device.

    Attributes:
        days: (K,) int64 ascending, days since 1970-01-01.
        starts: (K + 1,) int64, the first item of each day; the items of day k are [starts[k], starts[k + 1]).
        items: (N,) int64, hashes of item keys, ascending within a day.
        clicks: (N,) int64, the item's number of positive rows on the day.
        dense: (N, Di) float32, the item features that are numbers, in the order of the spec.
        ids: (N, Wi) int32, the columns of the item features that are ids, in the order of the spec.
        pairs: (M,) int64 ascending, hashes of user and item; see `pair_hash`.
        first_days: (M,) int64, the first train day on which the user chose the item.
        positive_share: share of the rows with label 1 among the rows of the model's train files.
        positive_weight: the sum of the weights of the rows with label 1, divided by the number of rows of
            these files; None if rows have no weights.
    """

    days: Tensor
    starts: Tensor
    items: Tensor
    clicks: Tensor
    dense: Tensor
    ids: Tensor
    pairs: Tensor
    first_days: Tensor
    positive_share: float
    positive_weight: float | None = None

    def expected(self, batch: Batch) -> tuple[float | Tensor, float | None]:
        """Returns two expected values for the positive rows of a global batch: sum of weights, and number.

        If rows have no weights, the first value is the expected number, and the second is None.

        Args:
            batch: a batch of the loader; its `global_weight` is the number of rows.
        """
        number = batch.global_weight * self.positive_share
        if self.positive_weight is None:
            return number, None
        return batch.global_weight * self.positive_weight, float(number)


@dataclass
class _Read:
    """What a rank has read from its row groups: a row per item and day, and a row per user and item."""

    day: NDArray[np.int64]
    item: NDArray[np.int64]
    row_id: NDArray[np.int64]
    clicks: NDArray[np.int64]
    dense: NDArray[np.float32]
    ids: NDArray[np.int32]
    pair: NDArray[np.int64]
    pair_day: NDArray[np.int64]
    rows: int
    positives: int
    weight: float | None = None  # sum of the positive rows' weights; None if rows have no weights


def pair_hash(users: Tensor, items: Tensor) -> Tensor:
    """Returns a hash of each pair, int64, from the hashes of the user and of the item, int64."""
    return mix(users + mix(items))


def item_spec(spec: FeatureSpec) -> FeatureSpec:
    """Returns the spec with only the features of scope `item`, in the order of the spec."""
    return FeatureSpec(spec.scoped("item"), spec.key_columns, spec.workflow_version, spec.label)


def item_multi_hot(spec: FeatureSpec, multi_hot: MultiHot) -> MultiHot:
    """Returns the lengths of those lists that are features of scope `item`."""
    names = {feature.name for feature in spec.scoped("item")}
    lengths = {name: length for name, length in multi_hot.lengths.items() if name in names}
    return multi_hot.model_copy(update={"lengths": lengths})


def read_catalogue(
    train_files: Sequence[DataFile],
    earlier_files: Sequence[DataFile],
    spec: FeatureSpec,
    multi_hot: MultiHot,
    reading: Reading,
    collectives: Collectives,
    device: torch.device,
) -> ItemCatalogue:
    """Reads the catalogue of the train rows. Every rank must call this function with the same arguments.

    Args:
        train_files: the files on which the model trains. The items of their rows are in the catalogue.
        earlier_files: the other files of the train split. Only the pairs of user and item are read from these
            files.
        spec: the features.
        multi_hot: the number of ids of each list that are used.
        reading: the settings for local copies of files of an object store.
        collectives: the ranks' collectives.
        device: the device of the result.

    Raises:
        DataError: a file does not match its manifest or the spec, a feature of scope `item` has different
            columns in two files, or no train row has label 1.
    """
    own = slice(collectives.rank, None, collectives.size)
    parts = [
        part
        for files, with_items in ((train_files, True), (earlier_files, False))
        for part in _read_files(row_groups(files)[own], spec, multi_hot, reading, with_items=with_items)
    ]
    merged = _merge([_empty(spec, multi_hot), *parts])
    gathered = collectives.allgather(
        *(
            torch.from_numpy(getattr(merged, name)).to(device)
            for name in ("day", "item", "row_id", "clicks", "dense", "ids", "pair", "pair_day")
        )
    )
    counts = collectives.allreduce_sum(
        torch.tensor([merged.rows, merged.positives], dtype=torch.int64, device=device)
    )
    rows, positives = counts.tolist()
    weight = None
    if spec.weight:
        own_weight = torch.tensor([merged.weight or 0.0], dtype=torch.float64, device=device)
        weight = float(collectives.allreduce_sum(own_weight))
    if not positives:
        raise DataError(
            "no train row has label 1, but train.negatives and the losses full_softmax and in_batch_softmax "
            "use only such rows",
            "check log.label, and run build_features again",
        )
    day, item, row_id, clicks, dense, ids, pair, pair_day = (values.cpu().numpy() for values in gathered)
    whole = _Read(day, item, row_id, clicks, dense, ids, pair, pair_day, rows, positives, weight)
    return _catalogue(_merge([whole]), device)


def _read_files(
    groups: Sequence[RowGroup], spec: FeatureSpec, multi_hot: MultiHot, reading: Reading, *, with_items: bool
) -> list[_Read]:
    local = all(file_io.is_local(group.file.path) for group in groups)
    read = partial(_read_group, spec=spec, multi_hot=multi_hot, with_items=with_items)
    return list(read_groups(iter(groups), read, reading, local=local))


def _read_group(group: RowGroup, spec: FeatureSpec, multi_hot: MultiHot, *, with_items: bool) -> _Read:
    """Reads a row group. If `with_items` is False, reads only its pairs of user and item."""
    of_rows = [spec.label, *([spec.weight] if spec.weight else [])]
    keys = read_columns_of_group(group, [ROW_ID, USER_KEY, ITEM_KEY, *of_rows])
    users, items = hash_keys(keys.column(USER_KEY)), hash_keys(keys.column(ITEM_KEY))
    positive = keys.column(spec.label).to_numpy() == 1
    day = days_since_epoch(group.file.dt)
    pairs = pair_hash(torch.from_numpy(users[positive]), torch.from_numpy(items[positive])).numpy()
    result = _empty(spec, multi_hot)
    result.pair = np.unique(pairs)
    result.pair_day = np.full(len(result.pair), day, np.int64)
    if not with_items:
        return result
    columns = read_columns(group, item_spec(spec), item_multi_hot(spec, multi_hot))
    result.rows, result.positives = len(users), int(positive.sum())
    if spec.weight:
        # Sums of float32 numbers in float64 are exact for weights of similar size, in any order.
        result.weight = float(keys.column(spec.weight).to_numpy()[positive].sum(dtype=np.float64))
    result.day = np.full(len(users), day, np.int64)
    result.item, result.clicks = items, positive.astype(np.int64)
    result.row_id = keys.column(ROW_ID).to_numpy().astype(np.int64)
    result.dense = _side_by_side(columns.dense, len(users), np.float32)
    result.ids = _side_by_side(columns.categorical, len(users), np.int32)
    return _merge([result])


def _side_by_side(columns: Sequence[NDArray[Any]], rows: int, dtype: type) -> NDArray[Any]:
    """Returns columns of shape (rows,) or (rows, width) as one array with `rows` rows."""
    return np.concatenate(
        [np.zeros((rows, 0), dtype), *(column.reshape(rows, -1) for column in columns)], axis=1
    )


def _empty(spec: FeatureSpec, multi_hot: MultiHot) -> _Read:
    items = item_spec(spec)
    width = len(items.categorical) + sum(items.list_lengths(item_multi_hot(spec, multi_hot)))
    none = np.zeros(0, np.int64)
    return _Read(
        none,
        none,
        none,
        none,
        np.zeros((0, len(items.dense)), np.float32),
        np.zeros((0, width), np.int32),
        none,
        none,
        0,
        0,
    )


def _merge(parts: Sequence[_Read]) -> _Read:
    """Merges rows of the same item and day, and rows of the same pair of user and item.

    An item's features on a day come from its row with the largest row id.
    """

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts])

    day, item, row_id = joined("day"), joined("item"), joined("row_id")
    order = np.lexsort((row_id, item, day))
    ends = np.flatnonzero(_changes(day[order], item[order]))
    clicks = np.diff(np.cumsum(joined("clicks")[order])[ends], prepend=0)
    last = order[ends]
    pair, pair_day = joined("pair"), joined("pair_day")
    by_pair = np.lexsort((-pair_day, pair))
    first = by_pair[np.flatnonzero(_changes(pair[by_pair]))]
    return _Read(
        day[last],
        item[last],
        row_id[last],
        clicks.astype(np.int64),
        joined("dense")[last],
        joined("ids")[last],
        pair[first],
        pair_day[first],
        sum(part.rows for part in parts),
        sum(part.positives for part in parts),
        _sum_of_known(part.weight for part in parts),
    )


def _sum_of_known(weights: Iterable[float | None]) -> float | None:
    known = [weight for weight in weights if weight is not None]
    return sum(known) if known else None


def _changes(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns whether each row of sorted columns differs from the next row, (N,); True for the last row."""
    length = len(columns[0])
    ends = np.ones(length, np.bool_)
    if length > 1:
        ends[:-1] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return ends


def _catalogue(whole: _Read, device: torch.device) -> ItemCatalogue:
    days, counts = np.unique(whole.day, return_counts=True)

    def tensor(values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device)

    return ItemCatalogue(
        tensor(days),
        tensor(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)),
        tensor(whole.item),
        tensor(whole.clicks),
        tensor(whole.dense),
        tensor(whole.ids),
        tensor(whole.pair),
        tensor(whole.pair_day),
        whole.positives / whole.rows,
        None if whole.weight is None else whole.weight / whole.rows,
    )


def columns_of_items(
    spec: FeatureSpec, columns: Sequence[tuple[Feature, slice]]
) -> tuple[list[int], list[int]]:
    """Returns the positions of the item features in a batch's dense and categorical columns.

    Args:
        spec: the features.
        columns: the columns of each feature that is an id; see `training.models.inputs.id_columns`.
    """
    dense = [index for index, feature in enumerate(spec.dense) if feature.scope == "item"]
    ids = [
        column
        for feature, where in columns
        if feature.scope == "item"
        for column in range(where.start, where.stop)
    ]
    return dense, ids


# The code below finds the positive rows of a batch, and the positions of their items in the catalogue.


@dataclass(frozen=True)
class PositiveRows:
    """The P positive rows of a rank's batch. A batch without positive rows has one row of weight zero.

    Attributes:
        rows: (P,) int64 ascending, the indices of the rows.
        weight: the weights of the rows are multiplied by this number: 1, or 0 if there is no positive row.
        of_shard: for each shard of the rank, how many of `rows` belong to it.
    """

    rows: Tensor
    weight: float
    of_shard: Sequence[int]


def find_positive_rows(batch: Batch, num_shards: int) -> PositiveRows:
    """Returns the positive rows of a batch, which consists of the rows of `num_shards` shards."""
    rows = ((batch.labels == 1) & (batch.weights > 0)).nonzero().flatten()
    weight = 1.0 if len(rows) else 0.0
    if not len(rows):
        rows = torch.zeros(1, dtype=torch.int64, device=batch.labels.device)
    of_shard = torch.bincount(rows // (len(batch.labels) // num_shards), minlength=num_shards)
    return PositiveRows(rows, weight, of_shard.tolist())


class ItemPositions:
    """Finds the positions of items in a catalogue."""

    def __init__(self, catalogue: ItemCatalogue) -> None:
        day_of_item = catalogue.days.repeat_interleave(catalogue.starts.diff())
        self._sorted, self._order = mix(catalogue.items + mix(day_of_item)).sort()

    def find(self, items: Tensor, days: Tensor) -> Tensor:
        """Returns each item's position in the catalogue for the day of the item's row, (P,) int64.

        Args:
            items: (P,) int64, hashes of the item keys of P rows. Each item must have a train row on that day.
            days: (P,) int64, the days of the rows, counted from 1970-01-01.
        """
        place = torch.searchsorted(self._sorted, mix(items + mix(days)))
        return self._order[place.clamp(max=len(self._order) - 1)]


def spread(values: Tensor, columns: Tensor, width: int) -> Tensor:
    """Returns a matrix (R, width): the columns of `values` (R, C) at the positions `columns`, else 0."""
    return values.new_zeros(len(values), width).index_copy_(1, columns, values)
