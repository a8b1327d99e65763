"""S3 and HDFS servers for the tests of lakes. They start once, and the shared session can reach them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from setup import jars
from spark import hadoop_files
from storage import file_io
from tests.etl.lakes import servers

BUCKET = "nights"


@dataclass(frozen=True)
class ObjectStore:
    """A bucket on the S3 server.

    Attributes:
        root: URI of the bucket.
        variables: environment of a process that uses the bucket.
        settings: of a Spark session that uses the bucket.
    """

    root: str
    variables: dict[str, str]
    settings: dict[str, str]


@pytest.fixture(scope="session")
def object_store(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """A bucket on an S3 server for the whole suite."""
    jar_paths = servers.jar_paths(jars.s3_client())
    try:
        with servers.s3(tmp_path_factory.mktemp("s3")) as endpoint, pytest.MonkeyPatch.context() as patch:
            servers.make_bucket(endpoint, BUCKET)
            variables = {
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "someone",
                "AWS_SECRET_ACCESS_KEY": "something",
            }
            settings = {
                "spark.hadoop.fs.s3a.endpoint": endpoint,
                "spark.hadoop.fs.s3a.path.style.access": "true",
            }
            for key, value in variables.items():
                patch.setenv(key, value)
                patch.setitem(spark.sparkContext.environment, key, value)  # for Python workers
            _open_s3a(spark, jar_paths, {**variables, **settings})
            yield ObjectStore(f"s3a://{BUCKET}", variables, settings)
    except servers.Unavailable as error:
        servers.missing(str(error))


@pytest.fixture(scope="session")
def hdfs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The root of an HDFS that the shared session can read: hdfs://127.0.0.1:port."""
    jar_paths = servers.jar_paths(jars.hdfs_server())
    try:
        with servers.hdfs(tmp_path_factory.mktemp("hdfs"), jar_paths) as root:
            file_io.read_hdfs_through(lambda: hadoop_files.hdfs(spark))
            yield root
            file_io.read_hdfs_through(None)
    except servers.Unavailable as error:
        servers.missing(str(error))


def _open_s3a(spark: SparkSession, jar_paths: Sequence[Path], settings: dict[str, str]) -> None:
    """Loads the jars of s3a into the running JVM. On a cluster they are on its class path from the start."""
    context: Any = spark.sparkContext._jsc.sc()
    jvm: Any = spark._jvm
    conf = context.hadoopConfiguration()
    urls = spark.sparkContext._gateway.new_array(jvm.java.net.URL, len(jar_paths))  # type: ignore[union-attr]
    for index, path in enumerate(jar_paths):
        urls[index] = jvm.java.net.URL(path.as_uri())
        context.addJar(path.as_uri())
    conf.setClassLoader(jvm.java.net.URLClassLoader(urls, conf.getClassLoader()))
    for key, value in settings.items():
        if key.startswith("spark.hadoop."):
            conf.set(key.removeprefix("spark.hadoop."), value)
    conf.set("fs.s3a.access.key", settings["AWS_ACCESS_KEY_ID"])
    conf.set("fs.s3a.secret.key", settings["AWS_SECRET_ACCESS_KEY"])
