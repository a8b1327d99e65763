from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from zipfile import ZipFile

import pytest
from pyspark.sql import SparkSession

from setup import dist
from setup.console import SetupError
from setup.environment import build_wheel
from setup.install import ROOT
from setup.pack import Joined, entries, packed_parts

pytestmark = pytest.mark.processes


def test_a_packed_environment_is_unpacked_by_spark_as_it_was(tmp_path: Path, spark: SparkSession) -> None:
    """Unpacks several gzip files that hold one tar, with links and modes, as Spark does with --archives."""
    base, folder = tmp_path / "base", tmp_path / "folder"
    (base / "bin").mkdir(parents=True)
    (base / "bin/run").write_text("#!/bin/sh\n")
    (base / "bin/run").chmod(0o755)
    (base / "bin/python").symlink_to("/usr/bin/python3.11")
    noise = os.urandom(40_000_000)  # more than two blocks
    (base / "large").write_bytes(noise + bytes(10_000))
    shutil.copytree(base, folder, symlinks=True)
    (folder / "bin/extra").mkdir()
    (folder / "bin/extra/later.py").write_text("later")
    for content in ("later", "later still"):  # the second time the packed base is there
        (folder / "bin/extra/later.py").write_text(content)
        archive = tmp_path / "folder.tar.gz"
        joined = Joined(*packed_parts(folder, base, tmp_path / "extra.tar.gz"))
        archive.write_bytes(b"".join(iter(lambda: joined.read(1_000_003), b"")))  # noqa: B023
        assert archive.stat().st_size == joined.size_bytes
        assert archive.read_bytes().count(b"\x1f\x8b\x08\x00\x00\x00\x00\x00") >= 4
        jvm = spark._jvm
        assert jvm is not None
        unpacked = tmp_path / content
        jvm.org.apache.spark.util.Utils.unpack(
            jvm.java.io.File(str(archive)), jvm.java.io.File(str(unpacked))
        )
        assert (unpacked / "large").read_bytes() == noise + bytes(10_000)
        assert os.access(unpacked / "bin/run", os.X_OK)
        assert (unpacked / "bin/python").readlink() == Path("/usr/bin/python3.11")
        assert (unpacked / "bin/extra/later.py").read_text() == content
        assert sorted(entries(unpacked)) == sorted(entries(folder))
        by_hand = subprocess.run(["tar", "-tzf", archive], capture_output=True, text=True, check=True).stdout
        assert sorted(Path(name).as_posix() for name in by_hand.split()) == sorted(entries(folder))
    assert (tmp_path / "base.tar.gz").is_file()


def test_what_is_submitted_is_in_the_archive(tmp_path: Path) -> None:
    dist.copy_contents(ROOT, tmp_path)
    for name in ("jobs", "conf", "airflow_dags"):
        sources = {path.relative_to(ROOT) for path in (ROOT / name).rglob("*") if path.is_file()}
        copied = {path.relative_to(tmp_path) for path in (tmp_path / name).rglob("*") if path.is_file()}
        assert copied == {path for path in sources if "__pycache__" not in path.parts}
    assert (tmp_path / "requirements/jars.lock").is_file()
    assert (tmp_path / "setup/env.sh").is_file()
    with pytest.raises(SetupError, match=r"jobs is missing"):
        dist.copy_contents(tmp_path / "empty", tmp_path / "other")


def test_the_wheel_has_every_module_and_its_data(tmp_path: Path) -> None:
    wheel = build_wheel(ROOT, tmp_path)
    assert wheel.name == f"nightrank-{dist.version()}-py3-none-any.whl"
    with ZipFile(wheel) as packed:
        names = set(packed.namelist())
    wanted = {
        str(path.relative_to(ROOT))
        for package in (
            "conf",
            "storage",
            "metrics",
            "spark",
            "device",
            "etl",
            "training",
            "scoring",
            "reporting",
            "nightrank",
            "jobs",
        )
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= names
    assert {name.split("/")[0] for name in names - wanted} == {f"nightrank-{dist.version()}.dist-info"}
    first = wheel.read_bytes()
    assert build_wheel(ROOT, tmp_path).read_bytes() == first


def test_gradle_calls_what_make_has() -> None:
    called = re.findall(r"commandLine 'make', '(\w+)'", (ROOT / "build.gradle").read_text())
    assert {"dist", "test", "demo", "setup", "check"} <= set(called)
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    targets = {line.split()[1] for line in done.stdout.splitlines()}
    assert set(called) <= targets


@pytest.mark.skipif(shutil.which("gradle") is None, reason="Gradle is not installed")
def test_gradle_reads_its_file(tmp_path: Path) -> None:
    """Debian's Gradle or a newer one finds the tasks in the order in which it would run them."""
    command = [
        "gradle",
        "--no-daemon",
        "--offline",
        "--project-cache-dir",
        str(tmp_path),
        "-m",
        "assemble",
        "check",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    planned = re.findall(r"^:(\w+) SKIPPED", done.stdout, re.M)
    assert planned == ["dist", "assemble", "lint", "check"]
