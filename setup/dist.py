"""Makes build/nightrank-<version>.tar, all that a cluster needs beside Java and Python: what `make dist` does.

nightrank-<version>/
    nightrank-<version>-py3-none-any.whl   our packages
    environment.tar.gz                     those and all they import, for --archives or to be unpacked once a node
    jobs/ conf/ airflow_dags/              what is submitted, and with which settings
    requirements/jars.lock                 jars that GPUs, object stores and PostgreSQL want, by their SHA-256
    setup/env.sh docs/clusters.md …        to be sourced; to be read
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from os import cpu_count
from pathlib import Path
from typing import IO, cast

from setup.console import SetupError, fail, say, step
from setup.environment import build_wheel, make_environment
from setup.install import ROOT

BUILD = ROOT / "build"
# Folders and files of the checkout that the archive has as they are.
CONTENTS = (
    "jobs",
    "conf",
    "requirements/jars.lock",
    "setup/__init__.py",
    "setup/env.sh",
    "setup/java_home.py",
    "setup/jars.py",
    "setup/console.py",
    "docs/clusters.md",
    "docs/gpu.md",
    "README.md",
    "LICENSE",
)
_BLOCK_BYTES = 16 * 1024 * 1024


def version(root: Path = ROOT) -> str:
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def make_dist(build: Path = BUILD) -> Path:
    """Makes the archive in a folder, whose other content is left alone, and returns its path.

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
    with step("packing the environment (2 GB, all cores)"):
        pack(build / "environment", staged / "environment.tar.gz")
    with step(f"writing {archive}"):
        copy_contents(ROOT, staged)
        with tarfile.open(archive.with_suffix(".new"), "w") as packed:
            packed.add(staged, name, filter=_plain)
        archive.with_suffix(".new").replace(archive)
    shutil.rmtree(build / "dist")
    shutil.rmtree(build / "environment")
    return archive


def copy_contents(root: Path, staged: Path) -> None:
    """Copies CONTENTS. Raises SetupError where one is missing."""
    dags = ["airflow_dags"] if (root / "airflow_dags").is_dir() else []
    for name in (*CONTENTS, *dags):
        source, target = root / name, staged / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.is_file():
            shutil.copy(source, target)
        else:
            raise SetupError(f"{source} is missing: the archive would be without it")


def pack(folder: Path, archive: Path) -> None:
    """Packs a folder's content as .tar.gz, compressed on all cores: blocks that are gzip files of their own, one after another.

    Raises:
        SetupError: tar failed.
    """
    command = [
        "tar",
        "-C",
        str(folder),
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "-cf",
        "-",
        ".",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tar, archive.open("wb") as out:
        for block in _compressed(cast(IO[bytes], tar.stdout)):
            out.write(block)
    if tar.returncode != 0:
        raise SetupError(f"tar ended with exit code {tar.returncode}: {' '.join(command)}")


def _compressed(stream: IO[bytes]) -> Iterator[bytes]:
    """The stream's blocks in order, each a gzip file, some more of them in work than there are cores."""
    cores = cpu_count() or 1
    waiting: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(cores) as pool:
        while block := stream.read(_BLOCK_BYTES):
            waiting.append(pool.submit(_gzip, block))
            if len(waiting) > 2 * cores:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _gzip(block: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)  # 31: with gzip's header, whose time stays 0
    return packer.compress(block) + packer.flush()


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the names and times of who packed it."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 315619200
    return entry


def main() -> int:
    try:
        archive = make_dist()
    except SetupError as error:
        return fail(error)
    say(f"{archive}: {archive.stat().st_size / 1e9:.1f} GB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
