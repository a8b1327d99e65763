"""`make dist`: makes build/nightrank-<version>.tar, with everything a cluster needs except Python itself.

nightrank-<version>/
    nightrank-<version>-py3-none-any.whl   our packages
    environment.tar.gz                     all packages that our packages need, and Java; for spark-submit
                                           --archives, or to unpack on each node
    nightrank.cdx.json                     the bill of materials of the environment (setup/sbom.py)
    jobs/ conf/ airflow_dags/              the jobs, their settings and the DAGs
    container/chart/                       the Helm chart
    requirements/jars.lock                 the jars for GPUs, object stores and PostgreSQL, with their SHA-256
    setup/env.sh docs/clusters.md …        the environment variables; documents
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import IO, cast

from setup import sbom
from setup.console import SetupError, fail, say, step
from setup.environment import build_wheel, kept_packages, make_environment
from setup.install import ROOT
from setup.pack import Joined, packed_parts, without_owner

BUILD = ROOT / "build"
# Folders and files of the checkout that are copied unchanged.
CONTENTS = (
    "jobs",
    "conf",
    "container/chart",
    "requirements/jars.lock",
    "setup/__init__.py",
    "setup/env.sh",
    "setup/java_home.py",
    "setup/jars.py",
    "setup/console.py",
    "setup/doctor",
    "docs/clusters.md",
    "docs/gpu.md",
    "README.md",
    "LICENSE",
)


def version(root: Path = ROOT) -> str:
    """The version in pyproject.toml."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def make_dist(build: Path = BUILD) -> Path:
    """Makes the archive in a folder and returns its path. Does not change other files in the folder.

    Raises:
        SetupError: a package or a file of the archive is missing.
    """
    name = f"nightrank-{version()}"
    staged, archive = build / "dist" / name, build / f"{name}.tar"
    shutil.rmtree(build / "dist", ignore_errors=True)
    staged.mkdir(parents=True)
    with step("building the wheel"):
        wheel = build_wheel(ROOT, staged)
    with step("making the environment"):
        make_environment(build / "environment", wheel)
    with step("writing the bill of materials"):
        document = sbom.sbom(build / "environment", optional_jars=sbom.jars_of_jobs())
        sbom.write(staged / sbom.FILE_NAME, document)
    with step("packing the environment"):
        parts = packed_parts(build / "environment", kept_packages(), build / "dist/extra.tar.gz")
    with step(f"writing {archive}"):
        copy_contents(ROOT, staged)
        with tarfile.open(archive.with_suffix(".new"), "w") as packed:
            packed.add(staged, name, filter=without_owner)
            environment = tarfile.TarInfo(f"{name}/environment.tar.gz")
            joined = Joined(*parts)  # these are gigabytes, so do not copy them into one file first
            environment.size = joined.size_bytes
            packed.addfile(environment, cast(IO[bytes], joined))
        archive.with_suffix(".new").replace(archive)
    shutil.rmtree(build / "dist")
    shutil.rmtree(build / "environment")
    return archive


def copy_contents(root: Path, staged: Path) -> None:
    """Copies CONTENTS (folders and files) and the DAGs. Raises SetupError if one of CONTENTS is missing."""
    dags = ["airflow_dags"] if (root / "airflow_dags").is_dir() else []
    for name in (*CONTENTS, *dags):
        source, target = root / name, staged / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.is_file():
            shutil.copy(source, target)
        else:
            raise SetupError(f"{source} is missing, and the archive needs it")


def main() -> int:
    """Makes the files of the distribution and returns the exit code."""
    try:
        archive = make_dist()
    except SetupError as error:
        return fail(error)
    say(f"{archive}: {archive.stat().st_size / 1e9:.1f} GB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
