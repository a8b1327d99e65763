"""nightly --check-node: the run begins only on a machine that can run it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobs import nightly
from jobs.nightly import main
from tests.processes import ROOT
from tests.setup.doctor.fake_horovod import write_horovod

pytestmark = pytest.mark.processes


def arguments(profile: Path, lake: Path, *more: str) -> list[str]:
    config = str(ROOT / "conf/datasets/generated.yaml")
    options = [
        "--config",
        config,
        "--run-date",
        "2026-01-09",
        "--set",
        f"lake={lake}",
        "--profile",
        str(profile),
    ]
    return [*options, "--check-node", *more]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A profile whose executors do not fit into this machine."""
    profile = tmp_path / "small.conf"
    profile.write_text("spark.master local[2]\nspark.driver.memory 900t\n")
    return profile


@pytest.fixture(autouse=True)
def horovod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package in place of Horovod, because Horovod's import of torch takes most of the time of the checks."""
    write_horovod(tmp_path / "packages")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/packages:{os.environ.get('PYTHONPATH', '')}")


def test_a_machine_that_is_too_small_is_an_infrastructure_error(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """From another current folder, with nothing written but the lake's folder."""
    monkeypatch.chdir(tmp_path)
    assert main(arguments(small, tmp_path / "lake")) == 4
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "FIX  memory" in printed.err
    assert "cannot run the jobs of" in printed.err
    assert "Traceback" not in printed.err
    assert list((tmp_path / "lake").rglob("*")) == []


def test_after_the_checks_the_run_begins(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """There is no log, which the run itself finds out. With --isolate, it starts no process before that."""
    profile = tmp_path / "fine.conf"
    profile.write_text("spark.master local[1]\nspark.driver.memory 512m\nspark.driver.host 127.0.0.1\n")
    code = main(arguments(profile, tmp_path / "lake", "--isolate"))
    printed = capfd.readouterr().err
    if "FIX" in printed:
        pytest.skip(f"this machine has too little of something: {printed}")
    assert "this node can run the jobs of the profile" in printed
    assert code == 3


def test_a_wrong_setting_is_a_configuration_error(
    small: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(small, tmp_path, "--set", "train.nope=1")) == 2
    assert "unknown key train.nope" in capfd.readouterr().err


def test_without_the_folder_of_the_checks(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nightly, "_ROOT", tmp_path)
    assert main(arguments(small, tmp_path)) == 2
    assert "has no folder setup/doctor" in capfd.readouterr().err
