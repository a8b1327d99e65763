"""The helpers of these tests find what they are there to find."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.plans.accelerator import Accelerator, fallbacks
from tests.plans.allowed import Allowed, refused, unneeded
from tests.plans.recorder import Frame, recording
from tests.plans.shape import shape_of

EXPLAINED = """\
*Exec <HashAggregateExec> will run on GPU
  *Expression <Alias> a#1 AS b#2 will run on GPU
  !Exec <ProjectExec> cannot run on GPU because not all expressions can be replaced
    @Expression <Alias> decode(a#1, UTF-8) AS c#3 could run on GPU
      !Expression <StringDecode> decode(a#1, UTF-8) cannot run on GPU because it is not there; it is slow
    ! <RDDScanExec> cannot run on GPU because GPU does not currently support it
    *Exec <PythonMapInArrowExec> will partially run on GPU
"""


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(8).select(F.col("id"), (F.col("id") % 3).alias("key"))


def test_fallbacks_name_node_and_reason_and_leave_out_what_follows() -> None:
    named = [(fallback.node, fallback.reason) for fallback in fallbacks(EXPLAINED)]
    assert named == [
        ("StringDecode", "it is not there"),
        ("StringDecode", "it is slow"),
        ("RDDScanExec", "GPU does not currently support it"),
        ("PythonMapInArrowExec", "will partially run on GPU"),
    ]


@pytest.mark.parametrize(
    "text", ["", "nothing of a plan", EXPLAINED + "!Exec FilterExec said in another way\n"]
)
def test_an_explanation_that_is_not_understood_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"explain|form we do not know"):
        fallbacks(text)


def test_a_fallback_is_allowed_by_node_and_reason_together() -> None:
    frame = Frame("etl.x write", "", EXPLAINED)
    scan = Allowed("RDDScanExec", "GPU does not .*", "")
    assert len(refused([frame], [])) == 4
    assert "etl.x write: StringDecode: it is slow" in refused([frame], [scan])[1]
    python = Allowed("PythonMapInArrowExec", "will partially .*", "")
    assert len(refused([frame], [scan, python, Allowed("StringDecode", "it is slow", "")])) == 1
    assert refused([frame], [scan, python, Allowed("StringDecode", "it is .*", "")]) == []
    assert unneeded([frame], [scan, Allowed("StringDecode", "another", "")]) == [
        Allowed("StringDecode", "another", "")
    ]


def test_the_accelerator_tells_what_runs_on_a_gpu_and_what_does_not(
    accelerator: Accelerator, rows: DataFrame
) -> None:
    assert fallbacks(accelerator.explain(rows.groupBy("key").count())) == []
    decoded = rows.select(F.decode(F.col("id").cast("string").cast("binary"), "UTF-8"))
    assert [fallback.node for fallback in fallbacks(accelerator.explain(decoded))] == ["StringDecode"]


def test_a_write_is_explained_with_its_options_and_not_run(
    accelerator: Accelerator, rows: DataFrame, tmp_path: Path
) -> None:
    good = accelerator.explain_write(rows.write, str(tmp_path / "out"))
    assert "*Exec <DataWritingCommandExec> will run on GPU" in good
    assert fallbacks(good) == []
    bad = accelerator.explain_write(rows.write.option("compression", "gzip"), str(tmp_path / "out"))
    assert any("gzip" in fallback.reason.lower() for fallback in fallbacks(bad))
    assert list(tmp_path.iterdir()) == []


def test_every_way_to_start_a_job_is_recorded(rows: DataFrame, tmp_path: Path) -> None:
    with recording(None) as frames:
        rows.collect()
        rows.first()
        rows.where("id > 3").count()
        rows.where("id > 4").persist().unpersist()
        rows.where("id > 5").write.parquet(str(tmp_path / "out"))
        rows.where("id > 5").toPandas()
    assert [frame.name.split()[1] for frame in frames] == [
        "collect",
        "collect",
        "count",
        "persist",
        "write",
        "toPandas",
    ]
    assert "HashAggregate" in frames[2].shape
    assert (tmp_path / "out").is_dir()


def test_recording_does_not_change_what_is_kept_in_memory(rows: DataFrame) -> None:
    kept = rows.where("id > 6")
    with recording(None):
        kept.persist()
        kept.count()
    assert "InMemoryTableScan" in kept._jdf.queryExecution().executedPlan().toString()
    kept.unpersist()


def test_a_shape_shows_what_moves_and_orders_rows(rows: DataFrame) -> None:
    def shape(frame: DataFrame) -> str:
        return shape_of(frame._jdf.queryExecution().executedPlan().toString())

    counted = rows.groupBy("key").count()
    assert shape(counted) == shape(rows.groupBy("key").count())
    assert shape(counted) == shape(rows.groupBy("key").agg(F.sum("id").alias("count")))
    for other in (
        counted.repartition(3),
        counted.sort("key"),
        rows.groupBy("id").count(),
        rows.join(counted, "key"),
        rows.join(F.broadcast(counted), "key"),
    ):
        assert shape(other) != shape(counted)
    assert "#" not in shape(rows.join(counted, "key"))


@pytest.mark.parametrize("tag", ["_q{}_0_", "_c{}_0_"])
def test_a_shape_does_not_number_chains(rows: DataFrame, tag: str) -> None:
    def shape(chain: int, column: str) -> str:
        key = f"{tag.format(chain)}{column}"
        looked_up = rows.select(F.col("key").alias(key)).groupBy(key).count()
        joined = rows.join(looked_up, F.col("key") == F.col(key), "left")
        return shape_of(joined._jdf.queryExecution().executedPlan().toString())

    assert shape(3, "value") == shape(12, "value") != shape(12, "other")
    assert f"[{tag.format('*')}value]" in shape(3, "value")
