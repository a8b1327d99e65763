"""A run of build_features that SIGKILLs its process at an instant of the preparation of rows."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conf.load import load_config
from conf.types import Config
from etl.prepare import click_tables, prepared_passes, task_passes
from etl.prepare.task_passes import TaskPasses, prepare_buckets
from etl.text import published_days
from spark.workers import LocalWorkers
from storage.paths import Partition
from storage.publish import publish_files
from tests.etl import cases
from tests.etl.prepare.small_shop import no_session
from tests.processes import fork_from

BUCKETS = 8


def die(*_: object, **__: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_at_first_file(config: Config, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function; while it runs, the first prepared file ends this process."""

    def wait() -> None:
        while not any(Path(config.lake).glob("_data/prepared/**/*.parquet")):
            time.sleep(0.001)
        die()

    def called(*arguments: Any) -> Any:
        threading.Thread(target=wait, daemon=True).start()
        function(*arguments)
        time.sleep(60)  # the thread ends the process before

    return called


def _kill_at_publication(table: str, number: int, publish: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that ends this process before a publication of a table (the first one is 1)."""
    seen = 0

    def called(partition: Partition, *arguments: Any, **named: Any) -> Any:
        nonlocal seen
        seen += partition.table.split("/")[0] == table
        return die() if seen == number else publish(partition, *arguments, **named)

    return called


def kill_at(instant: str, config: Config, patch: pytest.MonkeyPatch) -> None:
    """Lets this process die at an instant. Other words than the known ones change nothing."""
    if instant == "after the scan":
        patch.setattr(prepared_passes, "collect_summaries", die)
    elif instant == "before the clicks of a day":
        publish = _kill_at_publication("last_clicks", 2, publish_files)
        patch.setattr(click_tables, "publish_files", publish)
    elif instant == "after the first prepared file":
        prepare = _kill_at_first_file(config, prepare_buckets)
        patch.setattr(task_passes, "prepare_buckets", prepare)
    elif instant in ("before the first day", "between two days", "between two days of counts"):
        table = "value_counts" if instant.endswith("counts") else "prepared"
        number = 1 if instant == "before the first day" else 3
        publish = _kill_at_publication(table, number, publish_files)
        patch.setattr(prepared_passes if table == "value_counts" else task_passes, "publish_files", publish)
    elif instant == "before the counts":
        patch.setattr(TaskPasses, "_count", die)
    elif instant == "before the features":
        patch.setattr(published_days, "encode_splits", die)


INSTANTS = (
    "after the scan",
    "before the clicks of a day",
    "after the first prepared file",
    "before the first day",
    "between two days",
    "before the counts",
    "between two days of counts",
    "before the features",
)


def run(server: str, path: str, run_date: str, folder: str, instant: str, parent: str | None = None) -> None:
    """Builds the features of a run date; with a workflow version, the run applies it.

    Args:
        server: the address of the server that forked this process.
    """
    fork_from(server)
    config = load_config(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskPasses, "_buckets", lambda *_: BUCKETS)
        kill_at(instant, config, patch)
        workers = LocalWorkers(2, no_session, folder)
        cases.run_build(workers, config, run_date, parent)
    # multiprocessing ends its processes without `atexit`, and before threads have ended.
    if workers._pool is not None:
        workers._pool.shutdown()
    workers._scratch.delete()
