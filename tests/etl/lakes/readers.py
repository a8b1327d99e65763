"""Reads a table with other tools, through reader_process.py, and with Spark."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from functools import partial

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

Seen = dict[str, int] | str


class Readers:
    """A process with the readers of reader_process.py, and the shared session for Spark."""

    def __init__(self, process: subprocess.Popen[str], spark: SparkSession) -> None:
        self._process, self._spark = process, spark

    def see(self, requests: Sequence[tuple[str, str]]) -> list[Seen]:
        """The answer to each (reader, location): value of `generation` → rows, or the text of an error."""
        assert self._process.stdin
        assert self._process.stdout
        others = [(name, where) for name, where in requests if not name.startswith("spark")]
        self._process.stdin.write(json.dumps(others) + "\n")
        self._process.stdin.flush()
        answers = iter(json.loads(self._process.stdout.readline()))
        return [
            self._by_spark(name, where) if name.startswith("spark") else next(answers)
            for name, where in requests
        ]

    def _by_spark(self, name: str, where: str) -> Seen:
        reader = self._spark.read.option("recursiveFileLookup", name == "spark, recursive")
        try:
            rows = {
                "spark, json": reader.json,
                "spark, csv": partial(reader.csv, header=True),
            }.get(name, reader.parquet)(where)
            return dict(Counter(str(row["generation"]) for row in rows.select("generation").collect()))
        except PySparkException as error:
            return str(error)
        except Exception as error:  # a task that fails
            return f"{type(error).__name__}: {error}"
