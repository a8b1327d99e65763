"""A log that is cut by position: the two passes publish what Spark frames publish."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from conf.errors import DataError
from conf.types import SPLITS, SplitConfig
from etl import build as build_module
from etl import passes
from etl.build import BuildResult
from etl.ops.tables import RARE, VOCABULARY, workflow_table
from etl.raw import file_splits
from etl.raw.splits import last_ranks
from etl.readers import text
from etl.spark.frame_passes import FramePasses
from etl.text.scan_pass import rows_of_splits
from spark.choose_workers import SparkWorkers
from spark.workers import LocalWorkers
from storage import file_io
from storage.manifest import read_manifest
from storage.paths import LakePaths
from tests.etl import cases
from tests.etl.text.test_two_passes import GROUPS, _rows

RUN_DATE = "2026-01-09"
LOG = {"log": {**cases.LOG["log"], "path": "{data}/*"}}
CUT: dict[str, Any] = {
    "split": {"by": "fraction", "train": 0.6, "validation": 0.25},
    "features": [
        *GROUPS["features"],
        # Its mean needs the training rows. Statistics of single columns are computed from value counts.
        {
            "columns": ["I1", "I2"],
            "kind": "dense",
            "ops": [{"expression": {"output": "sum", "formula": "I1 + I2"}}, "fill", "normalize"],
        },
    ],
}


def _no_session() -> SparkSession:
    raise AssertionError("the build needs no Spark session")


def _log(folder: Path, compressed: bool) -> None:
    """Two files, of which the second may be compressed. Some lines are malformed, some at the cuts."""
    folder.mkdir(parents=True)
    lines = cases.make_lines(RUN_DATE, 800, 7)
    for index in (*range(470, 490), 680, 681):
        lines[index] = "malformed"
    (folder / "a.tsv").write_text("".join(f"{line}\n" for line in lines[:300]))
    rest = "".join(f"{line}\n" for line in lines[300:]).encode()
    if compressed:
        (folder / "b.tsv.gz").write_bytes(gzip.compress(rest))
    else:
        (folder / "b.tsv").write_bytes(rest)


def _tables(folder: Path, built: BuildResult) -> dict[str, Any]:
    lake, version = LakePaths(str(folder / "lake")), built.workflow.version
    features = lake.features(version).partition(RUN_DATE)
    tables: dict[str, Any] = {
        table: _rows(workflow_table(lake, version, table), "column", "value") for table in (VOCABULARY, RARE)
    }
    for split in SPLITS:
        tables[f"features of {split}"] = (
            cases.read_rows(features, split).sort_values("row_id").to_dict("records")
        )
        profile = lake.profiles("hard", split).partition(RUN_DATE)
        tables[f"profile of {split}"] = read_manifest(profile).facts
    tables["members"] = [
        (split, member.label, member.clicks)
        for split, members in built.dataset.splits.items()
        for member in members
    ]
    quarantine = _rows(lake.quarantine.partition(RUN_DATE), "row_id")
    tables["quarantine"] = [{**row, "source_file": Path(row["source_file"]).name} for row in quarantine]
    [quality] = file_io.list_files(f"{lake.root}/quality/hard/dt={RUN_DATE}")
    tables["quality"] = file_io.read_json(quality.path)["facts"]
    return tables


@pytest.fixture(scope="module")
def expected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("frames")
    with pytest.MonkeyPatch.context() as patch:
        for module in (build_module, passes):
            patch.setattr(module, "passes_of", FramePasses)
        config = cases.write_config(folder, GROUPS, CUT, LOG)
        _log(folder / "raw", compressed=False)
        return _tables(folder, cases.run_build(SparkWorkers(spark), config, RUN_DATE))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("split_bytes", [2_000, file_splits.FILE_SPLIT_BYTES])
def test_passes_publish_what_frames_publish(
    compressed: bool,
    split_bytes: int,
    tmp_path: Path,
    expected: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text, "FILE_SPLIT_BYTES", split_bytes)
    config = cases.write_config(tmp_path, GROUPS, CUT, LOG)
    _log(tmp_path / "raw", compressed)
    built = cases.run_build(LocalWorkers(2, _no_session), config, RUN_DATE)
    tables = _tables(tmp_path, built)
    for row in tables["quarantine"]:
        row["source_file"] = row["source_file"].removesuffix(".gz")
    assert tables.keys() == expected.keys()
    for name, table in tables.items():
        assert table == expected[name], name


HEADER = "label,X,C1\n"
SMALL: dict[str, Any] = {
    "log": {
        "path": "{data}/*.csv",
        "format": "csv",
        "columns": [
            {"name": "label", "type": "int"},
            {"name": "X", "type": "float"},
            {"name": "C1", "type": "string"},
        ],
        "label": {"column": "label"},
    },
    "keys": None,
    "features": [{"columns": ["X"], "kind": "dense", "ops": ["fill_median"]}],
    "scopes": {},
    "split": {"by": "fraction", "train": 0.6},
}


@pytest.mark.parametrize(
    "lines, share, message",
    [
        ("", 1.0, f"the raw log of {RUN_DATE} has no rows: .*a.csv"),
        ("1,no number,a\n" * 3, 1.0, "the log has no good row"),
        ("1,no number,a\n" * 3, 0.1, f"3 of 3 rows of {RUN_DATE} do not parse"),
    ],
)
def test_a_log_without_good_rows_ends_like_frames(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: str,
    share: float,
    message: str,
) -> None:
    config = cases.write_config(tmp_path, SMALL, {"quality": {"max_bad_share": share}})
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.csv").write_text(HEADER + lines)
    with pytest.raises(DataError, match=message) as actual:
        cases.run_build(LocalWorkers(2, _no_session), config, RUN_DATE)
    frames = config.model_copy(update={"lake": str(tmp_path / "frames")})
    for module in (build_module, passes):
        monkeypatch.setattr(module, "passes_of", FramePasses)
    with pytest.raises(DataError) as expected:
        cases.run_build(SparkWorkers(spark), frames, RUN_DATE)
    assert str(actual.value).replace("/lake/", "/frames/") == str(expected.value)


@given(
    good=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    train=st.sampled_from([0.05, 0.5, 0.7, 0.79]),
    validation=st.sampled_from([0.0, 0.1, 0.2]),
)
def test_each_row_is_in_the_split_of_its_rank(good: list[int], train: float, validation: float) -> None:
    total = sum(good)
    if not total:
        return
    config = SplitConfig(by="fraction", train=train, validation=validation)
    first, second = last_ranks(total, config)
    divided = rows_of_splits(good, config)
    splits: list[str] = []
    for rows, parts in zip(good, divided, strict=True):
        assert sum(part.end - part.first for part in parts) == rows
        splits += [part.split for part in parts for _ in range(part.first, part.end)]
    assert splits == [
        "train" if rank <= first else "validation" if rank <= second else "test" for rank in range(total)
    ]
