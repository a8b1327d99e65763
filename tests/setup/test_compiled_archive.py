"""The archive of pyspark's sources with compiled modules: every Python uses it, and it is written whole."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from setup.compiled_archive import add_compiled
from setup.console import SetupError

pytestmark = pytest.mark.processes


def packages(folder: Path, source: str) -> Path:
    """The archive's place in a folder of packages, holding a package of one module."""
    archive = folder / "pyspark/python/lib/pyspark.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr("spark_of_ours/__init__.py", "")
        out.writestr("spark_of_ours/inner/__init__.py", source)
        out.writestr("spark_of_ours/py.typed", "")
    return archive


def imported(archive: Path, module: str, **variables: str) -> str:
    """Where Python finds a module with this archive first on its path."""
    code = f"import importlib; print(importlib.import_module('{module}').__file__)"
    command = [sys.executable, "-W", "ignore", "-c", code]
    environment = {**os.environ, **variables, "PYTHONPATH": str(archive)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_python_takes_what_is_compiled_in_any_time_zone(tmp_path: Path, zone: str) -> None:
    archive = packages(tmp_path, "value = 1\n")
    assert imported(archive, "spark_of_ours.inner").endswith("inner/__init__.py")
    add_compiled(tmp_path)
    assert imported(archive, "spark_of_ours.inner", TZ=zone).endswith("inner/__init__.pyc")
    assert "spark_of_ours/py.typed" in zipfile.ZipFile(archive).namelist()


def test_the_second_time_nothing_is_done_and_a_link_elsewhere_keeps_what_it_had(tmp_path: Path) -> None:
    archive = packages(tmp_path, "")
    linked = tmp_path / "cache.zip"
    os.link(archive, linked)
    before = linked.read_bytes()
    add_compiled(tmp_path)
    assert linked.read_bytes() == before
    status = archive.stat()
    add_compiled(tmp_path)
    assert (archive.stat().st_ino, archive.stat().st_mtime_ns) == (status.st_ino, status.st_mtime_ns)


def test_what_does_not_compile_or_is_not_there_is_said_and_nothing_changes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    archive = packages(tmp_path, "def broken(:\n")
    before = archive.read_bytes()
    with pytest.raises(SetupError, match=r"pyspark\.zip does not compile"):
        add_compiled(tmp_path)
    assert archive.read_bytes() == before
    with pytest.raises(SetupError, match="is missing"):
        add_compiled(tmp_path / "elsewhere")


def test_this_environments_pyspark_is_compiled() -> None:
    archive = Path(pyspark.__file__).parent / "python/lib/pyspark.zip"
    assert imported(archive, "pyspark.sql").endswith("pyspark.zip/pyspark/sql/__init__.pyc")
