"""Tables that the sink `table` writes, read by DuckDB, Polars, delta-rs, pyiceberg and Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring.delivery.published_lists import PublishedLists
from scoring.delivery.sinks import table
from tests.delivery.catalogue_deliveries import ITEMS, LARGE, NAMES
from tests.delivery.table_lists import DAY, NEXT_DAY, expected, lists_of, sink_to
from tests.etl.lakes import servers
from tests.etl.spark.test_catalogues import require_jars
from tests.processes import environment, kill_tree, wait_for

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

DELTA = ["duckdb, delta", "polars, delta", "deltalake"]
ICEBERG = ["duckdb, iceberg", "polars, iceberg", "pyiceberg"]
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6)
LISTS = st.dictionaries(TEXTS, st.lists(TEXTS, min_size=1, max_size=4), min_size=1, max_size=8)


class TableReaders:
    """A process with the readers of table_reader_process.py."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def rows(self, reader: str, where: str, condition: str = "1 = 1") -> list[tuple[Any, ...]]:
        """The rows of a table, in the form of `expected`."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([[reader, where, condition]]) + "\n")
        self._process.stdin.flush()
        (seen,) = json.loads(self._process.stdout.readline())
        assert isinstance(seen, list), f"{reader}: {seen}"
        return [tuple(row) for row in seen]


def by_name(lists: PublishedLists) -> list[tuple[Any, ...]]:
    """The rows of `expected`, with columns in the order of their names."""
    names = ["dt", *lists.rows.column_names, "variant"]
    order = sorted(range(len(names)), key=lambda index: names[index])
    return [tuple(row[index] for index in order) for row in expected(lists)]


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


@pytest.fixture(scope="module")
def readers() -> Iterator[TableReaders]:
    try:
        python = servers.interpreter(
            "table-readers", servers.ROOT / "requirements/test-tables.txt", "import duckdb, polars, pyiceberg"
        )
    except servers.Unavailable as error:
        servers.missing(str(error))
    command = [str(python), str(Path(__file__).with_name("table_reader_process.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield TableReaders(process)
        process.kill()


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(days=st.lists(st.tuples(st.sampled_from([DAY, NEXT_DAY]), LISTS), min_size=1, max_size=4))
def test_every_reader_sees_the_last_lists_of_each_day(
    readers: TableReaders, tmp_path_factory: pytest.TempPathFactory, days: list[tuple[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("delta") / "lists"
    last = {}
    for dt, items in days:
        last[dt] = lists_of(items, dt)
        table.deliver(sink_to(path), last[dt])
    wanted = in_order([row for lists in last.values() for row in by_name(lists)])
    for reader in DELTA:
        assert in_order(readers.rows(reader, str(path))) == wanted, reader
    (dt, lists), user = next(iter(last.items())), sorted(last[days[0][0]].rows["user_id"].to_pylist())[0]
    quoted = user.replace("'", "''")
    for reader in DELTA[:2]:
        seen = readers.rows(reader, str(path), f"user_id = '{quoted}' AND dt = DATE '{dt}'")
        assert in_order(seen) == in_order([row for row in by_name(lists) if row[-3] == user]), reader


def run(kind: str, folder: Path, step: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.delivery.catalogue_deliveries", kind, str(folder), step]
    variables = {key: value for key, value in environment().items() if key != "PYSPARK_SUBMIT_ARGS"}
    return subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, check=False)


def table_of(kind: str, folder: Path) -> Path:
    return folder / ("warehouse/shop.db/lists" if kind == "delta" else "warehouse/shop/lists")


def location_of(kind: str, folder: Path) -> str:
    """What readers open: the folder, or the newest metadata file, which the Hadoop catalogue names."""
    if kind == "delta":
        return str(table_of(kind, folder))
    metadata = table_of(kind, folder) / "metadata"
    return str(metadata / f"v{(metadata / 'version-hint.text').read_text().strip()}.metadata.json")


@pytest.mark.large
@pytest.mark.parametrize("kind", sorted(NAMES))
def test_tables_of_a_catalogue(readers: TableReaders, tmp_path: Path, kind: str) -> None:
    require_jars()
    ended = run(kind, tmp_path, "all")
    assert ended.returncode == 0, ended.stderr[-3000:]
    results = json.loads(ended.stdout.splitlines()[-1])
    if kind == "delta":
        assert results["no schema"].startswith(
            "ConfigError: the key `table` of the sink warehouse: Spark cannot"
        )
    number, created = sum(map(len, ITEMS.values())), int(kind == "delta")
    others = number + 1
    assert results["steps"][:5] == [
        [number, number, 0, 1 + created],
        [number, 0, 0, 1 + created],
        [number, number, 0, 2 + created],
        [others, others, number, 3 + created],
        [others, 0, 0, 3 + created],
    ]
    assert results["same"]
    erased = 1 + 2 * len(ITEMS["u7"]) + 2
    assert [results["erased"][0], results["erased"][2:]] == [erased, [0, 4 + created]]
    assert ("VACUUM" if kind == "delta" else "expire_snapshots") in results["erased"][1]
    assert "metadata of the table" not in results["erased"][1]
    assert results["bounds"] == []
    assert results["users"] == ["u1", "u1"]
    kept = number - len(ITEMS["u7"])
    assert results["steps"][5] == [kept, 0, others - 1 - len(ITEMS["u7"]), 5 + created]
    assert results["kept"]
    assert results["of one"]
    assert f"has the format {kind}, but `format` is" in results["format"]
    assert results["columns"].startswith("DataError")
    assert "extra (int) is missing in the rows" in results["columns"]
    wanted = by_name(lists_of(ITEMS))
    for reader in DELTA if kind == "delta" else ICEBERG:
        seen = readers.rows(reader, location_of(kind, tmp_path))
        plain = [(*row[:1], *row[2:]) for row in seen]  # without the column `extra`
        assert in_order([row for row in plain if row[0] == DAY]) == in_order(wanted), reader


@pytest.mark.large
@pytest.mark.parametrize("kind", sorted(NAMES))
def test_a_killed_delivery_of_spark_leaves_a_whole_day(
    readers: TableReaders, tmp_path: Path, kind: str
) -> None:
    require_jars()
    assert run(kind, tmp_path, "first").returncode == 0
    folder = table_of(kind, tmp_path)
    before = {*folder.rglob("*.parquet*")}
    command = [sys.executable, "-m", "tests.delivery.catalogue_deliveries", kind, str(tmp_path), "large"]
    variables = {key: value for key, value in environment().items() if key != "PYSPARK_SUBMIT_ARGS"}
    with subprocess.Popen(command, env=variables, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        wait_for("a new file", lambda: {*folder.rglob("*.parquet*")} - before or process.poll(), poll_s=0.001)
        kill_tree(process)
    assert process.returncode  # the process itself may see the end of its JVM before it is killed
    old, new = (in_order(by_name(lists_of(items))) for items in (ITEMS, LARGE))
    for reader in DELTA if kind == "delta" else ICEBERG:
        assert in_order(readers.rows(reader, location_of(kind, tmp_path))) in (old, new), reader
    ended = run(kind, tmp_path, "large")
    assert ended.returncode == 0, ended.stderr[-3000:]
    for reader in DELTA if kind == "delta" else ICEBERG:
        assert in_order(readers.rows(reader, location_of(kind, tmp_path))) == new, reader
