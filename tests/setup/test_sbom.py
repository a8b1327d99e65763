"""The bill of materials of this checkout's environment, against CycloneDX's own schema and the files."""

from __future__ import annotations

import copy
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyspark
import pytest

from setup import jars, sbom
from setup.console import SetupError
from setup.install import ROOT, VENV, site_packages
from tests.etl.lakes.servers import Unavailable, interpreter, missing

pytestmark = pytest.mark.processes

LOCK = ROOT / "requirements/test-sbom.txt"
_VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
for line in sys.stdin:
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(line)
    print("valid" if problem is None else f"invalid: {str(problem)[:300]!r}")
"""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return sbom.sbom(VENV, optional_jars=sbom.jars_of_jobs())


@pytest.fixture(scope="module")
def components(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {component["bom-ref"]: component for component in document["components"]}


def validated(python: Path, *documents: dict[str, Any]) -> list[str]:
    """What the validator says of each document."""
    lines = "".join(f"{json.dumps(document)}\n" for document in documents)
    done = subprocess.run(
        [str(python), "-c", _VALIDATE], input=lines, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_the_document_follows_the_schema_of_cyclonedx(document: dict[str, Any]) -> None:
    try:
        python = interpreter("sbom-schema", LOCK, "import cyclonedx.validation.json, jsonschema")
    except Unavailable as error:
        missing(str(error))
        raise
    assert document["specVersion"] == sbom.SPEC_VERSION
    wrong = copy.deepcopy(document)
    wrong["components"][0]["kind"] = "library"
    of_ours, of_wrong = validated(python, document, wrong)
    assert of_ours == "valid"
    assert of_wrong.startswith("invalid: ")


def test_every_package_of_the_lock_files_has_a_licence_and_a_place(
    document: dict[str, Any], components: dict[str, dict[str, Any]]
) -> None:
    packages = sbom.locked_packages()
    assert {"pyspark", "torch", "horovod", "mlflow-skinny"} <= {package.name for package in packages}
    assert {package.purl for package in packages} <= components.keys()
    without = [package.name for package in packages if not components[package.purl].get("licenses")]
    assert len(without) < len(packages) / 10, without
    graph = {entry["ref"]: entry["dependsOn"] for entry in document["dependencies"]}
    product = document["metadata"]["component"]["bom-ref"]
    assert {reference for references in graph.values() for reference in references} <= components.keys()
    torch = next(package.purl for package in packages if package.name == "torch")
    assert torch in graph[product]
    assert any(reference.startswith("pkg:pypi/sympy@") for reference in graph[torch])
    reached, waiting = set(), [product]
    while waiting:
        reference = waiting.pop()
        if reference not in reached:
            reached.add(reference)
            waiting += graph.get(reference, [])
    assert {package.purl for package in packages} <= reached


def test_jars_have_their_maven_coordinates_and_hashes(components: dict[str, dict[str, Any]]) -> None:
    of_spark = list((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    listed = [component for component in components.values() if "group" in component]
    required = [component for component in listed if component["scope"] == "required"]
    for path in of_spark:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        same = [component for component in required if component["hashes"][0]["content"] == digest]
        names = [f"{component['name']}-{component['version']}" for component in same]
        assert any(path.name.startswith(name) for name in names), path  # two of them have equal bytes
    assert len(required) == len(of_spark)
    assert len(listed) == len(of_spark) + len(sbom.jars_of_jobs())
    spark = f"pkg:maven/org.apache.spark/spark-core_2.12@{pyspark.__version__}"
    assert components[spark]["group"] == "org.apache.spark"
    native = "pkg:maven/io.netty/netty-transport-native-epoll@4.1.96.Final?classifier=linux-x86_64"
    assert native in components
    for jar in (*jars.s3_client(), *jars.postgresql_driver(), jars.accelerator()):
        component = components[f"pkg:maven/{jar.group}/{jar.artifact}@{jar.version}"]
        assert (component["scope"], component["hashes"][0]["content"]) == ("optional", jar.sha256)


def test_compiled_code_is_listed_with_its_hashes(components: dict[str, dict[str, Any]]) -> None:
    for name in ("libnightrank.so", "libnightrank_training.so", "libnightrank_metrics.so"):
        content = (VENV / "lib/nightrank" / name).read_bytes()
        component = components[f"file:lib/nightrank/{name}"]
        assert component["hashes"][0]["content"] == hashlib.sha256(content).hexdigest()
    (horovod,) = [component for component in components.values() if component["name"] == "horovod"]
    patches = {patch["diff"]["url"] for patch in horovod["pedigree"]["patches"]}
    assert patches == {path.relative_to(ROOT).as_posix() for path in ROOT.glob("setup/horovod/*.patch")}
    (library,) = horovod["components"]
    content = (site_packages(VENV) / library["name"]).read_bytes()
    assert library["hashes"][0]["content"] == hashlib.sha256(content).hexdigest()
    assert "pkg:generic/openjdk@17.0.9" in components


def test_equal_environments_give_equal_bytes(document: dict[str, Any], tmp_path: Path) -> None:
    again = sbom.sbom(VENV, optional_jars=sbom.jars_of_jobs()[::-1])
    for name, written in (("one", document), ("two", again)):
        sbom.write(tmp_path / name, written)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert json.loads((tmp_path / "one").read_text()) == document


def test_an_environment_of_another_lock_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sbom, "spark_jars", lambda _: pytest.fail("the packages are compared first"))
    for name in (*sbom.LOCKS, *(lock.replace(".txt", ".in") for lock in sbom.LOCKS), "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text = (ROOT / name).read_text()
        (tmp_path / name).write_text(text.replace("numpy==1.26.4", "numpy==1.26.3"))
    with pytest.raises(SetupError, match=r"has 1\.26\.4 of numpy, and the lock files have 1\.26\.3"):
        sbom.sbom(VENV, root=tmp_path)
    with pytest.raises(SetupError, match="is not an environment"):
        sbom.sbom(tmp_path)


def jar_file(folder: Path, name: str, *coordinates: tuple[str, str, str]) -> Path:
    path = folder / "pyspark/jars" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with ZipFile(path, "w") as packed:
        for group, artifact, version in coordinates:
            text = f"#written by Maven\ngroupId={group}\nartifactId={artifact}\nversion={version}\n"
            packed.writestr(f"META-INF/maven/{group}/{artifact}/pom.properties", text)
    return path


def test_coordinates_of_a_jar_with_shaded_classes_are_its_own(tmp_path: Path) -> None:
    jar_file(tmp_path, "whole-1.2-linux.jar", ("a.b", "part", "3"), ("c.d", "whole", "1.2"))
    (package,) = sbom.spark_jars(tmp_path)
    assert package.purl == "pkg:maven/c.d/whole@1.2?classifier=linux"
    path = jar_file(tmp_path, "unknown-2.0.jar", ("a.b", "part", "3"))
    with pytest.raises(SetupError, match=r"coordinates of .*unknown-2\.0\.jar are not known: add the group"):
        sbom.spark_jars(tmp_path)
    path.unlink()
    jar_file(tmp_path, "scala-library-2.12.18.jar")
    assert {package.name for package in sbom.spark_jars(tmp_path)} >= {"org.scala-lang:scala-library"}


def test_a_jar_outside_the_environment_is_found_by_its_hash_and_changes_the_serial_number(
    document: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "renamed.jar"
    path.write_bytes(b"the bytes of a jar")
    jar = jars.Jar("com.example", "thing", "1.0", jars.digest(path), 18)
    monkeypatch.setattr(jars, "locked", lambda: [jar])
    assert sbom.main([str(tmp_path / "bom.json"), "--environment", str(VENV), "--jar", str(path)]) == 0
    written = json.loads((tmp_path / "bom.json").read_text())
    assert "pkg:maven/com.example/thing@1.0" in {entry["bom-ref"] for entry in written["components"]}
    assert written["serialNumber"] != document["serialNumber"]
    path.write_bytes(b"THE bytes of a jar")
    assert sbom.main([str(tmp_path / "bom.json"), "--jar", str(path)]) == 1
    assert "which requirements/jars.lock does not have" in capsys.readouterr().err
