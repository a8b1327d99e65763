"""Measures how long the source `covisitation` needs for a log of clicks, and compares it with joins in Spark.

    .venv/bin/python benchmarks/covisitation.py [--quick] [--clicks N]

The log is generated: N clicks, N / 100 users and 10,000 items, whose popularity falls as 1 / rank. Both
contenders read the same Parquet file, compute the 100 most similar items of each item and write a list of 100
items for each user, in a Spark session on local[2] of their own. Both compute the same lists, which the script
checks. The joins of the peer (benchmarks/peers/joined_covisitation.py) run on the first tenth of the users,
because they need too long for all. The ratio compares both on this tenth. Seconds and CPU seconds are those of
the work, without the start of the session. CPU seconds are those of the process tree (benchmarks/harness.py).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import measure
from benchmarks.report import GIB, machine, summary_line, table

ROOT = Path(__file__).resolve().parent.parent
ITEMS, CLICKS_PER_USER, N, NEIGHBOURS, CORES = 10_000, 100, 100, 100, 2
SEED = 5
LIMIT_S = 3_600.0


@dataclass(frozen=True)
class Run:
    """One run of a contender.

    Attributes:
        seconds: from the first action to the end of the last one.
        cpu_s: CPU seconds of the process tree in this time.
        peak_gib: peak memory (PSS) of the process tree, in GiB.
    """

    seconds: float
    cpu_s: float
    peak_gib: float

    def figures(self, suffix: str = "") -> dict[str, float]:
        """Returns the figures as JSON values, with a suffix in their names."""
        rounded = (round(self.seconds, 1), round(self.cpu_s, 1), round(self.peak_gib, 2))
        return dict(
            zip((f"{name}{suffix}" for name in ("seconds", "cpu_s", "peak_gib")), rounded, strict=True)
        )


def write_clicks(path: Path, clicks: int) -> int:
    """Writes a log of clicks with the columns user_key, item_key, label and features_dt. Returns the users."""
    draw = np.random.default_rng(SEED)
    users = max(1, clicks // CLICKS_PER_USER)
    shares = 1 / np.arange(1, ITEMS + 1)
    item = draw.choice(ITEMS, clicks, p=shares / shares.sum())
    user = np.repeat(np.arange(users), CLICKS_PER_USER)[:clicks]
    day = draw.integers(1, 8, clicks)
    columns = {
        "user_key": pa.array([f"u{number:07d}" for number in range(users)]).take(pa.array(user)),
        "item_key": pa.array([f"i{number:05d}" for number in range(ITEMS)]).take(pa.array(item)),
        "label": pa.array(np.ones(clicks, np.float32)),
        "features_dt": pa.array([f"2026-01-{number:02d}" for number in range(8)]).take(pa.array(day)),
    }
    pq.write_table(pa.table(columns), path, row_group_size=250_000)
    return users


def run(contender: str, log: str, users: int, folder: str) -> tuple[float, float]:
    """Makes the lists of the first users in a Spark session of this process. Returns start and end of the work."""
    from pyspark.sql import functions as F

    from benchmarks.peers.joined_covisitation import joined_lists
    from scoring.candidates.candidate_items import number_items
    from scoring.candidates.exclusions import Exclusions
    from scoring.candidates.lists_in_spark import VectorStore
    from scoring.candidates.similar_items import latest_items
    from scoring.candidates.sources.covisitation import Settings as Covisitation
    from scoring.candidates.sources.covisitation import covisited_items
    from spark.profile import read_properties
    from spark.session import build_session

    spark = build_session("covisitation", read_properties(ROOT / "conf/spark/local.conf"))
    rows = spark.read.parquet(log).where(F.col("user_key") < f"u{users:07d}")
    items = number_items(spark.read.parquet(log).select("item_key").distinct()).persist()
    items.count()
    config = Covisitation(source="covisitation", n=N, neighbours=NEIGHBOURS)

    def publish(source: str, neighbours: Any, _: int, __: int) -> tuple[str, ...]:
        neighbours.write.parquet(f"{folder}/neighbours")
        return tuple(map(str, sorted(Path(folder, "neighbours").glob("*.parquet"))))

    began = time.monotonic()
    if contender == "ours":
        keys = rows.select("user_key").distinct()
        free = Exclusions(keys.selectExpr("user_key", "cast(null as array<int>) as excluded"))
        store = VectorStore(publish, "cpu", f"{folder}/checkpoints")
        lists = covisited_items(config, free, rows, items, store)
    else:
        history = latest_items(rows, items, config.clicks_per_user)
        lists = joined_lists(history, NEIGHBOURS, N)
    lists.write.parquet(f"{folder}/lists")
    ended = time.monotonic()
    spark.stop()
    return began, ended


def measured(contender: str, log: Path, users: int, folder: Path) -> Run:
    """Runs a contender in a process of its own."""
    arguments = [contender, str(log), str(users), str(folder)]
    output = folder / "output"
    done = measure(
        [sys.executable, __file__, "--contender", json.dumps(arguments)],
        log=output,
        cores=CORES,
        limit_s=LIMIT_S,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if done.returncode:
        raise SystemExit(f"{contender} ended with exit code {done.returncode}:\n{output.read_text()[-2000:]}")
    began, ended = json.loads((folder / "times.json").read_text())
    one = Run(ended - began, done.cpu_between(began, ended), done.peak_pss_bytes / GIB)
    print(f"covisitation: {contender}, {users} users: {one.figures()}", file=sys.stderr, flush=True)
    return one


def require_equal(first: Path, second: Path) -> None:
    """Ends the script if the lists in two folders differ."""
    tables = [pq.read_table(folder / "lists").sort_by("user_key") for folder in (first, second)]
    users, lists = zip(
        *((of["user_key"].to_pylist(), of["candidates"].to_pylist()) for of in tables), strict=True
    )
    if users[0] != users[1] or lists[0] != lists[1]:
        raise SystemExit("the contenders made different lists")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="200,000 clicks")
    parser.add_argument(
        "--clicks", type=int, default=10_000_000, help="number of clicks (default %(default)s)"
    )
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.contender:
        contender, log, users, folder = json.loads(options.contender)
        Path(folder, "times.json").write_text(json.dumps(run(contender, log, int(users), folder)))
        return
    clicks = 200_000 if options.quick else options.clicks
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch, "log.parquet")
        users = write_clicks(log, clicks)
        tenth = max(1, users // 10)
        folders = {name: Path(scratch, name) for name in ("all", "ours", "joins")}
        for folder in folders.values():
            folder.mkdir()
        runs = {
            "ours": measured("ours", log, tenth, folders["ours"]),
            "joins": measured("joins", log, tenth, folders["joins"]),
            "all": measured("ours", log, users, folders["all"]),
        }
        require_equal(folders["ours"], folders["joins"])
    named = [("ours", clicks, "all"), ("ours", tenth * CLICKS_PER_USER, "ours")]
    named.append(("joins in Spark", tenth * CLICKS_PER_USER, "joins"))
    rows = [
        (name, f"{rows:,}", *(f"{figure}" for figure in runs[key].figures().values()))
        for name, rows, key in named
    ]
    print(table(("contender", "clicks", "seconds", "CPU seconds", "peak GiB"), rows))
    ours = {"clicks": clicks, **runs["all"].figures(), **runs["ours"].figures("_tenth")}
    peers = {"joins": runs["joins"].figures("_tenth")}
    ratios = {"joins": runs["joins"].seconds / runs["ours"].seconds}
    print(summary_line("covisitation", machine(CORES, ("pyspark", "scipy")), ours, peers, ratios))


if __name__ == "__main__":
    main()
