from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from setup import install, java_home

pytestmark = pytest.mark.processes

ROOT = install.ROOT
LOCK_FILES = sorted((ROOT / "requirements").glob("*.txt"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("requirements/runtime.txt", "requirements/runtime.in", "setup/install.py", "conf/load.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    return tmp_path


@pytest.mark.parametrize("name", ["requirements/runtime.txt", "setup/install.py"])
def test_locks_and_scripts_ask_for_a_new_set_up(checkout: Path, name: str) -> None:
    before = install.fingerprint(checkout)
    (checkout / name).write_text("changed")
    assert install.fingerprint(checkout) != before


@pytest.mark.parametrize("name", ["requirements/runtime.in", "conf/load.py"])
def test_other_files_do_not(checkout: Path, name: str) -> None:
    before = install.fingerprint(checkout)
    (checkout / name).write_text("changed")
    assert install.fingerprint(checkout) == before


def test_a_moved_checkout_needs_a_new_set_up(checkout: Path) -> None:
    before = install.fingerprint(checkout)
    moved = checkout.rename(checkout.with_name("moved"))
    assert install.fingerprint(moved) != before


def test_a_moved_environment_is_made_anew(tmp_path: Path) -> None:
    environment, moved = tmp_path / "environment", tmp_path / "moved"
    install.make_venv(environment, "--without-pip")
    (environment / "kept").touch()
    install.make_venv(environment, "--without-pip")
    assert (environment / "kept").exists()
    environment.rename(moved)
    install.make_venv(moved, "--without-pip")
    assert not (moved / "kept").exists()


def test_locked_packages_have_hashes_and_no_address() -> None:
    assert {lock.name for lock in LOCK_FILES} >= {*install.LOCKS, "bootstrap.txt", "horovod.txt"}
    for lock in LOCK_FILES:
        text = lock.read_text()
        assert "://" not in text, lock
        names = re.findall(r"^[\w.-]+==", text, re.MULTILINE)
        hashed = re.findall(r"^[\w.-]+==[^\\]+\\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
        assert len(hashed) == len(names) > 0, lock


def test_lock_files_agree_on_versions() -> None:
    # Airflow, peers of the benchmarks and what some tests start have environments, and so versions, of their
    # own.
    apart = {
        "airflow.txt",
        "benchmark-nvtabular.txt",
        "benchmark-lists.txt",
        "benchmark-neural.txt",
        "docs.txt",
        "test-container.txt",
        "test-postgres.txt",
        "test-readers.txt",
        "test-redis.txt",
        "test-s3.txt",
        "test-triton.txt",
    }
    ours = [lock for lock in LOCK_FILES if lock.name not in apart]
    assert len(ours) == len(LOCK_FILES) - len(apart)
    versions: dict[str, set[str]] = {}
    for lock in ours:
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", lock.read_text(), re.MULTILINE):
            versions.setdefault(name, set()).add(version)
    assert {name: numbers for name, numbers in versions.items() if len(numbers) > 1} == {}


def sourced(script: str, **environment: str) -> list[str]:
    """Lines that a script prints in a shell that has sourced setup/env.sh from another folder."""
    done = subprocess.run(
        ["bash", "-euc", f". {ROOT}/setup/env.sh\n{script}"],
        env={**os.environ, **environment},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_env_sh_points_spark_at_this_environment() -> None:
    printed = sourced(
        'command -v python spark-submit; echo "$PYSPARK_PYTHON"; echo "${SPARK_HOME-unset}"',
        SPARK_HOME="/opt/spark",
    )
    bin_folder = ROOT / ".venv/bin"
    assert printed == [f"{bin_folder}/python", f"{bin_folder}/spark-submit", f"{bin_folder}/python", "unset"]


def test_env_sh_finds_java_17() -> None:
    (home,) = sourced('echo "$JAVA_HOME"')
    assert java_home.major_version(java_home.describe(Path(home) / "bin/java")) == 17


SPARK_ON_BUNDLED_JAVA = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
java = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
def where_conf_is(_):
    import conf
    return conf.__file__
print(java, spark.sparkContext.parallelize([0], 1).map(where_conf_is).first(), sep="\\n")
spark.stop()
"""


def test_spark_runs_on_the_bundled_java_and_its_workers_import_our_packages(tmp_path: Path) -> None:
    home = java_home.bundled_home()
    done = subprocess.run(
        [sys.executable, "-c", SPARK_ON_BUNDLED_JAVA],
        env={
            **os.environ,
            "JAVA_HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_DIRS": str(tmp_path),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-2:] == [str(home), str(ROOT / "conf/__init__.py")]


def test_make_lists_every_target_with_a_line_of_help() -> None:
    targets = set(re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split())
    printed = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  make (\S+) +\S.+$", printed, re.MULTILINE)) == targets
