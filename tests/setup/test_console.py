"""Locks of set-up: waited for, but not for ever, and never through a symbolic link."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from setup.console import SetupError, locked

_LOCK_IT = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(file, fcntl.LOCK_EX)
print("holding", flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
def test_a_lock_that_is_never_released_is_an_error_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "below/x.lock"
    with locked(path):
        pass
    command = [sys.executable, "-c", _LOCK_IT, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        with pytest.raises(SetupError, match=rf"has held the lock {path} for 0 s"), locked(path, 0.3):
            pass
    assert f"waiting for another process that holds {path}" in capsys.readouterr().out
    with locked(path, 0):
        pass


def test_a_link_is_not_truncated(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep me")
    (tmp_path / "x.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(SetupError, match=r"x\.lock cannot be opened"), locked(tmp_path / "x.lock"):
        pass
    assert (tmp_path / "precious").read_text() == "keep me"
