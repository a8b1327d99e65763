"""Every line of a file is complete in exactly one file split and one block, wherever the splits begin."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import DataError
from etl.raw import file_splits
from etl.raw.file_splits import FileSplit, read_blocks, split_files

LINES = st.lists(st.text("ab\tü", max_size=6), min_size=1, max_size=30)
MANY = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def _lines(block: bytes | memoryview) -> list[bytes]:
    return bytes(block).removesuffix(b"\n").split(b"\n")


def _read(path: Path, split_bytes: int, block_bytes: int) -> list[list[bytes]]:
    """The lines of each file split."""
    splits = split_files([str(path)], split_bytes)
    return [
        [line for block in read_blocks(file_split, block_bytes) for line in _lines(block)]
        for file_split in splits
    ]


@MANY
@given(
    lines=LINES,
    end=st.sampled_from(["\n", "\r\n"]),
    closed=st.booleans(),
    split_bytes=st.integers(1, 60),
    block_bytes=st.integers(1, 40),
)
def test_every_line_is_read_once_and_whole(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
    end: str,
    closed: bool,
    split_bytes: int,
    block_bytes: int,
) -> None:
    path = tmp_path_factory.mktemp("splits") / "a.tsv"
    text = end.join(lines) + (end if closed else "")
    path.write_bytes(text.encode())
    read = [line for lines in _read(path, split_bytes, block_bytes) for line in lines]
    # A line end at the end of a file does not begin another line.
    expected = [line.encode() for line in lines]
    if not closed and lines[-1] == "":
        expected = expected[:-1]
    assert read == expected


@pytest.mark.parametrize("suffix, pack", [(".gz", gzip.compress), (".bz2", bz2.compress), (".zst", None)])
def test_compressed_files_are_read_whole(tmp_path: Path, suffix: str, pack: object) -> None:
    text = "".join(f"{i}\tx\n" for i in range(5000)).encode()
    packed = pack(text) if callable(pack) else pa.compress(text, "zstd", asbytes=True)
    path = tmp_path / f"a.tsv{suffix}"
    path.write_bytes(packed)
    (file_split,) = split_files([str(path)])
    assert file_split == FileSplit(str(path), 0, None)
    assert b"".join(read_blocks(file_split, 1000)) == text


def test_a_gzip_of_several_members_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(b"1\n2\n") + gzip.compress(b"3\n"))
    assert b"".join(read_blocks(split_files([str(path)])[0])) == b"1\n2\n3\n"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(b"x\n" * 10000)[:-30])
    with pytest.raises(DataError, match=r"a\.tsv\.gz"):
        list(read_blocks(split_files([str(path)])[0]))


def test_plain_text_with_the_name_of_a_compressed_file_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv.gz"
    path.write_text("a\tb\n")
    with pytest.raises(DataError, match=r"cannot be decompressed(.|\n)*does not match its name"):
        list(read_blocks(FileSplit(str(path), 0, None)))


def test_a_file_with_a_very_long_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_splits, "_LONGEST_LINE_BYTES", 100)
    path = tmp_path / "a.tsv"
    path.write_bytes(b"x" * 1000)
    with pytest.raises(DataError, match="a line of more than"):
        list(read_blocks(split_files([str(path)])[0], 50))


def _lines_of(data: bytes) -> list[bytes]:
    """The lines of a file by the rule: a line ends with LF, CR LF or CR."""
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return lines if lines[-1] else lines[:-1]


@MANY
@given(
    data=st.lists(st.sampled_from([b"a", b"bcd", b"\n", b"\r", b"\r\n"]), max_size=40).map(b"".join),
    split_bytes=st.integers(1, 60),
    block_bytes=st.one_of(st.none(), st.integers(1, 40)),
)
def test_any_line_ends_and_limits_give_the_same_lines(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, split_bytes: int, block_bytes: int | None
) -> None:
    path = tmp_path_factory.mktemp("splits") / "a.tsv"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("_READ_AHEAD_BYTES", 3), ("_MOST_LINES", 5), ("_PIECE_BYTES", 4)):
            patch.setattr(file_splits, name, value)
        for suffix, content in (("", data), (".gz", gzip.compress(data))):
            file = Path(f"{path}{suffix}")
            file.write_bytes(content)
            blocks = [
                bytes(block)
                for file_split in split_files([str(file)], split_bytes)
                for block in read_blocks(file_split, block_bytes)
            ]
            assert [line for block in blocks for line in _lines_of(block)] == _lines_of(data)
            assert all(blocks)


def test_a_block_of_short_lines_is_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_splits, "_MOST_LINES", 100_000)
    monkeypatch.setattr(file_splits, "_PIECE_BYTES", 10_000)
    path = tmp_path / "a.tsv"
    for data in (b"\n" * 1_000_000, b"\r" * 1_000_000, b"\r\n" * 500_000):
        path.write_bytes(data)
        blocks = [bytes(block) for block in read_blocks(split_files([str(path)])[0])]
        assert max(block.count(b"\n") for block in blocks) <= 100_000
        assert sum(block.count(b"\n") for block in blocks) == len(_lines_of(data))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("start", [b"", b"\r", b"a\rb\n"])
def test_a_carriage_return_does_not_lift_the_limit_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, start: bytes
) -> None:
    monkeypatch.setattr(file_splits, "_LONGEST_LINE_BYTES", 100_000)
    path = tmp_path / f"a.tsv{suffix}"
    data = start + b"x" * 1_000_000
    path.write_bytes(gzip.compress(data) if suffix else data)
    for file_split in split_files([str(path)], 200_000):
        with pytest.raises(DataError, match="a line of more than"):
            list(read_blocks(file_split, 5_000))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_long_line_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """The bytes that are searched for line ends are at most a few times those of the file."""
    searched = []
    complete = file_splits._complete

    def counted(data: bytes, known: int = 0) -> int:
        searched.append(len(data))
        return complete(data, known)

    monkeypatch.setattr(file_splits, "_complete", counted)
    path = tmp_path / f"a.tsv{suffix}"
    data = b"a\r" + b"x" * 8_000_000 + b"\nb\n"
    path.write_bytes(gzip.compress(data) if suffix else data)
    (file_split,) = split_files([str(path)])
    assert b"".join(map(bytes, read_blocks(file_split, 4096))) == data.replace(b"\r", b"\n")
    assert sum(searched) < 5 * len(data)


def test_a_compressed_file_that_becomes_too_large_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_splits, "ALWAYS_ALLOWED_BYTES", 1_000)
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(b"\n" * 5_000_000))
    refused = rf"a\.tsv\.gz has {path.stat().st_size:,} bytes, but becomes more than"
    with pytest.raises(DataError, match=refused) as raised:
        list(read_blocks(split_files([str(path)])[0], 4096))
    assert "increase `max_expansion`" in raised.value.remedy
    (file_split,) = split_files([str(path)], max_expansion=2000)
    assert sum(len(block) for block in read_blocks(file_split)) == 5_000_000


def test_an_empty_file_has_no_file_split(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").touch()
    assert split_files([str(tmp_path / "a.tsv")]) == []


def test_carriage_returns_alone_end_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b"1\r2\r3")
    assert b"".join(read_blocks(split_files([str(path)])[0])) == b"1\n2\n3"
