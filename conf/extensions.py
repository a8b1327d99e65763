"""Digests of source files, for versions that depend on code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from importlib.resources.abc import Traversable


def source_digests(
    folder: Traversable, name: str, suffixes: tuple[str, ...] = (".py",)
) -> Iterator[tuple[str, str]]:
    """Yields one pair (path, digest of the content) for every source file below a folder.

    Args:
        folder: a folder on a disk or in a zip archive.
        name: the beginning of each path.
        suffixes: the endings of the names of source files.
    """
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from source_digests(entry, f"{name}/{entry.name}", suffixes)
        elif entry.name.endswith(suffixes):
            yield f"{name}/{entry.name}", sha256(entry.read_bytes()).hexdigest()


def combined_digest(sources: Iterable[tuple[str, str]]) -> str:
    """Returns one digest of 16 hex digits for some files. The order of the files does not change it."""
    return sha256("\n".join(f"{name} {digest}" for name, digest in sorted(sources)).encode()).hexdigest()[:16]
