"""Tasks of score_rows: NumPy's probabilities, however rows are divided; wrong files are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conf.errors import DataError
from scoring.model.predictor import Predictor, load_predictor
from scoring.requests import ModelRequest
from scoring.rows import score_batch as row_batches
from scoring.rows.file_splits import FileRowGroup, RowGroupRange, divide_rows
from scoring.rows.score_batch import read_piece, score_pieces
from scoring.rows.task import write_scores
from storage.feature_spec import FeatureSpec
from storage.file_digests import split_name
from tests.scoring import test_multi_hot as lists
from tests.scoring.reference_scores import SPEC, ReferenceScores
from tests.scoring.scoring_lake import feature_rows

ROWS, GROUP_ROWS = 150, 40


@pytest.fixture
def rows(reference: ReferenceScores) -> pa.Table:
    """Feature rows of a day."""
    return feature_rows(reference, day=1, rows=ROWS)


@pytest.fixture
def predictor(reference: ReferenceScores) -> Predictor:
    """A predictor with small micro-batches."""
    return load_predictor(ModelRequest(reference.request.model.path, "cpu", 16), None, 1)


def write(path: Path, rows: pa.Table, dt: str = "2026-01-02") -> list[FileRowGroup]:
    """The rows as a file of several row groups, the last one shorter."""
    pq.write_table(rows, path, row_group_size=GROUP_ROWS)
    footer = pq.read_metadata(path)
    count = footer.num_row_groups
    return [
        FileRowGroup(str(path), index, count, footer.row_group(index).num_rows, dt) for index in range(count)
    ]


def expected_of(reference: ReferenceScores, rows: pa.Table) -> np.ndarray:
    """NumPy's probabilities of feature rows."""
    frame: pd.DataFrame = rows.to_pandas()
    users = pd.Index(reference.users.user_key).get_indexer(pd.Index(frame.user_key))
    items = pd.Index(reference.items.item_key).get_indexer(pd.Index(frame.item_key))
    return reference.probabilities[users, items]


@pytest.mark.parametrize("slots, batch_rows", [(1, 1000), (7, 1000), (4, 3), (150, 1)])
def test_probabilities_do_not_depend_on_tasks_and_batches(
    reference: ReferenceScores,
    rows: pa.Table,
    predictor: Predictor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    slots: int,
    batch_rows: int,
) -> None:
    monkeypatch.setattr(row_batches, "_MIN_BATCH_ROWS", batch_rows)
    groups = [*write(tmp_path / "a", rows.slice(0, 90)), *write(tmp_path / "b", rows.slice(90), "2026-01-03")]
    folder = tmp_path / "scores"
    tasks = divide_rows(groups, slots, max_rows=10_000)
    files = [
        folder / split_name(name)[0]
        for task in tasks
        for name in write_scores(predictor, task, str(folder), 1, 10_000)
    ]
    actual = pa.concat_tables(pq.read_table(path) for path in files).to_pandas()
    assert actual.row_id.tolist() == rows.column("row_id").to_pylist()
    assert actual.features_dt.tolist() == ["2026-01-02"] * 90 + ["2026-01-03"] * 60
    np.testing.assert_allclose(actual.probability, expected_of(reference, rows), atol=1e-6)
    assert sorted(folder.iterdir()) == sorted(files)
    assert {pq.read_metadata(path).num_row_groups for path in files} == {1}


def test_a_task_that_runs_twice_writes_the_same_rows_to_a_file_of_its_own(
    rows: pa.Table, predictor: Predictor, tmp_path: Path
) -> None:
    """A repeated task writes another file than the killed one, and a manifest names only one of them."""
    (task,) = divide_rows(write(tmp_path / "rows", rows), 1, 1000)
    names = [write_scores(predictor, task, str(tmp_path / "scores"), 1, 1000) for _ in range(2)]
    first, second = (split_name(name)[0] for (name,) in names)
    assert first != second
    both = [pq.read_table(tmp_path / "scores" / name) for name in (first, second)]
    assert both[0].equals(both[1])
    assert len(both[0]) == ROWS


