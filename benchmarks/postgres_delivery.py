"""Measures how long it takes to deliver the lists of a day to a PostgreSQL table, compared with release 0.1.0.

    .venv/bin/python benchmarks/postgres_delivery.py [--quick] [--rows N] [--repeats N]

Lists of ten items are written to Parquet files. A PostgreSQL server on loopback shares the cores with the
contenders. Each contender has a table of its own, which already has the lists of the day before. It then
delivers

* `new_date`: the lists of a new date,
* `same_date`: other scores for the same users and items, which replace all rows of the new date.

Ours is the sink `jdbc` (scoring/delivery/sinks/jdbc.py), which reads the files in this process. The peer
(benchmarks/peers/staged_rows.py) reads the same files in a Spark session on local[*], whose start is not
measured. After each delivery, the script compares the number of rows of the date, and the sums of positions and
scores, with those of the files. A ratio is the peer's seconds divided by ours. With --repeats, contenders take
turns, and the median counts. The server writes its log to disk before a commit, as in production.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.peers import staged_rows
from benchmarks.report import machine, summary_line, table
from scoring.delivery.postgresql import connect
from scoring.delivery.published_lists import PublishedLists
from scoring.delivery.secrets import Credentials
from scoring.delivery.sinks import jdbc
from setup import jars
from spark.profile import read_properties
from spark.session import build_session
from storage.manifest import FileEntry, Manifest
from tests.delivery.postgres import Server, postgres

ROOT = Path(__file__).resolve().parent.parent
K, ITEMS, FILES, ROW_GROUP_ROWS, SEED, TARGET = 10, 100_000, 4, 250_000, 3, 4.0
DATES = {"before": "2026-01-07", "new_date": "2026-01-08", "same_date": "2026-01-08"}
# Buffers of a quarter of a small server's memory, and a log that needs no checkpoint during a delivery.
SERVER = ("fsync=on", "shared_buffers=1GB", "max_wal_size=8GB", "checkpoint_timeout=30min")
Deliver = Callable[[str, Path], float]


def write_lists(folder: Path, rows: int, seed: int) -> Manifest:
    """Writes lists to Parquet files, sorted by user and position, and returns their manifest."""
    draw = np.random.default_rng(seed)
    users = rows // K
    items = pa.array([f"item-{number:06d}" for number in range(ITEMS)])
    folder.mkdir()
    entries = []
    for index in range(FILES):
        first, last = users * index // FILES, users * (index + 1) // FILES
        count = (last - first) * K
        scores = np.sort(draw.random((last - first, K), np.float32), axis=1)[:, ::-1]
        columns = {
            "user_id": pa.array([f"user-{number:09d}" for number in range(first, last)]).take(
                pa.array(np.repeat(np.arange(last - first), K))
            ),
            "position": pa.array(np.tile(np.arange(1, K + 1, dtype=np.int32), last - first)),
            "item_id": items.take(pa.array(draw.integers(0, ITEMS, count))),
            "score": pa.array(scores.ravel()),
            "reason": pa.array(["ranked"]).take(pa.array(np.zeros(count, np.int64))),
            "model_version": pa.array(["3f0c9a7be1d24568"]).take(pa.array(np.zeros(count, np.int64))),
        }
        part = pa.table(columns)
        pq.write_table(part, folder / f"part-{index}.parquet", row_group_size=ROW_GROUP_ROWS)
        entries.append(FileEntry(f"part-{index}.parquet", count, 0, (count,)))
    return Manifest("recommendations", folder.name, tuple(entries), (), {"seed": str(seed)})


def expected(folder: Path) -> tuple[int, int, float]:
    """Returns the number of rows in files, the sum of positions and the sum of scores."""
    rows = pq.read_table(folder, columns=["position", "score"], partitioning=None)
    scores = rows["score"].to_numpy().astype(np.float64)
    return len(rows), int(rows["position"].to_numpy().sum()), float(scores.sum())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="200,000 rows")
    parser.add_argument("--rows", type=int, default=20_000_000, help="rows of a date (default %(default)s)")
    parser.add_argument(
        "--repeats", type=int, default=1, help="turns of each contender (default %(default)s)"
    )
    options = parser.parse_args(arguments)
    rows = 200_000 if options.quick else options.rows
    (driver,) = jars.postgresql_driver()
    if not driver.is_there:
        raise SystemExit(f"{driver.path} is missing: run `make jars`")
    properties = read_properties(ROOT / "conf/spark/local.conf")
    spark = build_session("postgres_delivery", {**properties, "spark.jars": str(driver.path)})
    seconds: dict[str, dict[str, list[float]]] = {
        name: {step: [] for step in ("new_date", "same_date")} for name in ("ours", "staged_rows")
    }
    with tempfile.TemporaryDirectory() as scratch, postgres(settings=SERVER) as server:
        folders = {name: Path(scratch, name) for name in DATES}
        manifests = {
            name: write_lists(folder, rows, SEED + index)
            for index, (name, folder) in enumerate(folders.items())
        }
        secrets = {name: Path(scratch, f"{name}.secret") for name in ("user", "password")}
        for name, path in secrets.items():
            path.write_text(getattr(server, name))
        spark.read.parquet(str(folders["before"])).count()  # a warm-up: Spark's first job takes longer
        for turn in range(options.repeats):
            contenders: dict[str, Callable[[str], float]] = {
                "staged_rows": lambda step: _by_rows(spark, server, folders[step], DATES[step]),
                "ours": lambda step: _by_sink(
                    server, secrets, str(driver.path), folders[step], manifests[step], DATES[step]
                ),
            }
            for name in sorted(contenders, reverse=bool(turn % 2)):
                for step in DATES:
                    took = contenders[name](step)
                    if step in seconds[name]:
                        seconds[name][step].append(took)
                        _require(server, str(driver.path), name, DATES[step], expected(folders[step]))
                    print(f"postgres_delivery: {name}, {step}: {took:.1f} s", file=sys.stderr, flush=True)
                _drop(server, str(driver.path), name)
    spark.stop()
    medians = {
        name: {step: round(statistics.median(its), 2) for step, its in steps.items()}
        for name, steps in seconds.items()
    }
    print(_shown(rows, medians))
    ratios = {step: medians["staged_rows"][step] / medians["ours"][step] for step in medians["ours"]}
    for step, ratio in ratios.items():
        verdict = "" if ratio >= TARGET else f", MISSED: the target is {TARGET:g}"
        print(f"{step}: {ratio:.2f} times as fast as release 0.1.0{verdict}")
    of_machine = machine(2, ("pyarrow", "pyspark", "py4j"))
    ours, peers = {"rows": rows, **medians["ours"]}, {"staged_rows": medians["staged_rows"]}
    print(summary_line("postgres_delivery", of_machine, ours, peers, ratios, quick=options.quick))
    return 0


def _shown(rows: int, medians: dict[str, dict[str, float]]) -> str:
    lines = [
        [name, step, f"{rows:,}", f"{took:.1f}", f"{rows / took:,.0f}"]
        for name, steps in medians.items()
        for step, took in steps.items()
    ]
    return table(["contender", "delivery", "rows", "seconds", "rows/s"], lines)


def _by_sink(
    server: Server, secrets: dict[str, Path], jar: str, folder: Path, manifest: Manifest, date: str
) -> float:
    """Delivers as the job does: reads the files into a table, and calls the sink."""
    sink = jdbc.Settings.model_validate(
        {
            "kind": "jdbc",
            "name": "ours",
            "url": server.url,
            "table": "ours",
            "driver_jar": jar,
            **{name: {"file": str(path)} for name, path in secrets.items()},
        }
    )
    of_date = Manifest(manifest.table, date, manifest.files, manifest.schema, manifest.inputs)
    start = time.perf_counter()
    rows = pq.read_table(folder, partitioning=None)
    jdbc.deliver(sink, PublishedLists(rows, of_date))
    return time.perf_counter() - start


def _by_rows(spark: Any, server: Server, folder: Path, date: str) -> float:
    start = time.perf_counter()
    properties = {"user": server.user, "password": server.password}
    staged_rows.deliver(spark.read.parquet(str(folder)), server.url, properties, "staged_rows", date)
    return time.perf_counter() - start


def _require(server: Server, jar: str, name: str, date: str, wanted: tuple[int, int, float]) -> None:
    """Raises RuntimeError unless the table of a contender has the rows of the files."""
    query = f"SELECT count(*), sum(position), sum(CAST(score AS double precision)) FROM {name} WHERE dt = CAST(? AS date)"
    with _session(server, jar, name) as database:
        [(rows, positions, scores)] = database.rows(query, [date])
    actual = int(rows or 0), int(positions or 0), float(scores or 0)
    if actual[:2] != wanted[:2] or abs(actual[2] - wanted[2]) > 1e-6 * wanted[2]:
        raise RuntimeError(f"{name} serves {actual}, not {wanted}")


def _drop(server: Server, jar: str, name: str) -> None:
    with _session(server, jar, name) as database:
        database.execute(f"DROP TABLE {name}")
        database.execute("CHECKPOINT")


def _session(server: Server, jar: str, name: str) -> Any:
    sink = jdbc.Settings.model_validate(
        {
            "kind": "jdbc",
            "name": name,
            "url": server.url,
            "table": name,
            "driver_jar": jar,
            **{secret: {"env": "UNUSED"} for secret in ("user", "password")},
        }
    )
    return connect(jar, sink, Credentials(server.user, server.password))


if __name__ == "__main__":
    sys.exit(main())
