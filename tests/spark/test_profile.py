"""The profile of a process: how it is found, what it may name, and what Spark then writes to a log file."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conf.errors import ConfigError
from spark.profile import (
    find_profile,
    launch_settings,
    read_properties,
    require_files,
    require_java,
    require_worker_python,
    use_profile,
)
from tests.processes import ROOT

LOCAL = ROOT / "conf/spark/local.conf"
VARIABLES = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "MASTER", "SPARK_HOME", "SPARK_CONF_DIR")
# A job whose only work is a query of Spark that takes longer than the time before a bar is drawn.
PROBE = """
from pyspark.sql import functions as F
from jobs.runner import run_job
from storage.job_summary import JobSummary

def stage(context):
    nap = "java_method('java.lang.Thread', 'sleep', id * 0 + 700L)"
    context.spark.range(6).select(F.expr(nap)).collect()
    return JobSummary(None, facts={"master": context.spark.sparkContext.master})

run_job("probe", "", stage, ["--config", "conf/datasets/generated.yaml", "--run-date", "2026-01-04"])
"""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the variables that say how Spark starts. Restores them, also those that `use_profile` sets."""
    for name in (*VARIABLES, "PYSPARK_PYTHON"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_a_process_without_settings_uses_the_local_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    use_profile(None)
    assert launch_settings(os.environ) == read_properties(LOCAL)


@pytest.mark.parametrize("name", ["local", "conf/spark/local.conf", str(LOCAL)])
def test_a_profile_is_found_from_any_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Path(find_profile(name)).samefile(LOCAL)


def test_a_file_of_the_working_directory_precedes_the_projects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf/spark").mkdir(parents=True)
    (tmp_path / "conf/spark/local.conf").write_text("spark.master local[7]\n")
    monkeypatch.chdir(tmp_path)
    use_profile("conf/spark/local.conf")
    assert launch_settings(os.environ) == {"spark.master": "local[7]"}


@pytest.mark.parametrize(
    "variable, value, master",
    [
        ("PYSPARK_SUBMIT_ARGS", "--master local[5] pyspark-shell", "local[5]"),
        ("MASTER", "local[5]", "local[5]"),
        ("SPARK_CONF_DIR", "{folder}", "local[6]"),
        ("PYSPARK_GATEWAY_PORT", "1", None),
    ],
)
def test_what_the_environment_says_is_kept(
    variable: str, value: str, master: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.master local[6]\n")
    monkeypatch.setenv(variable, value.format(folder=tmp_path))
    use_profile(None)
    assert launch_settings(os.environ).get("spark.master") == master


def test_a_named_profile_is_joined_with_other_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "my own.conf"
    mine.write_text(f"spark.master local[2]\nspark.a b\nspark.pyspark.python {sys.executable}\n")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[3] pyspark-shell")
    use_profile(str(mine))
    assert shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])[:2] == ["--properties-file", str(mine)]
    settings = launch_settings(os.environ)
    assert (settings["spark.master"], settings["spark.a"]) == ("local[3]", "b")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_profile_is_refused_where_it_would_have_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {LOCAL} pyspark-shell")
    with pytest.raises(ConfigError, match="already names a properties file"):
        use_profile("local")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(ConfigError, match="--profile local has no effect: spark-submit has already chosen"):
        use_profile("local")


def test_an_unknown_profile_is_named_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"profile lokal does not exist") as raised:
        use_profile("lokal")
    assert "local, on-kubernetes" in raised.value.remedy


@pytest.mark.parametrize(
    "settings, submits, key",
    [
        ({"spark.pyspark.driver.python": "/absent/python"}, True, "spark.pyspark.driver.python"),
        ({"spark.pyspark.python": "/absent/python"}, True, "spark.pyspark.python"),
        ({"spark.pyspark.python": "/absent/python"}, False, "spark.pyspark.python"),
        ({"spark.pyspark.python": "absent-python"}, False, "spark.pyspark.python"),
        ({"spark.jars": f"{LOCAL},/absent/a.jar"}, False, "spark.jars"),
        ({"spark.jars": "file:///absent/a.jar"}, False, "spark.jars"),
        ({"spark.jars": "/absent/*.jar"}, False, "spark.jars"),
        ({"spark.jars": f"{LOCAL.parent.parent}/*/absent.jar"}, False, "spark.jars"),
        ({"spark.driver.extraClassPath": "/absent:/absent/b.jar"}, False, "spark.driver.extraClassPath"),
        ({"spark.archives": "/absent/e.tar.gz#environment"}, True, "spark.archives"),
        (
            {"spark.kubernetes.executor.podTemplateFile": "absent.yaml"},
            True,
            "spark.kubernetes.executor.podTemplateFile",
        ),
    ],
)
def test_a_missing_file_of_a_profile_is_named(settings: dict[str, str], submits: bool, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"the Spark profile a\.conf has {key}=.*absent") as raised:
        require_files({"spark.master": "local[2]", **settings}, "a.conf", submits=submits)
    assert "docs/clusters.md" in raised.value.remedy


