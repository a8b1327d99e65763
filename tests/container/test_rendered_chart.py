"""The Helm chart, rendered by Helm, checked by kubeconform against Kubernetes' own types, and run by Spark's driver.

Helm and kubeconform are built by Go. No cluster is involved: the driver's Kubernetes API is that of pod_api.py.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import pyspark
import pytest
import yaml
from pyspark.sql import SparkSession

from conf.errors import EXIT_CONFIG, EXIT_DATA
from conf.load import load_config
from jobs import nightly
from setup import java_home
from setup.install import ROOT
from spark.profile import read_properties
from tests.cluster.chain import CONFIG, RUN_DATE
from tests.container.kubernetes_schemas import (
    RELEASES,
    api_description,
    conform,
    helm,
    kubeconform,
    kubernetes_file,
    write_schemas,
)
from tests.container.pod_api import DRIVER, NAMESPACE, PodApi, pod_api
from tests.container.test_chart import CHART, EXAMPLES, VERBS
from tests.etl.lakes.servers import QUICK_JAVA, Unavailable, missing
from tests.plans.test_profiles import rejected_by_spark
from tests.processes import wait_for

pytestmark = [pytest.mark.large, pytest.mark.processes, pytest.mark.timeout(1800)]

SITE = "/opt/nightrank/conf/site"
# A cluster of the oldest release. Helm itself would assume a release by the way in which it was built.
OF_CLUSTER = ("--namespace", NAMESPACE, "--kube-version", RELEASES[0])
# Settings whose keys contain names, so that Spark has no entry for them.
NAMED = re.compile(r"spark\.(kubernetes\.executor\.(secretKeyRef|secrets)|executorEnv)\.\S+")


@dataclass(frozen=True)
class Checker:
    """The programs, and a folder of schemas for each release of Kubernetes."""

    helm: Path
    kubeconform: Path
    schemas: Mapping[str, Path]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(self.helm), *words], capture_output=True, text=True, check=False)

    def template(self, *words: str, config: Path | None = ROOT / CONFIG) -> subprocess.CompletedProcess[str]:
        """Renders the chart with a configuration, by default that of the demo."""
        file = [] if config is None else ["--set-file", f"config={config}"]
        return self.run("template", "shop", str(CHART), *OF_CLUSTER, *file, *words)

    def render(self, *words: str) -> str:
        done = self.template(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, folder: Path, *texts: str) -> list[str]:
        """What a release of Kubernetes does not accept of manifests."""
        folder.mkdir(exist_ok=True)
        files = []
        for number, text in enumerate(texts):
            files.append(folder / f"{number}.yaml")
            files[-1].write_text(text)
        return [
            f"{release}: {problem}"
            for release, schemas in self.schemas.items()
            for problem in conform(self.kubeconform, schemas, files)
        ]


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Checker:
    folder = tmp_path_factory.mktemp("schemas")
    try:
        schemas = {}
        for release in RELEASES:
            schemas[release] = folder / release
            write_schemas(api_description(release), schemas[release])
        return Checker(helm(), kubeconform(), schemas)
    except Unavailable as error:
        missing(str(error))
        raise


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda path: path.stem)
def example(request: pytest.FixtureRequest, checker: Checker) -> tuple[str, str]:
    """The name of an example, and its manifests."""
    return request.param.stem, checker.render("--values", str(request.param))


def objects(text: str) -> dict[tuple[str, str], Any]:
    """The objects of manifests by kind and name."""
    loaded = [document for document in yaml.safe_load_all(text) if document]
    return {(document["kind"], document["metadata"]["name"]): document for document in loaded}


def site(text: str) -> dict[str, str]:
    """The files that pods mount."""
    return dict(objects(text)["ConfigMap", "shop-nightrank-site"]["data"])


def pods(text: str) -> Iterator[dict[str, Any]]:
    """Every pod of the manifests: those of CronJobs, and the templates in the files."""
    for (kind, _), body in objects(text).items():
        if kind == "CronJob":
            yield body["spec"]["jobTemplate"]["spec"]["template"]
    files = site(text)
    yield from (yaml.safe_load(files[name]) for name in ("driver.yaml", "executor.yaml") if name in files)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_lint_finds_nothing(checker: Checker, path: Path) -> None:
    config = f"config={ROOT / CONFIG}"
    words = ("--values", str(path), "--set-file", config, *OF_CLUSTER)
    done = checker.run("lint", "--strict", str(CHART), *words)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_cluster_that_is_too_old_is_refused(checker: Checker) -> None:
    done = checker.template("--kube-version", "1.30.9")
    assert done.returncode != 0
    assert "chart requires kubeVersion: >=1.31.0-0" in done.stderr


def test_the_packed_chart_has_the_files_of_conf(checker: Checker, tmp_path: Path) -> None:
    assert checker.run("package", str(CHART), "--destination", str(tmp_path)).returncode == 0
    (packed,) = tmp_path.glob("nightrank-*.tgz")
    words = ("--set-file", f"config={ROOT / CONFIG}", *OF_CLUSTER)
    done = checker.run("template", "shop", str(packed), *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout == checker.render()


def test_kubernetes_knows_every_field(checker: Checker, example: tuple[str, str], tmp_path: Path) -> None:
    _, text = example
    files = site(text)
    templates = [files[name] for name in ("driver.yaml", "executor.yaml") if name in files]
    assert checker.refused(tmp_path / "right", text, *templates) == []


def test_a_wrong_field_and_a_wrong_value_are_refused(checker: Checker, tmp_path: Path) -> None:
    text = checker.render()
    for right, wrong in (
        ("concurrencyPolicy:", "concurencyPolicy:"),
        ("readOnlyRootFilesystem:", "readonlyRootFilesystem:"),
        ("runAsUser: 10001", "runAsUser: nobody"),
        ("podSelector:", "podSelektor:"),
        ("storage: 500Gi", "storage: [500Gi]"),
        ("roleRef:", "roleReference:"),
    ):
        changed = text.replace(right, wrong)
        assert changed != text
        problems = checker.refused(tmp_path / "wrong", changed)
        assert {problem.partition(":")[0] for problem in problems} == set(RELEASES), (right, problems)


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "config is empty: pass the configuration of Nightrank with --set-file"),
        (["--set", "config=a: b: c"], "config is not a YAML mapping"),
        (
            ["--set", "lake.address=s3a://a/b,lake.claim.existing=c"],
            "lake.address and lake.claim.existing are both set",
        ),
        (["--set", "set={lake=/elsewhere}"], "set lake.address or lake.claim instead"),
        (
            ["--set-string", r"spark.properties.spark\.executor\.instances=3"],
            "spark.properties contains spark.executor.instances, which the chart sets from other values",
        ),
        (["--set", "executors.count=0"], "at '/executors/count': minimum: got 0, want 1"),
        (["--set", "exekutors.count=1"], "additional properties 'exekutors' not allowed"),
        (["--set", "profiles.default=on-yarn"], "at '/profiles/default': value must be one of"),
        (["--set", "spark.master=yarn"], "at '/spark/master': 'yarn' does not match pattern"),
    ],
    ids=lambda value: "".join(value)[:30] if isinstance(value, list) else "",
)
def test_wrong_values_are_refused_with_a_clear_message(
    checker: Checker, words: list[str], message: str
) -> None:
    chooses = not words or words[1].startswith("config=")
    done = checker.template(*words, config=None if chooses else ROOT / CONFIG)
    assert done.returncode != 0
    assert message in done.stderr


def test_every_pod_is_restricted(example: tuple[str, str]) -> None:
    """By the rules of Kubernetes' Pod Security Standard `restricted`, and with a read-only root file system."""
    seen = list(pods(example[1]))
    assert seen
    for pod in seen:
        spec = pod["spec"]
        context = spec["securityContext"]
        assert context["runAsNonRoot"]
        assert context["runAsUser"] == 10001
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not [volume for volume in spec["volumes"] if "hostPath" in volume]
        for container in spec["containers"]:
            inner = container["securityContext"]
            assert inner["readOnlyRootFilesystem"]
            assert inner["allowPrivilegeEscalation"] is False
            assert inner["capabilities"] == {"drop": ["ALL"]}
            mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert "/tmp" in mounts
            volumes = {volume["name"] for volume in spec["volumes"]}
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_pods_have_the_settings_of_conf(example: tuple[str, str]) -> None:
    """conf/spark/kubernetes is the source of the templates: the chart adds, and changes names and labels alone."""
    files = site(example[1])
    for name in ("driver.yaml", "executor.yaml"):
        if name not in files:
            assert example[0] == "one-pod"
            continue
        source = yaml.safe_load((ROOT / "conf/spark/kubernetes" / name).read_text())
        pod = yaml.safe_load(files[name])
        assert source["metadata"]["labels"].items() <= pod["metadata"]["labels"].items()
        for key, value in source["spec"].items():
            if key not in (
                "containers",
                "volumes",
                "tolerations",
                "topologySpreadConstraints",
                "serviceAccountName",
            ):
                assert pod["spec"][key] == value
        for key in ("volumes", "tolerations"):
            assert [entry for entry in source["spec"].get(key, []) if entry not in pod["spec"][key]] == []
        (container,), (wanted,) = pod["spec"]["containers"], source["spec"]["containers"]
        assert container["name"] == wanted["name"]
        assert container["securityContext"] == wanted["securityContext"]
        assert [mount for mount in wanted["volumeMounts"] if mount not in container["volumeMounts"]] == []


