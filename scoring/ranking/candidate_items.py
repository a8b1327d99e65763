"""Reads the items that a worker ranks from the Parquet files of the table candidate_items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from conf.errors import DataError
from scoring.inputs.requests import ITEM_INDEX, Encoded
from scoring.model.predictor import Predictor
from scoring.ranking.pairs import Side, context_side, side_of
from storage import file_io
from storage.feature_spec import ITEM_KEY
from storage.parquet_files import concat_parts


@dataclass(frozen=True)
class Items:
    """The candidate items.

    Attributes:
        keys: (N,) the keys of the items, strings. The index of an item in this array is its item index.
        side: the model inputs of the items, with the context features filled in.
    """

    keys: pa.Array
    side: Side


def read_items(files: Sequence[str], predictor: Predictor, context: Mapping[str, Encoded]) -> Items:
    """Reads the candidate items into the CPU's memory, in the order of their index.

    Args:
        files: paths of the Parquet files of candidate_items, in the order of the manifest.
        predictor: the loaded model. Only the features of this model are read.
        context: maps the name of each feature of scope `context` to its encoded value.

    Raises:
        DataError: the item indices are not 0, 1, 2, …
        ConfigError: the context values do not match the context features of the model.
    """
    spec, multi_hot = predictor.spec, predictor.multi_hot
    columns = [ITEM_INDEX, ITEM_KEY, *(feature.name for feature in spec.scoped("item"))]
    table = concat_parts(_read_parquet(path, columns) for path in files).combine_chunks()
    index = table.column(ITEM_INDEX).to_numpy()
    if not np.array_equal(index, np.arange(len(index))):
        raise DataError(
            f"{files[0]}: item_index does not count from 0 in steps of 1", "run build_candidates again"
        )
    keys = pa.array(table.column(ITEM_KEY).to_pylist(), pa.string())
    return Items(keys, side_of(table, spec, multi_hot, "item").plus(context_side(context, spec, multi_hot)))


def _read_parquet(path: str, columns: list[str]) -> pa.Table:
    """Reads the columns `columns` of one Parquet file."""
    files, inner = file_io.filesystem(path)
    return pq.read_table(inner, filesystem=files, columns=columns, partitioning=None)
