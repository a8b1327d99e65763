"""For tests that rewrite published files: brings the manifest in line with them, as no job would do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from storage import file_digests, file_io, format_versions
from storage.file_digests import digest_of_file
from storage.manifest import MANIFEST_NAME, load_manifest
from storage.paths import Partition


def accept_rewritten(partition: Partition) -> None:
    """Replaces sizes and digests in the manifest of a local partition by those of its files."""
    manifest = load_manifest(partition)
    files = []
    for entry in manifest.files:
        path = partition.file(entry.path)
        files.append(replace(entry, bytes=Path(path).stat().st_size, digest=digest_of_file(path)))
    values = replace(manifest, files=tuple(files)).to_json()
    file_io.replace_json(partition.file(MANIFEST_NAME), format_versions.MANIFEST.stamp(values))
    file_digests._entries.clear()  # jobs never change the entry of a file
