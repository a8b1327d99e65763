"""One safetensors file, written and read a piece at a time, on a local disk or an object store.

The format (github.com/huggingface/safetensors): the length of a JSON header as 8 bytes little-endian, the header, which
gives each tensor's dtype, shape and byte range, then the tensors' bytes. The library itself writes and reads whole
tensors of local files, and copies them in memory on the way; a rank's rows of a table may be most of its memory.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import torch
from torch import Tensor

from conf.errors import DataError, InfrastructureError
from storage import file_io
from training.registry.written_file import FileEntry

# Bytes that are in memory at a time, beside the tensors themselves.
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
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def write_tensors(folder: str, name: str, tensors: Mapping[str, Sequence[Tensor]]) -> FileEntry:
    """Writes a file; on a local disk its bytes and its name are there to stay when this returns.

    Args:
        tensors: name → pieces, which are one tensor in the file, one after the other along dimension 0.

    Raises:
        InfrastructureError: it could not be written; nothing of it is left on a local disk.
    """
    order = sorted(
        tensors, key=lambda each: (-tensors[each][0].element_size(), each)
    )  # keeps numbers aligned
    header: dict[str, Any] = {}
    end = 0
    for each in order:
        start, end = end, end + sum(piece.nbytes for piece in tensors[each])
        header[each] = {
            "dtype": _NAMES[tensors[each][0].dtype],
            "shape": _shape(tensors[each]),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = f"{folder}/{name}"
    start_of_file = [len(text).to_bytes(8, "little"), text]
    parts: Iterable[bytes | memoryview] = chain(start_of_file, _bytes_of(tensors, order))
    written, crc = 0, 0
    try:
        with _create(path) as stream:
            for part in parts:
                stream.write(part)
                written, crc = written + len(part), zlib.crc32(part, crc)
    except OSError as error:
        raise InfrastructureError(
            f"cannot write {path}: {error}", "check disk space and permissions, then rerun"
        ) from error
    return FileEntry(name, written, crc)


def _shape(pieces: Sequence[Tensor]) -> list[int]:
    first = pieces[0]
    return [sum(len(piece) for piece in pieces), *first.shape[1:]] if first.dim() else []


def _bytes_of(tensors: Mapping[str, Sequence[Tensor]], order: Sequence[str]) -> Iterator[memoryview]:
    for name in order:
        for piece in tensors[name]:
            for chunk in piece.detach().reshape(-1).split(max(CHUNK_BYTES // piece.element_size(), 1)):
                yield raw(chunk.cpu())


def raw(values: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU; writing to them writes to the tensor."""
    flat = values.as_strided(
        (values.numel(),), (1,)
    )  # a single row of a strided view is contiguous, its strides are not 1
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
    folder = os.open(local.parent, os.O_RDONLY)  # the name itself must survive a power cut
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class TensorFile:
    """A file to read from; close it, or use it as a context manager.

    Raises:
        DataError: there is no such file, or it is not of this format.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        files, inner = file_io.filesystem(path)
        try:
            self._stream: pa.NativeFile = files.open_input_file(inner)
        except FileNotFoundError as error:
            raise DataError(
                f"{path} is missing", "delete the folder it was in and run train_model again"
            ) from error

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()

    @cached_property
    def header(self) -> dict[str, dict[str, Any]]:
        """Tensor → dtype, shape and data_offsets, these from the start of the file."""
        size = self._stream.size()
        length = int.from_bytes(self._stream.read_at(8, 0), "little") if size >= 8 else size
        try:
            if 8 + length > size:
                raise ValueError("its header is longer than it is")
            found = json.loads(self._stream.read_at(length, 8))
        except ValueError as error:
            raise DataError(
                f"{self.path} is no safetensors file, or cut short at {size} bytes: {error}",
                "delete the folder it is in and run train_model again",
            ) from error
        found.pop("__metadata__", None)
        for each in found.values():
            each["data_offsets"] = [8 + length + offset for offset in each["data_offsets"]]
        return dict(found)

    def shape(self, name: str) -> list[int]:
        return list(self.header[name]["shape"])

    def read(self, name: str) -> Tensor:
        """A whole tensor, on the CPU."""
        about = self.header[name]
        values = torch.empty(about["shape"], dtype=_DTYPES[about["dtype"]])
        self._fill(values, about["data_offsets"][0])
        return values

    def read_rows(self, name: str, first: int, step: int, into: Tensor) -> None:
        """Fills (N, …) `into`, on any device, with the rows first, first + step, … of a tensor."""
        about = self.header[name]
        dtype, width = _DTYPES[about["dtype"]], math.prod(about["shape"][1:])
        row_bytes = width * dtype.itemsize
        if step == 1 and into.device.type == "cpu" and into.is_contiguous() and into.dtype == dtype:
            self._fill(into, about["data_offsets"][0] + first * row_bytes)
            return
        rows = max(CHUNK_BYTES // max(row_bytes * step, 1), 1)
        for place in range(0, len(into), rows):
            target = into[place : place + rows]
            span = (len(target) - 1) * step + 1
            chunk = torch.empty([span, *about["shape"][1:]], dtype=dtype)
            self._fill(chunk, about["data_offsets"][0] + (first + place * step) * row_bytes)
            target.copy_(chunk[::step])

    def _fill(self, values: Tensor, offset: int) -> None:
        """Reads a contiguous tensor's bytes from that place of the file on."""
        for chunk in values.detach().reshape(-1).split(max(CHUNK_BYTES // values.element_size(), 1)):
            self._stream.seek(offset)
            if self._stream.readinto(raw(chunk)) != chunk.nbytes:
                raise DataError(
                    f"{self.path} ends too early", "delete the folder it is in and run train_model again"
                )
            offset += chunk.nbytes
