"""Dictionary-encoded columns whose codes are on a device, and their conversion to Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

if TYPE_CHECKING:  # a process that uses no device does not import torch
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class DeviceColumn:
    """A dictionary-encoded column of n rows. Its k distinct values are on the host, its codes on a device.

    Attributes:
        dictionary: the k values, without null.
        codes: (n,) int32, the index of each row's value in `dictionary`; k if the value is null.
    """

    dictionary: pa.Array
    codes: Tensor

    def rows_with(self, flagged: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Returns the indices of the rows whose code has a true flag, ascending.

        Args:
            flagged: (k + 1,) a flag for each code. The last flag is for null.
        """
        rows = self.take(flagged).nonzero().squeeze(1)
        return to_host(rows)

    def take(self, table: NDArray[Any]) -> Tensor:
        """Returns the element of a look-up table for each row's code: (n,) on the device.

        Args:
            table: (k + 1,) an element for each code. The last element is for null.
        """
        return to_device(table, self.codes.device).index_select(0, self.codes)

    def count(self) -> NDArray[np.int64]:
        """Returns the number of rows with each of the k dictionary values and, last, with null: (k + 1,)."""
        counts = self.codes.new_zeros(len(self.dictionary) + 1, dtype=_torch().int64)
        ones = counts.new_ones(1).expand(self.codes.shape[0])
        return to_host(counts.scatter_add_(0, self.codes.long(), ones))

    def with_values(self, values: pa.Array) -> DeviceColumn:
        """Returns a column in which each value is replaced by a new value.

        A row whose new value is null gets the code of null, because the dictionary must not contain null.

        Args:
            values: (k,) the new value of each value of the dictionary.
        """
        if not values.null_count:
            return DeviceColumn(values, self.codes)
        valid = np.append(values.is_valid().to_numpy(zero_copy_only=False), False)
        new_codes = np.where(valid, np.cumsum(valid) - 1, valid.sum()).astype(np.int32)
        return DeviceColumn(values.drop_null(), self.take(new_codes))

    def to_arrow(self) -> pa.DictionaryArray:
        """Returns the column as an Arrow array."""
        codes = to_host(self.codes)
        is_null = codes == len(self.dictionary)
        indices = pa.array(codes, mask=is_null) if is_null.any() else pa.array(codes)
        return pa.DictionaryArray.from_arrays(indices, self.dictionary, safe=False)


# The values of one column, on the host or on a device.
Values: TypeAlias = pa.Array | DeviceColumn


class DeviceColumns(Mapping[str, pa.Array]):
    """Maps names to columns of n rows, some of which are on a device.

    The mapping returns Arrow arrays. It copies a column from the device when the column is first used. So
    code that runs on the host can use it like any mapping of arrays.

    Args:
        parts: maps the name of each column to an Arrow array or to a column on a device.
    """

    def __init__(self, parts: Mapping[str, Values]) -> None:
        self.parts = dict(parts)
        self._copied: dict[str, pa.Array] = {}

    def __getitem__(self, name: str) -> pa.Array:
        part = self.parts[name]
        if not isinstance(part, DeviceColumn):
            return part
        if name not in self._copied:
            self._copied[name] = part.to_arrow()
        return self._copied[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def on_device(self, name: str) -> DeviceColumn | None:
        """Returns a column that is on the device; None if the column is on the host."""
        part = self.parts[name]
        return part if isinstance(part, DeviceColumn) else None

    def slice(self, first: int, end: int) -> DeviceColumns:
        """Returns the rows [first, end)."""
        return self._of_rows(lambda codes: codes[first:end], lambda array: array.slice(first, end - first))

    def take(self, rows: NDArray[np.int64]) -> DeviceColumns:
        """Returns the rows with these indices, in this order."""
        codes = next(part.codes for part in self.parts.values() if isinstance(part, DeviceColumn))
        there, here = to_device(rows, codes.device), pa.array(rows)
        return self._of_rows(lambda codes: codes.index_select(0, there), lambda array: array.take(here))

    def _of_rows(
        self, of_codes: Callable[[Tensor], Tensor], of_array: Callable[[pa.Array], pa.Array]
    ) -> DeviceColumns:
        return DeviceColumns(
            {
                name: DeviceColumn(part.dictionary, of_codes(part.codes))
                if isinstance(part, DeviceColumn)
                else of_array(part)
                for name, part in self.parts.items()
            }
        )


def mixed_columns(parts: Mapping[str, Values]) -> Mapping[str, pa.Array]:
    """Returns columns as a mapping of Arrow arrays: `parts` itself if no column is on a device."""
    on_device = any(isinstance(part, DeviceColumn) for part in parts.values())
    return DeviceColumns(parts) if on_device else parts


def parts_of(columns: Mapping[str, pa.Array]) -> dict[str, Values]:
    """Returns the columns without copying them from a device."""
    return dict(columns.parts if isinstance(columns, DeviceColumns) else columns)


def arrow(column: Values) -> pa.Array:
    """Returns a column as an Arrow array. A column on a device is copied."""
    return column.to_arrow() if isinstance(column, DeviceColumn) else column


def look_up(
    blocks: Sequence[Sequence[tuple[DeviceColumn, NDArray[Any]]]],
    groups: int,
) -> NDArray[np.int32]:
    """Looks up the values of C columns for each row of some blocks, and divides the n rows among groups.

    Returns (C, n). The first group has the rows 0, groups, 2 * groups, … The next group has the rows 1, 1 +
    groups, …

    Args:
        blocks: for each block, its C columns with their look-up tables. A table of a column with k distinct
            values has k + 1 elements of 4 bytes; the last element is for null. An element may
            have any type of 4 bytes, because its bits are copied unchanged.
        groups: number of groups.
    """
    torch = _torch()
    of_blocks = []
    for columns in blocks:
        tables = [np.ascontiguousarray(table).view(np.int32) for _, table in columns]
        ends = np.cumsum([len(table) for table in tables]).tolist()
        there = to_device(np.concatenate(tables), columns[0][0].codes.device)
        of_blocks.append(
            torch.stack(
                [
                    there[end - len(table) : end].index_select(0, column.codes)
                    for (column, _), table, end in zip(columns, tables, ends, strict=True)
                ]
            )
        )  # (C, rows of the block)
    values = torch.cat(of_blocks, 1) if len(of_blocks) > 1 else of_blocks[0]
    if groups > 1:
        values = torch.cat([values[:, group::groups] for group in range(groups)], 1)
    return to_host(values)


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """Copies a writable array to a device. A copy to a GPU may still run after the function returns."""
    tensor: Tensor = _torch().from_numpy(values)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def to_host(values: Tensor) -> NDArray[Any]:
    """Copies a tensor to the host. Waits until the device has computed it."""
    if values.device.type != "cuda":
        copied: NDArray[Any] = values.cpu().numpy()
        return copied
    pinned: Tensor = _torch().empty(values.shape, dtype=values.dtype, pin_memory=True)
    pinned_values: NDArray[Any] = pinned.copy_(values).numpy()
    return pinned_values


def _torch() -> Any:
    import torch

    return torch
