"""What a job's JVM prints to standard error, formatted by the log4j that runs in it."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark.error_log import _FIRST_LINES

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