def test_spark_takes_the_settings_and_those_of_conf_are_kept(
    example: tuple[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    files = site(example[1])
    confs = {name: text for name, text in files.items() if name.endswith(".conf")}
    assert confs
    for name, text in confs.items():
        path = tmp_path / name
        path.write_text(text)
        lines = [line.split()[0] for line in text.splitlines() if line and not line.startswith("#")]
        assert len(lines) == len(set(lines)), "a setting is there twice"
        settings = read_properties(path)
        known = {key: value for key, value in settings.items() if not NAMED.fullmatch(key)}
        assert rejected_by_spark(spark, known) == {}
        source = read_properties(ROOT / "conf/spark" / name)
        if name != "local.conf":
            source |= read_properties(ROOT / "conf/spark/on-kubernetes.conf")
        _, _, values = text.partition("## Values of the chart\n")
        of_chart = {line.split()[0] for line in values.splitlines()}
        assert {key for key, value in source.items() if settings.get(key, value) != value} <= of_chart
        left_out = source.keys() - settings.keys()
        pattern = r"spark\.kubernetes\.driver\.(podTemplateFile|volumes\.\S+)"
        if "storageClass" not in values:
            pattern += r"|spark\.kubernetes\.driver\.(own|reuse)PersistentVolumeClaim|\S+spark-local-dir-1\S+"
            pattern += r"|spark\.shuffle\.sort\.io\.plugin\.class"
        if "lake.mount.path" not in values:
            pattern += r"|spark\.kubernetes\.executor\.volumes\.persistentVolumeClaim\.lake\.\S+"
        assert [key for key in left_out if not re.fullmatch(pattern, key)] == []


def test_images_fit_the_profiles(example: tuple[str, str]) -> None:
    name, text = example
    driver = yaml.safe_load(site(text)["driver.yaml"])["spec"]["containers"][0]
    assert driver["image"].endswith("-cuda" if name == "gpus" else "-cpu")
    for file, conf in site(text).items():
        if file.endswith(".conf") and file != "local.conf":
            (image,) = re.findall(r"(?m)^spark\.kubernetes\.container\.image (\S+)$", conf)
            assert image.endswith("-cuda" if file.endswith("-gpu.conf") else "-cpu")
            gpus = re.findall(r"(?m)^spark\.executor\.resource\.gpu\.(?:amount|vendor)\s+(\S+)$", conf)
            assert sorted(gpus) == (["1", "nvidia.com"] if file.endswith("-gpu.conf") else [])


def test_nightly_takes_the_arguments_and_the_configuration(example: tuple[str, str], tmp_path: Path) -> None:
    name, text = example
    cronjobs = {key[1]: body for key, body in objects(text).items() if key[0] == "CronJob"}
    wanted = [] if name == "airflow" else ["nightly", "retrain"]
    assert sorted(cronjobs) == [f"shop-nightrank-{kind}" for kind in wanted]
    home = tmp_path / "conf"
    shutil.copytree(ROOT / "conf/models", home / "models")
    (home / "site").mkdir()
    files = site(text)
    (home / "site/config.yaml").write_text(files["config.yaml"])
    for kind, cronjob in cronjobs.items():
        (container,) = cronjob["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        script, *words = container["args"][1:]
        assert container["args"][0] == "sh"
        assert script == f"{SITE}/run.sh"
        parser: argparse.ArgumentParser = nightly._parser()
        arguments = parser.parse_args(["--config", "x", "--run-date", RUN_DATE, *words])
        assert arguments.retrain == kind.endswith("retrain")
        mounted = {mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "site"}
        used = {arguments.profile, *dict(arguments.job_profiles).values(), f"{SITE}/config.yaml", script}
        assert used <= mounted
        assert mounted - used <= {f"{SITE}/executor.yaml"}
        config = load_config(str(home / "site/config.yaml"), arguments.overrides)
        assert config.lake == ("s3a://shop-lake/nightrank" if name == "executors" else "/lake")
        policy = cronjob["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
        hopeless = [EXIT_CONFIG, EXIT_DATA]
        assert policy[1]["onExitCodes"] == {"containerName": "driver", "operator": "In", "values": hopeless}


def test_names_of_jobs_end_with_minutes_as_run_sh_expects() -> None:
    for release in RELEASES:
        source = kubernetes_file(release, "pkg/controller/cronjob/utils.go").read_text()
        source += kubernetes_file(release, "pkg/controller/cronjob/cronjob_controllerv2.go").read_text()
        assert 'fmt.Sprintf("%s-%d", cj.Name, getTimeHashInMinutes(scheduledTime))' in source
        assert "scheduledTime.Unix() / 60" in source


def test_policies_open_what_the_policy_of_conf_opens(checker: Checker) -> None:
    source = yaml.safe_load((ROOT / "conf/spark/kubernetes/network-policy.yaml").read_text())["spec"]
    egress = "networkPolicy.egress[0].cidr=0.0.0.0/0,networkPolicy.egress[0].ports={443,5432,6379}"
    rendered = objects(checker.render("--set", egress))
    policy = rendered["NetworkPolicy", "shop-nightrank"]["spec"]
    of_driver = rendered["NetworkPolicy", "shop-nightrank-driver"]["spec"]
    ours = {"app.kubernetes.io/name": "nightrank", "app.kubernetes.io/instance": "shop"}
    assert policy["podSelector"] == {"matchLabels": ours}
    text = json.dumps(policy).replace(', "app.kubernetes.io/instance": "shop"', "")
    text = text.replace('"app.kubernetes.io/instance": "shop", ', "")
    same = json.loads(text)
    assert same["policyTypes"] == source["policyTypes"]
    assert same["ingress"] == source["ingress"]
    assert same["egress"][:2] == source["egress"][:2]

    def ports(rules: list[dict[str, Any]]) -> set[int]:
        return {port["port"] for rule in rules for port in rule["ports"]}

    assert ports(policy["egress"][2:]) | ports(of_driver["egress"]) == ports(source["egress"][2:])
    # Executors do not connect to the Kubernetes API, and by default to nothing outside.
    assert of_driver["podSelector"]["matchExpressions"][0]["values"] == ["driver", "job"]
    closed = objects(checker.render())["NetworkPolicy", "shop-nightrank"]["spec"]["egress"]
    assert len(closed) == 2


def test_one_pod_needs_no_rights_and_executors_those_of_the_driver(example: tuple[str, str]) -> None:
    name, text = example
    rendered = objects(text)
    roles = [body for (kind, _), body in rendered.items() if kind == "Role"]
    driver = yaml.safe_load(site(text)["driver.yaml"])["spec"]
    accounts = {key[1] for key in rendered if key[0] == "ServiceAccount"}
    assert accounts == {"shop-nightrank-driver", "shop-nightrank-executor"}
    if name == "one-pod":
        assert not roles
        assert driver["automountServiceAccountToken"] is False
        return
    (role,) = roles
    verbs = {rule["resources"][0]: set(rule["verbs"]) for rule in role["rules"]}
    assert verbs.items() <= VERBS.items()
    assert ("persistentvolumeclaims" in verbs) == (name == "gpus")
    (subject,) = rendered["RoleBinding", "shop-nightrank-driver"]["subjects"]
    assert subject["name"] == driver["serviceAccountName"] == "shop-nightrank-driver"
    assert driver["automountServiceAccountToken"]
    assert yaml.safe_load(site(text)["executor.yaml"])["spec"]["automountServiceAccountToken"] is False


def test_secrets_are_references(checker: Checker) -> None:
    text = checker.render("--values", str(CHART / "examples/executors.yaml"))
    assert not [key for key in objects(text) if key[0] == "Secret"]
    conf = site(text)["cpu.conf"]
    (container,) = yaml.safe_load(site(text)["driver.yaml"])["spec"]["containers"]
    references = {
        entry["name"]: entry["valueFrom"].get("secretKeyRef")
        for entry in container["env"]
        if "valueFrom" in entry
    }
    assert references["SHOP_DATABASE_PASSWORD"] == {"name": "shop-database", "key": "password"}
    assert "SHOP_DATABASE_PASSWORD" not in conf  # executors do not need it
    assert (
        "spark.kubernetes.executor.secretKeyRef.AWS_SECRET_ACCESS_KEY lake-credentials:secret-key\n" in conf
    )
    assert "spark.kubernetes.executor.secrets.spark-secret /etc/spark-secret\n" in conf
    assert "spark.authenticate.secret.file /etc/spark-secret/secret\n" in conf
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/etc/spark-secret", "/etc/shop-database"} <= mounts


# What the driver of the test does. Before the second query, its executor is killed.
APPLICATION = """
import os, time
from pyspark.sql import SparkSession

session = SparkSession.builder.getOrCreate()
context = session.sparkContext
total = session.range(1000).repartition(4).selectExpr("sum(id)").first()[0]
open(os.environ["FIRST_QUERY"], "w").close()
while not os.path.exists(os.environ["EXECUTOR_KILLED"]):
    time.sleep(0.1)
doubled = context.parallelize(range(8), 4).map(lambda number: 2 * number).sum()
[secret] = context.parallelize([0], 1).map(lambda _: os.environ["OF_A_SECRET"]).collect()
print("RESULT", context.getConf().get("spark.driver.host"), total, doubled, secret)
session.stop()
"""


@dataclass(frozen=True)
class Run:
    """What a driver of Spark did with the profile `cpu` of the chart."""

    api: PodApi
    exit_code: int
    printed: str


def small_values(api_url: str) -> dict[str, Any]:
    """Values for an executor on this machine."""
    quick = " ".join(QUICK_JAVA)
    return {
        "spark": {
            "master": f"k8s://{api_url}",
            "properties": {
                "spark.executor.cores": "1",
                "spark.executor.memory": "512m",
                "spark.executor.memoryOverhead": "1g",
                "spark.driver.memory": "1g",
                "spark.driver.extraJavaOptions": quick,
                "spark.executor.extraJavaOptions": quick,
                "spark.sql.shuffle.partitions": "4",
                "spark.buffer.pageSize": "2m",
            },
        },
        "executors": {"count": 1, "scratch": {"storageClass": "local-nvme", "size": "1Gi"}},
        "secrets": {
            "spark": {"name": "spark-secret"},
            "environment": {"OF_A_SECRET": {"secret": "some-secret", "key": "a", "executors": True}},
        },
    }


@pytest.fixture(scope="module")
def run(checker: Checker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Submits an application in client mode, as the pod of a CronJob does. Its executor is killed once."""
    folder = tmp_path_factory.mktemp("run")
    for name in ("bin", "secret"):
        (folder / name).mkdir()
    (folder / "secret/secret").write_text("of this test " * 4)
    (folder / "bin/tini").write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    (folder / "bin/tini").chmod(0o755)
    (folder / "application.py").write_text(APPLICATION)
    java = java_home.find()
    assert java is not None
    variables = {
        "PATH": f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "JAVA_HOME": str(java),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "HOME": str(Path.home()),
        "PYTHONPATH": str(ROOT),
    }
    marks = {name: folder / name for name in ("FIRST_QUERY", "EXECUTOR_KILLED")}
    values = folder / "values.yaml"
    # The rules of the Role do not depend on the address of the API, which is not known before.
    values.write_text(json.dumps(small_values("http://127.0.0.1:1")))
    rules = objects(checker.render("--values", str(values)))["Role", "shop-nightrank-driver"]["rules"]
    with pod_api(rules, ROOT / "container/entrypoint.sh", variables, folder) as api:
        values.write_text(json.dumps(small_values(api.url)))
        for name, content in site(checker.render("--values", str(values))).items():
            for there, here in (
                (SITE, folder),
                ("/opt/nightrank/environment/bin/python", sys.executable),
                ("/etc/spark-secret", folder / "secret"),
            ):
                content = content.replace(there, str(here))
            (folder / name).write_text(content)

        def kill() -> None:
            wait_for("the first query", marks["FIRST_QUERY"].exists, 240)
            api.kill_a_pod()
            marks["EXECUTOR_KILLED"].touch()

        Thread(target=kill, daemon=True).start()
        of_pod = {"POD_IP": "127.0.0.1", "POD_NAME": DRIVER}
        submit = Path(sys.executable).parent / "spark-submit"
        done = subprocess.run(
            [submit, "--properties-file", folder / "cpu.conf", folder / "application.py"],
            env={**os.environ, **variables, **of_pod, **{name: str(path) for name, path in marks.items()}},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        yield Run(api, done.returncode, done.stdout)


def test_spark_starts_executors_in_pods_and_replaces_a_lost_one(run: Run) -> None:
    assert run.exit_code == 0, run.printed[-8000:]
    assert "RESULT 127.0.0.1 499500 56 of-some-secret" in run.printed
    assert "Lost executor 1" in run.printed
    kinds = [body["kind"] for body in run.api.created]
    assert kinds.count("Pod") >= 2


def test_the_driver_requests_exactly_what_its_role_allows(run: Run) -> None:
    assert run.exit_code == 0, run.printed[-8000:]
    assert run.api.denied == set()
    assert run.api.rights == {(resource, verb) for resource, verbs in VERBS.items() for verb in verbs}
    assert run.api.rights - run.api.requests == set()


def test_pods_that_spark_makes_of_the_template_are_valid_and_restricted(
    run: Run, checker: Checker, tmp_path: Path
) -> None:
    assert run.exit_code == 0, run.printed[-8000:]
    created = run.api.created
    assert {body["kind"] for body in created} == {"Pod", "ConfigMap", "PersistentVolumeClaim"}
    assert checker.refused(tmp_path / "created", *map(json.dumps, created)) == []
    for pod in (body for body in created if body["kind"] == "Pod"):
        labels, spec = pod["metadata"]["labels"], pod["spec"]
        assert labels["app.kubernetes.io/instance"] == "shop"
        assert labels["app.kubernetes.io/component"] == "executor"
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["serviceAccountName"] == "shop-nightrank-executor"
        assert spec["automountServiceAccountToken"] is False
        (container,) = spec["containers"]
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {"/tmp", "/dev/shm", "/lake", "/scratch"} <= mounts
        variables = {entry["name"]: entry for entry in container["env"]}
        reference = variables["OF_A_SECRET"]["valueFrom"]["secretKeyRef"]
        assert (reference["name"], reference["key"]) == ("some-secret", "a")
        # The authentication secret is in a file: nobody sees it who may read pods.
        assert not [name for name in variables if "AUTH" in name]
        (owner,) = pod["metadata"]["ownerReferences"]
        assert owner["name"] == DRIVER
