"""Vocabularies as files that all workers of a machine map."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from etl.native import mapped_files
from etl.native.distinct_values import HashTable, Lookup, buckets_of
from etl.native.mapped_files import open_keyed, open_vocabulary
from tests.processes import ROOT

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


def test_no_changed_byte_of_a_lookup_is_used(tmp_path: Path) -> None:
    """A damaged table could be searched forever: a flip can fill its last free slot."""
    path = tmp_path / "lookup"
    Lookup(pa.array(["a", "b", "long enough to be hashed"])).save(path, np.array([3, 4, 5], np.int32))
    good = path.read_bytes()
    assert Lookup.load(path)[1].tolist() == [3, 4, 5]
    choose = random.Random(3)
    damages = [good[:length] for length in (0, 8, 15, 16, 64, len(good) - 64, len(good) - 1)]
    damages += [b"x" * 200, good + b"x"]
    for _ in range(200):
        bit = choose.randrange(8 * len(good))
        damages.append(bytes(byte ^ (1 << bit % 8) * (at == bit // 8) for at, byte in enumerate(good)))
    for damage in damages:
        path.write_bytes(damage)
        with pytest.raises((ValueError, OSError)):
            Lookup.load(path)


@pytest.mark.parametrize("size", [0, 10, -1, None])
def test_a_damaged_file_is_written_again_once(
    files: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    first = _entries(files, "C1", 0)
    (path,) = tmp_path.glob("nightrank-vocabulary-*")
    good = path.read_bytes()
    path.write_bytes(good[:size] if size is not None else good[:100] + b"\xff" + good[101:])
    open_vocabulary.cache_clear()  # as in another worker
    assert _entries(files, "C1", 0) == first
    assert path.read_bytes() == good


def test_a_disk_that_returns_other_bytes_is_not_used(
    files: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    written = []

    def spoiled(path: Path, *arguments: Any) -> None:
        written.append(path)
        path.write_bytes(b"x" * 1000)

    monkeypatch.setattr(mapped_files, "_write_vocabulary", spoiled)
    assert _entries(files, "C2", 0) == {"a": 7, "é": 3}
    assert len(written) == 1


@pytest.mark.parametrize("name", ["keyed", "columns"])
def test_damaged_keyed_tables_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    source = tmp_path / "source.parquet"
    pq.write_table(pa.table({"key": ["a", "b"], "mean": [0.25, 0.5]}), source)
    for damage in (None, 50, -3):
        open_keyed.cache_clear()
        if damage is not None:
            pattern = "nightrank-keyed-*.columns" if name == "columns" else "nightrank-keyed-*[0-9a-f]"
            (path,) = (path for path in tmp_path.glob(pattern) if name == "columns" or not path.suffix)
            content = path.read_bytes()
            path.write_bytes(
                content[:damage] + b"\x55" + content[damage + 1 :] if damage > 0 else content[:damage]
            )
        lookup, table = open_keyed((str(source),))
        assert lookup.find(pa.array(["b", "c", "a"])).tolist() == [1, -1, 0]
        assert table["mean"].to_pylist() == [0.25, 0.5]
    open_keyed.cache_clear()


# The hash of the tables


def colliding_ids(count: int) -> list[str]:
    """Distinct ids of 8 printable characters that the hash without a seed places in one slot of a table.

    It is the hash that still decides about buckets (`stored_hash` in etl/native/lookup.cpp). Each of its steps
    can be undone: this function draws hashes with the same upper bits, and computes their ids.
    """
    first, second = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
    undo_first, undo_second = (np.uint64(pow(number, -1, 2**64)) for number in (first, second))
    draw = np.random.default_rng(5)
    ids: list[bytes] = []
    while len(ids) < count:
        hashes = draw.integers(0, 2**44, 1_000_000, dtype=np.uint64)  # the upper 20 bits are 0
        mixed = hashes * undo_second
        bits = (mixed ^ (mixed >> np.uint64(32))) * undo_first - np.uint64(8)
        characters = bits.astype("<u8").view(np.uint8).reshape(-1, 8)
        printable = ((characters > 0x20) & (characters < 0x7F)).all(axis=1)
        ids += [row.tobytes() for row in characters[printable]]
    return [text.decode() for text in dict.fromkeys(ids)][:count]


def longest_search(table: HashTable) -> int:
    """The longest run of used slots: a search for a value reads at most so many slots."""
    slots = np.frombuffer(table.slots, [("bits", "u8"), ("length", "u4"), ("code", "i4")])
    free = np.flatnonzero(slots["code"] < 0)
    return int(np.diff(free, append=free[0] + len(slots)).max()) - 1


def test_chosen_ids_do_not_share_places() -> None:
    ids = pa.array(colliding_ids(4000))
    assert set(buckets_of(ids, 1 << 12).tolist()) != {0}  # the lower bits differ
    table = HashTable.of(ids)
    assert table.find(ids).tolist() == [*range(4000)]
    assert longest_search(table) < 400  # without a seed: 4000


@pytest.mark.parametrize("length", [1, 8, 9, 16, 40])
def test_equal_parts_of_values_do_not_share_places(length: int) -> None:
    values = pa.array([f"{number:0{length}d}"[-length:] for number in range(min(10**length, 50_000))])
    assert longest_search(HashTable.of(values)) < 400


@pytest.mark.processes
def test_each_process_has_a_seed_and_a_stored_table_contains_its_own(tmp_path: Path) -> None:
    script = (
        "import sys, numpy as np, pyarrow as pa; from pathlib import Path; from etl.native.distinct_values import *\n"
        "lookup = Lookup(pa.array(['a', 'long enough to be hashed', 'b']))\n"
        "lookup.save(Path(sys.argv[1]), np.array([3, 4, 5], np.int32)); print(lookup._table.seed)"
    )
    seeds = {HashTable.of(pa.array(["a"])).seed}
    for number in range(2):
        path = tmp_path / f"lookup-{number}"
        run = subprocess.run(
            [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True, cwd=ROOT
        )
        seeds.add(int(run.stdout))
        lookup, ids = Lookup.load(path)
        wanted = pa.array(["b", "long enough to be hashed", "c", "a"])
        assert lookup.find(wanted).tolist() == [2, 1, -1, 0]
        assert ids.tolist() == [3, 4, 5]
    assert len(seeds) == 3


def test_buckets_are_those_of_stored_tables() -> None:
    values = pa.array(["a", "abc", "12345678", "long enough to be hashed", "é"])
    assert buckets_of(values, 1 << 20).tolist() == [18328, 234494, 667744, 656171, 604586]
