"""Records every frame that code under test evaluates, writes or keeps in memory.

A test of plans need not list the frames of a job, so none can be forgotten. `recording` wraps the methods of
DataFrame that start Spark jobs. It notes the physical plan and then calls the original method.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameWriter

from tests.conftest import INTERPRETED
from tests.plans.accelerator import Accelerator
from tests.plans.runs import RUNS
from tests.plans.shape import shape_of
from tests.spark_settings import set_meanwhile

ROOT = Path(__file__).parents[2]
OURS = ("etl", "scoring", "jobs", "training")
# They evaluate frames on behalf of others, who are the ones to name.
PASSED_OVER = {"storage.publish"}
ACTIONS = (
    "collect",
    "count",
    "toPandas",
    "toLocalIterator",
    "foreachPartition",
    "foreach",
    "isEmpty",
    "persist",
)
# As jobs plan a frame, whose text leaves nothing out; how it is run meanwhile is no matter here.
_NOTED = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.debug.maxToStringFields": "10000",
    "spark.sql.maxMetadataStringLength": "10000",
}


@dataclass(frozen=True)
class Frame:
    """A frame on its way to Spark.

    Attributes:
        name: the function of ours that asked, and what for: `etl.spark.frame_passes._publish write`.
        shape: its physical plan without ids, paths, sizes and expressions (tests.plans.shape).
        explained: the accelerator's explanation; empty where there is no jar.
    """

    name: str
    shape: str
    explained: str = field(compare=False, repr=False)


@dataclass(frozen=True)
class Recorded:
    """The frames of a run, and the folder its lake and raw data lie in."""

    frames: list[Frame]
    folder: Path


@contextmanager
def recording(accelerator: Accelerator | None) -> Iterator[list[Frame]]:
    """Yields the frames that Spark evaluates inside the block, in order. Equal frames of one name are listed
    once.
    """
    frame_by_key: dict[tuple[str, str, str], Frame] = {}

    def note(rows: DataFrame, what: str, writer: DataFrameWriter | None = None, path: str = "") -> None:
        # A frame keeps its first plan. A twin is planned here, so that the frame can still be kept in memory.
        twin = _twin(rows.groupBy().count() if what == "count" else rows)
        with set_meanwhile(rows.sparkSession, _NOTED):
            name, plan = f"{_asked_by()} {what}", twin._jdf.queryExecution().executedPlan().toString()
            key = (name, shape_of(plan), shape_of(plan, expressions=True))
            if key in frame_by_key:
                return
            explained = ""
            if accelerator:
                explained = accelerator.explain_write(writer, path) if writer else accelerator.explain(twin)
        frame_by_key[key] = Frame(name, key[1], explained)

    def watched(method: str) -> Callable[..., Any]:
        original = getattr(DataFrame, method)

        def watch(self: DataFrame, *arguments: Any, **named: Any) -> Any:
            note(self, method)
            return original(self, *arguments, **named)

        return watch

    write = DataFrameWriter.parquet

    def watch_write(self: DataFrameWriter, path: str, *arguments: Any, **named: Any) -> None:
        note(self._df, "write", self, path)
        write(self, path, *arguments, **named)

    frames: list[Frame] = []
    with pytest.MonkeyPatch.context() as patch:
        for method in ACTIONS:
            patch.setattr(DataFrame, method, watched(method))
        patch.setattr(DataFrameWriter, "parquet", watch_write)
        yield frames
    frames.extend(frame_by_key.values())


def record(spark: SparkSession, name: str, folder: Path, accelerator: Accelerator | None) -> Recorded:
    """The frames of a run of tests.plans.runs, planned as for large tables.

    No join becomes a broadcast only because the tables of a test are small.
    """
    with (
        set_meanwhile(spark, {"spark.sql.autoBroadcastJoinThreshold": "-1", **INTERPRETED}),
        recording(accelerator) as frames,
    ):
        RUNS[name].make(spark, folder)
    return Recorded(frames, folder)


def _twin(rows: DataFrame) -> DataFrame:
    """The same frame, not planned yet."""
    session, jvm = rows.sparkSession, rows.sparkSession._jvm
    assert jvm is not None
    return DataFrame(
        jvm.org.apache.spark.sql.Dataset.ofRows(session._jsparkSession, rows._jdf.logicalPlan()), session
    )


def _asked_by() -> str:
    """The innermost function of ours on the stack that evaluates a frame for itself."""
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            if module.split(".")[0] in OURS and module not in PASSED_OVER:
                return f"{module}.{frame.f_code.co_name.strip('<>')}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "test"
