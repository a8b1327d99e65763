"""Which tests only `make test-extended` runs: those that prove once more what a test of `make test` shows.

Each entry is the beginning of the ids of tests; `*` stands for any text. In a run of all tests, an entry that
begins no id is an error. Behind each group stands which tests of `make test` show the same behaviour.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

EXTENDED = (
    # Airflow's scheduler, and a training by `dag.test`. The DAGs' tasks, retries and dates: test_dags.py.
    "tests/airflow/test_scheduler.py",
    "tests/airflow/test_dags.py::test_a_training_and_a_day_run_by_dag_test",
    # Rehearsals of benchmarks. Their parts and summary lines: the other tests of these files.
    "tests/benchmarks/test_gpu.py::test_every_part_runs_and_measures_nothing",
    "tests/benchmarks/test_scoring.py::test_the_benchmark_ends_in_one_json_line",
    "tests/benchmarks/test_overlap.py::test_a_small_run_on_real_ranks",
    "tests/benchmarks/test_loader.py::test_the_interference_of_each_loader_is_measured",
    "tests/benchmarks/test_loader.py::test_the_benchmark_ends_in_one_json_line",
    # Every store and engine. A log on Google's store, a lake on S3 without a JVM: the same files.
    "tests/etl/lakes/test_hdfs.py",
    "tests/etl/lakes/test_raw_stores.py::*hdfs",
    "tests/etl/lakes/test_raw_stores.py::*azure",
    "tests/etl/lakes/test_other_readers.py",
    "tests/etl/lakes/test_object_store.py::*[sql]",
    "tests/etl/lakes/test_late_files.py::*[sql]",
    "tests/etl/lakes/test_mixed_files.py::*[sql-",
)


def beginnings(patterns: Iterable[str] = EXTENDED) -> dict[str, re.Pattern[str]]:
    """Returns, for each pattern, the regular expression that `re.match` finds in the ids of its tests."""
    return {
        pattern: re.compile(".*".join(re.escape(part) for part in pattern.split("*"))) for pattern in patterns
    }
