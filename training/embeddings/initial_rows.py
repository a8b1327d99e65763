"""Sets the rows of an embedding table to random numbers that do not depend on the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from storage.feature_spec import PAD_ID
from training.embeddings.router import Router
from training.embeddings.rows import RowBlock

# Count of random numbers that are drawn at a time, whatever the table's size. On a CPU they fit into a core's
# cache. A GPU needs many, because starting an operation takes as long as computing a million numbers.
_DRAWN_NUMBERS = 2**18
_DRAWN_ON_A_GPU = 2**25


class Table(Protocol):
    """What `fill_rows` needs of a StackedEmbedding."""

    blocks: tuple[RowBlock, ...]
    router: Router
    cardinalities: tuple[int, ...]
    list_lengths: tuple[int, ...]

    @property
    def dim(self) -> int:
        """Returns the number of numbers per row."""

    def block_rows(self) -> Sequence[Tensor]:
        """Returns a view of the rows of each block."""


@torch.no_grad()
def fill_rows(table: Table, draw: Callable[[int, Tensor, int], Tensor]) -> None:
    """Sets all rows of a table to the result of `draw(seed, rows of the unsharded table, feature)`.

    The padding row of a list feature becomes zero.
    """
    seed = int(torch.randint(2**62, ()))
    first_list = len(table.cardinalities) - len(table.list_lengths)
    device = table.router.block_ends.device  # also of rows in host memory, so that a GPU draws them
    count = max((_DRAWN_NUMBERS if device.type == "cpu" else _DRAWN_ON_A_GPU) // table.dim, 1)
    for block, rows in zip(table.blocks, table.block_rows(), strict=True):
        places = range(block.place, block.place + block.rows, count)
        for part, place in zip(rows.split(count), places, strict=True):
            local = torch.arange(place, place + len(part), device=device)
            part.copy_(draw(seed, table.router.unsharded_rows(local), block.feature))
        if block.feature >= first_list and block.first == PAD_ID and block.rows:
            rows[PAD_ID] = 0
