"""Makes docs/roads.md: how build_features reads the log of each configuration in conf/datasets."""

from __future__ import annotations

from pathlib import Path

from conf.load import load_config
from conf.types import Config
from etl.passes import Road, road_of

DATASETS = Path(__file__).resolve().parents[2] / "conf" / "datasets"

_PAGE = """<!-- Made from conf/datasets and etl/passes.py by `make docs`; changes here are lost. -->

# How logs are read

This page is for people who write a configuration and want to know what `build_features` does with the rows of
their log, and whether it starts Spark. [Decision 0102](decisions/0102-one-road.md) has the reasons.

A log enters by the reader of its format, as typed blocks of rows. Then it takes one of two ways:

* **Without a preparation**, tasks read the raw log twice: the scan pass publishes the quarantine and counts
  values, and the encode pass writes the features.
* **With a preparation**, the scan pass stores the good rows. On one machine it divides them by user into
  buckets, and a task prepares the rows of one bucket of a day; on a cluster, Spark prepares the rows of a
  day. The table `prepared` gets the result. Values are counted and features are computed from its files.

Rows need a preparation if they get histories, negatives, positions or attributes from the tables of users
and items, if an operator of `prepare` adds columns or combines rows, and if the split needs their times or
all rows of a user. Filters of `prepare` need none, and neither does a split by position or by day.

## The shipped configurations

The program that writes this table asks `road_of` in `etl/passes.py`, which also decides in a job.

| configuration | format | split | prepared | on one machine | on a cluster |
|---|---|---|---|---|---|
"""

_AFTER = """
*On one machine* means that Python starts the job with a local master and without plugins of Spark, as
`nightly`, `nightrank build_features` and `python jobs/build_features.py` do.

## When a JVM starts

On one machine, a JVM starts only if `workflow.engine` is not `auto`: with `arrow`, Spark's Python workers
run the tasks, and with `sql`, frames also compute the features. Spark's workers run the tasks on a cluster,
in a notebook, and if spark-submit has started the job.

On a cluster, tasks parse logs too: text never enters Spark as text. Rows that need a preparation are stored
as Parquet files of the lake. Spark reads them, computes joins, histories and negatives with its own
operators, which the RAPIDS Accelerator knows, and writes the table `prepared`. Both ways give equal features.

An operator of a package that changes rows needs a form for each of the two ways
([a row operator](extending.md#a-row-operator)): `apply_table` on one machine, `apply` in Spark. Text files
are read by the compiled scanner, which `make setup` builds.
"""


def roads_page() -> str:
    """Returns the text of docs/roads.md."""
    rows = []
    for path in sorted(DATASETS.glob("*.yaml")):
        config = load_config(str(path))
        here, cluster = (road_of(config, on_one_machine=one) for one in (True, False))
        prepared = ", ".join(here.prepared) or "nothing"
        ways = f"{_way(here)}; {'a JVM starts' if starts_jvm(config) else 'no JVM'} | {_way(cluster)}"
        rows.append(f"| `{path.name}` | {config.log.format} | {_split(config)} | {prepared} | {ways} |\n")
    return _PAGE + "".join(rows) + _AFTER


def starts_jvm(config: Config) -> bool:
    """Returns whether build_features starts a JVM on one machine (spark.choose_workers.choose_workers)."""
    return config.workflow.engine != "auto"


def _way(road: Road) -> str:
    if road.kind == "log":
        return "tasks read the log"
    return "tasks prepare rows" if road.by == "tasks" else "Spark prepares rows"


def _split(config: Config) -> str:
    split = config.split
    if split.by == "day":
        return f"{split.train_days} + {split.validation_days} + {split.test_days} days"
    if split.by == "leave_last_out":
        return "last positive rows of each user"
    by = "event time" if config.log.event_time else "position"
    return f"{split.train:g} + {split.validation:g} of the rows by {by}"
