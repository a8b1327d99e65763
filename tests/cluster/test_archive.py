"""The archive of `make dist` in a directory of its own: with Java and Python beside it, and nothing of the checkout, the chain runs
on a standalone cluster of the pyspark in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from setup import java_home
from setup.dist import make_dist
from setup.pack import entries, pack
from tests.cluster.chain import CHAIN, CONFIG, RUN_DATE, lists, overrides, write_profile
from tests.processes import die_with_parent, kill_tree
from tests.standalone import Cluster, standalone_cluster

pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Node:
    """A machine that has what the archive holds, unpacked, and nothing else of ours."""

    folder: Path
    variables: dict[str, str]

    @property
    def python(self) -> Path:
        return self.folder / "environment/bin/python"

    def run(self, command: str, timeout_s: float = 240) -> str:
        """Runs a command as a user of the archive would, and returns what it printed; fails unless it ends in 0."""
        log = self.folder / "printed.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-euc", f". setup/env.sh\n{command}"],
                cwd=self.folder,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        try:
            code = process.wait(timeout=timeout_s)
        finally:
            kill_tree(process)
        printed = log.read_text()
        assert code == 0, printed[-4000:]
        return printed


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    try:
        archive = make_dist(folder / "made")
        unpacked = folder / archive.stem
        inner = f"{archive.stem}/environment.tar.gz"
        # The environment straight from the archive: 3 GB that are not written in between.
        for command in (
            f"tar -C {folder} -xf {archive} --exclude={inner}",
            f"mkdir {unpacked}/environment",
            f"tar -xOf {archive} {inner} | tar -C {unpacked}/environment -xz",
        ):
            subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=True)
        shutil.rmtree(folder / "made")
        home = folder / "home"
        home.mkdir()
        variables = {"PATH": "/usr/bin:/bin", "HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
        java = java_home.find()
        if java is not None:
            variables["JAVA_HOME"] = str(java)
        yield Node(unpacked, variables)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # gigabytes, which pytest would keep for three runs


@pytest.fixture(scope="module")
def own_cluster(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker of two cores, started from the archive's pyspark without a word about where its packages are."""
    folder, spark_class = tmp_path_factory.mktemp("own"), node.folder / "environment/bin/spark-class"
    variables = {**node.variables, "PYSPARK_PYTHON": str(node.python)}
    with standalone_cluster(folder, 1, 2, spark_class=spark_class, variables=variables) as started:
        yield started


def submit(job: str, run_date: str, profile: Path, lake: Path, *more: str) -> str:
    settings = " ".join(f"--set '{each}'" for each in overrides(lake))
    words = f"spark-submit --properties-file {profile} {' '.join(more)} jobs/{job}.py"
    return f"{words} --config {CONFIG} --run-date {run_date} {settings}"


def thin_environment(node: Node, folder: Path) -> Path:
    """An archive of an environment that is a link to Python and borrows the node's packages: the real one would be unpacked once
    more, for a minute, and tests/setup unpack such an archive.
    """
    thin = folder / "thin"
    make = [str(node.python.resolve()), "-m", "venv", "--without-pip", "--symlinks", str(thin)]
    subprocess.run(make, check=True)
    (packages,) = (node.folder / "environment").glob("lib/python3.*/site-packages")
    (thin / packages.relative_to(node.folder / "environment") / "borrowed.pth").write_text(f"{packages}\n")
    with (folder / "thin.tar.gz").open("wb") as out:
        pack(thin, entries(thin), out)
    return folder / "thin.tar.gz"


def test_the_chain_runs(node: Node, own_cluster: Cluster, tmp_path: Path) -> None:
    """Executors run the environment unpacked on their node; those of the training one that the application brings, as on YARN."""
    both = {"spark.cores.max": "2", "spark.executor.cores": "2"}
    unpacked_once = write_profile(
        tmp_path / "once.conf", own_cluster, str(node.python), both, root=node.folder
    )
    driver = {"spark.pyspark.driver.python": str(node.python)}
    brought = write_profile(
        tmp_path / "brought.conf", own_cluster, "./environment/bin/python", both | driver, root=node.folder
    )
    archive, lake = thin_environment(node, tmp_path), tmp_path / "lake"
    for job, run_date in CHAIN:
        if job == "train_model":
            node.run(submit(job, run_date, brought, lake, f"--archives {archive}#environment"))
            said = [line for _, line in own_cluster.log_lines(" of 2 on ")]
            (executor,) = own_cluster.folder.glob(f"work-0/{own_cluster.applications()[-1]}/0")
            assert len(said) == 2
            assert all(f" in {executor}/environment, " in line for line in said)
        else:
            node.run(submit(job, run_date, unpacked_once, lake))
    found = lists(lake)
    assert found.groupby("user_id")["position"].apply(list).map(len).eq(10).all()
    assert found["user_id"].nunique() > 200
    assert (lake / f"reports/{RUN_DATE}.html").exists()


def test_what_is_imported_is_the_archives(node: Node) -> None:
    """The environment is complete without the packages of tests, and jobs run what the wheel holds."""
    told = node.run(
        "cd /; python -c 'import jobs, etl, training, sys; print(jobs.__file__, sys.prefix, *sys.path, sep=\"\\n\")'"
    )
    origin, prefix, *path = told.splitlines()
    assert Path(prefix) == node.folder / "environment"
    assert Path(origin).is_relative_to(node.folder / "environment")
    assert not any(each.startswith(os.getcwd()) for each in path if each)
    missing = node.run("cd /; python -c 'import pytest' 2>&1 || true")
    assert "No module named 'pytest'" in missing
