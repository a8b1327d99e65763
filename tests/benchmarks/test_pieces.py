"""Files that are cut into pieces come together again, and whatever is wrong with the pieces is said."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.gpu.pieces import PiecesError, cut, join, main


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A file of 30,000 bytes, and a folder with an empty file."""
    large, folder = tmp_path / "large.whl", tmp_path / "folder"
    large.write_bytes(random.Random(1).randbytes(30_000))
    (folder / "inner").mkdir(parents=True)
    (folder / "inner/empty.txt").write_text("")
    return [large, folder]


@pytest.mark.parametrize("piece_bytes", [7_000, 2**20])
def test_pieces_come_together(tmp_path: Path, files: list[Path], piece_bytes: int) -> None:
    pieces = cut(tmp_path / "pieces", files, piece_bytes)
    assert all(0 < path.stat().st_size <= piece_bytes for path in pieces)
    assert (len(pieces) > 1) == (piece_bytes == 7_000)
    gathered = tmp_path / "gathered"  # as after transfers: all in one folder
    gathered.mkdir()
    for path in reversed(pieces):
        path.rename(gathered / path.name)
    join(gathered, tmp_path / "joined")
    assert (tmp_path / "joined/large.whl").read_bytes() == files[0].read_bytes()
    assert (tmp_path / "joined/folder/inner/empty.txt").read_bytes() == b""


def test_missing_damaged_and_mixed_pieces_are_told(tmp_path: Path, files: list[Path]) -> None:
    folder = tmp_path / "pieces"
    pieces = cut(folder, files, 7_000)
    kept = pieces[2].read_bytes()
    pieces[2].unlink()
    with pytest.raises(PiecesError, match=f"lacks the pieces 002 of {len(pieces)}"):
        join(folder, tmp_path / "joined")
    pieces[2].write_bytes(kept[:-1] + b"x")
    with pytest.raises(PiecesError, match="is damaged"):
        join(folder, tmp_path / "joined")
    pieces[2].write_bytes(kept)
    cut(tmp_path / "pieces/other", files[1:])
    with pytest.raises(PiecesError, match="pieces of 2 wholes"):
        join(folder, tmp_path / "joined")
    assert not (tmp_path / "joined").exists()


def test_the_command(tmp_path: Path, files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cut", str(tmp_path / "pieces"), *map(str, files)]) == 0
    assert main(["join", str(tmp_path / "pieces"), str(tmp_path / "joined")]) == 0
    assert (tmp_path / "joined/large.whl").exists()
    assert main(["cut", str(tmp_path / "pieces"), *map(str, files)]) == 1
    assert main(["join", str(tmp_path / "nothing"), str(tmp_path / "joined")]) == 1
    assert capsys.readouterr().err.count("error: ") == 2
