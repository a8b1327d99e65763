"""The pipeline of GPUs writes what a CPU writes, refuses what a CPU refuses, waits rarely, and holds few blocks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from conf.errors import DataError, InfrastructureError
from conf.types import ModelConfig
from scoring.model import predictor as predictor_module
from scoring.model.predictor import MicroBatch, Predictor, load_predictor
from scoring.requests import ModelRequest
from scoring.rows import task
from scoring.rows.file_splits import FileRowGroup, RowGroupRange
from scoring.rows.score_batch import read_piece, score_pieces
from scoring.rows.task import write_scores
from storage.feature_spec import Feature, FeatureSpec
from storage.file_digests import split_name
from tests.checked_device import checked_device
from tests.training.interpreted import device_of_kernels
from training.checkpoints import save_model
from training.models import build_model

SPEC = FeatureSpec(
    (
        Feature("price", "dense", "float32", "item"),
        Feature("who", "categorical", "int32", "user", cardinality=30),
        Feature("tags", "multi_hot", "list<int32>", "item", cardinality=9),
        Feature("age", "dense", "float32", "user"),
        Feature("what", "categorical", "int32", "item", cardinality=40),
    ),
    ("row_id",),
    "w1",
)
SCALARS = FeatureSpec(
    tuple(feature for feature in SPEC.features if feature.kind != "multi_hot"), ("row_id",), "w1"
)


def saved(folder: Path, spec: FeatureSpec) -> str:
    """The folder of a DLRM with random weights."""
    config = ModelConfig.model_validate(
        {
            "architecture": "dlrm",
            "embedding_dim": 4,
            "bottom_mlp": [8, 4],
            "top_mlp": [8],
            "multi_hot": {"max_length": 3},
        }
    )
    described = {
        "version": "m1",
        "architecture": config.architecture,
        "model": config.model_dump(),
        "feature_spec": spec.to_json(),
    }
    save_model(str(folder), build_model(config, spec, seed=3), described)
    return str(folder)


@pytest.fixture(scope="module", params=["lists", "scalars"])
def predictor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """A predictor on the CPU, of features with lists or without."""
    spec = SPEC if request.param == "lists" else SCALARS
    path = saved(tmp_path_factory.mktemp("model"), spec)
    return load_predictor(ModelRequest(path, "cpu", 37), None, 1)


def drawn_rows(count: int, seed: int) -> pa.Table:
    draw = np.random.default_rng(seed)
    tags = [
        draw.integers(0, 9, draw.integers(0, 6)).tolist() if draw.random() < 0.8 else None
        for _ in range(count)
    ]
    return pa.table(
        {
            "row_id": pa.array(draw.permutation(count * 3)[:count].astype(np.int64)),
            "price": draw.normal(size=count).astype(np.float32),
            "who": draw.integers(0, 30, count).astype(np.int32),
            "tags": pa.array(tags, pa.list_(pa.int32())),
            "age": draw.normal(size=count).astype(np.float32),
            "what": draw.integers(0, 40, count).astype(np.int32),
        }
    )


def written(
    folder: Path, sizes: list[int], seed: int = 0, change: Callable[[pa.Table], pa.Table] | None = None
) -> list[FileRowGroup]:
    """Row groups of these sizes, two in a file; each file is of another day."""
    folder.mkdir(exist_ok=True)
    groups = []
    for number in range(0, len(sizes), 2):
        of_file, day = sizes[number : number + 2], f"2026-01-{number + 1:02d}"
        path = folder / f"{number}.parquet"
        rows = drawn_rows(sum(of_file), seed + number)
        rows = change(rows) if change else rows
        with pq.ParquetWriter(path, rows.schema) as writer:
            first = 0
            for count in of_file:
                writer.write_table(rows.slice(first, count), row_group_size=max(count, 1))
                first += count
        groups += [
            FileRowGroup(str(path), index, len(of_file), count, day) for index, count in enumerate(of_file)
        ]
    return groups


def whole(groups: list[FileRowGroup]) -> list[RowGroupRange]:
    return [RowGroupRange(group, 0, group.rows) for group in groups]


def scores_of(folder: Path, names: list[str]) -> pa.Table:
    return pa.concat_tables(pq.read_table(folder / split_name(name)[0]) for name in names)


def on_cpu(predictor: Predictor, pieces: list[RowGroupRange], folder: Path) -> pa.Table:
    return scores_of(folder, write_scores(predictor, pieces, str(folder), 1, 10**6))


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Writes scores as a task on a GPU does, although the device is the CPU."""

    def write(
        predictor: Predictor,
        pieces: list[RowGroupRange],
        folder: Path,
        cores: int = 4,
        file_rows: int = 10**6,
    ) -> list[str]:
        readers, writers = max(cores // 2, 1), max(cores // 4, 1)
        blocks = task.scored_blocks(predictor, pieces, readers, file_rows)
        return task._write_in_threads(task._tables(blocks, file_rows), str(folder), writers)

    return write


@given(
    sizes=st.lists(st.integers(1, 130), min_size=1, max_size=9),
    cores=st.integers(1, 9),
    file_rows=st.integers(1, 400),
    block_bytes=st.integers(1, 8_000),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_files_have_the_rows_that_a_cpu_writes(
    predictor: Predictor,
    tmp_path_factory: pytest.TempPathFactory,
    on_device: Callable[..., list[str]],
    sizes: list[int],
    cores: int,
    file_rows: int,
    block_bytes: int,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    pieces = whole(written(folder / "features", sizes, seed))
    # Pieces may begin and end within a row group.
    pieces[0] = replace(pieces[0], start=min(3, pieces[0].rows - 1))
    pieces[-1] = replace(pieces[-1], stop=max(pieces[-1].stop - 5, pieces[-1].start + 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "_BLOCK_BYTES", block_bytes)
        names = on_device(predictor, pieces, folder / "device", cores, file_rows)
    scores, expected = scores_of(folder / "device", names), on_cpu(predictor, pieces, folder / "cpu")
    assert scores.select(["row_id", "features_dt"]).equals(expected.select(["row_id", "features_dt"]))
    np.testing.assert_allclose(
        scores.column("probability").to_numpy(), expected.column("probability").to_numpy(), atol=1e-6
    )
    largest = max(piece.rows for piece in pieces)
    for name in names:
        footer = pq.read_metadata(folder / "device" / split_name(name)[0])
        assert footer.num_row_groups == 1
        assert 0 < footer.num_rows <= max(file_rows, largest)


def test_a_task_without_rows_writes_a_file_without_rows(
    predictor: Predictor, tmp_path: Path, on_device: Callable[..., list[str]]
) -> None:
    (of_cpu,), (of_device,) = (
        write_scores(predictor, [], str(tmp_path), 1, 9),
        on_device(predictor, [], tmp_path),
    )
    tables = [pq.read_table(tmp_path / split_name(name)[0]) for name in (of_cpu, of_device)]
    assert tables[0].equals(tables[1])
    assert not len(tables[0])
    assert [str(kind) for kind in tables[0].schema.types] == ["int64", "string", "float"]


def _set(rows: pa.Table, name: str, row: int, value: Any) -> pa.Table:
    values = rows.column(name).to_pylist()
    values[row] = value
    return rows.set_column(
        rows.schema.get_field_index(name), name, pa.array(values, rows.schema.field(name).type)
    )


WRONG: dict[str, Callable[[pa.Table], pa.Table]] = {
    "a large id": lambda rows: _set(rows, "who", 70, 30),
    "a negative id": lambda rows: _set(rows, "what", 5, -7),
    "a large id that lists cut off": lambda rows: _set(rows, "tags", 3, [1, 1, 1, 1, 9]),
    "a null": lambda rows: _set(rows, "age", 60, None),
    "NaN": lambda rows: _set(rows, "price", 70, float("nan")),
    "NaN before a large id": lambda rows: _set(_set(rows, "price", 3, float("nan")), "who", 70, 30),
    "a large id before NaN": lambda rows: _set(_set(rows, "price", 70, float("nan")), "who", 3, 30),
    "NaN before a null": lambda rows: _set(_set(rows, "price", 3, float("nan")), "who", 70, None),
    "a column less": lambda rows: rows.drop_columns(["who"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_those_of_a_cpu(
    predictor: Predictor, tmp_path: Path, on_device: Callable[..., list[str]], name: str
) -> None:
    pieces = whole(written(tmp_path / "rows", [40, 50], change=WRONG[name]))
    if "lists" in name and not predictor.spec.multi_hot:
        return
    with pytest.raises(DataError) as of_cpu:
        on_cpu(predictor, pieces, tmp_path)
    for block_bytes in (1, task._BLOCK_BYTES):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(task, "_BLOCK_BYTES", block_bytes)
            with pytest.raises(DataError) as of_device:
                on_device(predictor, pieces, tmp_path)
        assert str(of_device.value) == str(of_cpu.value)


def test_a_missing_file_is_reported_after_the_errors_of_earlier_rows(
    predictor: Predictor, tmp_path: Path, on_device: Callable[..., list[str]]
) -> None:
    groups = written(tmp_path / "rows", [40] * 8)
    Path(groups[-1].path).unlink()
    with pytest.raises(DataError, match="does not exist although a manifest names it"):
        on_device(predictor, whole(groups), tmp_path / "scores")
    first = _set(drawn_rows(80, 0), "price", 50, float("nan"))
    pq.write_table(first, groups[0].path, row_group_size=40)
    with pytest.raises(DataError, match="as NaN"):
        on_device(predictor, whole(groups), tmp_path / "scores")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("error", [MemoryError("no memory"), SystemExit(3), DataError("wrong", "again")])
def test_a_reader_that_fails_ends_the_task_with_its_error(
    predictor: Predictor,
    tmp_path: Path,
    on_device: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    pieces = whole(written(tmp_path / "rows", [40] * 12))
    read, before = read_piece, threading.active_count()

    def fail(piece: RowGroupRange, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        if piece is pieces[5]:
            raise error
        return read(piece, *arguments, **options)

    monkeypatch.setattr(task, "read_piece", fail)
    monkeypatch.setattr(task, "_BLOCK_BYTES", 1)
    with pytest.raises(type(error)) as caught:
        on_device(predictor, pieces, tmp_path / "scores", cores=8, file_rows=1)
    assert caught.value is error
    assert threading.active_count() == before


@pytest.mark.timeout(60)
def test_a_writer_that_fails_ends_the_task_with_its_error(
    predictor: Predictor, tmp_path: Path, on_device: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = whole(written(tmp_path / "rows", [40] * 40))
    monkeypatch.setattr(task, "_BLOCK_BYTES", 1)
    (tmp_path / "scores").write_text("a file, not a folder")
    read, before = Counter[str](), threading.active_count()
    original = read_piece

    def note(piece: RowGroupRange, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        read[piece.group.path] += 1
        return original(piece, *arguments, **options)

    monkeypatch.setattr(task, "read_piece", note)
    with pytest.raises(InfrastructureError, match="could not be written"):
        on_device(predictor, pieces, tmp_path / "scores", file_rows=40)
    assert sum(read.values()) < 20  # the task does not read on
    assert threading.active_count() == before


def test_few_blocks_are_in_memory(
    predictor: Predictor, tmp_path: Path, on_device: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows a task has: readers are ahead of the model, and the model is ahead of the writers."""
    pieces = whole(written(tmp_path / "rows", [30] * 60))
    monkeypatch.setattr(task, "_BLOCK_BYTES", 1)
    lock, in_memory, most = threading.Lock(), Counter[str](), Counter[str]()
    read, launch, write = task._DeviceRows.read, task._DeviceRows.launch, task.write_file

    def count(name: str, change: int) -> None:
        with lock:
            in_memory[name] += change
            most[name] = max(most[name], in_memory[name])

    def note_read(self: Any, block: Any) -> Any:
        count("blocks", 1)
        return read(self, block)

    def note_launch(self: Any, block: Any) -> Any:
        launched = launch(self, block)
        count("blocks", -1)
        count("files", 1)
        return launched

    def note_write(table: pa.Table, folder: str) -> str:
        threading.Event().wait(0.01)
        name = write(table, folder)
        count("files", -1)
        return name

    monkeypatch.setattr(task._DeviceRows, "read", note_read)
    monkeypatch.setattr(task._DeviceRows, "launch", note_launch)
    monkeypatch.setattr(task, "write_file", note_write)
    readers, writers = 3, 2
    blocks = task.scored_blocks(predictor, pieces, readers, 1)
    assert len(task._write_in_threads(task._tables(blocks, 1), str(tmp_path / "scores"), writers)) == 60
    assert in_memory == {"blocks": 0, "files": 0}
    assert most["blocks"] <= 2 * readers + 1
    assert most["files"] <= writers + 2 + task._AHEAD + 1


def test_on_a_device_everything_is_there_and_the_host_waits_once_for_each_block(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = written(tmp_path / "rows", [50, 60, 70, 80, 90])
    expected = on_cpu(predictor, whole(groups), tmp_path / "cpu")
    monkeypatch.setattr(task, "_BLOCK_BYTES", 1)
    path = saved(tmp_path / "model", predictor.spec)
    with checked_device() as (device, checks):
        monkeypatch.setattr(predictor_module, "choose_device", lambda *_: device)
        there = load_predictor(ModelRequest(path, "cpu", 37), None, 1)
        before = Counter(checks.waits)
        names = write_scores(there, whole(groups), str(tmp_path / "device"), 4, 140)
        waits = checks.waits - before
    scores = scores_of(tmp_path / "device", names)
    assert scores.select(["row_id", "features_dt"]).equals(expected.select(["row_id", "features_dt"]))
    np.testing.assert_allclose(
        scores.column("probability").to_numpy(), expected.column("probability").to_numpy(), atol=1e-6
    )
    assert waits["aten.copy_.default"] == len(groups)


def test_the_kernel_gives_the_model_what_torchs_operators_give(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = device_of_kernels(monkeypatch)
    groups = written(tmp_path / "rows", [33, 64, 31, 7])
    inputs: dict[bool, list[torch.Tensor]] = {}
    for kernels in (False, True):
        rows = task._DeviceRows(replace(predictor, device=device, kernels=kernels))
        blocks = [rows._read((piece,)) for piece in whole(groups)]
        inputs[kernels] = [tensor.cpu() for block in blocks for tensor in rows._inputs(block.columns)]
    for mine, other in zip(inputs[True], inputs[False], strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine, other)


def test_memory_that_runs_out_makes_micro_batches_smaller(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(predictor, micro_batch=MicroBatch(64))
    groups = written(tmp_path / "rows", [50, 60])
    inputs, failures = task._DeviceRows._inputs, [torch.OutOfMemoryError("out of memory")]

    def fail_once(self: Any, columns: torch.Tensor) -> Any:
        if failures:
            raise failures.pop()
        return inputs(self, columns)

    monkeypatch.setattr(task._DeviceRows, "_inputs", fail_once)
    blocks = list(task.scored_blocks(small, whole(groups), 1, 10**6))
    assert sum(map(len, blocks)) == 110
    assert small.micro_batch.rows == 32


def test_other_tools_read_the_files(predictor: Predictor, spark: SparkSession, tmp_path: Path) -> None:
    groups = written(tmp_path / "rows", [50, 60, 70])
    (name,) = write_scores(predictor, whole(groups), str(tmp_path / "scores"), 1, 10**6)
    path = tmp_path / "scores" / split_name(name)[0]
    expected = pa.Table.from_batches(score_pieces(predictor, whole(groups), 1))
    wanted = {column: expected.column(column).to_pylist() for column in expected.column_names}
    encodings = {
        chunk.path_in_schema: set(chunk.encodings)
        for chunk in map(pq.read_metadata(path).row_group(0).column, range(3))
    }
    assert "DELTA_BINARY_PACKED" in encodings["row_id"]
    assert "RLE_DICTIONARY" in encodings["features_dt"]
    assert pq.read_table(path).to_pydict() == wanted
    rows_of_file = list(zip(*wanted.values(), strict=True))
    assert duckdb.execute(f"SELECT * FROM '{path}'").fetchall() == rows_of_file
    assert polars.read_parquet(path).rows() == rows_of_file
    rows = spark.read.parquet(str(path))
    assert dict(rows.dtypes) == {"row_id": "bigint", "features_dt": "string", "probability": "float"}
    assert sorted(map(tuple, rows.collect())) == sorted(rows_of_file)
    assert rows.where("features_dt = '2026-01-03'").count() == 70
