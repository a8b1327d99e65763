"""What a job's JVM prints to standard error, formatted by the log4j that runs in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.errors import EXIT_DATA, DataError
from jobs.runner import _log_failure
from spark.error_log import _FIRST_LINES, data_error_in

# As the accelerator logs it: an empty first line, and lines about all parts of a plan.
ON_CPU = """
    !Exec <ProjectExec> cannot run on GPU because not all expressions can be replaced
      @Expression <Alias> hex(id) AS c could run on GPU
        ! <Hex> hex(id) cannot run on GPU because GPU does not support it
"""


def printed(spark: SparkSession, message: str, error: str | None = None) -> str:
    """The line of a message, without its time."""
    assert spark._jvm is not None
    core: Any = spark._jvm.org.apache.logging.log4j.core
    messages: Any = spark._jvm.org.apache.logging.log4j.message
    builder = core.impl.Log4jLogEvent.newBuilder().setLoggerName("com.nvidia.GpuOverrides")
    builder = builder.setLevel(spark._jvm.org.apache.logging.log4j.Level.WARN)
    builder = builder.setMessage(messages.SimpleMessage(message))
    if error is not None:
        builder = builder.setThrown(spark._jvm.java.lang.RuntimeException(error))
    pattern = core.layout.PatternLayout.newBuilder().withPattern(_FIRST_LINES)
    text = pattern.withAlwaysWriteExceptions(False).build().toSerializable(builder.build())
    return str(text).partition(" GpuOverrides: ")[2]


@pytest.mark.parametrize(
    "message, expected",
    [
        ("one line", "one line\n"),
        ("first\n\tat org.apache.Spark(Some.java:1)\r\n\tat another\n", "first\n"),
        (ON_CPU, "\n".join(line for line in ON_CPU.splitlines() if "could" not in line) + "\n"),
        ("", "\n"),
    ],
)
def test_first_lines_are_printed_and_what_stays_on_the_cpu(
    spark: SparkSession, message: str, expected: str
) -> None:
    assert printed(spark, message) == expected


def test_an_error_adds_its_message(spark: SparkSession) -> None:
    assert printed(spark, "failed", "the cause\nand its details") == "failed: the cause\n"


Provoke = Callable[[SparkSession, Path], Any]


def _file(folder: Path, compression: str = "snappy") -> Path:
    path = folder / "a file.parquet"
    pq.write_table(pa.table({"n": list(range(1000))}), path, compression=compression)
    return path


def _read(spark: SparkSession, path: Path, kind: str = "bigint") -> Any:
    return spark.read.schema(f"n {kind}").parquet(str(path)).agg(F.sum("n")).collect()


def _damaged_page(spark: SparkSession, folder: Path, compression: str) -> Any:
    path = _file(folder, compression)
    content = bytearray(path.read_bytes())
    content[60:400] = bytes(byte ^ 0xFF for byte in content[60:400])
    path.write_bytes(content)
    return _read(spark, path)


def _no_parquet(spark: SparkSession, folder: Path) -> Any:
    path = _file(folder)
    path.write_bytes(b"1,2\n" * 100)
    return spark.read.parquet(str(path))


def _cut(spark: SparkSession, folder: Path) -> Any:
    path = _file(folder)
    path.write_bytes(path.read_bytes()[:-50])
    return _read(spark, path)


def _illegal_type(spark: SparkSession, folder: Path) -> Any:
    path = _file(folder)
    pq.write_table(pa.table({"t": pa.array([1], pa.time64("us"))}), path)
    return spark.read.parquet(str(path))


OF_DATA: dict[str, tuple[Provoke, bool]] = {
    "snappy": (lambda spark, folder: _damaged_page(spark, folder, "snappy"), True),
    "zstd": (lambda spark, folder: _damaged_page(spark, folder, "zstd"), True),
    "codec": (lambda spark, folder: _read(spark, _file(folder, "brotli")), True),
    "type": (lambda spark, folder: _read(spark, _file(folder), "string"), True),
    "no Parquet": (_no_parquet, True),
    "cut": (_cut, True),
    "illegal type": (_illegal_type, False),
    "missing path": (lambda spark, folder: spark.read.parquet(f"{folder}/a file.parquet"), True),
    "missing column": (lambda spark, _: spark.range(1).select("absent"), False),
    "syntax": (lambda spark, _: spark.range(1).selectExpr("1 +* 2"), False),
}


@pytest.mark.parametrize("case", OF_DATA)
def test_exceptions_of_data_are_data_errors_that_name_the_file(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    provoke, names_file = OF_DATA[case]
    with pytest.raises((PySparkException, Py4JError)) as caught:
        provoke(spark, tmp_path)
    error = data_error_in(caught.value)
    assert isinstance(error, DataError)
    assert names_file == error.problem.startswith(f"{tmp_path}/a file.parquet cannot be read: ")
    assert "\tat " not in str(error), "no stack trace"


def _file_is_gone(spark: SparkSession, folder: Path) -> Any:
    frame = spark.read.schema("n bigint").parquet(str(_file(folder)))
    _file(folder).unlink()
    return frame.collect()


def _disk_is_full(spark: SparkSession) -> Any:
    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        raise OSError(28, "No space left on device while an org.apache.parquet.SomeException is written")

    return spark.range(1).mapInPandas(fail, "id long").collect()


OF_SYSTEM: dict[str, Provoke] = {
    "file is gone": _file_is_gone,
    "full disk": lambda spark, _: _disk_is_full(spark),
    "refused connection": lambda spark, _: spark.read.parquet("hdfs://127.0.0.1:1/x"),
    "folder cannot be created": lambda spark, folder: spark.range(1).write.parquet("/proc/absent/x"),
}


@pytest.mark.parametrize("case", OF_SYSTEM)
def test_exceptions_of_the_system_are_none(spark: SparkSession, tmp_path: Path, case: str) -> None:
    with pytest.raises((PySparkException, Py4JError)) as caught:
        OF_SYSTEM[case](spark, tmp_path)
    assert data_error_in(caught.value) is None


def test_an_error_of_python_is_none() -> None:
    assert data_error_in(OSError("org.apache.parquet.SomeException")) is None


def test_a_job_with_damaged_data_ends_with_the_exit_code_of_data(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Py4JError) as caught:
        _cut(spark, tmp_path)
    context: Any = SimpleNamespace(name="build_features")
    sessions: Any = SimpleNamespace(keep_stacks=lambda *_: None)
    error, exit_code = _log_failure(context, caught.value, sessions)
    assert (type(error), exit_code) == (DataError, EXIT_DATA)
    assert f"build_features failed: {tmp_path}/a file.parquet cannot be read" in caplog.text
    assert "disk" not in caplog.text
