from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

import pytest

from setup import jars
from setup.console import SetupError

pytestmark = pytest.mark.processes

BYTES = b"the bytes of a jar"


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> jars.Jar:
    """A jar that no repository has; cache and Maven's local repository are empty folders."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    return jars.Jar("com.example", "thing_2.12", "1.0", hashlib.sha256(BYTES).hexdigest(), len(BYTES))


def in_maven(jar: jars.Jar, content: bytes) -> Path:
    folder = Path.home() / ".m2/repository/com/example" / jar.artifact / jar.version
    folder.mkdir(parents=True)
    (folder / jar.file_name).write_bytes(content)
    return folder / jar.file_name


def test_the_lock_names_the_accelerator() -> None:
    jar = jars.accelerator()
    assert (jar.group, jar.artifact) == ("com.nvidia", "rapids-4-spark_2.12")
    assert jar.size_bytes > 500e6


@pytest.mark.parametrize("line", ["com.example:thing:1.0", "com.example:thing:1.0 sha256:12 5", "a b c"])
def test_a_broken_line_of_the_lock_is_named(tmp_path: Path, line: str) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text(f"# about\n\n{line}\n")
    with pytest.raises(SetupError, match=re.escape(repr(line))):
        jars.locked(lock)


def test_what_maven_has_is_taken_and_fetched_once(
    jar: jars.Jar, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jars, "_by_ivy", lambda *_: pytest.fail("nothing needs to be fetched"))
    in_maven(jar, BYTES)
    jars.fetch(jar)
    assert jar.path.read_bytes() == BYTES
    assert [path.name for path in jar.path.parent.iterdir()] == [jar.file_name]
    jars.fetch(jar)
    assert "is there" in capsys.readouterr().out


def test_other_bytes_are_refused_and_leave_nothing_behind(
    jar: jars.Jar, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch_damaged(_: jars.Jar, scratch: Path) -> Path:
        (scratch / "x.jar").write_bytes(b"THE bytes of a jar")
        return scratch / "x.jar"

    in_maven(jar, b"bytes of another")
    monkeypatch.setattr(jars, "_by_ivy", fetch_damaged)
    with pytest.raises(SetupError, match=r"has the SHA-256 .* requirements/jars\.lock says"):
        jars.fetch(jar)
    assert list(jar.path.parent.iterdir()) == []
    assert not jar.is_there


def test_a_damaged_file_in_the_cache_is_replaced(jar: jars.Jar) -> None:
    in_maven(jar, BYTES)
    jar.path.parent.mkdir(parents=True)
    jar.path.write_bytes(BYTES[::-1])
    jars.fetch(jar)
    assert jar.path.read_bytes() == BYTES


def test_ivy_is_asked_for_the_jar_alone(jar: jars.Jar, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real command line; a stand-in for Java plays Maven Central."""
    seen: list[str] = []

    def run_java(command: list[str | Path], cwd: Path | None = None) -> str:
        words = [str(word) for word in command]
        seen.append(Path(words[words.index("-ivy") + 1]).read_text())
        target = words[words.index("-retrieve") + 1]
        Path(
            target.replace("[artifact]", jar.artifact)
            .replace("[revision]", jar.version)
            .replace("[ext]", "jar")
        ).write_bytes(BYTES)
        return ""

    monkeypatch.setattr(jars, "capture", run_java)
    jars.fetch(jar)
    assert jar.path.read_bytes() == BYTES
    assert 'org="com.example" name="thing_2.12" rev="1.0"' in seen[0]
    assert 'transitive="false"' in seen[0]


def test_without_a_way_to_maven_central_the_error_says_what_to_do(
    jar: jars.Jar, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise SetupError("UnknownHostException")

    monkeypatch.setattr(jars, "capture", refuse)
    with pytest.raises(SetupError, match=rf"(?s)copy the file to {re.escape(str(jar.path))}.*UnknownHost"):
        jars.fetch(jar)


def test_gpus_are_listed_as_spark_wants_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 0\necho 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    script = jars.ROOT / "conf/spark/find_gpus.sh"
    printed = subprocess.run([script], capture_output=True, text=True, check=True).stdout
    assert printed == '{"name": "gpu", "addresses": ["0","1"]}\n'


def test_files_are_compared_with_the_lock(
    jar: jars.Jar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jars, "locked", lambda: [jar])
    monkeypatch.setattr(jars, "fetch", lambda _: pytest.fail("nothing may be fetched"))
    renamed, damaged = tmp_path / "renamed.jar", tmp_path / "damaged.jar"
    renamed.write_bytes(BYTES)
    damaged.write_bytes(BYTES[::-1])
    assert jars.main(["--check", str(renamed)]) == 0
    assert f"{renamed} is com.example:thing_2.12:1.0" in capsys.readouterr().out
    assert jars.main(["--check", str(renamed), str(damaged)]) == 1
    assert re.search(
        rf"{damaged} has the SHA-256 \w+, which requirements/jars\.lock", capsys.readouterr().err
    )
    assert jars.main(["--check", str(tmp_path / "absent.jar")]) == 1
    assert "absent.jar is missing" in capsys.readouterr().err
