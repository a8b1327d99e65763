"""Vocabularies as files that all workers of a machine map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from etl.native import mapped_files
from etl.native.lookup import Lookup
from etl.native.mapped_files import open_vocabulary

ENTRIES = [
    ("C1", "a", 3, 10),
    ("C1", "long enough to be hashed", 4, 12),
    ("C2", "a", 7, 11),
    ("C2", "é", 3, 9),
    ("C3", "only", 3, 10),
]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    """Two files. The row groups of the first one have two vocabularies each, as Spark writes them."""
    open_vocabulary.cache_clear()
    paths = []
    for index, part in enumerate((ENTRIES[:4], ENTRIES[4:])):
        columns = zip(*part, strict=True)
        names = ("column", "value", "id", "last_seen")
        types = (pa.string(), pa.string(), pa.int32(), pa.int32())
        table = pa.table({n: pa.array(v, t) for n, v, t in zip(names, columns, types, strict=True)})
        paths.append(str(tmp_path / f"{index}.parquet"))
        pq.write_table(table, paths[-1], row_group_size=3)
    return tuple(paths)


def _entries(files: tuple[str, ...], name: str, oldest: int) -> dict[str, int]:
    lookup, ids = open_vocabulary(files, name, oldest)
    wanted = [*dict.fromkeys(value for _, value, _, _ in ENTRIES), None, "unknown"]
    indices = lookup.find(pa.array(wanted, pa.string())).tolist()
    return {
        value: int(ids[index]) for value, index in zip(wanted, indices, strict=True) if index >= 0 and value
    }


@pytest.mark.parametrize("oldest", [0, 10, 12])
@pytest.mark.parametrize("shared", [True, False])
def test_each_vocabulary_holds_its_values_that_are_young_enough(
    files: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oldest: int, shared: bool
) -> None:
    if shared:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    else:
        monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    for name in ("C1", "C2", "C3", "unheard of"):
        expected = {v: i for column, v, i, day in ENTRIES if column == name and day >= oldest}
        assert _entries(files, name, oldest) == expected
        open_vocabulary.cache_clear()  # as in another worker
        assert _entries(files, name, oldest) == expected
    kept = [path.name for path in tmp_path.glob("nightrank-vocabulary-*")]
    assert len(kept) == (
        sum(any(d >= oldest for c, _, _, d in ENTRIES if c == n) for n in ("C1", "C2", "C3")) if shared else 0
    )


def test_a_second_worker_maps_what_the_first_one_made(
    files: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    first = _entries(files, "C1", 0)
    open_vocabulary.cache_clear()
    monkeypatch.setattr(mapped_files, "_read_vocabulary", lambda *_: pytest.fail("read again"))
    assert _entries(files, "C1", 0) == first


def test_without_room_the_table_is_in_memory(
    files: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "gone"))
    assert _entries(files, "C2", 0) == {"a": 7, "é": 3}


@pytest.mark.parametrize("damage", [b"", b"x" * 8, b"x" * 200])
def test_what_is_no_lookup_is_refused(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "lookup"
    lookup = Lookup(pa.array(["a", "b"]))
    lookup.save(path, np.array([3, 4], np.int32))
    path.write_bytes(damage or path.read_bytes()[:-64])
    with pytest.raises((ValueError, pa.ArrowException)):
        Lookup.load(path)
