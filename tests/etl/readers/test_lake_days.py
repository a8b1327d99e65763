"""build_features on a log in a Delta table or in Avro files, without a JVM: the tables are those of Parquet."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.etl import cases
from tests.etl.readers.test_orc_days import LOG, rows_of
from tests.etl.text.test_without_a_jvm import DAYS, GROUPS, build_here

AVRO = {"int64": "long", "double": "double", "string": "string"}


def write(kind: str, folder: Path, day: str, rows: pa.Table) -> None:
    if kind == "delta":
        table = rows.append_column("dt", pa.array([day] * len(rows)))
        for part in (table.slice(0, 60), table.slice(60)):  # two commits
            write_deltalake(folder / "clicks", part, partition_by=["dt"], mode="append")
        return
    path = folder / f"dt={day}/clicks.{kind}"
    path.parent.mkdir(parents=True)
    if kind == "parquet":
        pq.write_table(rows, path)
        return
    fields = [{"name": field.name, "type": ["null", AVRO[str(field.type)]]} for field in rows.schema]
    schema = {"type": "record", "name": "click", "fields": fields}
    records: list[dict[str, Any]] = [
        {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in row.items()
        }
        for row in rows.to_pylist()
    ]
    with path.open("wb") as file:
        fastavro.writer(file, schema, records, codec="zstandard", sync_interval=500)


def built(folder: Path, kind: str) -> dict[str, Any]:
    location = {"path": "{data}/clicks/dt={date}"} if kind == "delta" else {}
    config = cases.write_config(folder, GROUPS, {"log": {**LOG, "format": kind, **location}})
    (folder / "raw").mkdir()
    for seed, day in enumerate(DAYS):
        write(kind, folder / "raw", day, rows_of(seed))
    return build_here(config)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return built(tmp_path_factory.mktemp("parquet"), "parquet")


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["delta", "avro"])
def test_the_tables_are_those_of_parquet(expected: dict[str, Any], tmp_path: Path, kind: str) -> None:
    mine = built(tmp_path, kind)
    for day in DAYS:
        assert mine[f"features {day}"] == expected[f"features {day}"]
        reasons = [row["reason"] for row in mine[f"quarantine {day}"]]
        assert reasons == [row["reason"] for row in expected[f"quarantine {day}"]] == ["integer:I1"] * 2
