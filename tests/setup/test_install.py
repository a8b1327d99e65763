from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from setup import install, java_home
from setup.console import SetupError

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


def test_an_environment_behind_a_link_is_made_and_kept(tmp_path: Path) -> None:
    link, disk = tmp_path / ".venv", tmp_path / "disk/environment"
    link.symlink_to(disk)
    install.make_venv(link, "--without-pip")
    assert (disk / "bin/python").exists()
    (disk / "kept").touch()
    install.make_venv(link, "--without-pip")
    assert (disk / "kept").exists()
    disk.rename(tmp_path / "moved")
    link.unlink()
    link.symlink_to(tmp_path / "moved")
    install.make_venv(link, "--without-pip")
    assert link.is_symlink()
    assert not (tmp_path / "moved/kept").exists()


def test_a_link_to_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/one.jpg").touch()
    (tmp_path / ".venv").symlink_to(tmp_path / "photos")
    with pytest.raises(SetupError, match=r"photos, which contains other files"):
        install.make_venv(tmp_path / ".venv", "--without-pip")
    assert (tmp_path / "photos/one.jpg").exists()


@pytest.fixture
def linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose .venv is a link to the environment of another checkout. Returns the other one."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    for root in (mine, other):
        (root / "requirements").mkdir(parents=True)
        (root / "requirements/runtime.txt").write_text("locked")
    packages = install.site_packages(other / ".venv")
    packages.mkdir(parents=True)
    (packages / "nightrank.pth").write_text(f"{other}\n")
    (other / ".venv/setup.stamp").write_text(install.fingerprint(other))
    (mine / ".venv").symlink_to(other / ".venv")
    monkeypatch.setattr(install, "ROOT", mine)
    monkeypatch.setattr(install, "VENV", mine / ".venv")
    monkeypatch.setattr(install, "STAMP", mine / ".venv/setup.stamp")
    monkeypatch.setattr(install, "LOCK", mine / ".setup.lock")
    monkeypatch.setattr(install, "install", lambda root: pytest.fail("the environment was changed"))
    return other


def test_the_environment_of_another_checkout_is_used_if_its_files_are_the_same(linked: Path) -> None:
    assert install.main() == 0


def test_the_environment_of_another_checkout_is_never_changed(
    linked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (install.ROOT / "requirements/runtime.txt").write_text("other versions")
    assert install.main() != 0
    assert f"a symbolic link to the environment of {linked}" in capsys.readouterr().err
    assert (linked / ".venv/setup.stamp").exists()


def test_a_checkout_with_a_linked_environment_imports_its_own_packages(tmp_path: Path) -> None:
    (tmp_path / "setup").mkdir()
    for name in ("env.sh", "java_home.py", "__init__.py"):
        (tmp_path / "setup" / name).write_text((ROOT / "setup" / name).read_text())
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/__init__.py").touch()
    (tmp_path / ".venv").symlink_to(install.VENV)
    show = "python -c \"import conf, os; print(conf.__file__); print(os.environ['NIGHTRANK_HOME'])\""
    script = f". {tmp_path}/setup/env.sh && cd / && {show}"
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "NIGHTRANK_HOME")}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=kept)
    assert done.stdout.split() == [str(tmp_path / "conf/__init__.py"), str(tmp_path)]


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
        "test-tables.txt",
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
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-2:] == [str(home), str(ROOT / "conf/__init__.py")]


def test_make_lists_every_target_with_a_line_of_help() -> None:
    targets = set(re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split())
    printed = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  make (\S+) +\S.+$", printed, re.MULTILINE)) == targets
