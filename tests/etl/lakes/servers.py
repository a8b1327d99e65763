"""Servers of S3, HDFS, Google Cloud Storage and Azure on loopback. Each is a process with the real protocol."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from local_airflow.home import free_port
from setup import jars, java_home
from setup.console import SetupError, cache_folder, locked, run
from setup.locked_environment import locked_environment

ROOT = Path(__file__).parents[3]
LOCK = ROOT / "requirements/test-s3.txt"
GOOGLE_LOCK = ROOT / "requirements/test-google.txt"
AZURITE = ROOT / "requirements/azurite"
READERS_LOCK = ROOT / "requirements/test-readers.txt"
# A server of Google's store that checks preconditions, which the one of GOOGLE_LOCK ignores.
GOOGLE_PROGRAM = "github.com/fsouza/fake-gcs-server@v1.56.1"
# The server answers one request at a time by itself. A client that stops reading a file in order to read it
# from another position would wait for ever: its first answer is still being sent.
_GOOGLE_WITH_THREADS = """
import http.server
http.server.HTTPServer = http.server.ThreadingHTTPServer
from gcp_storage_emulator.__main__ import main
main()
"""
_PATIENCE_S = 240  # on a machine that runs many other tests
# Most of the work of such a server is its start.
QUICK_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Unavailable(Exception):
    """The reason why a server cannot run on this machine."""


def jar_paths(wanted: Sequence[jars.Jar]) -> list[Path]:
    """Paths of downloaded jars. Skips the test if one is missing."""
    for jar in wanted:
        if not jar.is_there:
            missing(f"{jar.file_name} is not in {jar.path.parent}: `make jars` downloads it")
    return [jar.path for jar in wanted]


def missing(why: str) -> None:
    """Skips the test; on CI, where nothing may be missing, fails it."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def s3_environment() -> Path:
    """The interpreter of the S3 server's environment.

    Raises:
        Unavailable: the environment cannot be created.
    """
    return interpreter("s3-server", LOCK, "import moto.server")


def interpreter(name: str, lock: Path, check: str) -> Path:
    """The interpreter of an environment in the cache folder. The first call installs its locked requirements.

    Raises:
        Unavailable: the environment cannot be created.
    """
    try:
        return locked_environment(name, lock, check) / "bin/python"
    except SetupError as error:
        raise Unavailable(f"the environment {name} cannot be created: {error}") from error


