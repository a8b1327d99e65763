"""What the peers compute, held against pandas; and the whole benchmark on a small log."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks import etl_runs
from benchmarks.agreement import compare, summarise
from benchmarks.contender import CATEGORICAL, COLUMNS, DENSE, LABEL, Outcome
from benchmarks.criteo_log import DayFile, make_log
from benchmarks.etl import targets_of
from benchmarks.etl_layouts import LAYOUTS, log_in_layout
from benchmarks.etl_runs import ROOT, Contender, ContenderFailed, Log, job, log_by_day, run_contender
from benchmarks.etl_scaling import growth
from benchmarks.ours import CRITEO
from conf.load import load_config

pytestmark = pytest.mark.processes

ROWS = 6_000


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etl_runs, "CACHE", tmp_path / "runs")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> list[DayFile]:
    return make_log(tmp_path_factory.mktemp("log"), ROWS, days=4)


def by_pandas(text: Sequence[DayFile], log: Log, folder: Path) -> Outcome:
    """The same encoding of the rows of the text, written plainly."""
    frames = [
        pd.read_csv(day.path, sep="\t", header=None, names=list(COLUMNS), dtype=str, keep_default_na=False)
        for day in text
    ]
    if log.shares:
        rows = pd.concat(frames, ignore_index=True)
        last_train, last_validation = ((ROWS - 1) * share // 10 for share in (8, 9))
        frames = [
            rows[: last_train + 1],
            rows[last_train + 1 : last_validation + 1],
            rows[last_validation + 1 :],
        ]
    raw = {day.dt: frame for day, frame in zip(log.days, frames, strict=True)}
    train = pd.concat([raw[day.dt] for day in log.days if day.train])
    files = {}
    for dt, rows in raw.items():
        table = {LABEL: rows[LABEL].astype(np.float32)}
        for name in DENSE:
            number = pd.to_numeric(rows[name].replace("", "0")).clip(lower=0)
            table[name] = np.log1p(number.astype(np.float64)).astype(np.float32)
        for name in CATEGORICAL:
            counts = train[name][train[name] != ""].value_counts()
            kept = sorted((-count, value) for value, count in counts.items() if count >= log.min_count)
            ids = {value: place for place, (_, value) in enumerate(kept, start=3)} | {"": 1}
            table[name] = rows[name].map(ids).fillna(2).astype(np.int32)
        files[dt] = [str(folder / f"{dt}.parquet")]
        pd.DataFrame(table).to_parquet(files[dt][0], index=False)
    return Outcome(files)


@pytest.fixture(scope="module")
def expected_of(text: list[DayFile], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Returns the log in a layout, and the summary of the tables that pandas makes of it, once for each layout."""

    @cache
    def of_layout(layout: str) -> Any:
        log = log_in_layout(layout, text)
        return log, summarise(log.days, by_pandas(text, log, tmp_path_factory.mktemp(layout)))

    return of_layout


@pytest.mark.parametrize(
    "name, layout",
    [("polars_streaming", "days"), *((name, layout) for name in ("polars", "duckdb") for layout in LAYOUTS)],
)
def test_a_peer_makes_the_table_that_pandas_makes(
    name: str, layout: str, expected_of: Callable[[str], Any], tmp_path: Path
) -> None:
    log, expected = expected_of(layout)
    module = f"benchmarks.peers.{name.split('_')[0]}_recipe"
    peer = Contender(name, module, {"streaming": name.endswith("_streaming")})
    run = run_contender(peer, log, cores=2, limit_s=120)
    assert run.summary is not None
    compare(expected, run.summary, name)
    assert run.start_up_s is not None
    assert 0 < run.start_up_s < run.seconds
    assert run.cpu_s > 0
    assert run.output_bytes > 0
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_our_job_makes_the_table_that_pandas_makes(layout: str, expected_of: Callable[[str], Any]) -> None:
    log, expected = expected_of(layout)
    run = run_contender(job(log, []), log, cores=2, limit_s=120)
    assert run.summary is not None
    compare(expected, run.summary, "ours")


def test_the_layout_of_criteo_is_that_of_the_shipped_configuration(text: list[DayFile]) -> None:
    config = load_config(str(CRITEO), [])
    log = log_in_layout("criteo", text)
    assert log.shares == (config.split.train, config.split.validation)
    assert config.split.by == "fraction"
    steps = [step for group in config.features if group.kind == "categorical" for step in group.ops]
    assert steps == [{"categorify": {"min_count": log.min_count}}]
    assert [gzip.decompress(Path(file).read_bytes()) for file in log.files] == [
        Path(day.path).read_bytes() for day in text
    ]


def test_json_lines_have_every_column(text: list[DayFile]) -> None:
    """An empty field is null, and a number is not a text."""
    log = log_in_layout("jsonl", text)
    for day, file in zip(text, log.days, strict=True):
        rows = [json.loads(line) for line in Path(file.file).read_text().splitlines()]
        fields = [line.split("\t") for line in Path(day.path).read_text().splitlines()]
        numbers = {LABEL, *DENSE}
        assert rows == [
            {
                name: None if value == "" else int(value) if name in numbers else value
                for name, value in zip(COLUMNS, line, strict=True)
            }
            for line in fields
        ]


def test_targets_depend_on_layout_and_size() -> None:
    assert targets_of("days", 4_000_000)["polars"] == 1.0
    for layout in ("criteo", "parquet", "jsonl"):
        assert targets_of(layout, 4_000_000)["polars"] == 0.95
        assert targets_of(layout, 4_000_000)["duckdb"] == 1.0
        assert targets_of(layout, 1_000_000)["polars"] == 0.8


def test_a_contender_that_fails_says_why(text: list[DayFile]) -> None:
    with pytest.raises(ContenderFailed, match=r"No module named benchmarks\.peers\.none"):
        run_contender(Contender("none", "benchmarks.peers.none"), log_by_day(text), cores=1, limit_s=60)


def test_a_contender_that_passes_its_limit_is_stopped(text: list[DayFile]) -> None:
    log = log_by_day(text)
    with pytest.raises(ContenderFailed, match="did not end within") as error:
        run_contender(Contender("polars", "benchmarks.peers.polars_recipe"), log, cores=1, limit_s=0.05)
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
