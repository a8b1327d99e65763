"""Measures compressed days, lakes of many files, and a back-fill of many days.

    .venv/bin/python benchmarks/large_days.py [--quick] [--only PART …] [--rows N] [--files N] [--days N]

All figures that are compared are CPU seconds (user and system), because they depend less on other programs of
the machine than seconds do.

* `gzip`: build_features reads the same days once as plain text and once as several .gz files. Decompression
  alone reads the .gz files as the job does, and drops the lines. The ratio is the sum of the CPU seconds for
  plain text and for decompression alone, divided by those for the .gz files. With a ratio of 1 / 1.1 or more,
  a compressed day costs at most a tenth more than this sum.
* `files`: a lake with many small data files in 100 partitions. The figures are CPU seconds of this process
  for publishing the partitions, with and without the footers that tasks have read, for reading all manifests, for listing the files of a raw day, and for
  comparing all files with their manifests, as the job `fsck` does. Writing the files is not measured.
* `backfill`: build_features runs for many consecutive small days, as a back-fill does, with the workflow of
  one champion. The script counts how many partitions of each table a run writes, and how many workflow
  versions the lake has afterwards. Then a file arrives late for one day, and the last run is repeated.
  Its CPU seconds are those of this process, without its workers.

No other program does the same work, so `peers` contains the two parts of the sum of `gzip`.
"""

from __future__ import annotations

import argparse
import gzip
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks import harness
from benchmarks.harness import Measured
from benchmarks.report import machine, summary_line, table
from conf.load import load_config
from conf.types import Config
from etl.raw.file_splits import read_blocks, split_files
from etl.raw.files import find_files
from jobs import build_features
from storage.file_digests import digest_of_file, named, new_file
from storage.fsck import check_lake
from storage.manifest import MANIFEST_NAME, load_manifest
from storage.paths import DATA, LakePaths, Table
from storage.publish import new_attempt, publish_files, with_footer
from storage.run_context import RunContext

ROOT = Path(__file__).resolve().parent.parent
FIRST_DAY = date(2026, 1, 1)
CORES, LIMIT_S = 2, 3_600.0
PARTS = ("gzip", "files", "backfill")
GZIP_TARGET = 1.1  # largest CPU seconds of .gz days, as a multiple of those of plain text and decompression
FILES_TARGET_S = 30.0  # largest CPU seconds for comparing 100,000 files with their manifests
PARTITIONS = 100
FILES_OF_A_DAY = 4


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny inputs, whose figures mean nothing")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="the parts to run")
    parser.add_argument("--rows", type=int, help="rows per day of `gzip` (default 250,000)")
    parser.add_argument("--files", type=int, help="files of `files` (default 100,000)")
    parser.add_argument("--days", type=int, help="days of `backfill` (default 90)")
    parser.add_argument("--repeats", type=int, help="runs of each job of `gzip` (default 3)")
    options = parser.parse_args(arguments)
    quick = options.quick
    logging.getLogger("nightrank").setLevel(logging.ERROR)
    of_machine = machine(CORES, ("pyarrow", "isal", "xxhash"))
    ours: dict[str, Any] = {}
    peers: dict[str, Any] = {}
    ratios: dict[str, float | None] = {}
    with tempfile.TemporaryDirectory() as scratch:
        if "gzip" in options.only:
            rows = options.rows or (2_000 if quick else 250_000)
            figures = gzip_days(Path(scratch), rows, options.repeats or (1 if quick else 3))
            ours["gzip"] = {"rows_per_day": rows, **figures}
            alone = figures["plain_cpu_s"] + figures["decompression_cpu_s"]
            peers["gzip"] = {"plain text and decompression alone, CPU s": round(alone, 3)}
            ratios["gzip"] = alone / figures["gzip_cpu_s"]
        if "files" in options.only:
            files = options.files or (1_000 if quick else 100_000)
            ours["files"] = many_files(Path(scratch) / "lake", files)
        if "backfill" in options.only:
            ours["backfill"] = backfill(Path(scratch), options.days or (9 if quick else 90))
    _print(ours, ratios)
    print(summary_line("large_days", of_machine, ours, peers, ratios, within=1 / GZIP_TARGET))


def _print(ours: Mapping[str, Any], ratios: Mapping[str, float | None]) -> None:
    for part, figures in ours.items():
        print(table((part, ""), [(name, str(value)) for name, value in figures.items()]))
        print()
    ratio = ratios.get("gzip")
    if ratio is not None:
        print(f"gzip: {1 / ratio:.3f} times the sum, {'met' if 1 / ratio <= GZIP_TARGET else 'MISSED'}")
    if "files" in ours:
        seconds = ours["files"]["compare_cpu_s"] * 100_000 / ours["files"]["files"]
        print(
            f"files: {seconds:.1f} CPU s for 100,000 files, {'met' if seconds <= FILES_TARGET_S else 'MISSED'}"
        )


