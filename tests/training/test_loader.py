"""The loader on real Parquet through Petastorm: conservation of rows, determinism, and wrong data."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from petastorm.workers_pool import dummy_pool

from conf.errors import DataError
from conf.types import MultiHot, Reading
from storage.feature_spec import FeatureSpec
from tests.training.feature_rows import Rows, make_spec, random_rows
from tests.training.feature_tables import write_file
from training.data import columns as columns_module
from training.data import loader as loader_module
from training.data import row_groups as row_groups_module
from training.data.batch import Batch
from training.data.columns import Columns, scalar_columns
from training.data.columns import read_columns as read_group
from training.data.loader import Loader
from training.data.row_groups import read_row_group, read_together
from training.data.sharding import DataFile, plan_shards, row_groups, shards_of_rank

SPEC = make_spec(2, [50, 7, 9])
SIZES = [120, 37, 1, 195, 90]
SHARDS, BATCH = 8, 64


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[DataFile]:
    """Files whose first dense column numbers all rows from 0."""
    folder = tmp_path_factory.mktemp("dt=2026-01-01")
    files, first = [], 0
    for index, size in enumerate(SIZES):
        rows = random_rows(SPEC, size, seed=index)
        rows.dense[:, 0] = np.arange(first, first + size)
        path = folder / f"part-{index}.parquet"
        write_file(path, SPEC, rows)
        files.append(DataFile(str(path), size))
        first += size
    return files


def read_columns(file: DataFile, spec: FeatureSpec, multi_hot: MultiHot) -> Columns:
    (group,) = row_groups([file])
    return read_group(group, spec, multi_hot)


def make_loader(files: list[DataFile], rank: int = 0, ranks: int = 1, seed: int | None = 3) -> Loader:
    """Of pools of 4 batches, so that there are two an epoch."""
    plan = plan_shards([group.rows for group in row_groups(files)], SHARDS, BATCH)
    return Loader(files, plan, shards_of_rank(SHARDS, rank, ranks), SPEC, seed, reading=Reading(pool_rows=1))


def side_by_side(batches: list[Batch]) -> Batch:
    """The global batch of the ranks' batches."""
    fields = [
        torch.cat([getattr(batch, name) for batch in batches])
        for name in ("dense", "categorical", "labels", "weights")
    ]
    return Batch(*fields, batches[0].global_weight)


def assert_equal(actual: Batch, expected: Batch) -> None:
    for name in ("dense", "categorical", "labels", "weights"):
        assert torch.equal(getattr(actual, name), getattr(expected, name)), name
    assert actual.global_weight == expected.global_weight


def test_every_row_arrives_once_whole_and_in_another_order_each_epoch(files: list[DataFile]) -> None:
    written = [read_columns(file, SPEC, MultiHot()) for file in files]
    categorical = np.concatenate([np.stack(rows.categorical, axis=1) for rows in written])
    labels = np.concatenate([rows.label for rows in written])
    loader = make_loader(files)
    orders = []
    steps = loader.plan.steps
    batches = list(loader.batches(epochs=2))
    assert len(batches) == 2 * steps
    for epoch in (batches[:steps], batches[steps:]):
        real = [batch.weights > 0 for batch in epoch]
        rows = torch.cat([b.dense[mask, 0] for b, mask in zip(epoch, real, strict=True)]).long().numpy()
        assert sorted(rows) == list(range(sum(SIZES)))
        ids = torch.cat([b.categorical[mask] for b, mask in zip(epoch, real, strict=True)]).numpy()
        assert np.array_equal(ids, categorical[rows])
        assert np.array_equal(
            torch.cat([b.labels[mask] for b, mask in zip(epoch, real, strict=True)]).numpy(), labels[rows]
        )
        assert [int(b.weights.sum()) for b in epoch] == [b.global_weight for b in epoch]
        orders.append(rows)
    assert not np.array_equal(*orders)
    assert not np.array_equal(orders[0], np.arange(sum(SIZES)))


