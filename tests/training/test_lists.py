"""Features that are lists of ids on their way from Parquet to a batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import ConfigError, DataError
from conf.types import MultiHot
from storage.feature_spec import PAD_ID, FeatureSpec, pad_lists
from tests.training.feature_rows import Rows, make_spec, random_rows
from tests.training.feature_tables import write_file
from training.data.columns import Columns
from training.data.columns import read_columns as read_group
from training.data.loader import Loader
from training.data.sharding import DataFile, plan_shards, row_groups, shards_of_rank
from training.models.inputs import Inputs, id_columns

SPEC = make_spec(1, [50], lists=[30, 12])
MULTI_HOT = MultiHot(max_length=3, lengths={"L1": 6})
INT_LISTS = pa.list_(pa.int32())


@given(
    st.lists(st.none() | st.lists(st.integers(1, 99), max_size=5), max_size=8),
    st.integers(1, 6),
    st.integers(0, 3),
)
@settings(deadline=None)
def test_padding_keeps_the_first_ids_in_order(
    lists: list[list[int] | None], length: int, skipped: int
) -> None:
    array = pa.array(lists, INT_LISTS).slice(skipped)
    expected = [[*(ids or [])[:length], *[PAD_ID] * length][:length] for ids in lists[skipped:]]
    padded = pad_lists(array, length)
    assert padded.dtype == np.int32
    assert padded.shape == (len(expected), length)
    assert padded.tolist() == expected


def test_ids_stand_first_and_lists_behind_them_whatever_the_specs_order() -> None:
    places = [(feature.name, place.start, place.stop) for feature, place in id_columns(SPEC, MULTI_HOT)]
    assert places == [("C0", 0, 1), ("L0", 1, 4), ("L1", 4, 10)]
    assert SPEC.cardinalities == [50, 30, 12]
    assert Inputs.of(SPEC, MULTI_HOT) == Inputs(
        num_dense=1,
        cardinalities=[50, 30, 12],
        list_lengths=[3, 6],
        names=["C0", "L0", "L1"],
        dense_scopes=["user"],
        embedded_scopes=["user", "user", "item"],
    )
    with pytest.raises(ConfigError, match=r"model.multi_hot.lengths names \['C0', 'L7'\]"):
        id_columns(SPEC, MultiHot(lengths={"L1": 2, "C0": 2, "L7": 1}))


def read_columns(file: DataFile, spec: FeatureSpec, multi_hot: MultiHot) -> Columns:
    (group,) = row_groups([file])
    return read_group(group, spec, multi_hot)


def write_files(folder: Path, sizes: list[int]) -> tuple[list[DataFile], list[Rows]]:
    """Files whose dense column numbers all rows from 0."""
    files, written, first = [], [], 0
    for index, size in enumerate(sizes):
        rows = random_rows(SPEC, size, seed=index)
        rows.dense[:, 0] = np.arange(first, first + size)
        write_file(folder / f"part-{index}.parquet", SPEC, rows)
        files.append(DataFile(str(folder / f"part-{index}.parquet"), size))
        written.append(rows)
        first += size
    return files, written


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_list_arrives_with_its_row(tmp_path: Path, ranks: int) -> None:
    sizes = [120, 37, 1, 62]
    files, written = write_files(tmp_path, sizes)
    plan = plan_shards(sizes, 4, 32)
    seen = {}
    for rank in range(ranks):
        for batch in Loader(files, plan, shards_of_rank(4, rank, ranks), SPEC, 3, MULTI_HOT).batches():
            assert batch.categorical.shape[1] == 10
            assert batch.categorical.dtype == torch.int32
            assert not batch.categorical[batch.weights == 0].any()
            for number, ids in zip(
                batch.dense[batch.weights > 0, 0].tolist(),
                batch.categorical[batch.weights > 0].tolist(),
                strict=True,
            ):
                seen[int(number)] = ids
    assert sorted(seen) == list(range(sum(sizes)))
    first = 0
    for rows in written:
        for row in range(len(rows)):
            ids, short, long = seen[first + row][:1], seen[first + row][1:4], seen[first + row][4:]
            row_lists = [rows.lists[0][row][:3], rows.lists[1][row][:6]]
            assert ids == rows.categorical[row].tolist()
            assert short == row_lists[0] + [PAD_ID] * (3 - len(row_lists[0]))
            assert long == row_lists[1] + [PAD_ID] * (6 - len(row_lists[1]))
        first += len(rows)


@pytest.mark.parametrize("seed", [None, 3])
def test_rows_in_memory_give_the_batches_of_files(tmp_path: Path, seed: int | None) -> None:
    sizes = [120, 37, 1, 62]
    files, _ = write_files(tmp_path, sizes)
    tables = [pq.read_table(file.path) for file in files]
    chunked = pa.concat_tables([tables[0].slice(0, 50), tables[0].slice(50)])
    in_memory = [DataFile("the rows", table.num_rows, table=table) for table in (chunked, *tables[1:])]
    plan = plan_shards(sizes, 4, 32)
    loaded = [
        list(Loader(source, plan, range(4), SPEC, seed, MULTI_HOT).batches(epochs=2))
        for source in (files, in_memory)
    ]
    assert len(loaded[0]) == 2 * plan.steps
    for batch, other in zip(*loaded, strict=True):
        for name in ("dense", "categorical", "labels", "weights"):
            assert torch.equal(getattr(batch, name), getattr(other, name)), name


@pytest.mark.parametrize("name", ["L0", "C0", "label"])
def test_a_column_that_rows_in_memory_lack_is_named(tmp_path: Path, name: str) -> None:
    (file,), _ = write_files(tmp_path, [8])
    table = pq.read_table(file.path).drop_columns([name])
    with pytest.raises(DataError, match=rf"the rows lacks the columns \['{name}'\]"):
        read_columns(DataFile("the rows", 8, table=table), SPEC, MULTI_HOT)


def test_lists_that_are_cut_are_told_once_a_feature(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files, written = write_files(tmp_path, [40, 40])
    longer = sum(len(ids) > 3 for ids in written[0].lists[0])
    assert read_columns(files[0], SPEC, MULTI_HOT).cut == {"L0": longer}
    loader = Loader(files, plan_shards([40, 40], 2, 16), range(2), SPEC, None, MULTI_HOT)
    list(loader.batches(epochs=2))
    (warning,) = [record.getMessage() for record in caplog.records if "longer" in record.getMessage()]
    assert warning.startswith(f"L0: {longer} of the 40 lists in {files[0].path} are longer")


def broken(path: Path, name: str, values: pa.Array | None) -> DataFile:
    write_file(path, SPEC, random_rows(SPEC, 4, seed=0))
    table = pq.read_table(path)
    index = table.column_names.index(name)
    table = table.remove_column(index)
    pq.write_table(table if values is None else table.add_column(index, name, values), path)
    return DataFile(str(path), 4)


@pytest.mark.parametrize(
    "values, message",
    [
        (None, r"lacks the columns \['L1'\]"),
        (pa.array([[1], [None, 3, None], [2], []], INT_LISTS), "column L1 holds 2 null ids"),
        (
            pa.array([[1], [2], [2], []], pa.list_(pa.int64())),
            r"column L1 has type list<.*int64>, not list<int32>",
        ),
        (pa.array([1, 2, 3, 4], pa.int32()), r"column L1 has type int32, not list<int32>"),
    ],
)
def test_lists_that_are_not_what_the_spec_says_are_named(
    tmp_path: Path, values: pa.Array | None, message: str
) -> None:
    file = broken(tmp_path / "a.parquet", "L1", values)
    with pytest.raises(DataError, match=f"a.parquet:? {message}"):
        read_columns(file, SPEC, MULTI_HOT)


def test_a_null_list_is_an_empty_one(tmp_path: Path) -> None:
    file = broken(tmp_path / "a.parquet", "L1", pa.array([[1], None, [2], []], INT_LISTS))
    assert read_columns(file, SPEC, MULTI_HOT).categorical[2].tolist() == [
        [1] + [0] * 5,
        [0] * 6,
        [2] + [0] * 5,
        [0] * 6,
    ]


def test_an_id_beyond_the_lists_cardinality_is_named(tmp_path: Path) -> None:
    file = broken(tmp_path / "a.parquet", "L1", pa.array([[1], [2, 12], [2], []], INT_LISTS))
    loader = Loader([file], plan_shards([4], 1, 4), [0], SPEC, None, MULTI_HOT)
    with pytest.raises(
        DataError, match=r"a.parquet: L1 has ids from 0 to 12, but ids must be at least 0 and below 12"
    ):
        next(loader.batches())


def test_a_file_of_several_row_groups_keeps_its_lists_in_order(tmp_path: Path) -> None:
    rows = random_rows(SPEC, 100, seed=0)
    path = tmp_path / "a.parquet"
    write_file(path, SPEC, rows)
    pq.write_table(pq.read_table(path), path, row_group_size=30)
    columns = read_columns(DataFile(str(path), 100), SPEC, MULTI_HOT)
    assert np.array_equal(columns.categorical[2], pad_lists(pa.array(rows.lists[1], INT_LISTS), 6))
