"""The doctor's checks of software, resources and storage, and what its user sees."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError
from setup.doctor import lake, resources, software
from setup.doctor.__main__ import checks_of, main
from setup.doctor.findings import Finding, findings_of, shown
from setup.doctor.profile import PROFILES, Profile, read_profile, size_of
from storage import file_io

pytestmark = pytest.mark.processes


def profile(**settings: str) -> Profile:
    """A profile with these settings; `__` in a name is a dot."""
    return Profile(("test",), {key.replace("__", "."): value for key, value in settings.items()})


def wrong(findings: list[Finding]) -> dict[str, str]:
    return {finding.subject: finding.text for finding in findings if not finding.fine}


def test_the_local_profile_runs_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--profile", "local", "--lake", str(tmp_path / "lake")])
    printed = " ".join(capsys.readouterr().out.split())
    assert "ok Java" in printed or "WARN Java" in printed  # this machine's may be old
    assert "only one of two writers can create a file" in printed
    assert code == (1 if "FIX" in printed else 0)
    assert list((tmp_path / "lake").iterdir()) == []


def test_a_cluster_node_without_our_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--profile", "etl-gpu", "--profile", "on-standalone"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "FIX accelerator spark.driver.extraClassPath names /opt/nightrank/rapids-4-spark.jar" in printed
    assert "/opt/nightrank/environment/bin/python" in printed
    assert "things to correct" in printed


def test_the_command_and_wrong_arguments() -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "setup.doctor", "--profile", "absent"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert ran.returncode == 2
    assert "train-gpu" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_every_profile_has_checks_that_end(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[tuple[str, ...], Any] = {}
    start = subprocess.run

    def run(command: list[Any], **options: Any) -> Any:
        """Starts each program once: Java and Python answer the same for all profiles."""
        words = tuple(map(str, command))
        if words not in answers:
            answers[words] = start(command, **options)
        return answers[words]

    monkeypatch.setattr(subprocess, "run", run)
    for path in PROFILES.glob("*.conf"):
        findings = findings_of(checks_of(read_profile([path.stem]), None))
        assert {"Java", "Spark", "memory"} <= {finding.subject for finding in findings}
        assert not [entry for entry in findings if "check itself failed" in entry.text], path


def test_a_broken_check_hides_no_other() -> None:
    def broken() -> list[Finding]:
        raise ZeroDivisionError("by zero")

    findings = findings_of([("one", broken), ("two", lambda: [Finding("two", "fine")])])
    assert [finding.fine for finding in findings] == [False, True]
    assert "ZeroDivisionError: by zero" in findings[0].text


def test_findings_are_aligned_and_wrapped() -> None:
    text = shown([Finding("a", "word " * 40), Finding("longer", "bad", "do this")])
    assert max(map(len, text.splitlines())) <= 110
    assert text.splitlines()[-3:] == ["FIX  longer  bad", "             → do this", "1 thing to correct"]
    assert shown([Finding("a", "b")]).endswith("this node can run the jobs of the profile")


def test_an_old_java_is_a_warning_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    described = (
        'openjdk version "17.0.9" 2023-10-17\n    java.version.date = 2023-10-17\n    java.home = /java\n'
    )
    monkeypatch.setattr(software.java_home, "find", lambda: Path("/java"))
    monkeypatch.setattr(software.java_home, "describe", lambda _: described)
    assert [finding.is_warning for finding in software.java(date(2024, 10, 16))] == [False]
    (old,) = software.java(date(2024, 10, 17))
    assert (old.fine, old.is_warning) == (True, True)
    assert "17.0.9 in /java, released on 2023-10-17" in old.text
    text = shown([old])
    assert text.startswith("WARN Java  17.0.9")
    assert "openjdk-17-jre-headless" in text
    assert text.endswith("this node can run the jobs of the profile")


def test_later_files_win(tmp_path: Path) -> None:
    mine = tmp_path / "mine.conf"
    mine.write_text("spark.executor.cores 3\n")
    merged = read_profile(["cpu", str(mine)])
    assert merged.get("spark.executor.cores") == "3"
    assert merged.get("spark.executor.memory") == "8g"


@pytest.mark.parametrize(
    "text, size",
    [("8g", 8 * 2**30), ("512m", 2**29), ("1024", 2**30), ("2T", 2**41), ("64kb", 2**16), ("7b", 7)],
)
def test_sizes_are_sparks(text: str, size: int) -> None:
    assert size_of("spark.executor.memory", text) == size


def test_sizes_agree_with_spark(spark: object) -> None:
    byte_unit = spark._jvm.org.apache.spark.network.util.JavaUtils  # type: ignore[attr-defined]
    for text in ("8g", "512m", "1024", "64kb", "2t", "3G"):
        assert size_of("x", text) == byte_unit.byteStringAsMb(text) * 2**20 or text == "64kb"
        if text[-1] not in "0123456789":
            assert size_of("x", text) == byte_unit.byteStringAsBytes(text)


def test_a_wrong_size_is_named() -> None:
    with pytest.raises(ConfigError, match=r"spark\.driver\.memory=lots"):
        size_of("spark.driver.memory", "lots")


def test_memory_of_an_executor() -> None:
    assert profile(spark__executor__memory="10g").executor_bytes == 11 * 2**30
    assert profile(spark__executor__memory="1g").executor_bytes == 2**30 + 384 * 2**20
    stated = profile(spark__executor__memory="1g", spark__executor__memoryOverhead="2g")
    assert stated.executor_bytes == 3 * 2**30


@pytest.mark.parametrize(
    "settings, subject",
    [
        ({"spark__executor__cores": "4096"}, "cores"),
        ({"spark__master": "local[4096]"}, "cores"),
        ({"spark__executor__cores": "1", "spark__task__cpus": "2"}, "cores"),
        ({"spark__executor__memory": "900t"}, "memory"),
        ({"spark__master": "local", "spark__driver__memory": "900t"}, "memory"),
    ],
)
def test_too_small_a_node(settings: dict[str, str], subject: str) -> None:
    small = profile(**settings)
    assert list(wrong([*resources.cores(small), *resources.memory(small)])) == [subject]


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("1073741824\n")
    (tmp_path / "unlimited").write_text("max\n")
    monkeypatch.setattr(
        resources, "_LIMIT_FILES", (str(tmp_path / "unlimited"), str(tmp_path / "memory.max"))
    )
    assert resources.memory_bytes() == 2**30
    assert list(wrong(list(resources.memory(profile(spark__executor__memory="2g"))))) == ["memory"]


def test_folders_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing, file = tmp_path / "a/b", tmp_path / "file"
    file.touch()
    local = profile(spark__local__dir=f"{missing},{file}/c")
    findings = list(resources.disks(local, {}))
    assert len(findings) == 2
    assert str(missing) in findings[0].text
    assert "cannot be written" in findings[1].text
    monkeypatch.setattr(resources, "_LEAST_FREE_BYTES", 2**60)
    assert len(wrong(list(resources.disks(profile(), {"SPARK_LOCAL_DIRS": str(tmp_path)})))) == 1


@pytest.mark.parametrize(
    "soft, hard, remedy",
    [
        (256, 8192, "ulimit -n 8192"),
        (256, resource.RLIM_INFINITY, "ulimit -n 65536"),
        (1024, 1024, "raise the hard limit"),
        (4096, 4096, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_few_open_files(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, remedy: str | None) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    [finding] = resources.open_files()
    assert finding.remedy is None if remedy is None else str(finding.remedy).startswith(remedy)


@pytest.mark.parametrize(
    "settings, text",
    [
        (
            {"spark__driver__host": "127.0.0.1", "spark__master": "spark://head:7077"},
            "which other nodes cannot reach",
        ),
        ({"spark__driver__host": "no-such-host.invalid"}, "has no address"),
    ],
)
def test_a_driver_that_nobody_reaches(settings: dict[str, str], text: str) -> None:
    assert text in wrong(list(resources.addresses(profile(**settings))))["host name"]


def test_a_local_driver_needs_only_the_loopback() -> None:
    local = profile(spark__driver__host="127.0.0.1", spark__master="local[*]")
    assert [finding.fine for finding in resources.addresses(local)] == [True]


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        fixed = profile(spark__driver__port=port, spark__driver__bindAddress="127.0.0.1")
        assert port in wrong(list(resources.ports(fixed)))["ports"]
    assert wrong(list(resources.ports(fixed))) == {}


def test_the_address_of_another_machine() -> None:
    elsewhere = profile(spark__driver__bindAddress="192.0.2.1")
    assert "192.0.2.1" in wrong(list(resources.ports(elsewhere)))["ports"]


@pytest.mark.parametrize(
    "options, mistakes", [("-Duser.timezone=UTC", 0), ("-Xmx1g -Duser.timezone=CET", 1), ("", 1)]
)
def test_the_accelerator_wants_one_time_zone(options: str, mistakes: int) -> None:
    zones = Profile(
        ("test",),
        {
            "spark.plugins": "com.nvidia.spark.SQLPlugin",
            "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
            "spark.executor.extraJavaOptions": options,
        },
    )
    assert len(wrong(list(resources.time_zone(zones)))) == mistakes


def test_another_spark_in_spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert "has no jars" in wrong(list(software.spark()))["Spark"]
    (tmp_path / "jars/spark-core_2.12-3.4.1.jar").touch()
    assert "is Spark 3.4.1" in wrong(list(software.spark()))["Spark"]
    import pyspark

    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    assert wrong(list(software.spark())) == {}


def test_other_interpreters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named conf' >&2\nexit 1\n")
    bare.chmod(0o755)
    mistakes = wrong(list(software.python(profile(spark__pyspark__python=str(bare)))))
    assert "cannot import our packages: ModuleNotFoundError" in mistakes["Python"]
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho 3.9.2 3.5.8\n")
    old.chmod(0o755)
    mistakes = wrong(list(software.python(profile(spark__pyspark__driver__python=str(old)))))
    assert "is Python 3.9.2" in mistakes["Python"]
    archive = profile(spark__pyspark__python="./environment/bin/python")
    assert wrong(list(software.python(archive))) == {}
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert wrong(list(software.python(profile()))) == {}


def test_jars_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.jar").touch()
    named = profile(
        spark__jars=f"{tmp_path}/a.jar,file:{tmp_path}/a.jar,local://{tmp_path}/b.jar,s3a://bucket/c.jar"
    )
    assert wrong(list(software.jars(named))) == {
        "jars": f"spark.jars names {tmp_path}/b.jar, which does not exist"
    }


def test_the_real_jar_of_the_accelerator() -> None:
    jar = next(Path("~/.cache/nightrank/jars").expanduser().glob("rapids-4-spark*.jar"), None)
    if jar is None:
        pytest.skip("make jars fetches the accelerator")
    base = read_profile(["etl-gpu"]).settings
    paths = {"spark.driver.extraClassPath": str(jar), "spark.executor.extraClassPath": str(jar)}
    findings = list(software.accelerator(Profile(("etl-gpu",), {**base, **paths})))
    assert [finding.fine for finding in findings] == [True, True]
    assert "has the shim spark35" in findings[0].text


def test_a_lake_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert list(wrong(list(lake.lake(str(tmp_path / "file/lake"))))) == ["lake"]
    assert list(wrong(list(lake.lake("gs-typo://bucket/lake")))) == ["lake"]


def test_storage_on_which_two_writers_create_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def overwrite(path: str, value: object) -> bool:
        file_io.replace_json(path, value)
        return True

    monkeypatch.setattr(lake.file_io, "create_json", overwrite)
    assert "two writers" in wrong(list(lake.lake(str(tmp_path))))["lake"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_little_room_in_the_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake, "_LEAST_FREE_BYTES", 2**60)
    assert "are free" in wrong(list(lake.lake(str(tmp_path))))["lake"]


def test_the_compiler_that_triton_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = read_profile(["train-gpu"])
    assert list(software.compiler(read_profile(["etl-gpu"]))) == []
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    assert "does not start" in wrong(list(software.compiler(trained)))["C compiler"]
    monkeypatch.setenv("CC", "gcc")
    [finding] = software.compiler(trained)
    assert finding.fine or "Python.h" in finding.text
