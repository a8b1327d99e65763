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
* **With a preparation**, the scan pass also divides the good rows by user into buckets. A task prepares the
  rows of one bucket of a day and publishes them in the table `prepared`. Values are counted and features are
  computed from these rows.

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

## When Spark reads a log

Spark frames read the log, and a JVM starts, in these cases:

| case | to avoid it |
|---|---|
| `workflow.engine` is `sql` | leave it at `auto` |
| rows need a preparation, and Spark's workers run the tasks | run the job on one machine, as above |
| an operator of a package changes rows without `apply_table` | [define it](extending.md#a-row-operator) |
| the compiled scanner is missing, and the files are text | run `make setup` |

Spark's workers run the tasks on a cluster, in a notebook, if spark-submit has started the job, and if
`workflow.engine` is `arrow`. Spark frames read neither JSON lines nor ORC files: such a job ends with exit
code 2.
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
    """Returns whether build_features needs a JVM on one machine (spark.choose_workers.choose_workers)."""
    return config.workflow.engine != "auto" or road_of(config, on_one_machine=True).kind == "frames"


def _way(road: Road) -> str:
    if road.kind == "frames":
        return f"Spark frames: {road.reason}"
    return "tasks prepare rows" if road.kind == "prepared" else "tasks read the log"


def _split(config: Config) -> str:
    split = config.split
    if split.by == "day":
        return f"{split.train_days} + {split.validation_days} + {split.test_days} days"
    if split.by == "leave_last_out":
        return "last positive rows of each user"
    by = "event time" if config.log.event_time else "position"
    return f"{split.train:g} + {split.validation:g} of the rows by {by}"
