"""Digests of the bytes of published data files: XXH3-128, as 32 hex digits.

pyarrow 14 writes Parquet files without checksums. If a disk or a network changes a bit, readers can therefore
get wrong values without any error. So `new_file` computes the digest of a data file from the bytes that it
writes, and the manifest contains the digest. Every reader calls `open_file` or `require_intact`, which
compare the bytes of the file with the manifest. Each process makes this comparison once for each file, before
it first uses the file.

After a task has written a file, it returns a string: the path, `#` and the digest (`named`). Some of these
strings end with another `#` and a description of the file's footer (storage.publish.with_footer).
`storage.publish.publish_files` splits the string into its parts. XXH3 detects accidental damage. It does not
protect against an attacker who forges files.

`table_digest` computes a digest of the values of an Arrow table. The digest does not depend on how the values
are divided into chunks and buffers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from conf.errors import DataError
from storage import file_io
from storage.manifest import MANIFEST_NAME, FileEntry, load_manifest
from storage.paths import DATA, Partition

_NAMED = re.compile(r"(.*)#([0-9a-f]{32})(?:#([\w=-]+))?", re.DOTALL | re.ASCII)
_CHUNK_BYTES = 1 << 20
# A file of an object store with at most this size is downloaded once, and both hashed and parsed in memory.
_MOST_IN_MEMORY = 1 << 28
_THREADS = 4


# Writing


class NewFile:
    """A data file that is being written. `sink` is the file object for a writer of pyarrow."""

    def __init__(self, path: str, stream: pa.NativeFile) -> None:
        self.path = path
        self.sink = _HashingSink(stream)

    @property
    def digest(self) -> str:
        """Returns the digest of the bytes that were written so far."""
        return self.sink.digest

    @property
    def name(self) -> str:
        """Returns the path and the digest of the file in one string, as `named` does."""
        return named(self.path, self.digest)


class _HashingSink:
    """A file object that hashes what it writes to a stream of pyarrow."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream, self._hash = stream, xxhash.xxh3_128()

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def write(self, part: bytes | pa.Buffer) -> int:
        self._hash.update(part)
        return int(self._stream.write(part))

    def flush(self) -> None:
        self._stream.flush()

    def tell(self) -> int:
        return int(self._stream.tell())


@contextmanager
def new_file(path: str) -> Iterator[NewFile]:
    """Creates a data file and, on a local file system, its folder.

    Close the writer before you use `NewFile.name`.
    """
    files, inner = file_io.filesystem(path)
    if file_io.is_local(path):
        files.create_dir(inner.rsplit("/", 1)[0], recursive=True)
    with files.open_output_stream(inner, compression=None) as stream:
        yield NewFile(path, stream)


def named(path: str, digest: str | None) -> str:
    """Returns the path of a written file, followed by `#` and its digest; only the path without a digest."""
    return f"{path}#{digest}" if digest else path


def split_name(name: str) -> tuple[str, str | None]:
    """Splits a name that `named` returned into (path, digest)."""
    path, digest, _ = split_described(name)
    return path, digest


def split_described(name: str) -> tuple[str, str | None, str | None]:
    """Splits the name of a file that a task has written into (path, digest, description of the footer)."""
    match = _NAMED.fullmatch(name)
    return (match[1], match[2], match[3]) if match else (name, None, None)


def digest_of_file(path: str) -> str:
    """Reads a file and returns its digest."""
    files, inner = file_io.filesystem(path)
    state = xxhash.xxh3_128()
    if file_io.is_local(path):
        with open(inner, "rb", buffering=0) as source:
            # A lake may have very many small files. Clearing a large buffer for each of them would take most
            # of the time.
            size = os.fstat(source.fileno()).st_size
            buffer = memoryview(bytearray(min(_CHUNK_BYTES, size + 1)))
            while count := source.readinto(buffer):
                state.update(buffer[:count])
    else:
        with files.open_input_stream(inner, compression=None) as stream:
            while part := stream.read(_CHUNK_BYTES):
                state.update(part)
    return state.hexdigest()


# Reading

# The files that this process has compared with their manifests: maps the path of a file to its size in bytes
# and the time of its last change in ns. For a file of an object store, the time is not known, and is 0.
_compared: dict[str, tuple[int, int]] = {}

# Maps each folder of data files to a dictionary, which maps the path of a file to its entry in the manifest.
_entries: dict[str, dict[str, FileEntry]] = {}


