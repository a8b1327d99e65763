"""Which rows two blocks share, against sets; and what a rank is to write."""

from __future__ import annotations

import random

import pytest
import torch

from tests.training.checkpoints.layouts import LAYOUTS, FakeTrainer
from training.checkpoints.blocks import StoredBlock, overlap, owned_state
from training.embeddings.rows import RowBlock


def ids_of(block: RowBlock) -> list[int]:
    return [block.first + block.step * place for place in range(block.rows)]


def test_overlaps_are_those_of_sets() -> None:
    draw = random.Random(1)
    shared = 0
    for _ in range(4000):
        target, source = (
            RowBlock(0, draw.randrange(12), draw.randrange(1, 9), draw.randrange(12), 0) for _ in range(2)
        )
        expected = sorted(set(ids_of(target)) & set(ids_of(source)))
        common = overlap(target, source)
        if common is None:
            assert expected == []
            continue
        shared += 1
        targets = [common.target_first + common.target_step * row for row in range(common.rows)]
        sources = [common.source_first + common.source_step * row for row in range(common.rows)]
        assert [ids_of(target)[row] for row in targets] == expected
        assert [ids_of(source)[row] for row in sources] == expected
    assert shared > 1000


def test_features_share_nothing() -> None:
    assert overlap(RowBlock(0, 0, 1, 5, 0), RowBlock(1, 0, 1, 5, 0)) is None


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_write_every_row_once(layout: str, ranks: int) -> None:
    cardinalities = [9, 1, 14]
    seen = []
    for rank in range(ranks):
        trainer = FakeTrainer(LAYOUTS[layout], cardinalities, rank, ranks).fill()
        owned = owned_state(trainer.state(), trainer.row_state(), leads=rank == 0)
        assert bool(owned.equal) == (rank == 0)
        for name, blocks in owned.blocks.items():
            laid = torch.cat(owned.rows[name])
            assert len(laid) == sum(block.rows for block in blocks)
            if name != "adagrad.embedding.weight":
                continue
            for block in blocks:
                expected = [(row * 7 + block.feature * 31 + 3) % 251 for row in ids_of(block)]
                assert laid[block.place : block.place + block.rows].tolist() == expected
                seen += [(block.feature, row) for row in ids_of(block)]
    assert sorted(seen) == [
        (feature, row) for feature, rows in enumerate(cardinalities) for row in range(rows)
    ]


def test_a_stored_block_survives_json() -> None:
    stored = StoredBlock("a.safetensors", RowBlock(3, 1, 4, 9, 17))
    assert StoredBlock.from_json(stored.to_json()) == stored