def test_padding_is_zero_everywhere(files: list[DataFile]) -> None:
    *_, last = make_loader(files).batches()
    padding = last.weights == 0
    assert int(padding.sum()) == BATCH - sum(SIZES) % BATCH
    assert not last.dense[padding].any()
    assert not last.categorical[padding].any()
    assert not last.labels[padding].any()


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_batches_do_not_depend_on_ranks(files: list[DataFile], ranks: int) -> None:
    alone = list(make_loader(files).batches(epochs=2))
    together = [list(make_loader(files, rank, ranks).batches(epochs=2)) for rank in range(ranks)]
    for expected, *parts in zip(alone, *together, strict=True):
        assert_equal(side_by_side(parts), expected)


@pytest.mark.parametrize("step", [0, 1, 3, 6, 7, 8, 13])
def test_an_epoch_can_begin_at_any_step(files: list[DataFile], step: int) -> None:
    whole = list(make_loader(files).batches(epochs=2))
    resumed = list(make_loader(files).batches(epochs=2, first_step=step))
    assert len(resumed) == len(whole) - step
    for actual, expected in zip(resumed, whole[step:], strict=True):
        assert_equal(actual, expected)


def test_without_a_seed_rows_keep_their_order(files: list[DataFile]) -> None:
    loader = Loader(files, plan_shards(SIZES, 1, 50), [0], SPEC, seed=None)
    rows = torch.cat([batch.dense[batch.weights > 0, 0] for batch in loader.batches()])
    assert rows.tolist() == list(range(sum(SIZES)))


def test_one_small_file_and_more_shards_than_rows(tmp_path: Path) -> None:
    write_file(tmp_path / "a.parquet", SPEC, random_rows(SPEC, 3, seed=0))
    (batch,) = make_loader([DataFile(str(tmp_path / "a.parquet"), 3)]).batches()
    assert int(batch.weights.sum()) == batch.global_weight == 3


@pytest.mark.parametrize("num_dense, cardinalities", [(0, [5]), (2, [])])
def test_a_spec_may_lack_one_kind(tmp_path: Path, num_dense: int, cardinalities: list[int]) -> None:
    spec = make_spec(num_dense, cardinalities)
    write_file(tmp_path / "a.parquet", spec, random_rows(spec, 10, seed=0))
    files = [DataFile(str(tmp_path / "a.parquet"), 10)]
    (batch,) = Loader(files, plan_shards([10], 1, 16), [0], spec, seed=0).batches()
    assert batch.dense.shape == (16, num_dense)
    assert batch.categorical.shape == (16, len(cardinalities))


def test_a_path_is_no_url(tmp_path: Path) -> None:
    """Neither # and ? nor escapes have a meaning in a path."""
    folder = tmp_path / "a b#c?d=%20"
    folder.mkdir()
    write_file(folder / "part.parquet", SPEC, random_rows(SPEC, 30, seed=1))
    assert len(read_columns(DataFile(str(folder / "part.parquet"), 30), SPEC, MultiHot()).label) == 30


def test_several_row_groups_are_read_in_order(tmp_path: Path) -> None:
    rows = random_rows(SPEC, 100, seed=0)
    path = tmp_path / "a.parquet"
    write_file(path, SPEC, rows)
    pq.write_table(pq.read_table(path), path, row_group_size=30)
    columns = read_columns(DataFile(str(path), 100), SPEC, MultiHot())
    assert np.array_equal(columns.label, rows.labels)
    assert np.array_equal(columns.categorical[2], rows.categorical[:, 2])


@pytest.mark.parametrize("seed", [None, 3])
def test_a_file_may_be_read_by_row_group(tmp_path: Path, seed: int | None) -> None:
    rows = random_rows(SPEC, 100, seed=0)
    rows.dense[:, 0] = np.arange(100)
    path = tmp_path / "a.parquet"
    write_file(path, SPEC, rows)
    pq.write_table(pq.read_table(path), path, row_group_size=30)
    file = DataFile(str(path), 100, (30, 30, 30, 10))
    assert [group.rows for group in row_groups([file])] == [30, 30, 30, 10]
    (*_, last) = row_groups([file])
    assert np.array_equal(read_group(last, SPEC, MultiHot()).label, rows.labels[90:])
    batches = list(make_loader([file], seed=seed).batches())
    row_numbers = torch.cat([batch.dense[batch.weights > 0, 0] for batch in batches]).long().numpy()
    assert sorted(row_numbers) == list(range(100))
    ids = torch.cat([batch.categorical[batch.weights > 0] for batch in batches]).numpy()
    assert np.array_equal(ids, rows.categorical[row_numbers])


