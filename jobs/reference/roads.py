"""Makes docs/roads.md: how build_features reads the logs of conf/datasets, and which jobs start a JVM."""

from __future__ import annotations

from pathlib import Path

from conf.load import load_config
from conf.types import Config
from etl.passes import Road, road_of
from etl.workflow.feature_plan import copied_tables, plan_of
from scoring.candidates.candidate_tables import frames_needed
from scoring.delivery.sinks import read_settings, works_in_process
from training.launch.ranks import cores_of_driver

DATASETS = Path(__file__).resolve().parents[2] / "conf" / "datasets"

_PAGE = """<!-- Made from conf/datasets and etl/passes.py by `make docs`; changes here are lost. -->

# How logs are read

This page is for people who write a configuration. It describes what `build_features` does with the rows of a
log, and which jobs of a run start Spark. [Decision 0102](decisions/one-road.md#0102) has the reasons.

The reader of the log's format returns typed blocks of rows. `build_features` processes them in one of two
ways:

* **Without a preparation**, tasks read the raw log twice: the scan pass publishes the quarantine and counts
  values, and the encode pass writes the features.
* **With a preparation**, the scan pass stores the good rows. On one machine, it divides them by user into
  buckets, and each task prepares the rows of one bucket of a day. On a cluster, Spark prepares the rows of a
  day. The prepared rows are written to the table `prepared`. Further tasks count values and compute features
  from the files of this table.

Rows need a preparation in three cases:

* The configuration has a section `history`, `negatives`, `last_values`, `users` or `items`, or the key
  `serving.impressions.row_column`. Each of them adds columns or rows to the log
  ([configuration.md](configuration.md)).
* An operator of `prepare` adds columns or combines rows. Filters of `prepare` need no preparation.
* The split needs the times of the rows, or all rows of a user. Splits by position or by day do not.

## The shipped configurations

The program that writes this table calls the same functions as the jobs: `road_of` in `etl/passes.py` decides
how a log is read, and `frames_needed` in `scoring/candidates/candidate_tables.py` decides how candidates are
computed. *All jobs of a run* are the jobs that `nightly --retrain` starts on one machine.

| configuration | format | split | prepared | on one machine | on a cluster | candidates | all jobs of a run |
|---|---|---|---|---|---|---|---|
"""

_AFTER = """
*On one machine* means that Python starts the job with a local master and without plugins of Spark, as
`nightly`, `nightrank build_features` and `python jobs/build_features.py` do.

## When a JVM starts

On one machine, `build_features` starts a JVM in two cases:

* `workflow.engine` is not `auto`. With `arrow`, Spark's Python workers run the tasks. With `sql`, frames also
  compute the features.
* A raw table has `format: spark_table`. Spark copies its changed rows, and then tasks of this machine read
  the copy ([lakes.md](lakes.md#read-a-table-of-sparks-catalogue)).

On a cluster, in a notebook, and in jobs that spark-submit has started, Spark's workers run the tasks.

On a cluster too, tasks parse the logs: Spark itself never reads the text of a log. Tasks store rows that need
a preparation as Parquet files of the lake. Spark reads these files, and computes joins, histories and
negatives with its SQL operators, which the RAPIDS Accelerator supports. Spark then writes the table
`prepared`. The features are equal on one machine and on a cluster.

If an operator from a package changes rows, it needs two functions
([a row operator](extending.md#a-row-operator)): `apply_table` for one machine, and `apply` for Spark. The
compiled scanner, which `make setup` builds, reads text files. With `workflow.device: cuda`, GPUs read them
([gpu.md](gpu.md#logs-on-a-gpu)).

## When another job starts a JVM

On one machine, the other jobs also need no Spark, with any model and any source of candidates of this
project. They compute in threads of their process and in worker processes. A JVM starts in these cases:

| job | case | to avoid it |
|---|---|---|
"""

_END = """
`check_lists`, `report`, `export_model`, `prune`, `champion` and `show` do not start a JVM. With and without
Spark, the published candidates are the same, up to rounding of the scores.
"""

_ROWS = "the rows or list entries need more than half of the free memory (100 bytes are counted for each)"
_ON_CLUSTER = "Spark's workers run the tasks, as above"
_JOBS = (
    ("all jobs that read rows", "`workflow.engine` is not `auto`", "leave it at `auto`"),
    ("all jobs that read rows", _ON_CLUSTER, "start the job with Python on one machine"),
    (
        "`build_features`, `check_quality`, `plan_night`, `measure_recommendations`",
        "a raw table has `format: spark_table`",
        "let the program that writes the table write Parquet files, or use `format: delta`",
    ),
    (
        "`train_model`, `train_retriever`, `refit_model`, `compare_models`",
        "more than one rank: elastic training, several GPUs, or `train.num_ranks` above 1",
        "leave `train.num_ranks` at `auto`",
    ),
    ("all jobs from `evaluate_model` to `measure_recommendations`", _ROWS, "score fewer users or days"),
    ("`build_candidates`, `learn_blend`", "a source of candidates from a package", "use another source"),
    (
        "`build_candidates`, `learn_blend`",
        "a filter compares a float with a value of another type",
        "declare the same type in both tables",
    ),
    (
        "`deliver_recommendations`, `erase_user`",
        "a sink of the kind `jdbc` without a local `driver_jar`, of the kind `table` with `table`, or from "
        "a package without `IN_PROCESS`",
        "set `driver_jar` to a local path; set `path` instead of `table`; [use another sink](delivery.md)",
    ),
)


def roads_page() -> str:
    """Returns the text of docs/roads.md."""
    rows = []
    for path in sorted(DATASETS.glob("*.yaml")):
        config = load_config(str(path))
        here, cluster = (road_of(plan_of(config), on_one_machine=one) for one in (True, False))
        prepared = ", ".join(here.prepared) or "nothing"
        ways = f"{_way(here)}; {'a JVM starts' if starts_jvm(config) else 'no JVM'} | {_way(cluster)}"
        of_run = "a JVM starts" if run_starts_jvm(config) else "no JVM"
        cells = [
            f"`{path.name}`",
            config.log.format,
            _split(config),
            prepared,
            ways,
            _sources(config),
            of_run,
        ]
        rows.append(f"| {' | '.join(cells)} |\n")
    jobs = "".join(f"| {' | '.join(case)} |\n" for case in _JOBS)
    return _PAGE + "".join(rows) + _AFTER + jobs + _END


def starts_jvm(config: Config) -> bool:
    """Returns whether build_features starts a JVM on one machine, to run tasks or to copy raw tables."""
    return config.workflow.engine != "auto" or bool(copied_tables(plan_of(config)))


def run_starts_jvm(config: Config) -> bool:
    """Returns whether a job of a run with retraining needs a JVM on one machine without GPUs."""
    if starts_jvm(config) or cores_of_driver(config.train) is None:
        return True
    sinks = read_settings(config.deliver, config.folders)
    in_process = all(works_in_process(module, settings) for module, settings in sinks)
    return not in_process or (config.keys is not None and frames_needed(config))


def _sources(config: Config) -> str:
    if config.keys is None:
        return "none: `score_rows` scores rows"
    sources = [source.name for source in config.candidates.sources]
    blended = " with a blend" if config.score.blend == "auto" else ""
    return f"{', '.join(f'`{name}`' for name in sources)}{blended}"


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