@contextmanager
def open_file(path: str) -> Iterator[pa.NativeFile]:
    """Opens a published data file for reading, after its bytes were compared with its manifest.

    Raises:
        DataError: the file is damaged.
        FileNotFoundError, OSError: the file cannot be read.
    """
    files, inner = file_io.filesystem(path)
    if file_io.is_local(path):
        require_intact(path)
    elif path not in _compared:
        content = _compare_remote(path)
        if content is not None:
            yield pa.BufferReader(content)
            return
    with files.open_input_file(inner) as source:
        yield source


def require_intact(path: str) -> None:
    """Compares the bytes of a published data file with its manifest, unless this process has done so.

    A file is not compared if the manifest has no digest of the file, or if no manifest names the file.
    Releases before format version 3 wrote no digests. No manifest names a file that is new or was replaced.

    Raises:
        DataError: the file is damaged.
        FileNotFoundError, OSError: the file cannot be read.
    """
    if not file_io.is_local(path):
        if path not in _compared:
            _compare_remote(path)
        return
    state = os.stat(file_io.filesystem(path)[1])
    if _compared.get(path) == (state.st_size, state.st_mtime_ns):
        return
    entry = _entry_of(path)
    if entry is not None and entry.digest:
        compare(path, entry, state.st_size)
    _compared[path] = (state.st_size, state.st_mtime_ns)


def require_intact_copy(path: str, copy: str) -> None:
    """Compares a local copy of a published data file with the file's entry in the manifest.

    Raises:
        DataError: the copy has other bytes than the file had when it was written.
        OSError: the copy cannot be read.
    """
    entry = _entry_of(path)
    if entry is not None and entry.digest:
        _require_equal(path, digest_of_file(copy), entry)


def compare(path: str, entry: FileEntry, size: int | None = None) -> None:
    """Compares a file with its manifest entry, which has a digest. `size` is the file's size, if known.

    Raises:
        DataError: the file has other bytes.
        FileNotFoundError, OSError: the file cannot be read.
    """
    if size is not None and size != entry.bytes:
        raise damaged_file(path, f"it has {size} bytes, but its manifest says {entry.bytes}")
    _require_equal(path, digest_of_file(path), entry)


def _require_equal(path: str, actual: str, entry: FileEntry) -> None:
    if actual != entry.digest:
        raise damaged_file(path, f"its bytes have the digest {actual}, but its manifest says {entry.digest}")


# The job that writes a table, by the first part of the table's name.
_JOBS = {
    "raw": "generate_clicks",
    "quality": "check_quality",
    "candidates": "build_candidates",
    "candidate_items": "build_candidates",
    "item_vectors": "build_candidates",
    "experiment_items": "build_candidates",
    "recommendations": "score_daily",
    "list_changes": "score_daily",
    "scores": "score_rows",
    "evaluations": "evaluate_model",
    "gate_items": "evaluate_model",
    "blend_items": "learn_blend",
    "experiments": "measure_recommendations",
    "measures": "measure_recommendations",
    "comparisons": "compare_models",
    "deliveries": "deliver_recommendations",
}
BUILD_FEATURES = "build_features"
_IS_DAMAGED = " is damaged: "


def job_of(table: str) -> str:
    """Returns the name of the job that writes a table. `table` is the table's path below the lake's root."""
    return _JOBS.get(table.split("/")[0], BUILD_FEATURES)


def damaged_file(path: str, difference: str) -> DataError:
    """Returns the error for a data file that differs from its manifest."""
    root, below = _below_data(path)
    folder = below.rpartition("/dt=")[0] or below.split("/")[0]
    dt = below.partition("/dt=")[2].split("/")[0]
    job = job_of(folder)
    # If build_features wrote the file, only fsck knows which run to repeat: it reads the data manifests.
    run = "the command that it prints for this file" if job == BUILD_FEATURES else f"run {job} for {dt} again"
    return DataError(
        f"{path}{_IS_DAMAGED}{difference}",
        f"run `nightrank fsck --lake {root} --repair`, and then {run}, which writes the table again",
    )


def path_of_damaged(error: DataError) -> str | None:
    """Returns the path of the file that an error of `damaged_file` names; None for any other error."""
    path, separator, _ = error.problem.partition(_IS_DAMAGED)
    return path if separator and f"/{DATA}/" in path else None


