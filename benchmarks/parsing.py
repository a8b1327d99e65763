"""Compares two ways of parsing text inside Spark frames: Arrow in Python workers, and Spark expressions.

    .venv/bin/python benchmarks/parsing.py [--quick] [--rows N] [--repeats N]

Logs with histories, sampled negatives or tables of attributes are read as Spark frames. `workflow.engine: arrow`
then parses the lines in Python workers (etl/raw/text_values.py), and `sql` with Spark expressions
(etl/raw/csv_header.py), which also run on GPUs. Both return the same rows, which a test checks. This benchmark
decides whether the first way is worth its code: it reads one day of a generated log in Criteo's layout with
each engine, in turns and in one session, once with all 40 columns and once with 4 of them. The rows are
dropped by Spark's `noop` writer. A first run of each is not counted.

`ratios` says how many times as fast as Spark expressions the parser in Python workers is.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # a file in this folder has the same name as our package etl

from pyspark.sql import SparkSession

from benchmarks.criteo_log import make_log
from benchmarks.etl_runs import CACHE, DAYS, ROOT
from benchmarks.ours import CONFIG, PROFILE
from benchmarks.report import machine, summary_line, table
from conf.load import load_config
from etl.raw.files import require_raw
from etl.spark.read_log import good_rows, read_log
from spark.properties import read_properties
from spark.session import build_session

ROWS, QUICK_ROWS = 4_000_000, 400_000
ENGINES = ("arrow", "sql")
READ = {"all_columns": None, "four_columns": ("row_id", "label", "C1", "C2")}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS // DAYS:,} rows in a day")
    parser.add_argument("--rows", type=int, help=f"rows of the four days of the log (default {ROWS:,})")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each engine that count (default 3)")
    options = parser.parse_args(arguments)
    rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    log = make_log(CACHE, rows, DAYS)
    spark = build_session("benchmark parsing", read_properties(PROFILE))
    spark.sparkContext.setLogLevel("ERROR")
    seconds: dict[str, dict[str, list[float]]] = {name: {engine: [] for engine in ENGINES} for name in READ}
    for turn in range(options.repeats + 1):
        for name, columns in READ.items():
            for engine in ENGINES:
                taken = read_once(spark, str(Path(log[0].path).parent.parent), log[0].dt, engine, columns)
                print(f"parsing: {name}, {engine}: {taken:.2f} s", file=sys.stderr, flush=True)
                if turn:
                    seconds[name][engine].append(taken)
    spark.stop()
    medians = {
        name: {engine: median(runs) for engine, runs in found.items()} for name, found in seconds.items()
    }
    ratios = {name: found["sql"] / found["arrow"] for name, found in medians.items()}
    lines = [
        [name, f"{found['arrow']:.2f}", f"{found['sql']:.2f}", f"{ratios[name]:.2f} ×"]
        for name, found in medians.items()
    ]
    print(f"{rows // DAYS:,} rows, median of {options.repeats}\n")
    print(table(["columns", "arrow, s", "sql, s", "arrow is as fast"], lines), end="\n\n")
    ours = {name: found["arrow"] for name, found in medians.items()}
    peers = {"spark_expressions": {name: found["sql"] for name, found in medians.items()}}
    of_machine = machine(2, ("pyspark", "pyarrow"))
    print(summary_line("parsing", of_machine, ours, peers, ratios, rows=rows // DAYS))
    return 0


def read_once(spark: SparkSession, data: str, day: str, engine: str, columns: Sequence[str] | None) -> float:
    """Returns the seconds in which all good rows of a day are read, with all columns or some of them."""
    overrides = [f"data={data}", f"lake={ROOT}/lake", "split.by=day", "split.train_days=2"]
    overrides += ["split.validation_days=1", "split.test_days=1", f"workflow.engine={engine}"]
    config = load_config(str(CONFIG), overrides)
    start = time.perf_counter()
    rows = good_rows(read_log(spark, config, require_raw(config, config.log, day)))
    read = rows.select(*columns) if columns else rows
    read.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