@contextmanager
def s3(folder: Path) -> Iterator[str]:
    """The endpoint of an S3 server without buckets.

    Raises:
        Unavailable: see s3_environment.
    """
    port = free_port()
    command = [str(s3_environment()), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    endpoint = f"http://127.0.0.1:{port}"
    with process(command, folder / "s3.log", lambda: _answers(endpoint)):
        yield endpoint


@contextmanager
def bucket(folder: Path, name: str) -> Iterator[None]:
    """A bucket on a new S3 server, and this process's environment for it.

    See `missing` if there is no server.
    """
    try:
        with s3(folder) as endpoint, pytest.MonkeyPatch.context() as patch:
            make_bucket(endpoint, name)
            for key, value in {
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "someone",
                "AWS_SECRET_ACCESS_KEY": "something",
            }.items():
                patch.setenv(key, value)
            yield
    except Unavailable as error:
        missing(str(error))


def make_bucket(endpoint: str, name: str) -> None:
    """Creates a bucket."""
    request = urllib.request.Request(f"{endpoint}/{name}", method="PUT")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


@contextmanager
def hdfs(folder: Path, class_path: Sequence[Path]) -> Iterator[str]:
    """The root, hdfs://127.0.0.1:port, of a name node with one data node.

    Raises:
        Unavailable: there is no Java 17.
    """
    java = java_home.find()
    if java is None:
        raise Unavailable("there is no Java 17")
    details = folder / "hdfs.json"
    full_class_path = [*class_path, Path(pyspark.__file__).parent / "jars/*"]
    command = [str(java / "bin/java"), "-Xmx512m", *QUICK_JAVA, f"-Dtest.build.data={folder / 'hdfs'}"]
    command += ["-cp", ":".join(str(path) for path in full_class_path)]
    command += ["org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-datanodes", "1"]
    command += ["-D", "dfs.replication=1", "-writeDetails", str(details)]
    with process(
        command, folder / "hdfs.log", lambda: details.exists() and details.read_text().endswith("}")
    ):
        yield f"hdfs://127.0.0.1:{json.loads(details.read_text())['namenode_port']}"


@contextmanager
def google(folder: Path, bucket: str) -> Iterator[str]:
    """The endpoint of a server of Google Cloud Storage with one bucket.

    Raises:
        Unavailable: the environment of the server cannot be created.
    """
    port = free_port()
    python = interpreter("google-server", GOOGLE_LOCK, "import gcp_storage_emulator")
    command = [str(python), "-c", _GOOGLE_WITH_THREADS, "start", "--host=127.0.0.1", f"--port={port}"]
    command += ["--in-memory", f"--default-bucket={bucket}"]
    endpoint = f"http://127.0.0.1:{port}"
    with process(command, folder / "google.log", lambda: _answers(f"{endpoint}/storage/v1/b/{bucket}")):
        yield endpoint


@contextmanager
def google_with_preconditions(folder: Path, bucket: str) -> Iterator[str]:
    """The endpoint of a server of Google Cloud Storage that checks preconditions, with one bucket.

    Raises:
        Unavailable: the server cannot be built.
    """
    port, inner_port = free_port(), free_port()
    endpoint, inner = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{inner_port}"
    command = [
        str(go_program("google-lake-server", GOOGLE_PROGRAM)),
        "-scheme=http",
        "-host=127.0.0.1",
        f"-port={inner_port}",
    ]
    command += ["-backend=memory", f"-public-host=127.0.0.1:{port}", f"-external-url={endpoint}"]
    proxy = [sys.executable, str(Path(__file__).with_name("google_proxy.py")), str(port), str(inner_port)]
    buckets = "storage/v1/b?project=test"
    with (
        process(command, folder / "google.log", lambda: _answers(f"{inner}/{buckets}")),
        process(proxy, folder / "proxy.log", lambda: _answers(f"{endpoint}/{buckets}")),
    ):
        body = json.dumps({"name": bucket}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{endpoint}/{buckets}", body, headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200
        yield endpoint


def go_program(folder_name: str, package: str) -> Path:
    """A program in the cache folder. The first call builds it with Go, which takes minutes.

    Args:
        folder_name: its folder below the cache folder.
        package: the Go package of the program with its version, such as `example.com/cmd/program@v1.0.0`.

    Raises:
        Unavailable: the program cannot be built.
    """
    folder = cache_folder() / folder_name
    program = folder / package.partition("@")[0].rpartition("/")[2]
    stamp = folder / "version"
    with locked(folder.with_suffix(".lock")):
        if not stamp.is_file() or stamp.read_text() != package:
            folder.mkdir(exist_ok=True)
            run_go("install", package, GOBIN=str(folder))
            stamp.write_text(package)
    return program


def run_go(*words: str, **variables: str) -> None:
    """Runs Go with these words and, in addition to those of this process, variables.

    Raises:
        Unavailable: there is no Go, or it fails.
    """
    if shutil.which("go") is None:
        raise Unavailable("there is no Go")
    try:
        run(["go", *words], env={**os.environ, **variables})
    except SetupError as error:
        raise Unavailable(f"Go cannot build or fetch {words[-1]}: {error}") from error


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=1):
            return True
    except OSError:
        return False


@contextmanager
def azurite(folder: Path) -> Iterator[str]:
    """The connection string of a server of Azure Blob Storage without containers.

    Raises:
        Unavailable: the server cannot be installed.
    """
    port = free_port()
    program = _azurite_program()
    command = ["node", str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--location", str(folder / "azurite"), "--skipApiVersionCheck", "--disableTelemetry"]
    log = folder / "azurite.log"
    with process(command, log, lambda: b"successfully listens" in log.read_bytes()):
        # The account and the key are the same in every Azurite.
        yield (
            "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
            "AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;"
            f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"
        )


def _azurite_program() -> Path:
    """The program of Azurite in the cache folder. The first call installs it from its lock with npm."""
    folder = cache_folder() / "azurite"
    lock = (AZURITE / "package-lock.json").read_bytes()
    stamp = folder / "locked.sha256"
    with locked(folder.with_suffix(".lock")):
        if not stamp.is_file() or stamp.read_text() != hashlib.sha256(lock).hexdigest():
            if shutil.which("npm") is None:
                raise Unavailable("there is no npm")
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(AZURITE, folder)
            options = ["--ignore-scripts", "--omit=dev", "--omit=optional", "--no-audit", "--no-fund"]
            try:
                run(["npm", "ci", "--silent", *options], cwd=folder)
            except SetupError as error:
                raise Unavailable(f"Azurite cannot be installed: {error}") from error
            stamp.write_text(hashlib.sha256(lock).hexdigest())
    return folder / "node_modules/azurite/dist/src/blob/main.js"


@contextmanager
def process(command: list[str], log: Path, ready: Callable[[], bool], **options: Any) -> Iterator[None]:
    """Runs a server within the context. `options` go to subprocess.Popen."""
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env={**os.environ, "NO_COLOR": "1"},
            **options,
        )
    try:
        end = time.monotonic() + _PATIENCE_S
        while not ready():
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(
                    f"{command[-5:]} did not start:\n{log.read_text(errors='replace')[-3000:]}"
                )
            time.sleep(0.1)
        yield
    finally:
        server.kill()
        server.wait()
