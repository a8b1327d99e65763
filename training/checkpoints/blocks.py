"""Compares blocks of table rows in files with blocks on a rank, to find their common rows.

A block is a set of evenly spaced rows of one feature (`RowBlock`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor, nn

from training.embeddings.rows import RowBlock, RowTensor, rows_of_block
from training.embeddings.table import tables_of, weights_of


@dataclass(frozen=True)
class StoredBlock:
    """A block of table rows in a file.

    In the file, the rows of the block are consecutive rows of a tensor. The first of these rows is row
    `block.place` of the tensor.
    """

    file: str
    block: RowBlock

    def to_json(self) -> dict[str, Any]:
        """Returns the name of the file and the numbers of the row block as JSON values."""
        block = self.block
        return {
            "file": self.file,
            "feature": block.feature,
            "first": block.first,
            "step": block.step,
            "rows": block.rows,
            "place": block.place,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StoredBlock:
        """Creates a block from the values that `to_json` returned.

        Raises:
            KeyError, TypeError, ValueError: `values` did not come from `to_json`.
        """
        numbers = [values[key] for key in ("feature", "first", "step", "rows", "place")]
        if not all(type(number) is int and number >= 0 for number in numbers) or not values["step"]:
            raise ValueError(
                "all numbers of a row block must be integers of at least 0, and its step must be at least 1: "
                f"{numbers!r:.100}"
            )
        feature, first, step, rows, place = numbers
        return cls(str(values["file"]), RowBlock(feature, first, step, rows, place))


@dataclass(frozen=True)
class Overlap:
    """The rows that two blocks have in common. The common rows are evenly spaced in both blocks.

    Positions are counted from the first row of a block.

    Attributes:
        rows: number of common rows.
        target_first: position of the first common row in the target block.
        target_step: distance between neighbouring common rows in the target block.
        source_first: position of the first common row in the source block.
        source_step: distance between neighbouring common rows in the source block.
    """

    rows: int
    target_first: int
    target_step: int
    source_first: int
    source_step: int


def overlap(target: RowBlock, source: RowBlock) -> Overlap | None:
    """Returns the common rows of two blocks; None if the blocks have no common rows.

    A block contains the rows `first`, `first + step`, `first + 2 * step` and so on of a feature. The common
    rows are the solutions of two congruences (Chinese remainder theorem). The distance between them is the
    least common multiple of both steps.
    """
    if target.feature != source.feature or not target.rows or not source.rows:
        return None
    divisor = math.gcd(target.step, source.step)
    distance = source.first - target.first
    if distance % divisor:
        return None
    common_step = target.step // divisor * source.step
    modulus = source.step // divisor
    steps = distance // divisor * pow(target.step // divisor, -1, modulus) % modulus
    first = target.first + target.step * steps  # one of the common rows; the next lines find the first one
    lowest = max(target.first, source.first)
    first += -(-max(lowest - first, 0) // common_step) * common_step
    last = min(block.first + block.step * (block.rows - 1) for block in (target, source))
    if first > last:
        return None
    return Overlap(
        (last - first) // common_step + 1,
        (first - target.first) // target.step,
        common_step // target.step,
        (first - source.first) // source.step,
        common_step // source.step,
    )


@dataclass(frozen=True)
class OwnedState:
    """The tensors of a trainer's state that one rank writes to disk, by name.

    Attributes:
        equal: tensors that are equal on all ranks. Only rank 0 writes them; on other ranks this mapping is
            empty.
        rows: maps the name of each tensor with one entry per table row to the slices of the tensor that this
            rank writes.
        blocks: maps the same names to the blocks of table rows that the slices contain, in the order of the
            slices. Two slices may belong to the same block.
    """

    equal: dict[str, Tensor]
    rows: dict[str, list[Tensor]]
    blocks: dict[str, list[RowBlock]]

    @property
    def bytes(self) -> int:
        """Returns the size of the tensors that this rank writes."""
        pieces = [*self.equal.values(), *(piece for pieces in self.rows.values() for piece in pieces)]
        return sum(piece.nbytes for piece in pieces)


def owned_state(
    state: Mapping[str, RowTensor], row_state: Mapping[str, Sequence[RowBlock]], *, leads: bool
) -> OwnedState:
    """Returns views of those tensors of a trainer's state that this rank writes to disk.

    Args:
        state: all tensors by name.
        row_state: maps the name of each tensor with one entry per table row to the blocks of these rows on
            this rank.
        leads: whether this rank is rank 0, which writes the tensors that are equal on all ranks.
    """
    equal = {
        name: value.detach()
        for name, value in state.items()
        if leads and name not in row_state and isinstance(value, Tensor)
    }
    owned = OwnedState(equal, {}, {})
    for name, all_blocks in row_state.items():
        blocks = [block for block in all_blocks if block.written and block.rows]
        if not blocks:
            continue
        owned.rows[name] = [rows_of_block(state[name], block).detach() for block in blocks]
        owned.blocks[name] = _merged(blocks)
    return owned


def _merged(blocks: Sequence[RowBlock]) -> list[RowBlock]:
    """Returns the blocks as a file stores them: concatenated, with adjacent blocks of a feature merged.

    On a rank, a feature may have two blocks: one in the memory of the device, and one in host memory. A file
    contains a single block with the rows of both. So the file does not depend on which rows were in host
    memory.
    """
    merged: list[RowBlock] = []
    place = 0
    for block in blocks:
        before = merged[-1] if merged else None
        if (
            before
            and block.feature == before.feature
            and block.first == before.first + before.step * before.rows
        ):
            merged[-1] = replace(before, rows=before.rows + block.rows)
        else:
            merged.append(RowBlock(block.feature, block.first, block.step, block.rows, place))
        place += block.rows
    return merged


# Interface for objects whose state can be saved. The state is a set of named tensors.

WEIGHTS = "model."  # prefix of the names of weights in a trainer's state


class Stateful(Protocol):
    """An object whose training state can be saved, such as a `Trainer`."""

    def state(self) -> dict[str, RowTensor]:
        """Returns all tensors of the state by name."""
        ...

    def row_state(self) -> dict[str, tuple[RowBlock, ...]]:
        """Returns the blocks of rows on this rank, for each tensor that has one entry per table row."""
        ...


@dataclass(frozen=True)
class WeightsOnly:
    """The state of a model without optimizers. All table rows of the model are in this process."""

    model: nn.Module

    def state(self) -> dict[str, RowTensor]:
        """See `Stateful`."""
        return {f"{WEIGHTS}{name}": value for name, value in weights_of(self.model).items()}

    def row_state(self) -> dict[str, tuple[RowBlock, ...]]:
        """See `Stateful`."""
        return {f"{WEIGHTS}{name}": table.blocks for name, table in tables_of(self.model).items()}
