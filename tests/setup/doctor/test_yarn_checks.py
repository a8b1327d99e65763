"""The doctor's checks of YARN, on files of Hadoop's configuration. tests/cluster/test_yarn.py runs a real YARN."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from local_airflow.home import free_port
from setup.doctor.__main__ import main
from setup.doctor.findings import Finding
from setup.doctor.profile import Profile, read_profile
from setup.doctor.yarn import yarn

FITS = {
    "yarn.scheduler.maximum-allocation-mb": "20480",
    "yarn.scheduler.maximum-allocation-vcores": "4",
    "yarn.nodemanager.vmem-check-enabled": "false",
}
PROFILE = read_profile(["cpu", "on-yarn"])


def findings(folder: Path, settings: Mapping[str, str], profile: Profile = PROFILE) -> list[Finding]:
    """What the doctor says of a cluster with these settings, without the files in HDFS."""
    properties = "".join(
        f"<property><name>{key}</name><value>{value}</value></property>" for key, value in settings.items()
    )
    (folder / "yarn-site.xml").write_text(f"<configuration>{properties}</configuration>")
    local = {key: value for key, value in profile.settings.items() if "hdfs:" not in value}
    return list(yarn(Profile(profile.names, local), {"HADOOP_CONF_DIR": str(folder)}))


def test_a_cluster_whose_containers_are_large_enough(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        answers = findings(tmp_path, FITS | {"yarn.resourcemanager.address": address})
        ids = {
            "yarn.resourcemanager.ha.rm-ids": "a,b",
            "yarn.resourcemanager.address.a": f"127.0.0.1:{free_port()}",
            "yarn.resourcemanager.hostname.b": "127.0.0.1",
            "yarn.resourcemanager.address.b": f"${{yarn.resourcemanager.hostname}}:{address.rpartition(':')[2]}",
        }
        second = findings(tmp_path, FITS | ids)
    for checked in (answers, second):
        assert [finding.remedy for finding in checked] == [None, None, None]
        assert f"answers at {address}" in checked[0].text
        assert "an executor needs a container of 20,480 MiB; the largest has 20,480" in checked[1].text
    assert list(yarn(read_profile(["cpu", "on-standalone"]), {})) == []


def test_without_a_configuration_or_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (finding,) = yarn(PROFILE, {})
    assert "HADOOP_CONF_DIR is not set" in finding.text
    assert not finding.fine
    (finding,) = yarn(PROFILE, {"YARN_CONF_DIR": str(tmp_path)})
    assert f"{tmp_path}/yarn-site.xml cannot be read" in finding.text
    port = free_port()
    settings = FITS | {"yarn.resourcemanager.address": f"127.0.0.1:{port}"}
    assert f"no resource manager answers (127.0.0.1:{port}: " in findings(tmp_path, settings)[0].text
    assert "has no address of it" in findings(tmp_path, FITS)[0].text
    assert main(["--profile", "on-yarn"]) == 1
    assert "FIX YARN" in " ".join(capsys.readouterr().out.split())


def test_containers_that_are_too_small(tmp_path: Path) -> None:
    """What the cluster's file says is an error. A default is a warning: the resource manager may have another."""
    small = {"yarn.scheduler.maximum-allocation-mb": "20479", "yarn.scheduler.maximum-allocation-vcores": "3"}
    wrong = [finding for finding in findings(tmp_path, FITS | small)[1:] if not finding.fine]
    assert ["20,480 MiB; the largest has 20,479" in wrong[0].text, "4 cores" in wrong[1].text] == [True, True]
    defaults = findings(tmp_path, {}, read_profile(["train-cpu", "on-yarn"]))[1:]
    warnings = [finding.text for finding in defaults if finding.is_warning]
    assert len(warnings) == 3
    assert "36,864 MiB; the largest has 8,192, the default" in warnings[0]
    assert "8 cores; the largest container has 4, the default" in warnings[1]
    assert "yarn.nodemanager.vmem-check-enabled" in warnings[2]


def test_the_archive_must_be_in_hdfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "yarn-site.xml").write_text("<configuration/>")
    one_try = "<property><name>dfs.client.failover.max.attempts</name><value>1</value></property>"
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{one_try}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    address = f"hdfs://127.0.0.1:{free_port()}/environment.tar.gz"
    profile = Profile(
        ("mine",), {"spark.master": "yarn", "spark.yarn.dist.archives": f"{address}#environment"}
    )
    last = list(yarn(profile, {"HADOOP_CONF_DIR": str(tmp_path)}))[-1]
    assert f"{address} (spark.yarn.dist.archives): " in last.text
    assert not last.fine
    assert last.remedy is not None
    assert "hdfs dfs -put" in last.remedy