# Compressed days.


def gzip_days(folder: Path, rows: int, repeats: int) -> dict[str, float]:
    """Returns the medians of the CPU seconds and seconds of build_features, and of decompression alone."""
    generated = generated_log(folder, days=4, rows=rows, files=FILES_OF_A_DAY)
    logs = {"plain": folder / "plain", "gzip": folder / "gzip"}
    for file in sorted(generated.glob("dt=*/*.tsv")):
        for log in logs.values():
            (log / file.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, logs["plain"] / file.parent.name)
        target = logs["gzip"] / file.parent.name / f"{file.name}.gz"
        target.write_bytes(gzip.compress(file.read_bytes(), compresslevel=6))
    run_date = (FIRST_DAY + timedelta(days=3)).isoformat()
    runs: dict[str, list[Measured]] = {name: [] for name in logs}
    for turn in range(repeats):
        for name, log in logs.items():
            lake = folder / f"lake-{name}-{turn}"
            config = write_config(folder, lake, log)
            runs[name].append(
                run_job("build_features", ["--config", str(config), "--run-date", run_date], folder)
            )
            print(f"large_days: {name}: {runs[name][-1].cpu_s:.2f} CPU s", file=sys.stderr, flush=True)
            shutil.rmtree(lake)
    compressed = [str(path) for path in sorted(logs["gzip"].glob("dt=*/*"))]
    began = time.process_time()
    text_bytes = sum(len(block) for part in split_files(compressed) for block in read_blocks(part))
    decompression_s = time.process_time() - began
    figures = {
        f"{name}_{unit}": round(statistics.median(getattr(one, unit) for one in of_log), 3)
        for name, of_log in runs.items()
        for unit in ("cpu_s", "wall_s")
    }
    sizes = {"text_bytes": text_bytes, "gzip_bytes": sum(os.path.getsize(path) for path in compressed)}
    return {**figures, "decompression_cpu_s": round(decompression_s, 3), **sizes}


