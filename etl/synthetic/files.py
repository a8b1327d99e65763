"""Writes one raw file of one day. What it holds depends on (configuration, date, number of the file) alone."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from hashlib import sha256

import numpy as np

from conf import storage
from conf.errors import InfrastructureError
from conf.lake import Partition
from conf.types import Generate
from etl.synthetic.damage import draw_damage, lines
from etl.synthetic.impressions import draw_impressions
from etl.synthetic.layout import layout_of
from etl.synthetic.summary import Summary, summarise, total
from etl.synthetic.world import World, world_of_day

PREFIX = "clicks-"
_BLOCK_ROWS = 32_768  # rows drawn at a time: bounds memory; part of what the bytes depend on
_GZIP_LEVEL = 3
_GZIP_WINDOW = 31  # zlib's code for gzip framing; its header then holds no time and no name


@dataclass(frozen=True)
class WrittenFile:
    """A file on disk: its name within the partition, size, SHA-256 (of the bytes as they lie there) and counts."""

    name: str
    bytes: int
    sha256: str
    summary: Summary


def write_file(config: Generate, partition: Partition, file: int) -> WrittenFile:
    """Writes file number `file` of a day under a name no other attempt uses; nothing is published.

    Files are consecutive parts of the day: name order is time order. `partition` gives the folder and the date.

    Raises:
        InfrastructureError: the file could not be written whole.
    """
    layout = layout_of(config)
    ending = ".gz" if config.compression == "gzip" else ""
    name = f"{PREFIX}{file:05d}-{uuid.uuid4().hex[:12]}.{layout.format}{ending}"
    digest, size, summaries = sha256(), 0, []
    files, inner = storage.filesystem(partition.file(name))
    try:
        files.create_dir(inner.rsplit("/", 1)[0], recursive=True)
        # compression=None: the default compresses once more whatever is called .gz
        with files.open_output_stream(inner, compression=None) as stream:
            for data, summary in _blocks(config, partition.dt, file):
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


def _blocks(config: Generate, dt: str, file: int) -> Iterator[tuple[bytes, Summary]]:
    """(lines, counts) of the blocks of one file; the first begins with the header, where there is one."""
    layout, world = layout_of(config), world_of_day(config, date.fromisoformat(dt))
    midnight = int(datetime.combine(date.fromisoformat(dt), time(), UTC).timestamp())
    start, end = (config.rows_per_day * each // config.files_per_day for each in (file, file + 1))
    for block, first in enumerate(range(start, end, _BLOCK_ROWS)):
        last = min(first + _BLOCK_ROWS, end)
        window = (first / config.rows_per_day, last / config.rows_per_day)
        rows, breaks = _generators(config, world, file, block)
        impressions = draw_impressions(world, rows, last - first, window, config.missing_share)
        damage = draw_damage(layout, breaks, len(impressions), config.malformed_share)
        text = lines(layout, layout.texts(impressions, midnight), damage)
        yield (layout.header if block == 0 else b"") + text, summarise(layout, world, impressions, damage)


def _generators(config: Generate, world: World, file: int, block: int) -> list[np.random.Generator]:
    """Independent generators for the rows and for their damage, so that more damage leaves the rows as they were."""
    seeds = np.random.SeedSequence([config.seed, world.day, file, block]).spawn(2)
    return [np.random.default_rng(each) for each in seeds]
