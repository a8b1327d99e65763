"""A folder for temporary files: what another user may have prepared is refused, by path, and never used."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from conf.errors import ConfigError, InfrastructureError
from storage.private_folder import locked, open_file, private_folder

NAME = f"nightrank-{os.getuid()}"
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_of_this_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = private_folder(str(tmp_path / "below"), "x")
        os.close(open_file(folder / "file"))
    finally:
        os.umask(before)
    assert folder == tmp_path / "below" / NAME
    assert (mode_of(folder), mode_of(folder / "file")) == (0o700, 0o600)
    assert private_folder(str(tmp_path / "below"), "x") == folder


def test_by_default_it_lies_among_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert private_folder(None, "x") == tmp_path / NAME


def test_one_that_others_could_read_is_closed(tmp_path: Path) -> None:
    """As an earlier version made it. A file that can be opened for reading can be locked."""
    (tmp_path / NAME).mkdir(mode=0o755)
    assert mode_of(private_folder(str(tmp_path), "x")) == 0o700


def link(path: Path) -> None:
    (path.parent / "elsewhere").mkdir()
    path.symlink_to(path.parent / "elsewhere")


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def foreign(path: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)


def writable(bits: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        path.chmod(0o700 | bits)

    return make


@pytest.mark.parametrize(
    "prepare, problem",
    [
        (link, "is a symbolic link"),
        (dangling, "is a symbolic link"),
        (Path.touch, "is not a folder"),
        pytest.param(foreign, f"belongs to user 12345, not to user {os.getuid()}", marks=as_root),
        (writable(0o020), "is writable by other users (mode 0720)"),
        (writable(0o002), "is writable by other users (mode 0702)"),
    ],
)
def test_what_another_user_may_have_prepared_is_refused(
    tmp_path: Path, prepare: Callable[[Path], None], problem: str
) -> None:
    path = tmp_path / NAME
    prepare(path)
    before = os.lstat(path)
    with pytest.raises(ConfigError, match=re.escape(f"{path} {problem}: another user may have")) as caught:
        private_folder(str(tmp_path), "train.reading.staging_folder")
    assert "set train.reading.staging_folder to a folder that only you can write" in caught.value.remedy
    assert (os.lstat(path).st_mode, os.lstat(path).st_uid) == (before.st_mode, before.st_uid)
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match=f"cannot make the folder {tmp_path}/file/below/{NAME}"):
        private_folder(str(tmp_path / "file/below"), "x")


def test_a_link_is_neither_opened_nor_truncated(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep me")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigError, match=r"lock is a symbolic link"), locked(tmp_path / "lock", 1):
        pass
    assert (tmp_path / "precious").read_text() == "keep me"


def test_a_lock_is_waited_for_no_longer_than_asked(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", 1):
        with (
            pytest.raises(InfrastructureError, match=r"has held the lock on .*/lock for 0 s") as caught,
            locked(tmp_path / "lock", 0),
        ):
            pass
        assert f"fuser -v {tmp_path}/lock" in caught.value.remedy
    with locked(tmp_path / "lock", 0):
        pass
