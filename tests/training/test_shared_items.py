"""Items that all users share get the logits of the factorization, pair by pair."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.training.test_factorization import MORE, RANKERS, SHAPES, make_model, make_spec, side_rows
from training.models import shared_items
from training.models.factorization import Factorizable, FeatureSides, Part, SharesItems, Side
from training.models.shared_items import _distinct

USERS, ITEMS = 37, 90
NAMES = [name for name in (*RANKERS, *MORE) if name.startswith("dlrm")]


@torch.inference_mode()
def parts_of(name: str, shape: str) -> tuple[SharesItems, Part, Part]:
    """The factorization of a model, and the parts of users and items; the items' first rows are all alike."""
    spec = make_spec(shape)
    model, config = make_model(name, spec)
    assert isinstance(model, Factorizable)
    factorization = model.factorize(FeatureSides.of(spec), torch.float32)
    assert isinstance(factorization, SharesItems)
    dense, ids = side_rows(spec, config, False, ITEMS)
    context = [feature.scope == "context" for feature in spec.dense]
    dense[:, context] = 0.7
    if ids.shape[1]:
        ids[:, 0] = ids[0, 0]  # one value in all items
    users = factorization.side_part(Side.USER, *side_rows(spec, config, True, USERS))
    return factorization, users, factorization.side_part(Side.ITEM, dense, ids)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["compiled", 16, 1024])
@torch.inference_mode()
def test_logits_are_those_of_pairs(
    name: str, shape: str, way: str | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way != "compiled":  # by torch, in tiles of so many items
        monkeypatch.setattr(shared_items, "_TILE_ITEMS", way)
        monkeypatch.setattr(shared_items, "library", lambda: None)
    factorization, users, items = parts_of(name, shape)
    shared = factorization.share_items(items, 2**30)
    if shared is None:
        assert not len(users[1][0]) or not len(items[1][0])  # there is no product of two vectors
        return
    expected = factorization.pair_logits(users, tuple(part.unsqueeze(0) for part in items))
    assert isinstance(shared, shared_items.SharedItems)
    assert (shared._compiled_logits is not None) == (way == "compiled")
    for first, last in ((0, ITEMS), (0, 1), (5, 70)):
        actual = shared.logits(users, slice(first, last))
        torch.testing.assert_close(actual, expected[:, first:last], rtol=1e-4, atol=1e-4)
    some = tuple(part[3:9] for part in users)
    torch.testing.assert_close(shared.logits(some, slice(0, ITEMS)), expected[3:9], rtol=1e-4, atol=1e-4)


def test_all_three_kinds_of_vectors_occur() -> None:
    with torch.inference_mode():
        factorization, _, items = parts_of("dlrm", "everything on both sides")
        shared = factorization.share_items(items, 2**30)
    assert isinstance(shared, shared_items.SharedItems)
    kinds = [len(kind) for kind in (shared._equal, shared._few, shared._many)]
    assert min(kinds) > 0


def test_items_that_need_too_much_memory_are_not_shared() -> None:
    with torch.inference_mode():
        factorization, _, items = parts_of("dlrm", "everything on both sides")
        needed = shared_items.SharedItems.bytes_of(
            items, factorization._top.pair_weights.shape[1], mixed=True
        )  # type: ignore[attr-defined]
        assert factorization.share_items(items, needed - 1) is None
        assert factorization.share_items(items, needed) is not None


@pytest.mark.parametrize("values", [1, 3, 50])
def test_distinct_rows_and_their_numbers(values: int) -> None:
    draw = torch.Generator().manual_seed(values)
    table: Tensor = torch.randn(values, 6, generator=draw)
    rows = table[torch.randint(values, (200,), generator=draw)]
    distinct, number = _distinct(rows)
    assert len(distinct) == len(torch.unique(rows, dim=0))
    assert torch.equal(distinct[number], rows)
    same_sum = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    assert torch.equal(_distinct(same_sum)[0][_distinct(same_sum)[1]], same_sum)
