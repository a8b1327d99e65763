from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from setup import java_home

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    "printed,major",
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "17" 2021-09-14', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ("bash: java: command not found", None),
    ],
)
def test_major_version(printed: str, major: int | None) -> None:
    assert java_home.major_version(printed) == major


@pytest.fixture
def make_java(tmp_path: Path):
    """Makes a home whose bin/java claims a version, on standard error as the real one does."""

    def make(name: str, version: str) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        java = home / "bin" / "java"
        java.write_text(
            f"#!/bin/sh\nprintf '    java.home = {home}\\nopenjdk version \"{version}\" 2025-04-15\\n' >&2\n"
        )
        java.chmod(0o755)
        return home

    return make


def test_java_home_of_the_right_version_wins(make_java, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, other = make_java("given", "17.0.15"), make_java("on-path", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(wanted))
    monkeypatch.setenv("PATH", str(other / "bin"))
    assert java_home.find() == wanted


def test_another_version_is_passed_over_with_a_note(make_java, monkeypatch, capsys) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("old", "1.8.0_392")))
    on_path = make_java("on-path", "17.0.9")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert java_home.find() == on_path
    assert "JAVA_HOME): it is version 8, not 17" in capsys.readouterr().err


def test_home_is_where_java_says_and_not_where_the_link_is(make_java, monkeypatch, tmp_path: Path) -> None:
    real = make_java("real", "17.0.9")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(real / "bin" / "java")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    assert java_home.find() == real


def test_a_java_17_of_the_system_is_found_beside_a_newer_one_on_path(
    make_java, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(make_java("newer", "21.0.1") / "bin"))
    wanted = make_java("jvm/java-17-openjdk-amd64", "17.0.15")
    make_java("jvm/java-1.8.0.172-openjdk", "1.8.0_172")  # its name has 17 too
    monkeypatch.setattr(java_home, "SYSTEM_FOLDER", tmp_path / "jvm")
    assert java_home.find() == wanted


def test_the_release_of_the_bundled_runtime_is_dated() -> None:
    """Every OpenJDK has the property from which the doctor learns its age."""
    settings = java_home.describe(java_home.bundled_home() / "bin" / "java")
    assert java_home.released_in(settings) == date(2023, 10, 17)
    assert java_home.released_in('openjdk version "17"') is None


def test_without_any_other_the_bundled_runtime_is_taken(make_java, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(java_home, "SYSTEM_FOLDER", tmp_path / "empty")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "missing"))
    monkeypatch.setenv("PATH", str(make_java("newer", "25.0.1") / "bin"))
    home = java_home.find()
    assert home == java_home.bundled_home()
    assert java_home.major_version(java_home.describe(home / "bin" / "java")) == 17
