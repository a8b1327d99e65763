"""The tables of a workflow that was fitted on a frame. They are in the memory of this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.native.lookup import Lookup
from etl.ops.keyed import KEY
from etl.ops.tables import VOCABULARY, LocalTables


@dataclass(frozen=True)
class MemoryTables(LocalTables):
    """The tables of a workflow version in memory: like LocalTables, but without files.

    Attributes:
        vocabularies: maps each vocabulary to its entries (column, value, id, count, last_seen), by id.
        keyed_tables: maps each other table to its rows, which have the column `key`.
    """

    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vocabularies: Mapping[str, pa.Table] = field(default_factory=dict)
    keyed_tables: Mapping[str, pa.Table] = field(default_factory=dict)
    _lookups: dict[str, Lookup] = field(default_factory=dict, repr=False, compare=False)

    @property
    def names(self) -> list[str]:
        """Returns the names of the tables."""
        return [*([VOCABULARY] if self.vocabularies else []), *self.keyed_tables]

    def vocabulary(self, name: str, max_age_days: int | None = None) -> tuple[Lookup, np.ndarray]:
        """Returns the `Lookup` of a vocabulary's n values, and an (n,) int32 array with their ids.

        All values were last seen on the last training day, so `max_age_days` removes none.
        """
        entries = self.vocabularies[name]
        return self._lookup(f"{VOCABULARY}/{name}", entries["value"]), entries["id"].to_numpy()

    def keyed(self, name: str) -> tuple[Lookup, pa.Table]:
        """Returns the `Lookup` of a table's column `key`, and the table."""
        table = self.keyed_tables[name]
        return self._lookup(name, table[KEY]), table

    def entries(self, names: Sequence[str], ids: Sequence[int]) -> pa.Table:
        """Returns the entries (column, id, value) with the ids `ids` of the vocabularies `names`."""
        wanted = pa.array(ids, pa.int32())
        tables = [self.vocabularies[name].select(["column", "id", "value"]) for name in names]
        return pa.concat_tables(table.filter(pc.is_in(table["id"], wanted)) for table in tables)

    def parts(self, name: str) -> Iterator[pa.Table]:
        """Yields the rows of a table of the version: vocabulary by vocabulary, or all rows."""
        yield from self.vocabularies.values() if name == VOCABULARY else [self.keyed_tables[name]]

    def digests(self) -> dict[str, str]:
        """Returns a digest of the values of each table, by the name of the table or vocabulary."""
        tables = {f"{VOCABULARY}/{name}": table for name, table in self.vocabularies.items()}
        return {name: _digest(table) for name, table in {**tables, **self.keyed_tables}.items()}

    def _lookup(self, name: str, values: pa.ChunkedArray) -> Lookup:
        if name not in self._lookups:
            self._lookups[name] = Lookup(values.combine_chunks())
        return self._lookups[name]


def _digest(table: pa.Table) -> str:
    digest = sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        digest.update(f"{name} {column.type} {len(column)}\0".encode())
        if pa.types.is_string(column.type):
            digest.update(pc.binary_length(column).to_numpy().tobytes())
            digest.update("".join(column.to_pylist()).encode())
        else:
            digest.update(column.is_null().to_numpy().tobytes())
            digest.update(pc.fill_null(column, 0).to_numpy().tobytes())
    return digest.hexdigest()[:16]
