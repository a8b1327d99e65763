"""benchmarks/gpu/etl.py without a GPU: its commands, its list of operations on the CPU, its comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.agreement import Summary
from benchmarks.contender import Day, Task
from benchmarks.gpu.etl import Bench, left_on_cpu, parse
from benchmarks.gpu.etl_tables import Published, differences
from benchmarks.gpu.one_worker import OneWorker

DAY = "2026-01-01"
PUBLISHED = Published(
    Summary({DAY: 2}, {(DAY, "C1"): 7}, {(DAY, "C1"): 8}, {(DAY, "I1: sum"): 1.0}),
    {"vocabulary": (3, 11), "rare": (4, 12)},
    {"I1": (0.5, 2.0)},
)
LOG = """\
26/11/26 05:00:02 WARN GpuOverrides:
!Exec <FileSourceScanExec> cannot run on GPU because unsupported file format: text
  !Expression <AttributeReference> value#1 cannot run on GPU because it is text
26/11/26 05:00:03 WARN X: !Exec <FileSourceScanExec> cannot run on GPU because unsupported file format: text
    @Expression <Alias> a AS b could run on GPU
"""


def test_operations_left_on_the_cpu_are_counted_by_reason() -> None:
    assert left_on_cpu(LOG).splitlines() == [
        "left on the CPU (2 kinds):",
        "    2  FileSourceScanExec: unsupported file format: text",
        "    1  AttributeReference: it is text",
    ]
    assert left_on_cpu("") == "left on the CPU (0 kinds):"


def test_equal_tables_have_no_differences() -> None:
    assert differences(PUBLISHED, PUBLISHED, "gpu") == []


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"features": replace(PUBLISHED.features, rows={DAY: 1})}, "features of gpu: it wrote"),
        ({"features": replace(PUBLISHED.features, exact={(DAY, "C1"): 6})}, "features of gpu: ids differ"),
        ({"vocabularies": {"vocabulary": (3, 11), "rare": (4, 13)}}, "gpu: the table rare has (4, 13)"),
        ({"vocabularies": {"vocabulary": (2, 11), "rare": (4, 12)}}, "gpu: the table vocabulary has (2, 11)"),
        (
            {"normalised": {"I1": (0.5, 2.5)}},
            "gpu: means and deviations differ in 1 columns: I1 has (0.5, 2.5)",
        ),
    ],
)
def test_a_difference_is_reported(changed: dict[str, object], said: str) -> None:
    (message,) = differences(PUBLISHED, replace(PUBLISHED, **changed), "gpu")  # type: ignore[arg-type]
    assert message.startswith(said)


def test_commands_use_the_profiles_as_they_are(tmp_path: Path) -> None:
    options = parse(["--jar", "/jars/rapids.jar"], has_gpu=True)
    assert (options.rows, options.only) == (16_000_000, ("processes", "gpu", "spark", "spark_sql"))
    bench = Bench([], OneWorker("spark://host:1", tmp_path), {}, tmp_path, True, options)
    settings = {"data": "/log", "overrides": []}
    task = Task(
        (Day(DAY, "/log/a", True), Day("2026-01-02", "/log/b", False)),
        "/out",
        "/scratch",
        "",
        15,
        2,
        settings,
    )
    of_gpu, of_spark, alone = (bench.command(name, task) for name in ("gpu", "spark", "processes"))
    assert any(word.endswith("conf/spark/etl-gpu.conf") for word in of_gpu)
    assert "--conf=spark.executor.extraClassPath=/jars/rapids.jar" in of_gpu
    assert any(word.endswith("conf/spark/cpu.conf") for word in of_spark)
    assert not any("memory" in word or "rapids" in word for word in of_spark)
    assert of_gpu[-8:] == of_spark[-8:] == alone[-8:]
    assert "spark" not in Path(alone[0]).name


def test_without_a_gpu_the_log_is_tiny() -> None:
    options = parse([], has_gpu=False)
    assert (options.rows, options.only) == (4_000, ("processes", "spark"))
