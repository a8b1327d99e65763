"""A store for what sources compute for each item."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from scoring.candidates.lists_in_spark import VectorStore


@pytest.fixture
def store(tmp_path: Path) -> VectorStore:
    """Writes each table to a new folder, as two files, and checks that it has the announced size."""
    numbers = count()

    def publish(source: str, table: DataFrame | pa.Table, rows: int, length: int) -> tuple[str, ...]:
        folder = tmp_path / f"{source}-{next(numbers)}"
        if isinstance(table, pa.Table):
            folder.mkdir()
            half = len(table) // 2
            for number, part in enumerate((table.slice(half), table.slice(0, half))):
                pq.write_table(part, folder / f"{number}.parquet")
        else:
            table.repartition(2).write.parquet(str(folder))
        written = pd.read_parquet(folder)
        assert len(written) == rows
        if source in ("covisitation", "item_knn"):
            lengths = written["neighbours"].map(len)
            assert lengths.equals(written["similarities"].map(len))
            assert 0 < 2 * lengths.max() <= length
        else:
            assert set(written["vector"].map(len)) == {length}
        return tuple(map(str, sorted(folder.glob("*.parquet"))))

    return VectorStore(publish, "cpu", str(tmp_path / "checkpoints"))
