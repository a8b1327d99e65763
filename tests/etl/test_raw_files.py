"""The raw files of a day, by its manifest or else by a listing, and their digest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conf.errors import ConfigError, DataError
from conf.types import Config
from etl.raw.files import find_raw, require_raw
from storage.manifest import FileEntry, Manifest, replace_manifest
from storage.paths import Partition
from tests.etl import cases

DAY = "2026-01-01"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / f"raw/dt={DAY}").mkdir(parents=True)
    return cases.write_config(tmp_path)


def _write(config: Config, name: str, text: str = "line\n") -> Path:
    path = Path(config.data) / f"dt={DAY}" / name
    path.write_text(text)
    return path


def test_a_listing_is_in_name_order_without_hidden_files(config: Config) -> None:
    wanted = [_write(config, name) for name in ("part-10", "part-2", "part-1")]
    for name in (".part-0.crc", "_SUCCESS"):
        _write(config, name)
    raw = find_raw(config, config.log, DAY)
    assert raw is not None
    assert list(raw.paths) == sorted(str(path) for path in wanted)
    assert raw.bytes == 15


def test_no_file_is_none_and_required_files_are_named(config: Config) -> None:
    assert find_raw(config, config.log, DAY) is None
    with pytest.raises(DataError, match=rf"no raw file at .*/dt={DAY}/\* \(from log\.path\)"):
        require_raw(config, config.log, DAY)
    _write(config, "part-0", "")
    with pytest.raises(DataError, match="are empty"):
        require_raw(config, config.log, DAY)


@pytest.mark.parametrize(
    "name, problem",
    [
        ("gone.tsv", r"gone\.tsv matches .*, but is a symbolic link to '/nowhere/a', which does not exist"),
        ("loop.tsv", r"loop\.tsv matches .*, but is a symbolic link to 'loop\.tsv', which does not exist"),
        ("pipe.tsv", r"pipe\.tsv matches .*, but is not a regular file"),
        ("folder.tsv", r"folder\.tsv matches .*, but is a folder"),
    ],
)
def test_no_entry_that_matches_is_left_out_silently(config: Config, name: str, problem: str) -> None:
    """A listing has no links to files of a disk that is not mounted, so their rows would be missing."""
    log = config.log.model_copy(update={"path": "{data}/dt={date}/*.tsv"})
    path = _write(config, "part-0.tsv").with_name(name)
    if name == "pipe.tsv":
        os.mkfifo(path)
    elif name == "folder.tsv":
        path.mkdir()
    else:
        path.symlink_to("loop.tsv" if name == "loop.tsv" else "/nowhere/a")
    with pytest.raises(DataError, match=problem):
        find_raw(config, log, DAY)
    path.rename(path.with_name("_" + name))  # a hidden name does not match
    assert find_raw(config, log, DAY) is not None


def test_a_link_to_a_missing_folder_is_named_and_other_folders_are_not_files(config: Config) -> None:
    path = _write(config, "part-0")
    path.with_name("archive").mkdir()
    assert require_raw(config, config.log, DAY).paths == (str(path),)
    Path(config.data, "shop-2").symlink_to("/nowhere/shop-2")
    log = config.log.model_copy(update={"path": "{data}/*/*"})
    with pytest.raises(DataError, match=r"shop-2 matches .*, but is a symbolic link to '/nowhere/shop-2'"):
        find_raw(config, log, DAY)


def test_names_that_are_not_utf8_are_named(config: Config) -> None:
    folder = os.fsencode(_write(config, "part-0").parent)
    with open(folder + b"/part-\xff", "wb"):
        pass
    with pytest.raises(DataError, match=r"has a file whose name is not UTF-8: b'.*part-\\xff'"):
        find_raw(config, config.log, DAY)
    with pytest.raises(ConfigError, match="is not UTF-8"):
        find_raw(config, config.log.model_copy(update={"path": os.fsdecode(folder + b"/\xff")}), DAY)


def test_the_digest_follows_names_sizes_and_times(config: Config) -> None:
    path = _write(config, "part-0")
    first = require_raw(config, config.log, DAY).digest
    assert require_raw(config, config.log, DAY).digest == first
    os.utime(path, ns=(0, 0))
    second = require_raw(config, config.log, DAY).digest
    _write(config, "part-1")
    assert len({first, second, require_raw(config, config.log, DAY).digest}) == 3


def test_a_manifest_decides_and_its_paths_are_absolute(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM may run in another folder than this process, so paths must be absolute."""
    folder = Path(config.data)
    monkeypatch.chdir(folder.parent)
    relative = config.model_copy(update={"data": folder.name})
    path = _write(config, "part-0")
    _write(config, "part-of-an-interrupted-delivery")
    files = (FileEntry("part-0", 1, 5, ()),)
    manifest = Manifest("raw", DAY, files, (), {"seed": "1"})
    replace_manifest(Partition("raw", DAY, f"{folder.name}/dt={DAY}"), manifest)
    raw = require_raw(relative, relative.log, DAY)
    assert raw.paths == (str(path),)
    assert raw.digest == manifest.digest
    os.utime(path, ns=(0, 0))
    assert require_raw(relative, relative.log, DAY).digest == manifest.digest
