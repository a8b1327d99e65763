from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.contender import CATEGORICAL, COLUMNS, DENSE, LABEL
from benchmarks.criteo_log import CARDINALITIES, DayFile, make_log, zipf_ranks

ROWS = 30_001


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def log(cache: Path) -> list[DayFile]:
    return make_log(cache, ROWS, days=4)


@pytest.fixture(scope="module")
def rows(log: list[DayFile]) -> pd.DataFrame:
    days = [
        pd.read_csv(d.path, sep="\t", header=None, names=list(COLUMNS), dtype=str, keep_default_na=False)
        for d in log
    ]
    return pd.concat(days, ignore_index=True)


def test_days_share_the_rows_and_say_their_size(log: list[DayFile], rows: pd.DataFrame) -> None:
    assert [day.rows for day in log] == [7501, 7500, 7500, 7500]
    assert [day.dt for day in log] == ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]
    assert [Path(day.path).stat().st_size for day in log] == [day.bytes for day in log]
    assert len(rows) == ROWS


def test_processes_write_the_same_bytes(log: list[DayFile], tmp_path: Path) -> None:
    again = make_log(tmp_path, ROWS, days=4, processes=2)
    assert [day.bytes for day in again] == [day.bytes for day in log]
    assert [Path(day.path).read_bytes() for day in again] == [Path(day.path).read_bytes() for day in log]


def test_every_field_is_of_the_layout(rows: pd.DataFrame) -> None:
    assert set(rows[LABEL]) == {"0", "1"}
    for name in DENSE:
        assert rows[name].str.fullmatch(r"-?[0-9]*").all()
    for name in CATEGORICAL:
        assert rows[name].str.fullmatch(r"([0-9a-f]{8})?").all()
    assert rows["I2"].str.startswith("-").any()
    assert (rows["C22"] == "").mean() == pytest.approx(0.76, abs=0.02)
    assert (rows["I12"] == "").mean() == pytest.approx(0.77, abs=0.02)
    assert (rows["C1"] != "").all()


def test_columns_are_as_wide_as_criteos(rows: pd.DataFrame) -> None:
    distinct = dict(zip(CATEGORICAL, CARDINALITIES, strict=True))
    assert rows["C9"].nunique() == distinct["C9"]
    assert rows["C3"].nunique() > 0.5 * len(rows)  # Criteo's first 2,000 rows hold 1,293 values
    for name in CATEGORICAL:
        assert rows[name][rows[name] != ""].nunique() <= distinct[name]


def test_a_log_is_made_once_and_depends_on_its_parameters_alone(
    cache: Path, log: list[DayFile], tmp_path: Path
) -> None:
    before = Path(log[0].path).stat().st_mtime_ns
    assert make_log(cache, ROWS, days=4) == log
    assert Path(log[0].path).stat().st_mtime_ns == before
    again = make_log(tmp_path, ROWS, days=4)
    assert [
        Path(a.path).read_bytes() == Path(b.path).read_bytes() for a, b in zip(log, again, strict=True)
    ] == [True] * 4
    other = make_log(tmp_path, ROWS, days=4, seed=2)
    assert Path(other[0].path).read_bytes() != Path(log[0].path).read_bytes()


def test_a_log_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    days = make_log(tmp_path, 100, days=2)
    folder = Path(days[0].path).parent.parent
    (folder / "index.json").unlink()
    Path(days[1].path).write_text("half a li")
    assert make_log(tmp_path, 100, days=2) == days
    assert len(Path(days[1].path).read_text().splitlines()) == 50


def test_ranks_follow_zipfs_law() -> None:
    ranks = zipf_ranks(np.random.default_rng(0), 400_000, 1000)
    shares = np.bincount(ranks, minlength=1001)[1:] / len(ranks)
    expected = np.log1p(1 / np.arange(1, 1001)) / np.log(1001)
    assert np.abs(shares - expected).max() < 0.003
    assert ranks.min() == 1
    assert ranks.max() == 1000