def generated_log(folder: Path, *, days: int, rows: int, files: int) -> Path:
    """Writes a generated log without manifests, and returns its folder, which has one folder per day."""
    lake = folder / "generated"
    generate = {"days": days, "rows_per_day": rows, "users": max(300, rows // 20), "files_per_day": files}
    config = write_config(folder, lake, None, {"generate": generate})
    run_job("generate_clicks", ["--config", str(config), "--run-date", FIRST_DAY.isoformat()], folder)
    for manifest in (lake / "raw").rglob(MANIFEST_NAME):
        manifest.unlink()
    return lake / "raw"


def write_config(
    folder: Path, lake: Path, log: Path | None, sections: Mapping[str, Any] | None = None
) -> Path:
    """Writes a configuration for a generated log in the folder `log`, or in the lake."""
    path = folder / f"{lake.name}.yaml"
    settings = {
        "extends": str(ROOT / "conf/datasets/generated.yaml"),
        "lake": str(lake),
        **({"data": str(log), "log": {"path": "{data}/dt={date}/*.tsv*"}} if log else {}),
        "split": {"train_days": 2, "min_train_days": 2},
        **(sections or {}),
    }
    path.write_text(yaml.safe_dump(settings))
    return path


def run_job(job: str, arguments: Sequence[str], folder: Path) -> Measured:
    """Measures a job; see `harness.run_job`."""
    return harness.run_job(job, arguments, folder, cores=CORES, limit_s=LIMIT_S)


# Many files.


def many_files(root: Path, files: int) -> dict[str, float]:
    """Returns CPU seconds for work on a lake with `files` small data files in 100 partitions."""
    lake = LakePaths(str(root))
    of_partition = max(1, files // PARTITIONS)
    rows = pa.table({"user_id": ["u1", "u2"], "item_id": ["i1", "i2"], "score": [0.5, 0.25]})
    folder = root / DATA
    folder.mkdir(parents=True)
    with new_file(str(folder / "first.parquet")) as first:
        pq.write_table(rows, first.sink)
    content = (folder / "first.parquet").read_bytes()
    digest = digest_of_file(str(folder / "first.parquet"))
    partitions = [
        Table("many_files", f"{root}/many_files").partition((FIRST_DAY + timedelta(days=day)).isoformat())
        for day in range(PARTITIONS)
    ]
    packed = with_footer(named(str(folder / "first.parquet"), digest)).rpartition("#")[2]
    written: list[list[str]] = []
    for partition in partitions:
        attempt = new_attempt(partition)
        names = [f"{attempt}/part-{number:05d}.parquet" for number in range(of_partition)]
        Path(partition.file(attempt)).mkdir(parents=True)
        for name in names:
            Path(partition.file(name)).write_bytes(content)
        written.append([named(name, digest) for name in names])
    (folder / "first.parquet").unlink()

    def publish(footer: str) -> None:
        for partition, names in zip(partitions, written, strict=True):
            publish_files(partition, {f"{name}{footer}": None for name in names}, inputs={"raw": "0"})

    figures = {
        "publish_and_open": _cpu_s(lambda: publish("")),
        "publish": _cpu_s(lambda: publish(f"#{packed}")),
        "manifests": _cpu_s(lambda: [load_manifest(partition) for partition in partitions]),
        "list": _cpu_s(lambda: find_files(f"{root}/{DATA}/many_files/dt=*/*/*.parquet", "parquet")),
        "compare": _cpu_s(lambda: _require_intact(lake)),
    }
    return {
        "files": of_partition * PARTITIONS,
        **{f"{name}_cpu_s": round(cpu, 3) for name, (cpu, _) in figures.items()},
        **{f"{name}_s": round(wall, 3) for name, (_, wall) in figures.items()},
    }


def _require_intact(lake: LakePaths) -> None:
    findings = check_lake(lake)
    if findings.damages or not findings.files:
        raise SystemExit(f"fsck compared {findings.files} files and found {findings.damages[:1]}")


def _cpu_s(work: Callable[[], object]) -> tuple[float, float]:
    """Returns (CPU seconds of this process, seconds) of a function."""
    began, cpu = time.monotonic(), time.process_time()
    work()
    return time.process_time() - cpu, time.monotonic() - began


# A back-fill.


def backfill(folder: Path, days: int) -> dict[str, Any]:
    """Runs build_features for consecutive days with one champion, and returns what the runs wrote."""
    log = generated_log(folder, days=days, rows=400, files=1)
    lake = folder / "backfilled"
    path = write_config(folder, lake, log, {"train": {"epochs": 1, "baselines": [], "num_ranks": 1}})
    dates = [(FIRST_DAY + timedelta(days=day)).isoformat() for day in range(3, days)]
    run_job("nightly", ["--config", str(path), "--run-date", dates[0], "--retrain"], folder)
    config = load_config(str(path), [])
    cpu: list[float] = []
    written: list[Counter[str]] = []
    before = _published(lake)
    for run_date in dates[1:]:
        cpu.append(_cpu_s(lambda date=run_date: _build(config, date))[0])  # type: ignore[misc]
        after = _published(lake)
        written.append(_changed(before, after))
        before = after
    late = (FIRST_DAY + timedelta(days=days - 3)).isoformat()
    text = sorted((log / f"dt={late}").glob("*.tsv"))[0].read_text().splitlines()[:50]
    (log / f"dt={late}" / "late.tsv").write_text("\n".join(text) + "\n")
    late_cpu_s = _cpu_s(lambda: _build(config, dates[-1]))[0]
    after = _published(lake)
    tenth = max(1, len(cpu) // 10)
    return {
        "runs": len(cpu),
        "cpu_s_a_run": round(statistics.median(cpu), 4),
        "cpu_s_of_the_first_tenth": round(statistics.median(cpu[:tenth]), 4),
        "cpu_s_of_the_last_tenth": round(statistics.median(cpu[-tenth:]), 4),
        "workflow_versions": len(list((lake / "workflow").iterdir())),
        "partitions_a_run": dict(sorted(written[-1].items())),
        "runs_with_other_partitions": sum(one != written[-1] for one in written[:-1]),
        "late_cpu_s": round(late_cpu_s, 4),
        "late_partitions": dict(sorted(_changed(before, after).items())),
        "late_days": sorted({name.rpartition("dt=")[2] for name in _names_changed(before, after)}),
    }


def _build(config: Config, run_date: str) -> None:
    build_features.run(RunContext("build_features", config, run_date, in_process=True))


def _published(lake: Path) -> dict[str, bytes]:
    """Maps the folder of each partition to the bytes of its manifest."""
    return {str(path.parent.relative_to(lake)): path.read_bytes() for path in lake.rglob(MANIFEST_NAME)}


def _names_changed(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[str]:
    return [name for name, content in after.items() if before.get(name) != content]


def _changed(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Counter[str]:
    """Returns the number of partitions of each table that were written."""
    return Counter(name.split("/")[0] for name in _names_changed(before, after))


if __name__ == "__main__":
    main()