def partition_of(path: str) -> Partition | None:
    """Returns the partition of a data file below `_data`; None if the partition has no manifest."""
    root, below = _below_data(path)
    parts = below.split("/")[:-1]
    for count in range(len(parts), 1, -1):
        folder = "/".join(parts[:count])
        if file_io.exists(f"{root}/{folder}/{MANIFEST_NAME}"):
            table, _, name = folder.rpartition("/")
            return Partition(table, name.removeprefix("dt="), f"{root}/{folder}", count)
    return None


def _below_data(path: str) -> tuple[str, str]:
    """Returns (root of the lake, path below `_data`).

    If the file is not in `_data`, the second part is empty.
    """
    root, separator, below = path.rpartition(f"/{DATA}/")
    return (root, below) if separator else (path.rpartition("/")[0], "")


def _entry_of(path: str) -> FileEntry | None:
    """Returns the entry of a data file in the manifest of its partition; None if there is none."""
    folder = path.rpartition("/")[0]
    entry = _entries.get(folder, {}).get(path)
    if entry is not None or not _below_data(path)[1]:
        return entry
    # Read the manifest even if it was read before, because the file may be newer than the entries in memory.
    partition = partition_of(path)
    if partition is None:
        return None
    try:
        manifest = load_manifest(partition)
    except FileNotFoundError:  # another job has deleted the manifest
        return None
    _entries[folder] = {partition.file(one.path): one for one in manifest.files}
    return _entries[folder].get(path)


def _compare_remote(path: str) -> pa.Buffer | None:
    """Compares a file of an object store with its manifest. Returns its bytes, or None if it is too large."""
    entry = _entry_of(path)
    if entry is None or not entry.digest:
        record_compared(path)
        return None
    files, inner = file_io.filesystem(path)
    if entry.bytes > _MOST_IN_MEMORY:
        compare(path, entry)
        record_compared(path)
        return None
    with files.open_input_file(inner) as source:
        content = source.read_buffer()
    if len(content) != entry.bytes:
        raise damaged_file(path, f"it has {len(content)} bytes, but its manifest says {entry.bytes}")
    _require_equal(path, xxhash.xxh3_128_hexdigest(content), entry)
    record_compared(path)
    return content


def record_compared(path: str) -> None:
    """Records that another process has compared a file with its manifest."""
    _compared[path] = _state_of(path)


def _state_of(path: str) -> tuple[int, int]:
    if not file_io.is_local(path):
        return (0, 0)
    state = os.stat(file_io.filesystem(path)[1])
    return (state.st_size, state.st_mtime_ns)


def is_compared(path: str) -> bool:
    """Returns whether this process has compared a file with its manifest, and the file is unchanged since."""
    try:
        return _compared.get(path) == _state_of(path)
    except FileNotFoundError:
        return False


def map_in_threads(function: Callable[[str], str], paths: Sequence[str]) -> list[str]:
    """Calls `function` for each path, in a few threads. Use it for functions that read files."""
    if len(paths) <= 1:
        return [function(path) for path in paths]
    with ThreadPoolExecutor(min(_THREADS, len(paths))) as pool:
        return list(pool.map(function, paths))


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


def table_digest(table: pa.Table) -> str:
    """Returns a digest of 16 hex digits of the names, types and values of all columns.

    Columns may contain numbers, strings, or lists of these. The digest also depends on the types and
    the order of the columns.
    """
    digest = sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        digest.update(f"{name}\0".encode())
        whole = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        _add(digest, whole)
    return digest.hexdigest()[:16]


def _add(digest: _Hash, values: pa.Array) -> None:
    """Hashes the type, length, nulls and values of an array. The bytes stored for nulls have no effect."""
    digest.update(f"{values.type} {len(values)}\0".encode())
    digest.update(values.is_null().to_numpy(zero_copy_only=False).tobytes())
    if pa.types.is_list(values.type):
        lengths = pc.fill_null(pc.list_value_length(values), 0)
        digest.update(lengths.to_numpy(zero_copy_only=False).tobytes())
        _add(digest, values.flatten())
    elif pa.types.is_string(values.type):
        texts = pc.fill_null(values, "")
        digest.update(pc.binary_length(texts).to_numpy(zero_copy_only=False).tobytes())
        _, offsets, characters = texts.buffers()
        if characters is not None and len(texts):
            ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
            digest.update(characters[int(ends[0]) : int(ends[-1])].to_pybytes())
    else:
        digest.update(pc.fill_null(values, 0).to_numpy(zero_copy_only=False).tobytes())
