"""Writes and reads safetensors files in chunks, on a local disk or an object store.

The format (github.com/huggingface/safetensors) has three parts: the length of a JSON header as 8 bytes
little-endian; the header with dtype, shape and byte range of each tensor; and the tensors' bytes. This module
replaces the safetensors library, which handles only complete tensors of local files and copies them in
memory. If table rows fill most of a rank's memory, there is no space for such a copy.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError, InfrastructureError
from storage import file_io
from training.registry.model_json import ModelFile

# Bytes of a file that are in memory at a time, in addition to the tensors themselves.
CHUNK_BYTES = 1 << 26
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_MOST_BYTES = 2**63 - 1  # torch refuses larger numbers in a shape, even in an empty tensor
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def write_tensors(
    folder: str, name: str, tensors: Mapping[str, Sequence[Tensor]], *, with_sha256: bool = False
) -> ModelFile:
    """Writes a safetensors file.

    After the function has returned, a file on a local disk survives a power failure.

    Args:
        folder: path or URI.
        name: the file name.
        tensors: maps the name of each tensor to its pieces, which are concatenated along dimension 0 in the
            file.
        with_sha256: whether to compute the SHA-256 of the file, in addition to the CRC-32.

    Raises:
        InfrastructureError: the file could not be written. On a local disk, no partial file remains.
    """
    # Tensors with larger elements come first, so that each tensor begins at a multiple of its element size.
    order = sorted(tensors, key=lambda tensor: (-tensors[tensor][0].element_size(), tensor))
    header: dict[str, Any] = {}
    end = 0
    for tensor in order:
        pieces = tensors[tensor]
        start, end = end, end + sum(piece.nbytes for piece in pieces)
        header[tensor] = {
            "dtype": _NAMES[pieces[0].dtype],
            "shape": _shape(pieces),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = f"{folder}/{name}"
    start_of_file = [len(text).to_bytes(8, "little"), text]
    parts: Iterable[bytes | memoryview] = chain(start_of_file, _bytes_of(tensors, order))
    written, crc, sha = 0, 0, sha256()
    try:
        with _create(path) as stream:
            for part in parts:
                stream.write(part)
                written, crc = written + len(part), zlib.crc32(part, crc)
                if with_sha256:
                    sha.update(part)
    except OSError as error:
        raise InfrastructureError(
            f"cannot write {path}: {error}", "check disk space and permissions, then rerun"
        ) from error
    return ModelFile(name, written, crc, sha.hexdigest() if with_sha256 else None)


def _shape(pieces: Sequence[Tensor]) -> list[int]:
    first = pieces[0]
    return [sum(len(piece) for piece in pieces), *first.shape[1:]] if first.dim() else []


def _bytes_of(tensors: Mapping[str, Sequence[Tensor]], order: Sequence[str]) -> Iterator[memoryview]:
    for name in order:
        for piece in tensors[name]:
            for chunk in piece.detach().reshape(-1).split(max(CHUNK_BYTES // piece.element_size(), 1)):
                yield raw(chunk.cpu())


def raw(values: Tensor) -> memoryview:
    """Returns a view of the bytes of a contiguous CPU tensor. Writing to the view changes the tensor."""
    # A single row of a strided view counts as contiguous in torch, even if its strides are not 1. So set the
    # strides explicitly.
    flat = values.as_strided((values.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


@contextmanager
def _create(path: str) -> Iterator[IO[bytes]]:
    files, inner = file_io.filesystem(path)
    if not file_io.is_local(path):
        with files.open_output_stream(inner, compression=None) as upload:
            yield upload
        return
    local = Path(inner)
    local.parent.mkdir(parents=True, exist_ok=True)
    try:
        with local.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        local.unlink(missing_ok=True)
        raise
    # The folder is flushed too, so that the file's name survives a power failure.
    folder = os.open(local.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class TensorFile:
    """A safetensors file that is open for reading. Close it, or use it as a context manager.

    Raises:
        DataError: the file is missing, or is not a safetensors file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        files, inner = file_io.filesystem(path)
        try:
            self._stream: pa.NativeFile = files.open_input_file(inner)
        except FileNotFoundError as error:
            raise DataError(
                f"{path} is missing", "delete the folder of this file and run train_model again"
            ) from error

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()

    @cached_property
    def header(self) -> dict[str, dict[str, Any]]:
        """Maps the name of each tensor to its `dtype`, its `shape` and its `data_offsets`.

        The offsets are counted from the start of the file.
        """
        size = self._stream.size()
        length = int.from_bytes(self._stream.read_at(8, 0), "little") if size >= 8 else size
        try:
            if 8 + length > size:
                raise ValueError("its header is longer than the file")
            header = json.loads(self._stream.read_at(length, 8))
            header.pop("__metadata__", None)
            for name, entry in header.items():
                _require_entry(name, entry, size - 8 - length)
            _require_apart(header)
            for entry in header.values():
                entry["data_offsets"] = [8 + length + offset for offset in entry["data_offsets"]]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DataError(
                f"{self.path} is not a safetensors file, or was cut off at {size} bytes: {error}",
                "delete the folder of this file and run train_model again",
            ) from error
        return dict(header)

    def shape(self, name: str) -> list[int]:
        """Returns the shape of a tensor."""
        return list(self.header[name]["shape"])

    def read(self, name: str) -> Tensor:
        """Reads a complete tensor to the CPU."""
        entry = self.header[name]
        values = torch.empty(entry["shape"], dtype=_DTYPES[entry["dtype"]])
        self._fill(values, entry["data_offsets"][0])
        return values

    def read_rows(self, name: str, first: int, step: int, into: Tensor) -> None:
        """Fills `into` (N, …), on any device, with every `step`-th row of a tensor, from row `first` on.

        Raises:
            DataError: the tensor has fewer rows, or the file ends too early.
        """
        entry = self.header[name]
        self._require_rows(name, first + (len(into) - 1) * step if len(into) else -1)
        dtype, width = _DTYPES[entry["dtype"]], math.prod(entry["shape"][1:])
        row_bytes = width * dtype.itemsize
        if step == 1 and into.device.type == "cpu" and into.is_contiguous() and into.dtype == dtype:
            self._fill(into, entry["data_offsets"][0] + first * row_bytes)
            return
        rows = max(CHUNK_BYTES // max(row_bytes * step, 1), 1)
        for start in range(0, len(into), rows):
            target = into[start : start + rows]
            span = (len(target) - 1) * step + 1
            chunk = torch.empty([span, *entry["shape"][1:]], dtype=dtype)
            self._fill(chunk, entry["data_offsets"][0] + (first + start * step) * row_bytes)
            target.copy_(chunk[::step])

    def row_type(self, name: str) -> tuple[torch.dtype, int]:
        """Returns the dtype of a tensor, and how many numbers a row (an entry of dimension 0) has."""
        entry = self.header[name]
        return _DTYPES[entry["dtype"]], math.prod(entry["shape"][1:])

    def read_places(self, name: str, places: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Reads rows of a stored tensor in a single request; returns their bytes, (N, bytes of a row).

        The request begins at the first row and ends at the last row. Several threads may read at the same
        time.

        Args:
            name: the tensor.
            places: (N,) indices of the rows in the stored tensor, in ascending order.

        Raises:
            DataError: the tensor has fewer rows, or the file ends too early.
        """
        dtype, width = self.row_type(name)
        row_bytes = width * dtype.itemsize
        first, last = int(places[0]), int(places[-1])
        self._require_rows(name, last)
        size = (last - first + 1) * row_bytes
        data = self._stream.read_at(size, self.header[name]["data_offsets"][0] + first * row_bytes)
        if len(data) != size:
            raise DataError(
                f"{self.path} ends too early", "delete the folder of this file and run train_model again"
            )
        return np.frombuffer(data, dtype=np.uint8).reshape(-1, row_bytes)[places - first]

    def _require_rows(self, name: str, last: int) -> None:
        """Raises DataError if a stored tensor has no row `last`."""
        rows = self.shape(name)[0] if self.shape(name) else 0
        if last >= rows:
            raise DataError(
                f"{self.path}: the tensor {name} has {rows} rows, but row {last} is needed",
                "delete the folder of this file and run train_model again",
            )

    def _fill(self, values: Tensor, offset: int) -> None:
        """Fills a contiguous tensor with the bytes of the file that begin at position `offset`."""
        for chunk in values.detach().reshape(-1).split(max(CHUNK_BYTES // values.element_size(), 1)):
            self._stream.seek(offset)
            if self._stream.readinto(raw(chunk)) != chunk.nbytes:
                raise DataError(
                    f"{self.path} ends too early", "delete the folder of this file and run train_model again"
                )
            offset += chunk.nbytes


def _require_entry(name: str, entry: Mapping[str, Any], data_bytes: int) -> None:
    """Checks a tensor's entry in the header: the byte range must match the dtype and the shape.

    Args:
        name: the tensor.
        entry: its entry.
        data_bytes: number of bytes of the file after the header.

    Raises:
        KeyError, TypeError, ValueError: the entry is damaged.
    """
    shape, (first, end) = entry["shape"], entry["data_offsets"]
    # Without this check, an empty object or an empty string would pass as a shape.
    numbers_only = all(type(number) is int and number >= 0 for number in (*shape, first, end))
    if not isinstance(shape, list) or not numbers_only:
        raise ValueError(f"the tensor {name!r} has a wrong shape or wrong offsets: {shape}, {[first, end]}")
    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"the tensor {name!r} has the unknown dtype {entry['dtype']!r}")
    if math.prod(max(number, 1) for number in shape) * _DTYPES[entry["dtype"]].itemsize > _MOST_BYTES:
        raise ValueError(f"the tensor {name!r} has the shape {shape!r:.100}, which is too large")
    if end > data_bytes or end - first != math.prod(shape) * _DTYPES[entry["dtype"]].itemsize:
        raise ValueError(
            f"the tensor {name!r} ({entry['dtype']}, shape {shape}) does not fit its byte range "
            f"{[first, end]} in {data_bytes} bytes of data"
        )


def _require_apart(header: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises ValueError if two tensors of a header have bytes in common, which the format does not allow."""
    ends, before = 0, ""
    for name, entry in sorted(header.items(), key=lambda one: one[1]["data_offsets"]):
        first, end = entry["data_offsets"]
        if first < ends and first < end:
            raise ValueError(f"the tensors {before!r} and {name!r} have bytes in common")
        ends, before = max(ends, end), name


# The code below checks that all numbers are finite (not NaN or infinite) before a model or checkpoint is
# saved.


def require_finite(tensors: Mapping[str, Sequence[Tensor]], when: str) -> None:
    """Checks that all numbers in some tensors are finite.

    Args:
        tensors: maps the name of each tensor to a list of tensors, each with some of its rows.
        when: the time of the check, for the error message, such as "after step 100".

    Raises:
        DataError: a tensor contains a number that is not finite.
    """
    for name, pieces in tensors.items():
        for piece in pieces:
            if not piece.is_floating_point():
                continue
            for chunk in piece.reshape(-1).split(CHUNK_BYTES // piece.element_size()):
                if not bool(torch.isfinite(chunk).all()):
                    raise DataError(
                        f"{when}, {name} contains numbers that are not finite; nothing was saved",
                        "lower train.learning_rate and train.embedding_learning_rate, and look for extreme "
                        "feature values",
                    )