def test_lists_of_ids_are_read_from_files(tmp_path: Path) -> None:
    state = lists.write_model(tmp_path / "model")
    users, items = lists.tables()
    user, item = np.repeat(np.arange(lists.USERS), lists.ITEMS), np.tile(np.arange(lists.ITEMS), lists.USERS)
    pairs = {name: users.column(name).take(pa.array(user)) for name in ("who", "history")}
    pairs |= {name: items.column(name).take(pa.array(item)) for name in ("tags", "price")}
    pairs["campaigns"] = pa.array([[3, 5, 4]] * len(user), lists.LIST)
    pairs["history"] = pa.array(
        [None if ids == [] else ids for ids in pairs["history"].to_pylist()], lists.LIST
    )
    table = pa.table({"row_id": pa.array(range(len(user))), **pairs})
    groups = write(tmp_path / "rows", table)
    model = load_predictor(ModelRequest(str(tmp_path / "model"), "cpu", 10), None, 1)
    actual = pa.Table.from_batches(
        batch for task in divide_rows(groups, 3, 100) for batch in score_pieces(model, task, 1)
    )
    expected = [
        lists.probability(state, who, what) for who in users.to_pylist() for what in items.to_pylist()
    ]
    np.testing.assert_allclose(actual.column("probability").to_numpy(), expected, atol=1e-6)


def read_all(groups: list[FileRowGroup], spec: FeatureSpec = SPEC) -> int:
    """Number of rows that are read."""
    pieces = [RowGroupRange(group, 0, group.rows) for group in groups]
    return sum(batch.num_rows for piece in pieces for batch in read_piece(piece, spec, ["row_id"], 64))


def _set(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, values)


DAMAGE: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "a column less": (
        lambda rows: rows.drop_columns(["price", "kind"]),
        r"lacks the columns \['price', 'kind'\]",
    ),
    "another type": (
        lambda rows: _set(rows, "age", pa.array(np.zeros(len(rows)))),
        "column age has type double, not float32",
    ),
    "nulls": (
        lambda rows: _set(rows, "what", pa.array([None] + [3] * (len(rows) - 1), pa.int32())),
        "column what holds 1 nulls",
    ),
    "a large id": (
        lambda rows: _set(rows, "kind", pa.array([7] * len(rows), pa.int32())),
        r"kind has ids from 7 to 7, but ids must be at least 0 and below 7",
    ),
    "a negative id": (
        lambda rows: _set(rows, "who", pa.array([-1] * len(rows), pa.int32())),
        r"who has ids from -1 to -1, but ids must be at least 0 and below 30",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_rows_that_do_not_fit_the_spec_are_refused(rows: pa.Table, tmp_path: Path, name: str) -> None:
    damage, message = DAMAGE[name]
    assert read_all(write(tmp_path / "whole", rows)) == ROWS
    with pytest.raises(DataError, match=message) as caught:
        read_all(write(tmp_path / "damaged", damage(rows)))
    assert str(tmp_path / "damaged") in caught.value.problem
    assert "build_features" in caught.value.remedy


def test_files_that_are_not_what_the_manifest_says_are_refused(rows: pa.Table, tmp_path: Path) -> None:
    groups = write(tmp_path / "rows", rows)
    write(tmp_path / "rows", rows.slice(1))
    with pytest.raises(
        DataError, match=r"row groups of \[40, 40, 40, 29\] rows, but its manifest says 4 row groups"
    ):
        read_all(groups)
    write(tmp_path / "rows", rows.slice(0, 30))
    with pytest.raises(DataError, match=r"row groups of \[30\] rows"):
        read_all(groups)
    (tmp_path / "rows").write_bytes(b"PAR1 is how such a file begins, but this one never ends")
    with pytest.raises(DataError, match="is not a complete Parquet file"):
        read_all(groups)
    (tmp_path / "rows").unlink()
    with pytest.raises(DataError, match=r"rows does not exist although a manifest names it"):
        read_all(groups)


def test_a_nan_row_is_named_with_its_date(rows: pa.Table, predictor: Predictor, tmp_path: Path) -> None:
    prices = rows.column("price").to_numpy().copy()
    prices[77] = np.nan
    groups = write(tmp_path / "rows", _set(rows, "price", pa.array(prices)))
    with pytest.raises(DataError, match=r"row \{'row_id': 77, 'features_dt': '2026-01-02'\} as NaN"):
        list(score_pieces(predictor, [RowGroupRange(group, 0, group.rows) for group in groups], 1))
