from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.agreement import Disagreement, compare, summarise
from benchmarks.contender import CATEGORICAL, COLUMNS, DENSE, LABEL, Day, Outcome

DAYS = (Day("2026-01-01", "a", True), Day("2026-01-02", "b", False))
ROWS = 2_000

Change = Callable[[dict[str, pd.DataFrame]], None]


def encoded() -> dict[str, pd.DataFrame]:
    """Random but plausible tables of both days. Ids 3 and 4 of C1 occur equally often in the train day."""
    rng = np.random.default_rng(0)
    days = {}
    for day in DAYS:
        dense = {name: np.log1p(rng.integers(0, 1000, ROWS)).astype(np.float32) for name in DENSE}
        ids = {name: rng.integers(1, 50, ROWS).astype(np.int32) for name in CATEGORICAL}
        ids["C1"] = (np.arange(ROWS) % 2 + 3).astype(np.int32)
        label = rng.integers(0, 2, ROWS).astype(np.float32)
        days[day.dt] = pd.DataFrame({LABEL: label, **dense, **ids})
    return days


def written(days: dict[str, pd.DataFrame], folder: Path, files: int = 1) -> Outcome:
    folder.mkdir()
    paths: dict[str, list[str]] = {}
    for dt, rows in days.items():
        parts = np.array_split(np.arange(len(rows)), files)
        paths[dt] = [str(folder / f"{dt}-{place}.parquet") for place in range(files)]
        for path, part in zip(paths[dt], parts, strict=True):
            pq.write_table(pa.Table.from_pandas(rows.iloc[part], preserve_index=False), path)
    return Outcome(paths)


def difference(tmp_path: Path, change: Change, ties: bool = True) -> str | None:
    """What `compare` says of tables that were changed; None when it finds them equal."""
    ours, theirs = encoded(), encoded()
    change(theirs)
    mine = summarise(DAYS, written(ours, tmp_path / "ours"))
    try:
        compare(mine, summarise(DAYS, written(theirs, tmp_path / "theirs", files=3)), "peer", ties)
    except Disagreement as error:
        return str(error)
    return None


def test_order_of_rows_and_files_and_columns_is_no_difference(tmp_path: Path) -> None:
    def shuffle(days: dict[str, pd.DataFrame]) -> None:
        for dt in days:
            days[dt] = days[dt].sample(frac=1.0, random_state=1)[list(reversed(COLUMNS))]

    assert difference(tmp_path, shuffle) is None


def one_cell(name: str, value: float) -> Change:
    def change(days: dict[str, pd.DataFrame]) -> None:
        days["2026-01-02"].loc[7, name] = value

    return change


def drop_a_row(days: dict[str, pd.DataFrame]) -> None:
    days["2026-01-01"] = days["2026-01-01"].iloc[1:]


def move_a_row_to_the_other_day(days: dict[str, pd.DataFrame]) -> None:
    first, second = days["2026-01-01"], days["2026-01-02"]
    days["2026-01-01"] = pd.concat([first.iloc[1:], second.iloc[:1]])
    days["2026-01-02"] = pd.concat([second.iloc[1:], first.iloc[:1]])


def shift_ids_against_the_other_columns(days: dict[str, pd.DataFrame]) -> None:
    for rows in days.values():
        rows["C5"] = np.roll(rows["C5"].to_numpy(), 1)


def shift_dense_values_against_the_ids(days: dict[str, pd.DataFrame]) -> None:
    for rows in days.values():
        rows["I3"] = np.roll(rows["I3"].to_numpy(), 1)


def change_the_logarithm(days: dict[str, pd.DataFrame]) -> None:
    for rows in days.values():
        rows["I9"] = np.log(np.expm1(rows["I9"].astype(np.float64)) + 3).astype(np.float32)


@pytest.mark.parametrize(
    "change, words",
    [
        (one_cell("C26", 3), "C26"),
        (one_cell("C26", 77), "C26"),
        (one_cell(LABEL, 5), "label"),
        (drop_a_row, "rows per day"),
        (move_a_row_to_the_other_day, "ids differ"),
        (shift_ids_against_the_other_columns, "whole rows"),
        (shift_dense_values_against_the_ids, "I3: in their rows"),
        (change_the_logarithm, "I9"),
    ],
)
@pytest.mark.parametrize("ties", [True, False])
def test_a_difference_is_found_and_named(tmp_path: Path, change: Change, words: str, ties: bool) -> None:
    message = difference(tmp_path, change, ties)
    assert message is not None
    assert words in message


def swap_two_ids(name: str, low: int, high: int) -> Change:
    def change(days: dict[str, pd.DataFrame]) -> None:
        for rows in days.values():
            rows[name] = rows[name].map({low: high, high: low}).fillna(rows[name]).astype(np.int32)

    return change


def test_ids_of_equal_counts_may_be_swapped_only_where_ties_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    assert difference(tmp_path / "1", swap_two_ids("C1", 3, 4), ties=False) is None
    assert difference(tmp_path / "2", swap_two_ids("C1", 3, 4), ties=True) is not None


def test_null_is_not_unknown_even_where_ties_do_not_matter(tmp_path: Path) -> None:
    assert difference(tmp_path, swap_two_ids("C2", 1, 2), ties=False) is not None


def test_normalised_values_are_compared_as_they_were_before(tmp_path: Path) -> None:
    plain, normalised = encoded(), encoded()
    numbers = {}
    train = plain[DAYS[0].dt]
    for name in DENSE:
        numbers[name] = (
            float(train[name].astype(float).mean()),
            float(train[name].astype(float).std(ddof=0)),
        )
        for rows in normalised.values():
            rows[name] = ((rows[name].astype(float) - numbers[name][0]) / numbers[name][1]).astype(np.float32)
    theirs = summarise(DAYS, written(plain, tmp_path / "plain"))
    files = written(normalised, tmp_path / "normalised").files
    compare(summarise(DAYS, Outcome(files, numbers)), theirs, "peer")
    wrong = {**numbers, "I1": (numbers["I1"][0] + 0.01, numbers["I1"][1])}
    with pytest.raises(Disagreement, match="I1"):
        compare(summarise(DAYS, Outcome(files, wrong)), theirs, "peer")
    with pytest.raises(Disagreement, match="not normalised"):
        summarise(DAYS, Outcome(written(plain, tmp_path / "again").files, numbers))


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda rows: rows.astype({"C3": np.int64}), "C3 must be int32"),
        (lambda rows: rows.astype({"I3": np.float64}), "I3 must be float"),
        (lambda rows: rows.drop(columns="C4"), "C4"),
        (lambda rows: rows.assign(I5=rows["I5"].where(rows.index != 3)), "nulls in {'I5': 1}"),
        (
            lambda rows: rows.assign(C6=rows["C6"].where(rows.index != 3, 0).astype(np.int32)),
            "C6 holds the id 0",
        ),
    ],
)
def test_a_table_of_another_shape_is_refused(
    tmp_path: Path, change: Callable[[pd.DataFrame], pd.DataFrame], words: str
) -> None:
    days = encoded()
    days["2026-01-01"] = change(days["2026-01-01"])
    with pytest.raises(Disagreement, match=words):
        summarise(DAYS, written(days, tmp_path / "them"))
