"""Tests of conf/spark/*.conf: Spark or the accelerator accepts every setting and its value, and each is
explained.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from spark.profile import read_properties
from tests.plans.accelerator import Accelerator

PROFILES = sorted((Path(__file__).parents[2] / "conf/spark").glob("*.conf"))
ON_GPU = [path for path in PROFILES if path.stem.endswith("-gpu")]
ON_CLUSTERS = [path for path in PROFILES if path.stem != "local"]
WHERE = [path for path in PROFILES if path.stem.startswith("on-")]
WHAT = [path for path in ON_CLUSTERS if path not in WHERE]

# Settings Spark reads by name or by pattern, without an entry of its own.
UNREGISTERED = re.compile(
    r"spark\.(master|default\.parallelism|network\.crypto\.cipher|executorEnv\.\w+)|spark\.(executor|task)\.resource\.gpu\.(amount|discoveryScript|vendor)"
)
# Objects that enter their settings into Spark's list when they are first used.
CLUSTERS = ("org.apache.spark.deploy.k8s.Config$", "org.apache.spark.deploy.yarn.config.package$")
VOLUMES = re.compile(r"(spark\.kubernetes\.(?:driver|executor)\.volumes\.)[\w.-]+")


def rejected_by_spark(spark: SparkSession, settings: dict[str, str]) -> dict[str, str]:
    """Returns the settings that Spark does not know or refuses → why. Settings of the accelerator are left
    out.
    """
    jvm: Any = spark._jvm
    for name in CLUSTERS:
        jvm.java.lang.Class.forName(name)
    refusals = rejected_volumes(spark, settings)
    reader = jvm.org.apache.spark.internal.config.ConfigReader(jvm.java.util.HashMap(settings))
    for key in settings:
        if key.startswith("spark.rapids.") or UNREGISTERED.fullmatch(key) or VOLUMES.fullmatch(key):
            continue
        entry = jvm.org.apache.spark.internal.config.ConfigEntry.findEntry(key)
        if entry is None:
            refusals[key] = "no such setting"
            continue
        try:
            entry.readFrom(reader)
        except IllegalArgumentException as error:
            refusals[key] = str(error)
    return refusals


def rejected_volumes(spark: SparkSession, settings: dict[str, str]) -> dict[str, str]:
    """Returns the settings that Spark makes no volume of → why. Spark ignores unknown volume options
    silently.
    """
    jvm: Any = spark._jvm
    conf = jvm.org.apache.spark.SparkConf(False)
    for key, value in settings.items():
        conf.set(key, value)
    refusals = {}
    for prefix in {match[1] for key in settings if (match := VOLUMES.fullmatch(key))}:
        mine = {key for key in settings if key.startswith(prefix)}
        try:
            utilities = jvm.org.apache.spark.deploy.k8s.KubernetesVolumeUtils
            volumes = str(utilities.parseVolumesWithPrefix(conf, prefix))
        except Py4JJavaError as error:
            refusals |= dict.fromkeys(mine, str(error.java_exception))
            continue
        refusals |= {key: f"not in {volumes}" for key in mine if settings[key] not in volumes}
    return refusals


def unexplained(text: str) -> list[str]:
    """Lines that set something without a comment right above them."""
    lines = text.splitlines()
    pairs = zip(["", *lines], lines, strict=False)
    return [
        line for above, line in pairs if line and not line.startswith("#") and not re.match(r"# \S", above)
    ]


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_spark_takes_every_setting(profile: Path, spark: SparkSession) -> None:
    assert rejected_by_spark(spark, read_properties(profile)) == {}


@pytest.mark.parametrize("profile", ON_GPU, ids=lambda path: path.stem)
def test_the_accelerator_takes_every_setting(profile: Path, accelerator: Accelerator) -> None:
    assert accelerator.rejected(read_properties(profile)) == {}


def test_what_is_wrong_is_found(spark: SparkSession, accelerator: Accelerator) -> None:
    of_spark = {
        "spark.executor.kores": "4",
        "spark.sql.shuffle.partitions": "many",
        "spark.executor.cores": "4",
    }
    assert set(rejected_by_spark(spark, of_spark)) == {"spark.executor.kores", "spark.sql.shuffle.partitions"}
    wrong = {
        "spark.rapids.sql.explane": "ALL",
        "spark.rapids.sql.batchSizeBytes": "1zz",
        "spark.rapids.memory.gpu.allocFraction": "1.4",
        "spark.rapids.shuffle.mode": "FAST",
    }
    assert set(accelerator.rejected(wrong | {"spark.rapids.sql.explain": "ALL"})) == set(wrong)
    assert unexplained("# why\nspark.a 1\nspark.b 2\n") == ["spark.b 2"]


@pytest.mark.parametrize("profile", ON_CLUSTERS, ids=lambda path: path.stem)
def test_every_setting_is_explained(profile: Path) -> None:
    assert unexplained(profile.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_nothing_is_set_twice(profile: Path) -> None:
    lines = profile.read_text(encoding="utf-8").splitlines()
    keys = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("where", WHERE, ids=lambda path: path.stem)
@pytest.mark.parametrize("what", WHAT, ids=lambda path: path.stem)
def test_what_and_where_say_nothing_twice(what: Path, where: Path) -> None:
    """So that one may be appended to the other."""
    assert read_properties(what).keys() & read_properties(where).keys() == set()
    assert what.read_text(encoding="utf-8").endswith("\n")


def test_every_profile_is_in_the_docs() -> None:
    page = (PROFILES[0].parents[2] / "docs/clusters.md").read_text(encoding="utf-8")
    assert [path.name for path in ON_CLUSTERS if f"`{path.name}`" not in page] == []


def test_volumes_that_spark_would_not_make_are_found(spark: SparkSession) -> None:
    prefix = "spark.kubernetes.executor.volumes.persistentVolumeClaim.lake"
    right = {f"{prefix}.options.claimName": "a-claim", f"{prefix}.mount.path": "/lake"}
    assert rejected_by_spark(spark, right) == {}
    misspelt = {f"{prefix}.options.storageKlass": "fast"}
    assert set(rejected_by_spark(spark, right | misspelt)) == set(misspelt)
    no_path = {f"{prefix}.options.claimName": "a-claim"}
    assert set(rejected_by_spark(spark, no_path)) == set(no_path)
    assert set(rejected_by_spark(spark, {"spark.yarn.cue": "nightly"})) == {"spark.yarn.cue"}


def _settings(name: str) -> dict[str, str]:
    return read_properties(next(path for path in ON_CLUSTERS if path.stem == name))


@pytest.mark.parametrize("where", WHERE, ids=lambda path: path.stem)
def test_every_cluster_authenticates_and_encrypts_and_has_no_web_page(
    where: Path, spark: SparkSession
) -> None:
    """What Spark itself makes of the settings of a profile, with a secret of the test."""
    settings = {**read_properties(where), "spark.authenticate.secret": "of-this-test"}
    jvm: Any = spark._jvm
    conf = jvm.org.apache.spark.SparkConf(False)
    for key, value in settings.items():
        conf.set(key, value)
    in_file = jvm.org.apache.spark.internal.config.ConfigEntry.findEntry("spark.authenticate.secret.file")
    manager = jvm.org.apache.spark.SecurityManager(conf, jvm.scala.Option.empty(), in_file)
    assert manager.isAuthenticationEnabled()
    assert manager.isEncryptionEnabled()
    transport = jvm.org.apache.spark.network.netty.SparkTransportConf.fromSparkConf(
        conf, "rpc", 0, jvm.scala.Option.empty()
    )
    assert transport.cipherTransformation() == "AES/GCM/NoPadding"  # detects changed bytes
    assert conf.get("spark.io.encryption.enabled") == "true"
    assert conf.get("spark.ui.enabled") == "false"


def test_training_leaves_the_gpu_to_torch() -> None:
    settings = _settings("train-gpu")
    assert "spark.plugins" not in settings
    assert not [key for key in settings if key.startswith("spark.rapids.")]
    assert settings["spark.task.resource.gpu.amount"] == "1"


def test_scoring_shares_the_gpu_with_torch() -> None:
    settings = _settings("score-gpu")
    low, start, high = (
        float(settings[f"spark.rapids.memory.gpu.{name}"])
        for name in ("minAllocFraction", "allocFraction", "maxAllocFraction")
    )
    assert low <= start <= high <= 0.5


def test_one_task_that_scores_rows_owns_the_gpu_and_all_cores() -> None:
    settings = _settings("score-rows-gpu")
    assert settings["spark.task.resource.gpu.amount"] == settings["spark.executor.resource.gpu.amount"] == "1"
    assert settings["spark.task.cpus"] == settings["spark.executor.cores"]
    assert not [key for key in settings if key.startswith("spark.rapids.") or key == "spark.plugins"]


@pytest.mark.parametrize("name", ["train-cpu", "train-gpu"])
def test_a_rank_has_an_executor_to_itself_and_is_never_started_again_alone(name: str) -> None:
    settings = _settings(name)
    assert settings["spark.executor.cores"] == settings["spark.task.cpus"]
    assert settings["spark.task.maxFailures"] == "1"
    assert settings["spark.speculation"] == settings["spark.dynamicAllocation.enabled"] == "false"


@pytest.mark.parametrize("name", ["score-gpu", "score-rows-gpu", "train-gpu"])
def test_cores_and_gpu_allow_the_same_number_of_tasks(name: str) -> None:
    """Otherwise one of the two lies idle, and Spark warns."""
    settings = _settings(name)
    of_cores = int(settings["spark.executor.cores"]) / int(settings["spark.task.cpus"])
    assert of_cores == 1 / float(settings["spark.task.resource.gpu.amount"])


@pytest.mark.parametrize("name", ["etl-gpu", "score-gpu"])
def test_every_class_of_the_accelerator_that_a_profile_names_is_in_its_jar(name: str, jar: Path) -> None:
    # Classes that differ by release are in no profile: see tests/plans/test_accelerator_settings.py.
    named = {key: value for key, value in _settings(name).items() if value.startswith("com.nvidia.")}
    assert named.keys() == {"spark.plugins", "spark.sql.cache.serializer"}
    with ZipFile(jar) as packed:
        entries = set(packed.namelist())
    assert {value for value in named.values() if f"{value.replace('.', '/')}.class" not in entries} == set()


@pytest.mark.parametrize("name", ["etl-gpu", "score-gpu"])
def test_driver_and_executors_run_alike(name: str) -> None:
    settings = _settings(name)
    assert settings["spark.executor.extraClassPath"] == settings["spark.driver.extraClassPath"]
    assert settings["spark.driver.extraJavaOptions"] == settings["spark.executor.extraJavaOptions"]
