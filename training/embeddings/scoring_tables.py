"""Embedding tables for scoring only: rows that stay in the model's files, and rows in int8.

Rows that stay in files are for models that are larger than the memory of a worker. A few ids make up most
lookups, so most lookups find their rows in the cache.

Notation: U distinct rows of a lookup, E numbers per row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from training.embeddings.lookup import ExchangedRows, Pooling, RowsOfBatch
from training.embeddings.rows import RowTensor
from training.embeddings.table import StackedEmbedding

ReadRows = Callable[[Tensor], Tensor]


class RowsOnDemand(StackedEmbedding):
    """A table whose rows are read from files when a lookup needs them. This table cannot be trained.

    Lookups use torch's operators. Several threads may look up at the same time.

    Args:
        cardinalities, dim, list_lengths, pooling, storage: see `StackedEmbedding`.
    """

    holds_rows = False

    def __init__(
        self,
        cardinalities: Sequence[int],
        dim: int,
        list_lengths: Sequence[int] = (),
        pooling: Pooling = "mean",
        storage: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(cardinalities, dim, list_lengths, pooling, storage)
        self._kept: KeptRows | None = None

    @property
    def on_kernels(self) -> bool:
        """Returns False: kernels need a matrix with all rows."""
        return False

    @property
    def row_bytes(self) -> int:
        """Returns the bytes of a row."""
        return self.dim * self.weight.element_size()

    def open(self, read: ReadRows, most_rows: int) -> None:
        """Sets the function that reads rows.

        Args:
            read: returns rows (U, E) in the dtype of the table, on the CPU. It gets their indices (U,) int64
                in the unsharded table, which are distinct and in ascending order.
            most_rows: number of rows to keep. If a lookup needs more rows, all rows of this lookup are kept.
        """
        self._kept = KeptRows(read, most_rows, self.weight.detach())

    def _rows_to_read(
        self, rows: RowsOfBatch, dtype: torch.dtype = torch.float32
    ) -> tuple[RowTensor, Tensor, ExchangedRows | None]:
        """See `StackedEmbedding._rows_to_read`. The matrix has the cached rows, in any order."""
        if self._kept is None:
            raise RuntimeError(
                "internal error, please report: the table was used before its files were opened"
            )
        distinct, positions = torch.unique(rows.keys, return_inverse=True)
        table, places = self._kept.find(distinct)
        return table, places[positions], None


class KeptRows:
    """A cache of rows of a table.

    If the cache has too many rows, all rows except those of the current lookup are dropped.

    Args:
        read, most_rows: see `RowsOnDemand.open`.
        like: an empty tensor (0, E) with the dtype and the device of the rows.
    """

    def __init__(self, read: ReadRows, most_rows: int, like: Tensor) -> None:
        self._read, self._most_rows, self._like = read, most_rows, like
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        # Do not reuse the old memory: other threads may still read it.
        device = self._like.device
        self._values = self._like
        self._rows = torch.zeros(0, dtype=torch.int64, device=device)  # ascending indices
        self._places = torch.zeros(0, dtype=torch.int64, device=device)  # their positions in `_values`

    @torch.no_grad()
    # The cache keeps its tensors and changes them in later calls. Tensors from inference mode could not be
    # changed outside that mode.
    @torch.inference_mode(False)
    def find(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns a matrix (K, E), and the position (U,) int64 of each of `rows` in this matrix.

        `rows` (U,) int64 are distinct and in ascending order.
        """
        with self._lock:
            missing = rows[~self._has(rows)]
            if len(missing):
                if len(self._rows) + len(missing) > self._most_rows:
                    self._clear()
                    missing = rows
                self._add(missing)
            return self._values, self._places[torch.searchsorted(self._rows, rows)]

    def _has(self, rows: Tensor) -> Tensor:
        if not len(self._rows):
            return torch.zeros_like(rows, dtype=torch.bool)
        places = torch.searchsorted(self._rows, rows).clamp(max=len(self._rows) - 1)
        return self._rows[places] == rows

    def _add(self, rows: Tensor) -> None:
        count = len(self._rows)
        values = self._with_room(count + len(rows))
        values[count : count + len(rows)] = self._read(rows.cpu()).to(values.device)
        places = torch.arange(count, count + len(rows), device=rows.device)
        self._rows, order = torch.cat([self._rows, rows]).sort()
        self._places = torch.cat([self._places, places])[order]

    def _with_room(self, count: int) -> Tensor:
        """Returns the matrix of the cache, after enlarging it to at least `count` rows."""
        if count > len(self._values):
            room = max(count, min(2 * count, self._most_rows))
            larger = self._like.new_empty(room, self._like.shape[1])
            larger[: len(self._rows)] = self._values[: len(self._rows)]
            self._values = larger
        return self._values


# The code below converts embedding tables to int8, for scoring only. Each row has int8 numbers and one
# float32 scale.
#
#     scale = max |row| / 127,    code = round(number / scale),    number ≈ code * scale
#
# Quantisation changes a number by at most half the scale of the number's row. The method is the row-wise
# post-training quantisation of Guan et al. 2019, arXiv:1911.02079, section 3. The range of codes, -127 to
# 127, is symmetric around zero, so a zero stays zero.

HIGHEST_CODE = 127
_SCALE_BYTES = 4

# Number of rows that are converted at a time.
_CHUNK_ROWS = 65_536


class Int8Embedding(StackedEmbedding):
    """An int8 copy of a table whose rows are all in this process. Lookups return floating-point vectors."""

    scales: Tensor

    def __init__(self, table: StackedEmbedding) -> None:
        rows, dim = table.weight.shape
        # The constructor of the base class draws a seed. fork_rng restores torch's random state afterwards.
        with torch.random.fork_rng(devices=[]):
            super().__init__(
                table.cardinalities, dim, table.list_lengths, table.pooling, torch.int8, table.placement
            )
        self.register_buffer("scales", torch.zeros(rows))
        for first in range(0, rows, _CHUNK_ROWS):
            part = slice(first, first + _CHUNK_ROWS)
            self.weight[part], self.scales[part] = quantise(table.weight[part].float())

    def _scales(self) -> Tensor:
        return self.scales

    def _take(self, table: RowTensor, positions: Tensor) -> Tensor:
        return super()._take(table, positions).mul_(self.scales.index_select(0, positions).unsqueeze(1))


def quantise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Quantises rows (N, E) float32.

    Returns codes (N, E) int8 in [-127, 127] and scales (N,) float32. Rows of zeros have the scale 0.
    """
    scales = rows.abs().amax(dim=1) / HIGHEST_CODE
    divisors = torch.where(scales > 0, scales, 1.0).unsqueeze(1)
    codes = (rows / divisors).round_().clamp_(-HIGHEST_CODE, HIGHEST_CODE)
    return codes.to(torch.int8), scales


def to_int8(model: nn.Module) -> int:
    """Replaces a model's tables in place by int8 copies, if the copies are smaller.

    Tables with one number per row stay float32.

    Returns:
        The number of tables that were replaced.
    """
    replaced = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, StackedEmbedding) and _saves(child):
                setattr(parent, name, Int8Embedding(child))
                replaced += 1
    return replaced


def _saves(table: StackedEmbedding) -> bool:
    dim = table.weight.shape[1]
    return dim + _SCALE_BYTES < dim * table.weight.element_size()
