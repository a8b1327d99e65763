"""Generates days of raw clicks with one task per file, and publishes them with their manifests.

`generate.layout` selects the kind of log.
"""

from __future__ import annotations

import logging
import pickle
import uuid
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from hashlib import sha256
from typing import Any, Literal, assert_never

from conf.errors import ConfigError, InfrastructureError
from conf.types import Config, Generate
from etl.synthetic.lines import CRITEO, NAMED, LogLayout, impression_blocks, impression_facts, total
from etl.synthetic.outbrain import OUTBRAIN, display_blocks, display_facts
from spark.workers import Workers
from storage import file_io
from storage.manifest import (
    FileEntry,
    Manifest,
    data_files,
    digest_of,
    replace_manifest,
)
from storage.paths import LakePaths, Partition


@dataclass(frozen=True)
class ClickLogKind:
    """The layout and the functions that generate one kind of log.

    Attributes:
        layout: the layout of the files.
        blocks: function that yields the lines and the summary of each block of a file. Its arguments are the
            configuration, the day and the index of the file. Summaries have an attribute `rows`, and can be
            added to each other.
        facts: function that returns the entries of `facts` in a day's manifest, such as `best_auc`. Its
            arguments are the configuration, the day and the sum of the summaries of all files.
    """

    layout: LogLayout
    blocks: Callable[[Generate, date, int], Iterator[tuple[bytes, Any]]]
    facts: Callable[[Generate, date, Any], dict[str, Any]]


_KINDS: Mapping[str, ClickLogKind] = {
    "criteo": ClickLogKind(CRITEO, impression_blocks(CRITEO), impression_facts(CRITEO)),
    "named": ClickLogKind(NAMED, impression_blocks(NAMED), impression_facts(NAMED)),
    "outbrain": ClickLogKind(OUTBRAIN, display_blocks, display_facts),
}


def kind_of(config: Generate) -> ClickLogKind:
    """Returns the kind of log that `generate.layout` selects."""
    return _KINDS[config.layout]


# The functions below generate days of raw clicks with one task per file, and publish them.

log = logging.getLogger("nightrank.generate")
# Configuration keys that do not change the rows of a day.
_NOT_OF_ROWS = ("days", "first_date", "compression")

# A progress message is logged after this number of tasks per worker.
_ROUNDS = 4


def generated_dates(config: Generate, first_day: str) -> list[str]:
    """Returns `config.days` consecutive dates. The first is `first_day`."""
    first = date.fromisoformat(first_day)
    return [(first + timedelta(days=offset)).isoformat() for offset in range(config.days)]


def generate_settings(config: Config) -> Generate:
    """Returns the section `generate` of the configuration.

    Raises:
        ConfigError: the section is missing, or its layout has another format or separator than the section
            `log`.
    """
    generate = config.generate
    if generate is None:
        raise ConfigError(
            "the configuration has no section `generate`, which describes the log to generate",
            "add `generate: {}` to the configuration file",
        )
    layout = kind_of(generate).layout
    if (config.log.format, config.log.field_separator) != (layout.format, layout.separator):
        raise ConfigError(
            f"generate.layout={generate.layout} writes {layout.format} separated by {layout.separator!r}, "
            f"but log.format={config.log.format} and log.separator={config.log.field_separator!r}",
            f"set log.format={layout.format} and log.separator={layout.separator!r}, or change "
            "generate.layout",
        )
    return generate


def generate_days(workers: Workers, lake: LakePaths, config: Generate, dates: list[str]) -> list[Manifest]:
    """Writes and publishes `raw/dt=…` for each date, and returns the manifests in the order of `dates`.

    The content of a file does not depend on the process that runs its task. If a day was generated before,
    its old files are deleted when the new ones are published.
    """
    tasks = [(dt, file) for dt in dates for file in range(config.files_per_day)]
    written: list[tuple[str, RawFile]] = []
    together = _ROUNDS * workers.parallelism
    for first in range(0, len(tasks), together):
        of_call = tasks[first : first + together]
        texts = workers.collect(len(of_call), partial(_write, config, lake.root, of_call))
        files = [pickle.loads(b64decode(text)) for text in texts]
        written += [(dt, file) for (dt, _), file in zip(of_call, files, strict=True)]
        log.info("%d of %d files are written", len(written), len(tasks))
    return [
        _publish(lake.raw.partition(dt), config, [file for day, file in written if day == dt]) for dt in dates
    ]


def _write(config: Generate, root: str, tasks: list[tuple[str, int]], index: int) -> str:
    """Writes the file of a task to the lake with the root `root`.

    Returns the pickled RawFile as base64.
    """
    dt, file = tasks[index]
    written = write_file(config, LakePaths(root).raw.partition(dt), file)
    return b64encode(pickle.dumps(written)).decode()


def _publish(partition: Partition, config: Generate, files: list[RawFile]) -> Manifest:
    kind, day = kind_of(config), date.fromisoformat(partition.dt)
    summary = total(file.summary for file in files)
    manifest = Manifest(
        table=partition.table,
        partition=partition.dt,
        files=tuple(FileEntry(file.name, file.summary.rows, file.bytes, ()) for file in files),
        schema=tuple((name, "string") for name in kind.layout.names),
        inputs={"content": digest_of([file.sha256 for file in files])},
        rows_in=summary.rows,
        facts={
            "layout": config.layout,
            "seed": config.seed,
            "settings": config.model_dump(mode="json", exclude=set(_NOT_OF_ROWS)),
            **kind.facts(config, day, summary),
        },
        created_at=file_io.utc_now(),
    )
    file_io.make_durable(data_files(partition, manifest), partition.root)
    replace_manifest(partition, manifest)
    _delete_superseded(partition, manifest)
    return manifest


def _delete_superseded(partition: Partition, manifest: Manifest) -> None:
    """Deletes generated files that the manifest does not list.

    Without this, tools that ignore the manifest and read every file in the folder would also read these
    files.
    """
    current = {file.path for file in manifest.files}
    for info in file_io.list_files(partition.path):
        if info.is_file and info.base_name.startswith(PREFIX) and info.base_name not in current:
            file_io.delete_file(partition.file(info.base_name))


# The code below writes one raw file of one day. The content of the file depends only on the configuration,
# the date and the index of the file.

PREFIX = "clicks-"
_GZIP_LEVEL = 3
_GZIP_WINDOW = 31  # zlib's code for the gzip format with a header that contains no time and no name


@dataclass(frozen=True)
class RawFile:
    """A raw file on disk.

    Attributes:
        name: name of the file in its partition.
        bytes: number of bytes of the file.
        sha256: SHA-256 of the file's bytes.
        summary: counts of the file's rows. The type of the counts depends on the layout of the log.
    """

    name: str
    bytes: int
    sha256: str
    summary: Any


def write_file(config: Generate, partition: Partition, file: int) -> RawFile:
    """Writes one file of a day under a unique name. It does not publish the file.

    Args:
        config: the section `generate`.
        partition: the partition of the raw log, which has the folder and the date of the file.
        file: index of the file. Each file has the rows of one time interval of the day. Files that are sorted
            by name are also sorted by time.

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
        # Pass compression=None, because the default would compress a .gz file again.
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
    return RawFile(name, size, digest.hexdigest(), total(summaries))


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
