"""Embedding tables in int8, for scoring only. Each row has int8 numbers and one float32 scale.

    scale = max |row| / 127,    code = round(number / scale),    number ≈ code * scale

Quantisation changes a number by at most half the scale of the number's row. This is row-wise post-training
quantisation as in Guan et al. 2019, arXiv:1911.02079, section 3. The range of codes, -127 to 127, is
symmetric around zero, so a zero stays zero.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.embeddings.table import StackedEmbedding
from training.embeddings.tiered_rows import RowTensor

HIGHEST_CODE = 127
_SCALE_BYTES = 4
# Number of rows that are converted at a time.
_CHUNK_ROWS = 65_536


class Int8Embedding(StackedEmbedding):
    """An int8 copy of a table whose rows are all in this process. Lookups return floating-point vectors."""

    scales: Tensor

    def __init__(self, table: StackedEmbedding) -> None:
        rows, dim = table.weight.shape
        with torch.random.fork_rng(devices=[]):  # the base class draws a random seed
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
