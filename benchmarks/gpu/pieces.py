"""Cuts files into pieces for a machine that takes only small transfers, and joins them there.

    python benchmarks/gpu/pieces.py cut FOLDER FILE …     makes FOLDER/000, FOLDER/001, … with a piece each
    python benchmarks/gpu/pieces.py join FOLDER TARGET    unpacks the files of the pieces to TARGET

Each piece is at most 60 MiB and has a folder of its own, so one transfer carries one piece. A piece names its
number, the number of all pieces and the SHA-256 of their whole, so `join` says which pieces are missing and
notices damaged ones. FOLDER of `join` has the pieces' files, in any sub-folders. It needs only Python.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

PIECE_BYTES = 60 * 2**20
_NAME = re.compile(r"piece-(\d+)-of-(\d+)-([0-9a-f]{64})")


class PiecesError(Exception):
    """Pieces are missing, damaged, or of different files."""


def cut(folder: Path, files: Sequence[Path], piece_bytes: int = PIECE_BYTES) -> list[Path]:
    """Cuts files and folders into pieces, and returns the pieces' paths.

    Raises:
        FileNotFoundError: a file does not exist.
        FileExistsError: the folder exists.
    """
    folder.mkdir(parents=True)
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for file in files:
            archive.add(file, arcname=file.name)
    content = whole.getbuffer()
    digest, count = hashlib.sha256(content).hexdigest(), max(-(-len(content) // piece_bytes), 1)
    pieces = []
    for number in range(count):
        path = folder / f"{number:03d}/piece-{number:03d}-of-{count}-{digest}"
        path.parent.mkdir()
        path.write_bytes(content[number * piece_bytes : (number + 1) * piece_bytes])
        pieces.append(path)
    return pieces


def join(folder: Path, target: Path) -> None:
    """Unpacks the files of the pieces in a folder.

    Raises:
        PiecesError: pieces are missing, damaged, or of different files.
    """
    found = {path: match for path in folder.rglob("piece-*") if (match := _NAME.fullmatch(path.name))}
    wholes = {(match[2], match[3]) for match in found.values()}
    if len(wholes) != 1:
        raise PiecesError(f"{folder} has pieces of {len(wholes)} wholes, and must have those of one")
    (count, digest) = next(iter(wholes))
    by_number = {int(match[1]): path for path, match in found.items()}
    if missing := [f"{number:03d}" for number in range(int(count)) if number not in by_number]:
        raise PiecesError(f"{folder} lacks the pieces {', '.join(missing)} of {count}: transfer them again")
    content = b"".join(by_number[number].read_bytes() for number in range(int(count)))
    if hashlib.sha256(content).hexdigest() != digest:
        raise PiecesError(f"a piece in {folder} is damaged: transfer all of them again")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(target, filter="data")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    cutting = commands.add_parser("cut", help="make pieces of files and folders")
    cutting.add_argument("folder", type=Path)
    cutting.add_argument("files", type=Path, nargs="+")
    joining = commands.add_parser("join", help="unpack the files of the pieces in a folder")
    joining.add_argument("folder", type=Path)
    joining.add_argument("target", type=Path)
    options = parser.parse_args(arguments)
    try:
        if options.command == "cut":
            pieces = cut(options.folder, options.files)
            print(f"{len(pieces)} pieces in {options.folder}")
        else:
            join(options.folder, options.target)
            print(f"unpacked to {options.target}")
    except (PiecesError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
