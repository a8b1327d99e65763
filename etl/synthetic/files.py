"""Writes one raw file of one day.

The content of the file depends only on the configuration, the date and the index of the file.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from typing import Any, Literal, assert_never

from conf.errors import InfrastructureError
from conf.types import Generate
from etl.synthetic.clicks.summary import total
from etl.synthetic.kinds import kind_of
from storage import file_io
from storage.paths import Partition

PREFIX = "clicks-"
_GZIP_LEVEL = 3
_GZIP_WINDOW = 31  # zlib's code for gzip framing with a header that has no time and no name


@dataclass(frozen=True)
class WrittenFile:
    """A raw file on disk.

    Attributes:
        name: name of the file in its partition.
        bytes: size of the file.
        sha256: SHA-256 of the file's bytes.
        summary: counts of the file's rows. The type of the counts depends on the layout of the log.
    """

    name: str
    bytes: int
    sha256: str
    summary: Any


def write_file(config: Generate, partition: Partition, file: int) -> WrittenFile:
    """Writes one file of a day under a unique name. It does not publish the file.

    Args:
        config: the section `generate`.
        partition: the partition of the raw log, which has the folder and the date of the file.
        file: index of the file. Each file has one time interval of the day, so the order of names is the
            order of time.

    Raises:
        InfrastructureError: the file could not be written completely.
    """
    kind = kind_of(config)
    compress, ending = _compression(config.compression)
    name = f"{PREFIX}{file:05d}-{uuid.uuid4().hex[:12]}.{kind.layout.format}{ending}"
    digest, size, summaries = sha256(), 0, []
    files, inner = file_io.filesystem(partition.file(name))
    try:
        files.create_dir(inner.rsplit("/", 1)[0], recursive=True)
        # compression=None, because the default would compress a .gz file again.
        with files.open_output_stream(inner, compression=None) as stream:
            for data, summary in kind.blocks(config, date.fromisoformat(partition.dt), file):
                written = compress(data)
                digest.update(written)
                size += stream.write(written)
                summaries.append(summary)
        on_disk = files.get_file_info(inner).size
    except OSError as error:
        raise InfrastructureError(
            f"cannot write {partition.file(name)}: {error}", "check disk space and permissions, then rerun"
        ) from error
    if on_disk != size:
        raise InfrastructureError(
            f"{partition.file(name)} has {on_disk} bytes, but {size} were written",
            "check the disk, then rerun",
        )
    return WrittenFile(name, size, digest.hexdigest(), total(summaries))


def _compression(setting: Literal["none", "gzip"]) -> tuple[Callable[[bytes], bytes], str]:
    """Returns the function that compresses a part of a file, and the ending of the file's name."""
    if setting == "none":
        return bytes, ""
    if setting == "gzip":
        return _gzip, ".gz"
    assert_never(setting)


def _gzip(data: bytes) -> bytes:
    """Compresses data to one gzip member. A gzip file may consist of several members (RFC 1952, 2.2)."""
    compressor = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WINDOW)
    return compressor.compress(data) + compressor.flush()
