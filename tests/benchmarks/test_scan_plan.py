"""The benchmark that counts scans and bytes, on a small log. Its scans are those of real runs of the job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.criteo_log import DayFile
from benchmarks.event_log import Scan, scans_of
from benchmarks.scan_plan import RATES, Scanned, by_table, report
from tests.processes import ROOT, environment

LOG = [DayFile(f"2026-01-0{day}", f"/log/dt=2026-01-0{day}/clicks.tsv", 100, 25_000) for day in range(1, 6)]
FIRST_DAYS = [day.dt for day in LOG[:-1]]
NEW_DAY = LOG[-1].dt


@pytest.mark.processes
def test_the_text_of_a_new_day_is_read_once_and_that_of_other_days_never(tmp_path: Path) -> None:
    # Few features, because Spark takes longer to plan all 39 than to read the text.
    config = tmp_path / "few.yaml"
    features = [
        {"columns": ["I1"], "kind": "dense", "ops": [{"fill": {"value": 0}}, "normalize"]},
        {"columns": ["C1", "C2"], "kind": "categorical", "ops": [{"categorify": {"min_count": 2}}]},
    ]
    config.write_text(
        yaml.safe_dump({"extends": str(ROOT / "benchmarks/etl_criteo.yaml"), "features": features})
    )
    command = [
        sys.executable,
        str(ROOT / "benchmarks/scan_plan.py"),
        "--rows",
        "1500",
        "--config",
        str(config),
    ]
    env = {**environment(), "XDG_CACHE_HOME": str(tmp_path)}
    run = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    summary = json.loads(run.stdout.splitlines()[-1])
    assert (summary["benchmark"], summary["rows"]) == ("scan_plan", 1500)
    ratios = summary["ratios"]
    assert (ratios["text_scans_new_day"], ratios["text_scans_staged_day"]) == (1, 0)
    assert 0.1 < ratios["typed_per_text"] < 1
    assert set(summary["ours"]) == {"sql", "arrow"}
    assert summary["ours"]["sql"]["read_per_text"] > 1 + ratios["typed_per_text"]
    assert summary["ours"]["sql"]["written_per_text"] > ratios["typed_per_text"]
    assert "PREDICTION" in run.stdout


def runs(new_day: float, staged_day: float) -> list[dict[str, Scanned]]:
    """The scans of two runs, of which the second reads the text of one new day and of staged days."""
    typed = dict.fromkeys(FIRST_DAYS, 4.0)
    text = {NEW_DAY: new_day, **({FIRST_DAYS[0]: staged_day} if staged_day else {})}
    first = {"text": Scanned(dict.fromkeys(FIRST_DAYS, 1.0), 100_000), "typed": Scanned(typed, 60_000)}
    return [first, {"text": Scanned(text, 25_000), "typed": Scanned({NEW_DAY: 4.0}, 60_000)}]


@pytest.mark.parametrize("new_day, staged_day, code", [(1, 0, 0), (2, 0, 1), (1, 1, 1), (1, 0.5, 1)])
def test_a_second_scan_fails_the_benchmark(
    new_day: float, staged_day: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"sql": {"typed": 30_000, "features": 20_000}, "arrow": {"features": 20_000}}
    assert report(LOG, runs(new_day, staged_day), sizes) == code
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["ratios"]["typed_per_text"] == 0.3
    assert summary["ours"]["sql"] == {"read_per_text": 1.6, "written_per_text": 0.5}
    rows = 1e12 / 250
    seconds = rows * RATES.gpu_busy * RATES.wall_s / RATES.rows / RATES.scans
    assert summary["predicted_s"] == {
        "arrow": round(rows / RATES.arrow_rows_s),
        "sql_without_typed_scans": round(seconds),
        "sql_with_typed_scans_as_text": round(5 * seconds),
    }


def test_scans_are_added_up_by_table_and_day() -> None:
    typed = "InMemoryFileIndex(1 paths)[file:/lake/_data/typed/dt=2026-01-02/a1/part-0.parquet]"
    scans = [
        Scan("text", "InMemoryFileIndex(1 paths)[file:/raw/dt=2026-01-05/clicks.tsv]", 100, 7),
        Scan("parquet", typed, 40, 2),
        Scan("parquet", typed, 60, 3),
        Scan("parquet", "InMemoryFileIndex(1 paths)[file:/lake/_data/profiles/x/dt=2026-01-02/a]", 9, 1),
    ]
    assert by_table(scans, LOG) == {
        "profiles": Scanned({}, 1),
        "text": Scanned({NEW_DAY: 1.0}, 7),
        "typed": Scanned({"2026-01-02": 1.0}, 5),
    }


def test_tasks_are_attributed_to_the_scan_whose_rows_they_count(tmp_path: Path) -> None:
    def scan(kind: str, metric: int, *children: dict[str, Any]) -> dict[str, Any]:
        metrics = [{"name": "number of output rows", "accumulatorId": metric}]
        metadata = {"Format": kind, "Location": f"[file:/{kind}]"} if kind else {}
        name = f"Scan {kind}" if kind else "Project"
        return {"nodeName": name, "metadata": metadata, "metrics": metrics, "children": [*children]}

    def task(metric: int, rows: int, size: int, reason: str = "Success") -> dict[str, Any]:
        return {
            "Event": "SparkListenerTaskEnd",
            "Task End Reason": {"Reason": reason},
            "Task Info": {"Accumulables": [{"ID": metric, "Update": str(rows)}, {"ID": 99, "Update": "1"}]},
            "Task Metrics": {"Input Metrics": {"Bytes Read": size}},
        }

    start = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"
    plan = scan("", 1, scan("Text", 2), scan("Parquet", 3), scan("Text", 4))
    events: list[dict[str, Any]] = [
        task(2, 10, 100),  # the plan of a cached frame can be logged later
        {"Event": start, "sparkPlanInfo": plan},
        task(2, 5, 50),
        task(3, 7, 70),
        task(2, 5, 50, "ExceptionFailure"),
        task(4, 0, 30),
    ]
    (tmp_path / "local-1").write_text("".join(json.dumps(event) + "\n" for event in events))
    (tmp_path / ".local-1.crc").write_bytes(b"\0")
    assert scans_of(tmp_path) == [
        Scan("text", "[file:/Text]", 15, 150),
        Scan("parquet", "[file:/Parquet]", 7, 70),
    ]
