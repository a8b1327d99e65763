"""Compiles the archive of pyspark's sources that Spark puts on every Python's path.

spark-submit gives the driver's Python, and executors theirs, <pyspark>/python/lib/pyspark.zip before the installed package. Python
never keeps what it compiled out of a zip, so that each process compiles pyspark anew. Where a zip has name.pyc beside
name.py, zipimport takes that.
"""

from __future__ import annotations

import compileall
import tempfile
import zipfile
from pathlib import Path
from py_compile import PycInvalidationMode

from setup.console import SetupError


def add_compiled(site_packages: Path) -> None:
    """Adds name.pyc to every name.py of pyspark's archive in these packages; nothing where all have one.

    Raises:
        SetupError: there is no such archive, or it does not compile.
    """
    archive = site_packages / "pyspark/python/lib/pyspark.zip"
    if not archive.is_file():
        raise SetupError(f"{archive} is missing: is this environment's pyspark whole?")
    with zipfile.ZipFile(archive) as sources:
        names = set(sources.namelist())
        if all(f"{name}c" in names for name in names if name.endswith(".py")):
            return
        with tempfile.TemporaryDirectory() as scratch:
            sources.extractall(scratch)
            _compile(Path(scratch), archive.name)
            _pack(Path(scratch), archive)


def _compile(folder: Path, shown: str) -> None:
    """By hash and unchecked: the time of a zip's entry is local, and a node may be in another zone than where this ran."""
    done = compileall.compile_dir(
        folder,
        maxlevels=20,
        quiet=1,
        legacy=True,
        stripdir=str(folder),
        prependdir=shown,
        invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        workers=0,
    )
    if not done:
        raise SetupError(f"{shown} does not compile: is it of this Python's version?")


def _pack(folder: Path, archive: Path) -> None:
    packed = archive.with_suffix(".new")
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as out:
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            out.write(path, path.relative_to(folder))
    packed.replace(archive)  # a new file: the old one may be a link into a package cache
