"""Generates days of raw clicks with one task per file, and publishes them with their manifests."""

from __future__ import annotations

import logging
import pickle
from base64 import b64decode, b64encode
from datetime import date, timedelta
from functools import partial

from conf.errors import ConfigError
from conf.types import Config, Generate
from etl.synthetic.clicks.summary import total
from etl.synthetic.files import PREFIX, WrittenFile, write_file
from etl.synthetic.kinds import kind_of
from spark.workers import Workers
from storage import file_io
from storage.manifest import (
    FileEntry,
    Manifest,
    data_files,
    digest_of,
    replace_manifest,
)
from storage.paths import Lake, Partition

log = logging.getLogger("nightrank.generate")

_NOT_OF_ROWS = ("days", "first_date", "compression")  # keys on which the rows of a day do not depend
# Tasks of a worker between two log messages.
_ROUNDS = 4


def generated_dates(config: Generate, first_day: str) -> list[str]:
    """Returns `config.days` consecutive dates. The first is `first_day`."""
    first = date.fromisoformat(first_day)
    return [(first + timedelta(days=offset)).isoformat() for offset in range(config.days)]


def generate_settings(config: Config) -> Generate:
    """Returns the section `generate` of the configuration.

    Raises:
        ConfigError: the section is missing, or its layout does not have the format and separator of the
            section `log`.
    """
    generate = config.generate
    if generate is None:
        raise ConfigError(
            "the configuration has no section `generate`, which says what log to generate",
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


def generate_days(workers: Workers, lake: Lake, config: Generate, dates: list[str]) -> list[Manifest]:
    """Writes and publishes `raw/dt=…` for each date, and returns the manifests in the order of `dates`.

    The content of a file does not depend on the process that runs its task. If a day was generated before,
    its old files are deleted when the new ones are published.
    """
    tasks = [(dt, file) for dt in dates for file in range(config.files_per_day)]
    written: list[tuple[str, WrittenFile]] = []
    together = _ROUNDS * workers.parallelism
    for first in range(0, len(tasks), together):
        of_call = tasks[first : first + together]
        texts = workers.collect(len(of_call), partial(_write, config, lake.root, of_call))
        files = [pickle.loads(b64decode(text)) for text in texts]
        written += [(dt, file) for (dt, _), file in zip(of_call, files, strict=True)]
        log.info("%d of %d files", len(written), len(tasks))
    return [
        _publish(lake.raw.partition(dt), config, [file for day, file in written if day == dt]) for dt in dates
    ]


def _write(config: Generate, root: str, tasks: list[tuple[str, int]], index: int) -> str:
    """Writes the file of a task in the lake with this root, and returns the pickled WrittenFile as base64."""
    dt, file = tasks[index]
    written = write_file(config, Lake(root).raw.partition(dt), file)
    return b64encode(pickle.dumps(written)).decode()


def _publish(partition: Partition, config: Generate, files: list[WrittenFile]) -> Manifest:
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
    """Deletes generated files that the manifest does not name, since other tools may read all files."""
    current = {file.path for file in manifest.files}
    for info in file_io.list_files(partition.path):
        if info.is_file and info.base_name.startswith(PREFIX) and info.base_name not in current:
            file_io.delete_file(partition.file(info.base_name))
