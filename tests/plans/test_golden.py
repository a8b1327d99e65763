"""Compares the shapes of the physical plans of whole jobs with golden files. New or missing exchanges, sorts,
windows and aggregates become visible and are reviewed.

After a deliberate change write the files anew: python -m tests.plans.test_golden [run …]
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from spark.profile import read_properties
from spark.session import build_session
from tests.plans.recorder import Frame, Recorded, record
from tests.plans.runs import RUNS

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"


def plans_of(frames: Sequence[Frame]) -> str:
    """The shapes of a run's frames, in order; those of one name that look alike once."""
    sections = dict.fromkeys(f"## {frame.name}\n{frame.shape}" for frame in frames)
    return "\n".join(sections)


@pytest.mark.parametrize("run", sorted(RUNS))
def test_plans_are_the_golden_ones(run: str, recorded: Callable[[str], Recorded]) -> None:
    expected = (GOLDEN / f"{run}.txt").read_text(encoding="utf-8")
    assert plans_of(recorded(run).frames) == expected, "if this is meant: python -m tests.plans.test_golden"


def test_every_golden_file_has_its_run() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.txt")) == sorted(RUNS)


@pytest.mark.parametrize("run", sorted(RUNS))
def test_text_never_enters_spark_as_text(run: str) -> None:
    """Tasks parse it. Spark reads Parquet files and Arrow batches."""
    plans = (GOLDEN / f"{run}.txt").read_text(encoding="utf-8").split("## ")
    of_etl = "".join(plan for plan in plans if plan.startswith("etl."))
    assert set(re.findall(r"FileScan (\w+)", of_etl)) <= {"parquet"}


def write_golden(names: Sequence[str]) -> None:
    """Writes the files of these runs, in a session like that of the tests."""
    settings = read_properties(ROOT / "conf/spark/local.conf")
    with tempfile.TemporaryDirectory() as scratch:
        settings |= {"spark.local.dir": scratch, "spark.sql.warehouse.dir": f"{scratch}/warehouse"}
        spark = build_session("golden plans", settings)
        GOLDEN.mkdir(exist_ok=True)
        for name in names:
            folder = Path(scratch) / name
            folder.mkdir()
            frames = record(spark, name, folder, None).frames
            (GOLDEN / f"{name}.txt").write_text(plans_of(frames), encoding="utf-8")
        spark.stop()


if __name__ == "__main__":
    write_golden(sys.argv[1:] or sorted(RUNS))
