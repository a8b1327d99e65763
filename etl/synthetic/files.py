"""Writes one raw file of one day. What it holds depends on (configuration, date, number of the file) alone."""

from __future__ import annotations

import uuid
import zlib
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from typing import Any

from conf.errors import InfrastructureError
from conf.types import Generate
from etl.synthetic.clicks.summary import total
from etl.synthetic.kinds import kind_of
from storage import file_io
from storage.paths import Partition

PREFIX = "clicks-"
_GZIP_LEVEL = 3
_GZIP_WINDOW = 31  # zlib's code for gzip framing; its header then holds no time and no name


@dataclass(frozen=True)
class WrittenFile:
    """A file on disk: its name within the partition, size, SHA-256 (of the bytes as they lie there) and its kind's counts."""

    name: str
    bytes: int
    sha256: str
    summary: Any


def write_file(config: Generate, partition: Partition, file: int) -> WrittenFile:
    """Writes file number `file` of a day under a name no other attempt uses; nothing is published.

    Files are consecutive parts of the day: name order is time order. `partition` gives the folder and the date.

    Raises:
        InfrastructureError: the file could not be written whole.
    """
    kind = kind_of(config)
    ending = ".gz" if config.compression == "gzip" else ""
    name = f"{PREFIX}{file:05d}-{uuid.uuid4().hex[:12]}.{kind.layout.format}{ending}"
    digest, size, summaries = sha256(), 0, []
    files, inner = file_io.filesystem(partition.file(name))
    try:
        files.create_dir(inner.rsplit("/", 1)[0], recursive=True)
        # compression=None: the default compresses once more whatever is called .gz
        with files.open_output_stream(inner, compression=None) as stream:
            for data, summary in kind.blocks(config, date.fromisoformat(partition.dt), file):
                packed = _packed(data) if config.compression == "gzip" else data
                digest.update(packed)
                size += stream.write(packed)
                summaries.append(summary)
        on_disk = files.get_file_info(inner).size
    except OSError as error:
        raise InfrastructureError(
            f"cannot write {partition.file(name)}: {error}", "check disk space and permissions, then rerun"
        ) from error
    if on_disk != size:
        raise InfrastructureError(
            f"{partition.file(name)} has {on_disk} bytes, {size} were written",
            "check the disk, then rerun",
        )
    return WrittenFile(name, size, digest.hexdigest(), total(summaries))


def _packed(data: bytes) -> bytes:
    """One gzip member; a file may be several, one after the other (RFC 1952, 2.2)."""
    packer = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WINDOW)
    return packer.compress(data) + packer.flush()
