"""The archive of classes that setup makes: Spark's JVM loads classes from it, or silently from the jars."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from setup import class_archive

pytestmark = pytest.mark.processes

BIN = Path(sys.executable).parent
ARCHIVE = BIN.parent / class_archive.NAME


def version(*options: str) -> str:
    """What `java -version` prints with these options, without the name of an archive of Java itself."""
    java = Path(os.environ["JAVA_HOME"]) / "bin/java"
    done = subprocess.run([java, *options, "-version"], capture_output=True, text=True, check=True)
    return (done.stdout + done.stderr).replace(", sharing)", ")")


def options(archive: Path) -> str:
    """What setup/env.sh says of an archive."""
    return f"-XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:class+path=off"


def test_setup_made_it_and_the_environment_names_it() -> None:
    assert ARCHIVE.stat().st_size > 50 * 2**20
    assert os.environ["SPARK_SUBMIT_OPTS"].startswith(options(ARCHIVE))


def test_classes_of_spark_come_from_it(tmp_path: Path) -> None:
    subprocess.run(
        [BIN / "spark-submit", "--version"],
        env={
            **os.environ,
            "SPARK_SUBMIT_OPTS": f"{options(ARCHIVE)} -Xlog:class+load:file={tmp_path}/loaded",
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        check=True,
    )
    loaded = (tmp_path / "loaded").read_text().splitlines()
    sources = [line for line in loaded if " org.apache.spark.deploy.SparkSubmit$ " in line]
    assert [line.split("source: ")[1] for line in sources] == ["shared objects file (top)"]


@pytest.mark.parametrize("content", [None, b"no archive"], ids=["missing", "broken"])
def test_without_a_good_one_nothing_is_said_of_it(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "spark.jsa").write_bytes(content)
    assert version(*options(tmp_path / "spark.jsa").split()) == version()


def test_a_java_that_cannot_make_one_is_told(tmp_path: Path) -> None:
    """Whatever goes wrong, jobs start as ever: no half archive is left."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/spark-submit").write_text(
        f"#!/bin/sh\ntouch {venv}/spark.jsa\necho this Java cannot >&2\nexit 1\n"
    )
    (venv / "bin/spark-submit").chmod(0o755)
    root = Path(class_archive.__file__).parent.parent
    assert class_archive.make(root, venv, Path("/nowhere")) == "this Java cannot"
    assert not (venv / "spark.jsa").exists()
