"""Positions of values in a list of different ones: what ids and keyed statistics are looked up by in a worker."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.files.library import Handle, is_built, library, string_addresses


class Lookup:
    """Value → position in (n,) different strings, none of them null.

    The table is built at the first use and kept. Without the compiled library Arrow builds one for every call.
    """

    def __init__(self, values: pa.StringArray) -> None:
        self._values = values

    def find(self, wanted: pa.StringArray) -> np.ndarray:
        """(m,) int64 positions of m strings; -1 for null and for those that are not there."""
        if not len(self._values) or not len(wanted):
            return np.full(len(wanted), -1, np.int64)
        if not is_built():
            positions = pc.index_in(wanted, value_set=self._values).fill_null(-1).cast(pa.int64())
            return positions.to_numpy(zero_copy_only=False)
        found = np.empty(len(wanted), np.int64)
        offsets, data = string_addresses(wanted)
        library().nightrank_find(self._table.address, len(wanted), offsets, data, found.ctypes.data)
        if wanted.null_count:
            found[wanted.is_null().to_numpy(zero_copy_only=False)] = -1
        return found

    @cached_property
    def _table(self) -> Handle:
        offsets, data = string_addresses(self._values)
        return Handle(library().nightrank_lookup(len(self._values), offsets, data), "free_lookup")
