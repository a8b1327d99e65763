"""spark/session.py: which classes of a jar of the accelerator a session gets, on which Spark."""

from __future__ import annotations

import logging
from pathlib import Path
from zipfile import ZipFile

import pyspark
import pytest

from conf.errors import EXIT_CONFIG, ConfigError
from setup import jars
from spark.profile import read_properties
from spark.session import PLUGIN, SHIM_OVERRIDE, SHUFFLE_MANAGER, accelerator_settings
from tests.processes import ROOT

PACKAGE = "com.nvidia.spark.rapids"


def make_jar(path: Path, *shims: str) -> Path:
    """Writes a file with the entries that identify a jar of the accelerator, laid out as in release 26.08."""
    names = [f"{PACKAGE}.shims.{shim}.SparkShimServiceProvider" for shim in shims]
    with ZipFile(path, "w") as packed:
        packed.writestr("com/nvidia/spark/SQLPlugin.class", "")
        packed.writestr(f"META-INF/services/{PACKAGE}.SparkShimServiceProvider", "\n".join(names) + "\n")
        for shim, name in zip(shims, names, strict=True):
            packed.writestr(f"{name.replace('.', '/')}.class", "")
            packed.writestr(f"{shim}/org/apache/spark/sql/rapids/execution/GpuBroadcastHelper.class", "")
            packed.writestr(f"com/nvidia/spark/rapids/{shim}/RapidsShuffleManager.class", "")
    return path


def settings_for(jar: Path | str, spark_version: str = "3.5.8", **changed: str) -> dict[str, str]:
    """Returns the settings of a session with the plugin and this class path. The profile may set `manager`
    and `override`.
    """
    known = {"manager": SHUFFLE_MANAGER, "override": SHIM_OVERRIDE}
    profile = {"spark.plugins": PLUGIN, "spark.driver.extraClassPath": str(jar)}
    profile |= {known[name]: value for name, value in changed.items()}
    return accelerator_settings(profile.get, spark_version)


def manager(shim: str) -> str:
    return f"{PACKAGE}.{shim}.RapidsShuffleManager"


def provider(shim: str) -> str:
    return f"{PACKAGE}.shims.{shim}.SparkShimServiceProvider"


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A jar with a shim for each Spark 3.5.0 to 3.5.9, and for others."""
    shims = [f"spark35{patch}" for patch in range(10)]
    return make_jar(tmp_path / "rapids-4-spark.jar", "spark344", *shims, "spark350db143", "spark401")


def test_a_release_that_supports_this_spark_gets_its_own_class(newer: Path) -> None:
    assert settings_for(newer, "3.5.8") == {SHUFFLE_MANAGER: manager("spark358")}
    assert settings_for(newer, "3.4.4") == {SHUFFLE_MANAGER: manager("spark344")}
    assert settings_for(newer, "4.0.1") == {SHUFFLE_MANAGER: manager("spark401")}


def test_the_locked_release_gets_its_newest_shim_of_this_line(
    jar: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Names come from the real jar, and are in it."""
    with caplog.at_level(logging.INFO, "nightrank.accelerator"):
        settings = settings_for(jar, "3.5.8")
    assert settings == {SHUFFLE_MANAGER: manager("spark355"), SHIM_OVERRIDE: provider("spark355")}
    assert "no shim for Spark 3.5.8" in caplog.text
    with ZipFile(jar) as packed:
        entries = packed.namelist()
    for name in settings.values():
        entry = f"{name.replace('.', '/')}.class"
        assert [entry_name for entry_name in entries if entry_name in (entry, f"spark-shared/{entry}")], name
    assert settings_for(jar, "3.5.5") == {SHUFFLE_MANAGER: manager("spark355")}


@pytest.mark.parametrize("name", ["etl-gpu", "score-gpu"])
def test_what_the_profiles_leave_out_is_found_in_the_locked_jar(name: str, jar: Path) -> None:
    profile = read_properties(ROOT / f"conf/spark/{name}.conf") | {"spark.driver.extraClassPath": str(jar)}
    settings = accelerator_settings(profile.get, pyspark.__version__)
    assert SHUFFLE_MANAGER in settings
    assert settings.keys() & profile.keys() == set()


