"""The reader of a package reads logs, attributes and external tables, and its code is an input of them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from conf.errors import EXIT_OK, ConfigError, DataError
from conf.plugins import READER
from conf.raw_types import RawTable
from conf.types import ItemsTable
from etl.operators.join_external import JoinExternal
from etl.prepare.attributes import read_attribute_table
from etl.raw.files import find_raw
from etl.readers.base import open_table
from jobs.reference import config_schema, configuration_page
from storage.paths import LakePaths
from tests.conftest import ROOT
from tests.contract.test_config import SMALL
from tests.etl import cases
from tests.etl.readers.test_orc_days import LOG
from tests.etl.text.test_without_a_jvm import DAYS, GROUPS, build, tables
from tests.extensions.conftest import AddToCheckout

COLUMNS = [{"name": "what", "type": "string"}, {"name": "price", "type": "float"}]


def table_of(path: Path | str, columns: list[dict[str, Any]] = COLUMNS) -> RawTable:
    return ItemsTable.model_validate({"path": str(path), "format": "npz", "columns": columns})


def test_it_reads_tables_with_the_rules_of_all_formats(shop: Path, tmp_path: Path) -> None:
    path = tmp_path / "items.npz"
    np.savez(path, what=np.array(["a", "b"]), price=np.array([1.5, np.nan]), other=np.array([1, 2]))
    config = cases.write_config(tmp_path)
    rows = read_attribute_table(config, table_of(path), "what", "items", DAYS[0])
    assert rows.to_pydict() == {"what": ["a", "b"], "price": [1.5, None]}
    operator = JoinExternal(path=str(path), columns={"price": "float"}, format="npz")
    (step,) = operator.bind({"what": "string"})
    assert open_table(operator.source(step)[0], (str(path),)).table.format == "npz"
    np.savez(path, what=np.array(["a", "a"]), price=np.array(["1", "x"]))
    with pytest.raises(
        DataError, match=r"items\.npz: 1 row does not parse; the first is row 2: price has .*'x'"
    ):
        read_attribute_table(config, table_of(path), "what", "items", DAYS[0])
    np.savez(path, what=np.array(["a"]))
    with pytest.raises(DataError, match=r"items\.npz has no columns \['price'\]"):
        read_attribute_table(config, table_of(path), "what", "items", DAYS[0])
    path.write_bytes(b"text")
    with pytest.raises(DataError, match=r"items\.npz is not an archive of NumPy"):
        open_table(table_of(path), (str(path),))


def test_the_digest_of_raw_files_depends_on_its_code(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "items.npz").write_bytes(b"1")
    config = cases.write_config(tmp_path)

    def digests() -> list[str]:
        plain = table_of(tmp_path / "*").model_copy(update={"format": "parquet"})
        found = [find_raw(config, table, DAYS[0]) for table in (plain, table_of(tmp_path / "*"))]
        return [raw.digest for raw in found if raw is not None]

    before = digests()
    (shop / "__init__.py").write_text("VERSION = 2\n")
    after = digests()
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_a_module_without_a_reader_is_named(shop: Path, site: Path) -> None:
    (shop / "npz.py").write_text("class Reader:\n    pass\n")
    with pytest.raises(ConfigError, match=r"'npz', .* lacks a class Reader\(TableReader\)") as refused:
        open_table(table_of("x"), ("x",))
    assert "nightrank.readers" in refused.value.remedy


@pytest.mark.processes
def test_a_log_in_its_format_has_the_tables_of_parquet(shop: Path, tmp_path: Path) -> None:
    """Job and workers import the package by its name; a JVM cannot start."""
    generator = np.random.default_rng(3)
    built = {}
    for day in DAYS:
        columns = {
            "label": (generator.random(80) < 0.3).astype(int),
            **{name: generator.integers(0, 9, 80) for name in ("I1", "visits")},
            **{name: generator.choice(["a", "b", "ö"], 80) for name in ("user", "item", "C1")},
        }
        columns["visits"] = np.where(np.arange(80) == 7, 0.5, columns["visits"])
        for kind in ("npz", "parquet"):
            path = tmp_path / kind / f"raw/dt={day}/clicks.{kind}"
            path.parent.mkdir(parents=True)
            if kind == "npz":
                np.savez(path, **columns)
            else:
                pq.write_table(pa.table(columns), path)
    for kind in ("npz", "parquet"):
        config = cases.write_config(tmp_path / kind, GROUPS, {"log": {**LOG, "format": kind}})
        run = build(tmp_path / kind, PYTHONPATH=os.pathsep.join([str(ROOT), str(shop.parent)]))
        assert run.returncode == EXIT_OK, run.stderr[-2000:]
        built[kind] = tables(LakePaths(config.lake))
    assert built["npz"] == built["parquet"]
    assert len(built["npz"][f"features {DAYS[0]}"]) == 79


def test_one_file_adds_a_format_to_the_checkout(add_to_checkout: AddToCheckout, tmp_path: Path) -> None:
    before = jsonschema.Draft7Validator(config_schema())
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8").partition("\n## A reader\n")[2]
    (text,) = re.findall(r"^```python\n(.*?)^```$", page.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    add_to_checkout(READER, "feather", text)
    path = tmp_path / "items.feather"
    feather.write_feather(pa.table({"what": ["a", "b"], "price": [1.5, None]}), path)
    config = cases.write_config(tmp_path)
    section = {"path": str(path), "format": "feather", "columns": COLUMNS}
    rows = read_attribute_table(config, ItemsTable.model_validate(section), "what", "items", DAYS[0])
    assert rows.to_pydict() == {"what": ["a", "b"], "price": [1.5, None]}
    with pytest.raises(ValueError, match=r"null_values are strings .* but the format is feather"):
        ItemsTable.model_validate({**section, "null_values": ["NULL"]})
    after = jsonschema.Draft7Validator(config_schema())
    values = {**SMALL, "log": {**SMALL["log"], "format": "feather"}}
    assert (before.is_valid(values), after.is_valid(values)) == (False, True)
    assert "`feather`: Arrow files (Feather, version 2); columns are matched by name." in configuration_page()
