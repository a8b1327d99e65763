"""Adds compiled modules to pyspark.zip, the archive that Spark puts on the path of every Python process.

The Python processes of the driver and of the executors import <pyspark>/python/lib/pyspark.zip instead of the
installed package. Python does not cache modules that it compiles from a zip, so each process would compile
pyspark again. If the zip contains name.pyc next to name.py, Python loads name.pyc instead.
"""

from __future__ import annotations

import compileall
import tempfile
import zipfile
from pathlib import Path
from py_compile import PycInvalidationMode

from setup.console import SetupError


def add_compiled(site_packages: Path) -> None:
    """Adds name.pyc for every name.py in the pyspark.zip of a site-packages folder.

    Does nothing if no name.pyc is missing.

    Raises:
        SetupError: pyspark.zip is missing, or a file in it does not compile.
    """
    archive = site_packages / "pyspark/python/lib/pyspark.zip"
    if not archive.is_file():
        raise SetupError(f"{archive} is missing: pyspark is not installed completely, install it again")
    with zipfile.ZipFile(archive) as sources:
        names = set(sources.namelist())
        if all(f"{name}c" in names for name in names if name.endswith(".py")):
            return
        with tempfile.TemporaryDirectory() as scratch:
            sources.extractall(scratch)
            _compile(Path(scratch), archive.name)
            _pack(Path(scratch), archive)


def _compile(folder: Path, shown: str) -> None:
    """Compiles the sources of a folder into .pyc files that Python uses without comparing times.

    Times cannot be compared, because a zip stores local times, and nodes may be in different time zones.
    """
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
        raise SetupError(
            f"{shown} does not compile: it may be written for another version of Python; run `make setup` "
            "with Python 3.11"
        )


def _pack(folder: Path, archive: Path) -> None:
    packed = archive.with_suffix(".new")
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as out:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            out.write(path, path.relative_to(folder))
    packed.replace(archive)  # a new file, because the old one may be a hard link into a package cache
