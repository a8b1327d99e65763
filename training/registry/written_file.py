"""Lengths and checksums of model and checkpoint files. This module does not import torch."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from storage import file_io

_CHUNK_BYTES = 1 << 26


@dataclass(frozen=True)
class FileEntry:
    """A file as it was written: its name in its folder, its length, and the CRC-32 of its bytes."""

    name: str
    bytes: int
    crc32: int


def damage(folder: str, entry: FileEntry) -> str | None:
    """Returns how a file differs from its entry; None if it does not differ. Reads the complete file."""
    path = f"{folder}/{entry.name}"
    files, inner = file_io.filesystem(path)
    length, crc = 0, 0
    try:
        with files.open_input_stream(inner, compression=None) as stream:
            while part := stream.read(_CHUNK_BYTES):
                length, crc = length + len(part), zlib.crc32(part, crc)
    except FileNotFoundError:
        return f"{path} is missing"
    if length != entry.bytes:
        return f"{path} has {length} bytes, {entry.bytes} were written"
    return None if crc == entry.crc32 else f"{path} holds other bytes than were written (CRC-32)"