@pytest.mark.parametrize(
    "settings, submits",
    [
        ({"spark.master": "spark://head:7077", "spark.pyspark.python": "/absent/python"}, False),
        ({"spark.master": "yarn", "spark.pyspark.python": "./environment/bin/python"}, True),
        ({"spark.jars": "hdfs:///a.jar,s3a://bucket/b.jar,local:/opt/c.jar,https://host/d.jar"}, True),
        ({"spark.driver.extraClassPath": "/etc/absent/conf"}, True),
        ({"spark.pyspark.python": "python3", "spark.pyspark.driver.python": sys.executable}, True),
        ({"spark.jars": f"{LOCAL.parent}/*.conf"}, True),
        ({"spark.jars": f"{LOCAL.parent.parent}/sp*/{LOCAL.name}"}, True),
        ({"spark.jars": f"{LOCAL.parent}/{{{LOCAL.stem}}}.conf"}, True),  # Hadoop expands braces, too
    ],
)
def test_files_that_the_driver_does_not_need_here_are_not_checked(
    settings: dict[str, str], submits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop/conf")
    require_files(settings, "a.conf", submits=submits)


def test_a_link_to_a_missing_interpreter_is_described(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to("/absent/python3.11")
    with pytest.raises(ConfigError, match=r"a link to /absent/python3\.11, which does not exist"):
        require_files({"spark.pyspark.python": str(python)}, "a.conf", submits=True)


def test_programs_of_the_environment_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/absent")
    with pytest.raises(
        ConfigError, match=r"JAVA_HOME=/absent: Spark starts /absent/bin/java, which does not"
    ):
        require_java()
    monkeypatch.setenv("PYSPARK_PYTHON", "/absent/python")
    require_worker_python("spark://head:7077")
    with pytest.raises(ConfigError, match=r"spark\.pyspark\.python is /absent/python"):
        require_worker_python("local[2]")


def test_properties_are_read_as_spark_reads_them(tmp_path: Path, spark: SparkSession) -> None:
    lines = (
        "# a comment",
        "  ! another",
        "spark.a=b",
        "spark.b = c d ",
        "spark.c:d",
        "spark.d   e=f",
        "spark.e \\",
        "    continued \\",
        "    twice",
        "spark.f",
        "spark\\ g=\\u0041\\tb\\\\",
        "spark.h=#x",
        "",
        "spark.a=last",
        "spark.i end\\",
    )
    path = tmp_path / "p.conf"
    path.write_text("\n".join(lines))
    expected = spark._jvm.org.apache.spark.util.Utils.getPropertiesFromFile(str(path))
    names = expected.keysIterator()
    sparks = {}
    while names.hasNext():
        name = names.next()
        sparks[name] = expected.apply(name)
    assert read_properties(path) == sparks
    assert len(sparks) == 9


def test_a_profile_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.conf").write_bytes(b"spark.a \xff\xfe")
    with pytest.raises(ConfigError, match=r"p\.conf cannot be read: .*utf-8"):
        read_properties(tmp_path / "p.conf")


@pytest.mark.processes
@pytest.mark.parametrize("asks_for_bars", [False, True])
def test_spark_writes_no_bar_and_no_details_to_a_file(asks_for_bars: bool, tmp_path: Path) -> None:
    """A job that python starts in another folder, without and with a profile that asks for bars."""
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    if asks_for_bars:
        bars = "--conf spark.ui.showConsoleProgress=true"
        kept["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {LOCAL} {bars} pyspark-shell"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with (tmp_path / "log").open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-c", PROBE],
            cwd=tmp_path,
            env={**kept, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=log,
            check=False,
        )
    text = (tmp_path / "log").read_bytes()
    assert done.returncode == 0, text.decode()
    assert b'"master": "local[2]"' in done.stdout
    assert b"\r" not in text
    assert b" INFO " not in text
    assert len(text.splitlines()) < 20


@pytest.mark.parametrize("master", ["spark://head:7077", "local[2]", "yarn", "k8s://https://head:6443"])
def test_a_standalone_cluster_needs_a_secret_in_the_profile(
    master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YARN_CONF_DIR", "/etc/hadoop/conf")
    settings = {"spark.master": master, "spark.authenticate": "true"}
    require_files({**settings, "spark.authenticate.secret": "x"}, "a.conf", submits=True)
    if master.startswith("spark:"):
        with pytest.raises(ConfigError, match=r"a\.conf has spark\.authenticate=true, but no"):
            require_files(settings, "a.conf", submits=True)
    else:
        require_files(settings, "a.conf", submits=True)


def test_yarn_needs_the_configuration_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"a\.conf has spark\.master=yarn, but HADOOP_CONF_DIR is not set"):
        require_files({"spark.master": "yarn"}, "a.conf", submits=True)
    monkeypatch.setenv("YARN_CONF_DIR", "/etc/hadoop/conf")
    require_files({"spark.master": "yarn"}, "a.conf", submits=True)
