from __future__ import annotations

import sys
from pathlib import Path

import pytest

from setup import preflight
from setup.console import SetupError


def test_a_fit_machine_passes(tmp_path: Path) -> None:
    preflight.check_machine(tmp_path, 1, tmp_path / "absent/.venv")


def test_everything_missing_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "my projects"
    root.mkdir()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    with pytest.raises(SetupError) as caught:
        preflight.check_machine(root, 1024**6, root / ".venv")
    message = str(caught.value)
    for part in (
        "3.11 is needed",
        "g++",
        "no make",
        "white space",
        "my projects",
        "1073741824.0 GiB are needed",
    ):
        assert part in message


def test_installed_headers_are_left_to_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(preflight.sysconfig, "get_path", lambda name: str(tmp_path))
    assert preflight.python_headers() is None


def test_missing_headers_name_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SetupError, match=r"apt-get install python3\.11-dev"):
        preflight.python_headers()


def test_headers_unpacked_before_are_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "")
    include = tmp_path / "cache/nightrank/python-headers/3.11/usr/include"
    (include / "python3.11").mkdir(parents=True)
    (include / "python3.11" / "Python.h").touch()
    assert preflight.python_headers() == include
