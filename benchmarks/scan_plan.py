"""Counts the bytes that build_features reads and writes, and predicts its time for a terabyte of text.

    .venv/bin/python benchmarks/scan_plan.py [--quick] [--rows N]

The log has the layout of Criteo's click log (benchmarks/criteo_log.py): five days. The job runs with each
engine for the first four days, which are all new, two of them training days. With `sql` it then runs for the
fifth day. Nothing is timed, so the figures do not depend on other load of the machine.

For `sql`, Spark's event log says how many rows and bytes each scan of files read (benchmarks/event_log.py).
The scans of a day are its scanned rows divided by its lines. With Parquet, only the bytes of the needed
columns are read. `arrow` reads the text in a scan pass and an encode pass, and starts no Spark; its text is
counted twice, although the second pass reads saved splits as long as the disk has room for them. The sizes of
tables are those of the files that manifests name. The figures of the first run are scaled to a terabyte.

The times are predictions, not measurements. They are computed from the rates in RATES, which were measured on
one H200 with 16 cores (benchmarks/RESULTS.md, "gpu/ on one H200"):

    arrow   rows / rows per second of the whole job in 16 processes
    sql     rows * scans * CPU seconds of a scanned row / cores, and the same with the seconds in which the
            GPU is busy. Both rates are those of scans of text with the work that follows them. The lower time
            leaves out all scans of typed rows, the upper one lets them cost as much as scans of text.

The larger of CPU and GPU counts, as if both worked at the same time. The ratio `typed_per_text` is the bytes
of the typed table divided by those of the text; `text_scans_new_day` and `text_scans_staged_day` are the
scans of text in the second run; the benchmark fails if they are not 1 and 0.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.criteo_log import DayFile, make_log
from benchmarks.etl_runs import CACHE, TRAIN_DAYS
from benchmarks.event_log import CACHED_PLANS, Scan, scans_of
from benchmarks.report import machine, summary_line, table
from setup import java_home
from storage import file_io, format_versions
from storage.manifest import MANIFEST_NAME, Manifest

ROOT = Path(__file__).resolve().parents[1]
# For a small log, plans are interpreted, because compiling them takes longer than running them.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_FEW_ROWS = 10_000
CONFIG = ROOT / "benchmarks/etl_criteo.yaml"
PROFILE = ROOT / "conf/spark/local.conf"
DAYS = 5
ROWS, QUICK_ROWS = 1_000_000, 20_000
TERABYTE = 1e12
GOAL_S = 600.0
# Names of the two ways, and the value of workflow.engine for each. With `arrow`, the job would start Spark.
ENGINES = {"sql": "sql", "arrow": "auto"}
_DAY = re.compile(r"dt=(\d{4}-\d\d-\d\d)")


@dataclass(frozen=True)
class Rates:
    """Rates that were measured on one H200 with 16 cores, with 8 million rows in four days.

    Attributes:
        arrow_rows_s: rows per second of the whole job with the engine `arrow`, in 16 processes.
        rows: rows of the job under the accelerator.
        scans: scans of text in the three phases that ended: three for the quarantine, two for the profile,
            and the scan of the two training days for the moments, which is half a scan of all days.
        cpu_s: CPU seconds of the tasks of these phases.
        wall_s: seconds of these phases.
        gpu_busy: share of this time in which the GPU was busy.
        cores: cores of the machine.
    """

    arrow_rows_s: float = 1_643_850
    rows: int = 8_000_000
    scans: float = 5.5
    cpu_s: float = 209.0
    wall_s: float = 85.0
    gpu_busy: float = 0.25
    cores: int = 16

    @property
    def cpu_s_of_row(self) -> float:
        """Returns the CPU seconds of one scanned row."""
        return self.cpu_s / self.rows / self.scans

    @property
    def gpu_s_of_row(self) -> float:
        """Returns the seconds of a busy GPU for one scanned row."""
        return self.gpu_busy * self.wall_s / self.rows / self.scans

    def sql_s(self, scanned_rows: float) -> float:
        """Returns the predicted seconds of scans of `scanned_rows` rows in all."""
        return scanned_rows * max(self.cpu_s_of_row / self.cores, self.gpu_s_of_row)


RATES = Rates()


@dataclass(frozen=True)
class Scanned:
    """The scans of a table in one run: scans of each day, and bytes read of all days."""

    scans: dict[str, float]
    bytes: int


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows")
    parser.add_argument("--rows", type=int, help=f"rows of the five days of the log (default {ROWS:,})")
    parser.add_argument(
        "--config", type=Path, default=CONFIG, help="configuration of the job (default etl_criteo.yaml)"
    )
    options = parser.parse_args(arguments)
    log = make_log(CACHE, options.rows or (QUICK_ROWS if options.quick else ROWS), DAYS)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-scan-plan-", dir=CACHE) as scratch:
        lakes = {engine: Path(scratch) / engine for engine in ENGINES}
        scanned: list[dict[str, Scanned]] = []
        sizes: dict[str, dict[str, int]] = {}
        for engine, lake in lakes.items():
            for number, day in enumerate(log[-2:] if engine == "sql" else log[-2:-1]):
                events = Path(scratch) / f"events-{engine}-{number}"
                run_job(engine, lake, events, log, day.dt, options.config)
                if engine == "sql":
                    scanned.append(by_table(scans_of(events), log))
                sizes.setdefault(engine, table_sizes(lake))  # of the first run
    return report(log, scanned, sizes)


def run_job(
    engine: str, lake: Path, events: Path, log: Sequence[DayFile], run_date: str, config: Path = CONFIG
) -> None:
    """Runs build_features for a date: `sql` in Spark with an event log, `arrow` without Spark."""
    runner = [sys.executable]
    if engine == "sql":
        events.mkdir()
        settings = {
            "spark.eventLog.dir": f"file://{events}",
            "spark.local.dir": f"{lake}-scratch",
            "spark.sql.warehouse.dir": f"{lake}-warehouse",
            **CACHED_PLANS,
            **(INTERPRETED if log[0].rows < _FEW_ROWS else {}),
        }
        runner = [str(Path(sys.executable).with_name("spark-submit")), "--properties-file", str(PROFILE)]
        runner += [f"--conf={key}={value}" for key, value in settings.items()]
    command = [*runner, str(ROOT / "jobs/build_features.py"), "--config", str(config)]
    command += ["--run-date", run_date]
    overrides = [
        f"data={Path(log[0].path).parent.parent}",
        f"lake={lake}",
        f"workflow.engine={ENGINES[engine]}",
    ]
    overrides += ["split.by=day", f"split.train_days={TRAIN_DAYS}", f"split.min_train_days={TRAIN_DAYS}"]
    overrides += ["split.validation_days=1", "split.test_days=1"]
    for override in overrides:
        command += ["--set", override]
    home = java_home.find()
    # spark-submit uses the first python on PATH.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path, "PYSPARK_PYTHON": sys.executable}
    env.pop("SPARK_HOME", None)
    env |= {"JAVA_HOME": str(home)} if home else {}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"build_features with {engine} ended with {done.returncode}:\n{done.stderr[-4000:]}"
        )
    print(f"scan_plan: {engine}, {run_date}: done", file=sys.stderr, flush=True)
    shutil.rmtree(f"{lake}-scratch", ignore_errors=True)


def by_table(scans: Iterable[Scan], log: Sequence[DayFile]) -> dict[str, Scanned]:
    """Adds up the scans of each table. The raw log is the table `text`."""
    rows_of_day = {day.dt: day.rows for day in log}
    scans_of_day: dict[str, Counter[str]] = {}
    read: Counter[str] = Counter()
    for scan in scans:
        name = "text" if scan.format == "text" else scan.location.split("/_data/")[-1].split("/")[0]
        read[name] += scan.bytes
        day = _DAY.search(scan.location)
        if name in ("text", "typed") and day:
            scans_of_day.setdefault(name, Counter())[day[1]] += scan.rows
    return {
        name: Scanned(
            {dt: rows / rows_of_day[dt] for dt, rows in sorted(scans_of_day.get(name, Counter()).items())},
            read[name],
        )
        for name in sorted(read)
    }


def table_sizes(lake: Path) -> dict[str, int]:
    """Returns the bytes of the published data files of each table of a lake."""
    sizes: Counter[str] = Counter()
    for path in lake.rglob(MANIFEST_NAME):
        values = format_versions.MANIFEST.check(file_io.read_json(str(path)), str(path))
        manifest = Manifest.from_json(values)
        sizes[manifest.table.split("/")[0]] += manifest.bytes
    return {name: size for name, size in sorted(sizes.items()) if size}


def report(
    log: Sequence[DayFile], scanned: Sequence[dict[str, Scanned]], sizes: dict[str, dict[str, int]]
) -> int:
    """Prints the tables and the JSON object. Returns the exit code."""
    first_days, new_day = log[:-1], log[-1]
    text = sum(day.bytes for day in first_days)
    rows = sum(day.rows for day in first_days) * TERABYTE / text
    first, second = scanned
    print(f"{sum(day.rows for day in log):,} rows, {text / len(first_days) / new_day.rows:.0f} bytes a row\n")
    lines = [
        [f"{name}, {table_name}", *(f"{run[table_name].scans.get(day.dt, 0):.2f}" for day in log)]
        for name, run in (("first run", first), ("second run", second))
        for table_name in ("text", "typed")
    ]
    print(table(["scans with sql", *(day.dt for day in log)], lines), end="\n\n")
    moved = {
        "sql": ({name: run.bytes for name, run in first.items()}, sizes["sql"]),
        "arrow": ({"text": 2 * text}, sizes["arrow"]),
    }
    lines = [
        [engine, name, _gigabytes(read.get(name, 0), text), _gigabytes(written.get(name, 0), text)]
        for engine, (read, written) in moved.items()
        for name in sorted({*read, *written})
    ]
    print("Gigabytes of the first run, scaled to a terabyte of text\n")
    print(table(["engine", "table", "read", "written"], lines), end="\n\n")
    share_of_rows = rows / sum(day.rows for day in first_days)
    text_rows, typed_rows = (
        sum(day.rows * first[name].scans.get(day.dt, 0) for day in first_days) * share_of_rows
        for name in ("text", "typed")
    )
    predicted = {
        "arrow": rows / RATES.arrow_rows_s,
        "sql_without_typed_scans": RATES.sql_s(text_rows),
        "sql_with_typed_scans_as_text": RATES.sql_s(text_rows + typed_rows),
    }
    print(
        f"PREDICTION for a terabyte ({rows / 1e9:.2f} billion rows) on one H200 with 16 cores, from {RATES}\n"
    )
    lines = [
        [name, f"{seconds / 60:.0f}", "met" if seconds <= GOAL_S else "MISSED"]
        for name, seconds in predicted.items()
    ]
    print(table(["plan", "predicted minutes", f"goal {GOAL_S / 60:.0f}"], lines), end="\n\n")
    staged = max(second["text"].scans.get(day.dt, 0) for day in first_days)
    ratios = {
        "typed_per_text": sizes["sql"]["typed"] / text,
        "text_scans_new_day": second["text"].scans[new_day.dt],
        "text_scans_staged_day": staged,
    }
    ours = {
        engine: {
            "read_per_text": round(sum(read.values()) / text, 4),
            "written_per_text": round(sum(written.values()) / text, 4),
        }
        for engine, (read, written) in moved.items()
    }
    of_machine = machine(2, ("pyspark", "pyarrow"))
    seconds = {name: round(value) for name, value in predicted.items()}
    print(
        summary_line(
            "scan_plan", of_machine, ours, {}, ratios, predicted_s=seconds, rows=sum(d.rows for d in log)
        )
    )
    return 0 if (ratios["text_scans_new_day"], staged) == (1, 0) else 1


def _gigabytes(size: int, text: int) -> str:
    return f"{size / text * TERABYTE / 1e9:,.1f}" if size else ""


if __name__ == "__main__":
    sys.exit(main())