def test_the_version_of_a_spark_may_end_in_a_vendors_words(newer: Path) -> None:
    assert settings_for(newer, "3.5.6-amzn-1") == {SHUFFLE_MANAGER: manager("spark356")}
    with pytest.raises(ConfigError, match="'next' does not consist of three numbers"):
        settings_for(newer, "next")


def test_sessions_without_the_plugin_get_nothing(newer: Path) -> None:
    settings = {"spark.driver.extraClassPath": str(newer)}
    assert accelerator_settings(settings.get, "3.5.8") == {}
    assert accelerator_settings({**settings, "spark.plugins": "com.example.Other"}.get, "3.5.8") == {}
    beside = {**settings, "spark.plugins": f"com.example.Other, {PLUGIN}"}
    assert accelerator_settings(beside.get, "3.5.8") != {}


def test_the_jar_is_found_where_the_jvm_finds_it(newer: Path) -> None:
    other = newer.with_name("a.jar")
    with ZipFile(other, "w") as packed:
        packed.writestr("com/example/Other.class", "")
    expected = {SHUFFLE_MANAGER: manager("spark358")}
    assert settings_for(f"{newer.parent}/missing.jar:{newer.parent}:{other}:{newer}") == expected
    assert settings_for(f"{newer.parent}/*") == expected


def test_what_was_given_is_kept(newer: Path) -> None:
    assert settings_for(newer, manager="sort") == {}
    assert settings_for(newer, manager=manager("spark358")) == {}
    assert settings_for(newer, override=provider("spark357")) == {SHUFFLE_MANAGER: manager("spark357")}


def test_a_class_that_does_not_fit_is_refused(newer: Path, jar: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"spark358\S+ does not fit .* the shuffle manager of this jar is \S+spark355"
    ) as caught:
        settings_for(jar, manager=manager("spark358"))
    assert "leave out spark.shuffle.manager" in caught.value.remedy
    with pytest.raises(ConfigError, match="does not fit"):
        settings_for(newer, manager=manager("spark355"))
    with pytest.raises(ConfigError, match=r"shims-provider-override=\S+spark359\S+ is not in"):
        settings_for(jar, override=provider("spark359"))


def test_a_jar_that_is_not_there_or_does_not_fit_is_a_configuration_error(tmp_path: Path) -> None:
    missing = tmp_path / "rapids-4-spark.jar"
    for class_path in (missing, ""):
        with pytest.raises(ConfigError, match="no jar with that class is at") as caught:
            settings_for(class_path)
        assert caught.value.exit_code == EXIT_CONFIG
    missing.write_text("no zip")
    with pytest.raises(ConfigError, match="no jar with that class is at"):
        settings_for(missing)
    old = make_jar(tmp_path / "old.jar", "spark344", "spark350db143", "spark359")
    for version in ("3.5.8", "4.0.1"):
        with pytest.raises(
            ConfigError,
            match=rf"supports neither Spark {version} nor .* It supports spark344, spark350db143, spark359",
        ):
            settings_for(old, version)
    cut = tmp_path / "cut.jar"
    with ZipFile(cut, "w") as packed:
        packed.writestr("com/nvidia/spark/SQLPlugin.class", "")
    with pytest.raises(ConfigError, match=r"cut\.jar cannot be read as a jar of the accelerator"):
        settings_for(cut)


def test_one_file_names_the_release() -> None:
    """The lock; image, profiles and pages follow it."""
    release = jars.accelerator().version
    texts = [
        ROOT / "README.md",
        ROOT / "container/Dockerfile",
        ROOT / "Makefile",
        ROOT / "build.gradle",
        *(ROOT / "conf/spark").glob("*.conf"),
        *(ROOT / "docs").glob("*.md"),
    ]
    assert [path for path in texts if release in path.read_text(encoding="utf-8")] == []
    of_spark = [path for path in texts if "RapidsShuffleManager" in path.read_text(encoding="utf-8")]
    assert of_spark == []
