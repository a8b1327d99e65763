"""Packs an environment as .tar.gz quickly: all cores compress, and the locked packages are packed only once.

Concatenated gzip files are a valid gzip file. Concatenated tar files are a valid tar file if only the last
one has an end mark. So the locked packages are packed without an end mark, and the result is kept in the
cache. Our few files are packed each time and appended.
"""

from __future__ import annotations

import os
import tarfile
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

from isal import isal_zlib

_BLOCK_BYTES = 16 * 1024 * 1024


def packed_parts(folder: Path, base: Path, extra: Path) -> tuple[Path, Path]:
    """Packs `folder` into two files. Concatenated, the two files are a .tar.gz of the folder.

    Args:
        folder: contains all files of `base`, and other files.
        base: the folder that is packed into the first file. The first file is kept next to this folder, and
            is used again the next time.
        extra: path of the second file, with the files of `folder` that are not in `base`.
    """
    kept = base.with_name(f"{base.name}.tar.gz")
    if not kept.is_file():
        scratch = kept.with_name(f"{kept.name}.new")
        with scratch.open("wb") as out:
            pack(base, entries(base), out, ended=False)
        scratch.replace(kept)
    with extra.open("wb") as out:
        pack(folder, (name for name in entries(folder) if not os.path.lexists(base / name)), out)
    return kept, extra


class Joined:
    """A readable file that consists of several concatenated files."""

    def __init__(self, *paths: Path) -> None:
        self.size_bytes = sum(path.stat().st_size for path in paths)
        self._files = deque(path.open("rb") for path in paths)

    def read(self, size_bytes: int) -> bytes:
        """The next `size_bytes` bytes; fewer at the end."""
        content = b""
        while self._files and len(content) < size_bytes:
            content += self._files[0].read(size_bytes - len(content))
            if len(content) < size_bytes:
                self._files.popleft().close()
        return content


def entries(folder: Path) -> Iterator[str]:
    """Relative names of a folder (".") and of everything below it, parents first."""
    yield "."
    for at, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted((*folders, *files)):
            yield os.path.relpath(f"{at}/{name}", folder)


def pack(folder: Path, names: Iterable[str], out: IO[bytes], *, ended: bool = True) -> None:
    """Writes the entries `names` of a folder as a compressed tar file.

    With `ended=False` the tar has no end mark, so that another tar can follow.
    """
    with _Compressor(out) as compressed:
        packed = tarfile.TarFile(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT)  # type: ignore[arg-type]
        for name in names:
            packed.add(folder / name, name, recursive=False, filter=without_owner)
        if ended:
            packed.close()


def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """The entry of a tar archive without its owner and group."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


class _Compressor:
    """A writable file. All cores compress its blocks; each block becomes a gzip file in the output."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._cores = os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._cores)
        self._waiting: deque[Future[bytes]] = deque()
        self._block = bytearray()
        self._written = 0

    def __enter__(self) -> _Compressor:
        return self

    def __exit__(self, *_: object) -> None:
        self._submit()
        while self._waiting:
            self._out.write(self._waiting.popleft().result())
        self._pool.shutdown()

    def tell(self) -> int:
        return self._written

    def write(self, data: bytes) -> int:
        self._block += data
        self._written += len(data)
        if len(self._block) >= _BLOCK_BYTES:
            self._submit()
        return len(data)

    def _submit(self) -> None:
        if self._block:
            self._waiting.append(self._pool.submit(_gzip, bytes(self._block)))
            self._block.clear()
        while len(self._waiting) > 2 * self._cores:  # limits the memory of waiting blocks
            self._out.write(self._waiting.popleft().result())


def _gzip(block: bytes) -> bytes:
    packer = isal_zlib.compressobj(1, zlib.DEFLATED, 31)  # 31 selects a gzip header, without a time
    return packer.compress(block) + packer.flush()