def test_row_groups_that_the_manifest_does_not_know_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_file(path, SPEC, random_rows(SPEC, 100, seed=0))
    with pytest.raises(DataError, match=r"a.parquet has 100 rows, but its row groups together have 99 rows"):
        row_groups([DataFile(str(path), 100, (50, 49))])
    first, second = row_groups([DataFile(str(path), 100, (50, 50))])
    with pytest.raises(DataError, match=r"a.parquet is not a Parquet file with 2 row groups"):
        read_group(second, SPEC, MultiHot())
    pq.write_table(pq.read_table(path), path, row_group_size=40)
    with pytest.raises(DataError, match=r"row group 0 of .*a.parquet has 60 rows, but its manifest says 50"):
        read_group(first, SPEC, MultiHot())


def test_a_file_that_is_cut_off_or_no_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_file(path, SPEC, random_rows(SPEC, 100, seed=0))
    whole = path.read_bytes()
    for damaged in (whole[:-9], b"", b"PAR1 and nothing more of it PAR1"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a.parquet is not a Parquet file"):
            read_columns(DataFile(str(path), 100), SPEC, MultiHot())


def broken(path: Path, **columns: object) -> DataFile:
    write_file(path, SPEC, random_rows(SPEC, 10, seed=0))
    table = pq.read_table(path)
    for name, values in columns.items():
        index = table.column_names.index(name)
        table = table.remove_column(index)
        if values is not None:
            table = table.add_column(index, name, values)
    pq.write_table(table, path)
    return DataFile(str(path), 10)


def test_wrong_rows_columns_types_and_nulls_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    good = broken(path)
    with pytest.raises(DataError, match=r"a.parquet has 10 rows, but its manifest says 11"):
        read_columns(replace(good, rows=11), SPEC, MultiHot())
    with pytest.raises(DataError, match=r"gone.parquet does not exist although a manifest names it"):
        read_columns(DataFile(str(tmp_path / "gone.parquet"), 10), SPEC, MultiHot())
    with pytest.raises(DataError, match=r"lacks the columns \['C1'\]"):
        read_columns(broken(path, C1=None), SPEC, MultiHot())
    with pytest.raises(DataError, match="column C1 was read as float64, but must be int32"):
        read_columns(broken(path, C1=pa.array([None, *range(9)], pa.int32())), SPEC, MultiHot())
    with pytest.raises(DataError, match="column I0 was read as float64, but must be float32"):
        read_columns(broken(path, I0=pa.array(range(10), pa.float64())), SPEC, MultiHot())


def out_of_range(spec: FeatureSpec) -> Rows:
    rows = random_rows(spec, 10, seed=0)
    rows.categorical[4, 1] = 7
    return rows


def test_ids_outside_the_cardinality_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_file(path, SPEC, out_of_range(SPEC))
    with pytest.raises(
        DataError, match=r"a.parquet: C1 has ids from \d to 7, but ids must be at least 0 and below 7"
    ):
        next(make_loader([DataFile(str(path), 10)]).batches())


def test_reading_is_silent(files: list[DataFile], capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        next(make_loader(files).batches())
    assert [warning for warning in caught if warning.category is FutureWarning] == []
    assert capsys.readouterr().out == ""


def test_row_groups_are_read_together_in_any_order(tmp_path: Path) -> None:
    """And only if all files have the row groups of their manifest."""
    files = []
    for number in range(3):
        path = tmp_path / f"part {number}.parquet"
        write_file(path, SPEC, random_rows(SPEC, 100, seed=number))
        pq.write_table(pq.read_table(path), path, row_group_size=30)
        files.append(DataFile(str(path), 100, (30, 30, 30, 10)))
    groups = row_groups(files)
    names = list(scalar_columns(SPEC))
    order = np.random.default_rng(4).permutation(len(groups))
    together = list(read_together([groups[index] for index in order], names))
    assert len(together) == len(groups) == 12
    for index, columns in zip(order, together, strict=True):
        alone = read_row_group(groups[index], names)
        assert {*columns} == {*alone} == {*names}
        for name in names:
            np.testing.assert_array_equal(columns[name], alone[name])
    wrong = replace(groups[5], count=3)
    assert list(read_together([groups[0], wrong], names)) == []
    (tmp_path / "part 2.parquet").unlink()
    assert list(read_together(groups, names)) == []
    assert list(read_together([], names)) == []


def test_names_of_columns_need_not_be_identifiers(tmp_path: Path) -> None:
    """A feature may have a name such as `release year`; the values do not depend on the names."""
    names = ["release year", "price-eur", "class", "2nd", "fields", "price (EUR)", "a|b", "é"]
    path = tmp_path / "part.parquet"
    values = {name: np.arange(70) * number for number, name in enumerate(names)}
    pq.write_table(pa.table({**values, "other": np.zeros(70)}), path, row_group_size=30)
    groups = row_groups([DataFile(str(path), 70, (30, 30, 10))])
    together = list(read_together(groups, names))
    assert len(together) == 3
    for number, (group, columns) in enumerate(zip(groups, together, strict=True)):
        alone = read_row_group(group, names)
        assert {*columns} == {*alone} == {*names}
        for name in names:
            expected = values[name][30 * number : 30 * number + 30]
            np.testing.assert_array_equal(columns[name], expected)
            np.testing.assert_array_equal(alone[name], expected)


def without_petastorm(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (columns_module, loader_module):
        monkeypatch.setattr(module, "has_petastorm", lambda: False)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Petastorm was used")

    monkeypatch.setattr(row_groups_module, "_open", refuse)


def test_without_petastorm_the_batches_are_the_same(
    tmp_path: Path, files: list[DataFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment of the wheel has no Petastorm."""
    path = tmp_path / "part.parquet"
    write_file(path, SPEC, random_rows(SPEC, 100, seed=9))
    pq.write_table(pq.read_table(path), path, row_group_size=30)
    several = [*files, DataFile(str(path), 100, (30, 30, 30, 10))]
    expected = list(make_loader(several).batches())
    without_petastorm(monkeypatch)
    actual = list(make_loader(several).batches())
    assert len(actual) == len(expected) > 0
    for one, other in zip(actual, expected, strict=True):
        assert_equal(one, other)
    wrong = DataFile(str(path), 100, (60, 40))
    with pytest.raises(DataError, match=r"part.parquet is not a Parquet file with 2 row groups: it has 4"):
        next(make_loader([wrong]).batches())
    path.write_bytes(b"no Parquet")
    with pytest.raises(DataError, match=r"part.parquet is not a Parquet file with 4 row groups"):
        next(make_loader(several[-1:]).batches())


def test_a_file_is_opened_once_for_its_row_groups_and_nothing_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Petastorm's own pool sleeps for 100 ms when a row group is read faster than the next one is queued."""
    path = tmp_path / "part.parquet"
    write_file(path, SPEC, random_rows(SPEC, 400, seed=1))
    pq.write_table(pq.read_table(path), path, row_group_size=10)
    groups = row_groups([DataFile(str(path), 400, (10,) * 40)])
    opened: list[object] = []
    slept: list[float] = []
    whole = pq.ParquetFile

    def opens(*arguments: Any, **options: Any) -> pq.ParquetFile:
        opened.append(arguments[0])
        return whole(*arguments, **options)

    monkeypatch.setattr(row_groups_module.pq, "ParquetFile", opens)
    monkeypatch.setattr(dummy_pool, "sleep", slept.append)
    assert len(list(read_together(groups, list(scalar_columns(SPEC))))) == 40
    assert opened.count(str(path)) == 1
    assert slept == []


def test_a_missing_file_is_named_before_the_first_batch(tmp_path: Path) -> None:
    files = []
    for number in range(4):
        path = tmp_path / f"part-{number}.parquet"
        write_file(path, SPEC, random_rows(SPEC, 64, seed=number))
        files.append(DataFile(str(path), 64))
    Path(files[3].path).unlink()
    plan = plan_shards([64] * 4, 1, 64)
    with pytest.raises(DataError, match=r"part-3.parquet does not exist although a manifest names it"):
        Loader(files, plan, [0], SPEC, None, reading=Reading(pool_rows=1))
