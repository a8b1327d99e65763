"""What the peers compute, held against pandas; and the whole benchmark on a small log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import etl_runs
from benchmarks.agreement import compare, summarise
from benchmarks.contender import CATEGORICAL, COLUMNS, DENSE, LABEL, Day, Outcome
from benchmarks.criteo_log import make_log
from benchmarks.etl_runs import MIN_COUNT, ROOT, Contender, ContenderFailed, days_of, run_contender
from benchmarks.etl_scaling import growth

pytestmark = pytest.mark.processes

ROWS = 6_000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etl_runs, "CACHE", tmp_path / "runs")


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> tuple[Day, ...]:
    return days_of(make_log(tmp_path_factory.mktemp("log"), ROWS, days=4))


def by_pandas(days: tuple[Day, ...], folder: Path) -> Outcome:
    """The same encoding, written plainly."""
    raw = {
        day.dt: pd.read_csv(
            day.file, sep="\t", header=None, names=list(COLUMNS), dtype=str, keep_default_na=False
        )
        for day in days
    }
    train = pd.concat([raw[day.dt] for day in days if day.train])
    files = {}
    for dt, rows in raw.items():
        table = {LABEL: rows[LABEL].astype(np.float32)}
        for name in DENSE:
            number = pd.to_numeric(rows[name].replace("", "0")).clip(lower=0)
            table[name] = np.log1p(number.astype(np.float64)).astype(np.float32)
        for name in CATEGORICAL:
            counts = train[name][train[name] != ""].value_counts()
            kept = sorted((-count, value) for value, count in counts.items() if count >= MIN_COUNT)
            ids = {value: place for place, (_, value) in enumerate(kept, start=3)} | {"": 1}
            table[name] = rows[name].map(ids).fillna(2).astype(np.int32)
        files[dt] = [str(folder / f"{dt}.parquet")]
        pd.DataFrame(table).to_parquet(files[dt][0], index=False)
    return Outcome(files)


@pytest.mark.parametrize("name", ["polars", "polars_streaming", "duckdb"])
def test_a_peer_makes_the_table_that_pandas_makes(name: str, days: tuple[Day, ...], tmp_path: Path) -> None:
    expected = summarise(days, by_pandas(days, tmp_path))
    module = f"benchmarks.peers.{name.split('_')[0]}_recipe"
    peer = Contender(name, module, {"streaming": name.endswith("_streaming")})
    run = run_contender(peer, days, cores=2, limit_s=120)
    assert run.summary is not None
    compare(expected, run.summary, name)
    assert run.start_up_s is not None
    assert 0 < run.start_up_s < run.seconds
    assert run.cpu_s > 0
    assert run.output_bytes > 0
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_contender_that_fails_says_why(days: tuple[Day, ...]) -> None:
    with pytest.raises(ContenderFailed, match=r"No module named benchmarks\.peers\.none"):
        run_contender(Contender("none", "benchmarks.peers.none"), days, cores=1, limit_s=60)


def test_a_contender_that_passes_its_limit_is_stopped(days: tuple[Day, ...]) -> None:
    with pytest.raises(ContenderFailed, match="did not end within") as error:
        run_contender(Contender("polars", "benchmarks.peers.polars_recipe"), days, cores=1, limit_s=0.05)
    assert error.value.limit_s == 0.05


def test_the_benchmark_ends_in_one_json_line(tmp_path: Path) -> None:
    """Ours against Polars: the tables agree, and the last line is what readers of figures parse."""
    command = [sys.executable, str(ROOT / "benchmarks/etl.py"), "--rows", "4000", "--only", "polars"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["benchmark"] == "etl"
    assert summary["ours"]["seconds"] > 0
    assert summary["ratios"]["polars"] == pytest.approx(
        summary["peers"]["polars"]["seconds"] / summary["ours"]["seconds"], rel=0.1, abs=0.002
    )
    assert summary["ratios"]["duckdb"] is None


def size(seconds: float, rows: int, gib: float) -> dict[str, float]:
    micro = seconds / rows * 1e6
    return {
        "seconds": seconds,
        "microseconds_a_row": micro,
        "cpu_microseconds_a_row": micro,
        "peak_pss_gib": gib,
    }


def test_growth_of_a_linear_job_is_one() -> None:
    ratios = growth({str(rows): size(rows * 1e-5, rows, 2.0) for rows in (400, 800, 1600)})
    assert all(ratio == pytest.approx(1.0) for ratio in ratios.values())
    assert len(ratios) == 7


def test_growth_of_a_quadratic_job_is_seen() -> None:
    ratios = growth({str(rows): size(rows**2 * 1e-8, rows, rows / 400) for rows in (400, 800, 1600)})
    assert all(ratio == pytest.approx(2.0) for ratio in ratios.values())
