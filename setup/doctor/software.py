"""Checks Java, Spark, the jars and the Python environment, and compares their versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

from conf.errors import ConfigError
from setup import java_home
from setup.doctor.findings import Finding
from setup.doctor.profile import Profile
from spark.session import accelerator_settings, shim_for, shims_of

_CLASS_PATHS = ("spark.driver.extraClassPath", "spark.executor.extraClassPath")
# Settings with jars, and what separates their entries.
_JARS = {"spark.jars": ",", "spark.yarn.jars": ",", **dict.fromkeys(_CLASS_PATHS, ":")}
_PYTHONS = ("spark.pyspark.python", "spark.pyspark.driver.python")
# Code for another interpreter: it imports our packages, and prints the versions of Python and pyspark.
_PROBE = "import platform, conf.types, pyspark; print(platform.python_version(), pyspark.__version__)"
_PROBE_LIMIT_S = 60
# OpenJDK publishes a release with security fixes every three months.
_OLDEST_JAVA = timedelta(days=365)


def java(today: date | None = None) -> Iterator[Finding]:
    """Checks that there is a Java of the version on which Spark is tested, and warns if it is old."""
    home = java_home.find()
    if home is None:
        yield Finding(
            "Java", f"there is no Java {java_home.WANTED_MAJOR}", "run `make setup`, or set JAVA_HOME"
        )
        return
    described = java_home.describe(home / "bin/java")
    version = re.search(r'version "([^"]+)"', described)
    text = f"{version[1] if version else java_home.WANTED_MAJOR} in {home}"
    released = java_home.released_in(described)
    if released is not None and (today or date.today()) - released > _OLDEST_JAVA:
        yield Finding(
            "Java",
            f"{text}, released on {released}, is more than a year old, so it lacks security fixes",
            f"install a maintained Java {java_home.WANTED_MAJOR}, such as Debian's "
            f"openjdk-{java_home.WANTED_MAJOR}-jre-headless, or upgrade it",
            is_warning=True,
        )
        return
    yield Finding("Java", text)


def spark() -> Iterator[Finding]:
    """Checks that SPARK_HOME, if it is set, has the same version of Spark as this environment."""
    version = importlib.metadata.version("pyspark")
    home = os.environ.get("SPARK_HOME")
    if home is None:
        yield Finding("Spark", f"{version}, of this environment")
        return
    cores = sorted(Path(home, "jars").glob("spark-core_*.jar"))
    other = re.search(r"spark-core_[\d.]+-(.+)\.jar", cores[0].name) if cores else None
    if other is None:
        yield Finding("Spark", f"SPARK_HOME={home} has no jars/spark-core_*.jar", "unset SPARK_HOME")
    elif other[1] != version:
        yield Finding(
            "Spark",
            f"SPARK_HOME={home} is Spark {other[1]}, and the Python package is {version}",
            "unset SPARK_HOME, so that the Spark of this environment starts",
        )
    else:
        yield Finding("Spark", f"{version} in {home}")


def python(profile: Profile) -> Iterator[Finding]:
    """Checks the interpreters of the driver and the workers: the version, and imports of our packages."""
    own = platform.python_version()
    yield Finding("Python", f"{own} in {sys.executable}")
    named = {key: profile.get(key) for key in _PYTHONS} | {
        key: os.environ.get(key) for key in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    }
    for path in sorted({path for path in named.values() if path is not None} - {sys.executable}):
        keys = " and ".join(key for key, value in named.items() if value == path)
        if path.startswith("./"):
            yield Finding(
                "Python", f"{path} ({keys}) is unpacked for each application, and is not checked here"
            )
            continue
        yield _interpreter(path, keys, own)


def _interpreter(path: str, keys: str, own: str) -> Finding:
    remedy = f"install the environment of `make dist` there, or correct {keys}"
    try:
        probe = subprocess.run(
            [path, "-c", _PROBE], capture_output=True, text=True, check=False, timeout=_PROBE_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("Python", f"{path} ({keys}) does not start: {error}", remedy)
    if probe.returncode != 0:
        last = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding("Python", f"{path} ({keys}) cannot import our packages: {last}", remedy)
    version, spark_version = probe.stdout.split()
    if version.split(".")[:2] != own.split(".")[:2]:
        return Finding("Python", f"{path} ({keys}) is Python {version}, and this one is {own}", remedy)
    if spark_version != importlib.metadata.version("pyspark"):
        here = importlib.metadata.version("pyspark")
        return Finding("Python", f"{path} ({keys}) has pyspark {spark_version}, and this one {here}", remedy)
    return Finding("Python", f"{version} in {path} ({keys})")


def accelerator(profile: Profile) -> Iterator[Finding]:
    """Checks that driver and executors have a jar of the RAPIDS Accelerator that supports this Spark."""
    if not profile.accelerated:
        return
    version = importlib.metadata.version("pyspark")
    for key in _CLASS_PATHS:
        jars = [Path(entry) for entry in (profile.get(key) or "").split(":") if entry.endswith(".jar")]
        jar = next((path for path in jars if "rapids" in path.name), None)
        if jar is None or not jar.is_file():
            what = "names no jar of the accelerator" if jar is None else f"names {jar}, which does not exist"
            yield Finding(
                "accelerator", f"{key} {what}", "put the jar there: docs/gpu.md#install-on-every-node"
            )
            continue
        try:
            shim = shim_for(version, shims_of(jar), jar)
            accelerator_settings(lambda key: profile.settings.get(key), version)
        except ConfigError as error:
            yield Finding("accelerator", error.problem, error.remedy)
            continue
        yield Finding("accelerator", f"{jar} ({key}) has the shim {shim.name} for Spark {version}")


def jars(profile: Profile) -> Iterator[Finding]:
    """Checks that local jars that the profile names exist."""
    entries = [
        (key, entry.strip())
        for key, separator in _JARS.items()
        for entry in (profile.get(key) or "").split(separator)
    ]
    for key, entry in entries:
        path = re.sub(r"^(file|local):(//)?", "", entry)
        is_here = path and "://" not in path and "rapids" not in Path(path).name  # see `accelerator`
        if is_here and not any(Path(path).parent.glob(Path(path).name)):
            yield Finding(
                "jars", f"{key} names {path}, which does not exist", "put it there, or correct the path"
            )


def compiler(profile: Profile) -> Iterator[Finding]:
    """Checks that Triton can compile its kernels on a node whose tasks use torch on GPUs."""
    if not profile.torch_on_gpus:
        return
    from training.kernels.choice import compiler_problem

    problem = compiler_problem()
    if problem is None:
        yield Finding("C compiler", f"{os.environ.get('CC') or shutil.which('gcc') or shutil.which('clang')}")
    else:
        yield Finding("C compiler", problem, "apt-get install gcc libc6-dev python3.11-dev")


def horovod(profile: Profile) -> Iterator[Finding]:
    """Checks that Horovod is built with the libraries that the ranks of a training run use."""
    try:
        import horovod.torch as hvd
    except ImportError as error:
        yield Finding("Horovod", f"it cannot be imported: {error}", "run `make setup`, which builds it")
        return
    version = importlib.metadata.version("horovod")
    if profile.torch_on_gpus and not profile.accelerated and not hvd.nccl_built():
        yield Finding(
            "Horovod", f"{version} is built without NCCL", "run `make setup` with a torch that has CUDA"
        )
    elif not hvd.gloo_built():
        yield Finding("Horovod", f"{version} is built without Gloo", "run `make setup`, which builds it")
    else:
        built = "Gloo and NCCL" if hvd.nccl_built() else "Gloo"
        yield Finding("Horovod", f"{version} with {built}")
