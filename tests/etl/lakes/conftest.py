"""Servers of stores for the tests of lakes. They start once. The shared session can reach the S3 server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from setup import jars
from tests.etl.lakes import servers, stores
from tests.etl.lakes.stores import RawStore

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
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The root of an HDFS: hdfs://127.0.0.1:port."""
    jar_paths = servers.jar_paths(jars.hdfs_server())
    try:
        with servers.hdfs(tmp_path_factory.mktemp("hdfs"), jar_paths) as root:
            yield root
    except servers.Unavailable as error:
        servers.missing(str(error))


@pytest.fixture(scope="session")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawStore]:
    """A bucket of Google Cloud Storage."""
    try:
        with (
            servers.google(tmp_path_factory.mktemp("google"), BUCKET) as endpoint,
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setenv("STORAGE_EMULATOR_HOST", endpoint)
            yield stores.GoogleStore(f"gs://{BUCKET}")
    except servers.Unavailable as error:
        servers.missing(str(error))


@pytest.fixture(scope="module")
def google_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URI of a bucket of Google Cloud Storage whose server checks preconditions."""
    folder = tmp_path_factory.mktemp("google-lake")
    try:
        with (
            servers.google_with_preconditions(folder, BUCKET) as endpoint,
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setenv("STORAGE_EMULATOR_HOST", endpoint)
            yield f"gs://{BUCKET}"
    except servers.Unavailable as error:
        servers.missing(str(error))


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawStore]:
    """A container of Azure Blob Storage."""
    try:
        with (
            servers.azurite(tmp_path_factory.mktemp("azure")) as connection,
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
            store = stores.AzureStore(f"abfss://{BUCKET}@devstoreaccount1.dfs.core.windows.net")
            store.create()
            yield store
    except servers.Unavailable as error:
        servers.missing(str(error))


@pytest.fixture(params=["hdfs", "google", "azure"])
def raw_store(request: pytest.FixtureRequest) -> RawStore:
    """Each store besides local folders and S3."""
    store = request.getfixturevalue(request.param)
    return stores.HdfsStore(store) if request.param == "hdfs" else store


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
