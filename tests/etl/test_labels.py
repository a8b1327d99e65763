"""Training days without a click, or with clicks only, are bad data. The build stops before the fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conf.errors import DataError
from conf.types import Config
from storage.dataset import read_dataset, require_labels
from storage.manifest import is_published
from storage.paths import LakePaths
from tests.etl import cases

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]


def _with_label(line: str, label: str) -> str:
    fields = line.split("\t")
    return "\t".join([label, *fields[1:]]) if len(fields) == 13 and fields[0] in ("0", "1") else line


def _without_clicks(line: str) -> str:
    """Removes the last field of a click, so that it is quarantined."""
    return line.rsplit("\t", 1)[0] if line.startswith("1\t") else line


def _config(folder: Path, engine: str, train_days: list[list[str]]) -> Config:
    """The log of cases with other lines on its two train days."""
    changes = {"quality": {"max_bad_share": 0.9}, "workflow": {"engine": engine}}
    config = cases.write_config(folder, changes)
    later = [cases.make_lines(day, 60, seed) for seed, day in enumerate(DAYS[2:])]
    for day, lines in zip(DAYS, [*train_days, *later], strict=True):
        cases.write_day(folder / f"raw/dt={day}", lines)
    return config


NO_CLICK = r"contain no click \(2026-01-01: 0 of \d+ rows, 2026-01-02: 0 of \d+ rows"


@pytest.mark.parametrize(
    "engine, change, message",
    [
        ("sql", lambda line: _with_label(line, "0"), NO_CLICK),
        ("arrow", lambda line: _with_label(line, "0"), NO_CLICK),
        (
            "arrow",
            lambda line: _with_label(line, "1"),
            r"contain only clicks \(2026-01-01: 60 of 60 rows, .*120 of 120 ",
        ),
        ("arrow", _without_clicks, NO_CLICK),
    ],
    ids=["no click, sql", "no click, arrow", "only clicks", "clicks in quarantine"],
)
def test_one_label_in_all_train_days_stops_the_build(
    spark: SparkSession, tmp_path: Path, engine: str, change, message: str
) -> None:
    lines = [[change(line) for line in cases.make_lines(day, 60, 7)] for day in DAYS[:2]]
    config = _config(tmp_path, engine, lines)
    with pytest.raises(DataError, match=message) as caught:
        cases.run_build(spark, config, DAYS[-1])
    assert caught.value.exit_code == 3
    assert not is_published(LakePaths(config.lake).datasets.partition(DAYS[-1]))


def test_clicks_alone_are_enough_if_the_training_uses_no_other_rows() -> None:
    days = [("2026-01-01", 60, 60), ("2026-01-02", 60, 60)]
    require_labels(days, only_clicks=True)
    with pytest.raises(DataError, match="contain only clicks"):
        require_labels(days)
    with pytest.raises(DataError, match="contain no click") as caught:
        require_labels([("2026-01-01", 60, 0)], only_clicks=True)
    assert "split.train" in caught.value.remedy


def test_one_click_is_enough_and_lists_need_none(spark: SparkSession, tmp_path: Path) -> None:
    quiet = [[_with_label(line, "0") for line in cases.make_lines(day, 60, 7)] for day in DAYS[:2]]
    good = next(
        index for index, line in enumerate(quiet[1]) if line.startswith("0\t") and line.count("\t") == 12
    )
    clicked = [quiet[0], [*quiet[1][:good], _with_label(quiet[1][good], "1"), *quiet[1][good + 1 :]]]
    (tmp_path / "one").mkdir()
    config = _config(tmp_path / "one", "arrow", clicked)
    built = cases.run_build(spark, config, DAYS[-1])
    dataset = read_dataset(LakePaths(config.lake), DAYS[-1])
    assert [member.clicks for member in dataset.splits["train"]] == [0, 1]
    # Nothing is trained: the run applies the workflow of the champion.
    (tmp_path / "one/raw" / f"dt={DAYS[1]}" / "d.tsv").unlink()
    (tmp_path / "one/raw" / f"dt={DAYS[1]}" / "a.tsv").write_text("\n".join(quiet[1]) + "\n")
    for name in ("b.tsv.gz", "c.tsv"):
        (tmp_path / "one/raw" / f"dt={DAYS[1]}" / name).unlink()
    cases.run_build(spark, config, DAYS[-1], built.workflow.version)
    dataset = read_dataset(LakePaths(config.lake), DAYS[-1])
    assert [member.clicks for member in dataset.splits["train"]] == [0, 0]
