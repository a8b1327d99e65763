"""Placements of rows on ranks made by hand, and a stand-in for a trainer that holds its rows so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from training.embeddings.rows import RowBlock

Layout = Callable[[Sequence[int], int, int], list[RowBlock]]


def _placed(wanted: Sequence[tuple[int, int, int, int, bool]]) -> list[RowBlock]:
    """Blocks one after the other, of (feature, first, step, rows, written)."""
    blocks, place = [], 0
    for feature, first, step, rows, written in wanted:
        blocks.append(RowBlock(feature, first, step, rows, place, written))
        place += rows
    return blocks


def replicated(cardinalities: Sequence[int], rank: int, ranks: int) -> list[RowBlock]:
    """All rows on every rank; each feature is written by one of them."""
    return _placed(
        [(feature, 0, 1, rows, feature % ranks == rank) for feature, rows in enumerate(cardinalities)]
    )


def table_wise(cardinalities: Sequence[int], rank: int, ranks: int) -> list[RowBlock]:
    """Whole features, each on one rank; the last feature comes first."""
    blocks = [
        (feature, 0, 1, rows, True) for feature, rows in enumerate(cardinalities) if feature % ranks == rank
    ]
    return _placed(blocks[::-1])


def row_wise(cardinalities: Sequence[int], rank: int, ranks: int) -> list[RowBlock]:
    """Of each feature every so many rows."""
    return _placed(
        [
            (feature, rank, ranks, max(0, -(-(rows - rank) // ranks)), True)
            for feature, rows in enumerate(cardinalities)
        ]
    )


def mixed(cardinalities: Sequence[int], rank: int, ranks: int) -> list[RowBlock]:
    """The first feature on all ranks, the second on the last one, the others by rows."""
    last = ranks - 1
    wanted = [(0, 0, 1, cardinalities[0], rank == 0)]
    wanted += [(1, 0, 1, cardinalities[1], True)] if rank == last else []
    wanted += [
        (feature, rank, ranks, max(0, -(-(rows - rank) // ranks)), True)
        for feature, rows in enumerate(cardinalities)
        if feature > 1
    ]
    return _placed(wanted)


LAYOUTS: dict[str, Layout] = {
    "replicated": replicated,
    "table-wise": table_wise,
    "row-wise": row_wise,
    "mixed": mixed,
}

# What a row of a feature holds, by name of the state: (width of a row, dtype).
ROW_STATE = {
    "model.embedding.weight": ((3,), torch.bfloat16),
    "adagrad.embedding.weight": ((), torch.float32),
    "adam.rows.embedding.weight": ((3,), torch.float32),
}


@dataclass
class FakeTrainer:
    """The tensors of a trainer with a layout: zeros, or numbers that identify their place."""

    layout: Layout
    cardinalities: Sequence[int]
    rank: int = 0
    ranks: int = 1
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = sum(block.rows for block in self.blocks)
        for name, (width, dtype) in ROW_STATE.items():
            self.tensors[name] = torch.zeros(rows, *width, dtype=dtype)
        self.tensors["model.dense.weight"] = torch.zeros(4, 2)
        self.tensors["adam.steps"] = torch.zeros((), dtype=torch.int64)

    @property
    def blocks(self) -> list[RowBlock]:
        return self.layout(self.cardinalities, self.rank, self.ranks)

    def fill(self, step: int = 0) -> FakeTrainer:
        """Numbers that bfloat16 holds exactly are asked for with few rows: up to 256."""
        for place, (name, (width, dtype)) in enumerate(ROW_STATE.items()):
            for block in self.blocks:
                ids = block.first + block.step * torch.arange(block.rows)
                values = (ids * 7 + block.feature * 31 + place * 3 + step) % 251
                into = self.tensors[name][block.place : block.place + block.rows]
                into.copy_((values.view(-1, *[1] * len(width)) + torch.zeros(width)).to(dtype))
        self.tensors["model.dense.weight"].copy_(torch.arange(8.0).view(4, 2) + step)
        self.tensors["adam.steps"].fill_(step)
        return self

    def state(self) -> dict[str, Tensor]:
        return self.tensors

    def row_state(self) -> dict[str, tuple[RowBlock, ...]]:
        return dict.fromkeys(ROW_STATE, tuple(self.blocks))


def equal(one: FakeTrainer, other: FakeTrainer) -> bool:
    return one.tensors.keys() == other.tensors.keys() and all(
        torch.equal(value, other.tensors[name]) for name, value in one.tensors.items()
    )
