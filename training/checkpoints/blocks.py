"""Rows as they lie in files, and which of them a rank that holds other rows takes from where."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from training.embeddings.rows import RowBlock


@dataclass(frozen=True)
class StoredBlock:
    """Rows of one feature that lie together in a tensor of a file, `block.place` being the first one's row there."""

    file: str
    block: RowBlock

    def to_json(self) -> dict[str, Any]:
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
        feature, first, step, rows, place = (
            int(values[key]) for key in ("feature", "first", "step", "rows", "place")
        )
        return cls(str(values["file"]), RowBlock(feature, first, step, rows, place))


@dataclass(frozen=True)
class Overlap:
    """Rows that two blocks have in common, counted in each from its first row on: so many, evenly spaced in both."""

    rows: int
    mine: int
    mine_step: int
    theirs: int
    theirs_step: int


def overlap(mine: RowBlock, theirs: RowBlock) -> Overlap | None:
    """What two blocks of one feature share; None when that is nothing.

    Rows first, first + step, … of each: the common ones are the solutions of two congruences (Chinese remainder
    theorem), and lie lcm(step, step) apart.
    """
    if mine.feature != theirs.feature or not mine.rows or not theirs.rows:
        return None
    divisor = math.gcd(mine.step, theirs.step)
    distance = theirs.first - mine.first
    if distance % divisor:
        return None
    apart = mine.step // divisor * theirs.step
    modulus = theirs.step // divisor
    turns = distance // divisor * pow(mine.step // divisor, -1, modulus) % modulus
    first = mine.first + mine.step * turns
    lowest = max(mine.first, theirs.first)
    first += -(-max(lowest - first, 0) // apart) * apart
    last = min(each.first + each.step * (each.rows - 1) for each in (mine, theirs))
    if first > last:
        return None
    return Overlap(
        (last - first) // apart + 1,
        (first - mine.first) // mine.step,
        apart // mine.step,
        (first - theirs.first) // theirs.step,
        apart // theirs.step,
    )


@dataclass(frozen=True)
class Owned:
    """What one rank is to write, by name in the trainer's state.

    Attributes:
        equal: tensors that are equal on all ranks; none but on rank 0.
        rows: the pieces of tensors that hold one entry a row.
        blocks: where the rows of these pieces lie, laid one after the other.
    """

    equal: dict[str, Tensor]
    rows: dict[str, list[Tensor]]
    blocks: dict[str, list[RowBlock]]


def owned(state: Mapping[str, Tensor], row_state: Mapping[str, Sequence[RowBlock]], *, leads: bool) -> Owned:
    """The part of a state that this rank writes, as views; `leads` on rank 0."""
    equal = {name: value.detach() for name, value in state.items() if leads and name not in row_state}
    found = Owned(equal, {}, {})
    for name, all_blocks in row_state.items():
        mine = [block for block in all_blocks if block.written and block.rows]
        if not mine:
            continue
        value = state[name].detach()
        found.rows[name] = [value[block.place : block.place + block.rows] for block in mine]
        place, placed = 0, []
        for block in mine:
            placed.append(RowBlock(block.feature, block.first, block.step, block.rows, place))
            place += block.rows
        found.blocks[name] = placed
    return found
