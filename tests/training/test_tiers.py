"""Which table rows are on a device: the best split, the rows of both memories, and the settings."""

from __future__ import annotations

import logging
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import ConfigError
from conf.train_types import Embeddings
from conf.types import Train
from storage.id_counts import IdCounts
from storage.paths import LakePaths
from tests.training.architectures import variant
from tests.training.feature_rows import make_spec
from tests.training.test_spread_tables import PLACEMENTS
from tests.training.test_training import random_plan
from training.collectives import ALONE
from training.embeddings.placement import (
    FeaturePlacement,
    Placement,
    PlannedTable,
    Router,
    TableShape,
    Tiers,
    choose_tiers,
    plan_placement,
)
from training.embeddings.table import tables_of
from training.loop.run import plan_tiers, train_in_process
from training.models import build_model, planned_tables

CPU = torch.device("cpu")


def one_table(counts: list[list[int]], row_bytes: int = 1) -> PlannedTable:
    """A table of one rank whose features have these counts."""
    cardinalities = tuple(map(len, counts))
    features = tuple(FeaturePlacement("replicated") for _ in counts)
    names = tuple(f"C{number}" for number in range(len(counts)))
    return PlannedTable(Placement(cardinalities, features), row_bytes, (1,) * len(counts), names)


COUNTS = st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=7), min_size=1, max_size=3)


@settings(max_examples=200)
@given(counts=COUNTS, rows=st.integers(0, 20), descending=st.booleans())
def test_the_split_is_the_best_one(counts: list[list[int]], rows: int, descending: bool) -> None:
    """Of all numbers of first rows that fit; not always with appended ids, whose runs may not fit as a whole."""
    for of_feature in counts:
        if descending:
            of_feature.sort(reverse=True)
    table = one_table(counts, row_bytes=4)
    arrays = {name: np.array(of_feature) for name, of_feature in zip(table.names, counts, strict=True)}
    tiers = choose_tiers([table], arrays, 4 * rows, pinned=False)
    if sum(map(len, counts)) <= rows:
        assert tiers is None
        return
    assert tiers is not None
    (hot,) = tiers.hot
    hits = sum(sum(of_feature[:first]) for of_feature, first in zip(counts, hot, strict=True))
    assert sum(hot) == rows  # nothing is left unused
    total = sum(map(sum, counts))
    assert tiers.expected == pytest.approx(hits / total if total else 0)
    best = [0] + [-1] * rows  # by number of rows
    for of_feature in counts:
        sums = list(accumulate(of_feature, initial=0))
        best = [
            max(
                best[left] + sums[all_rows - left]
                for left in range(all_rows + 1)
                if all_rows - left < len(sums) and best[left] >= 0
            )
            if any(all_rows - left < len(sums) and best[left] >= 0 for left in range(all_rows + 1))
            else -1
            for all_rows in range(rows + 1)
        ]
    if descending:
        assert hits == max(best)
    else:
        assert hits <= max(best)


@settings(max_examples=100)
@given(
    cardinalities=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    ranks=st.integers(1, 4),
    placement=st.sampled_from(list(PLACEMENTS)),
    data=st.data(),
)
def test_every_row_is_in_one_memory_of_its_ranks(
    cardinalities: list[int], ranks: int, placement: str, data: st.DataObject
) -> None:
    """The router sends each id to the row that holds it."""
    hot = tuple(data.draw(st.integers(0, rows)) for rows in cardinalities)
    shape = TableShape(tuple(cardinalities), 36, (1,) * len(cardinalities))
    plain = plan_placement(shape, ranks, Embeddings.model_validate(PLACEMENTS[placement]))
    tiered = Placement(plain.cardinalities, plain.features, ranks, hot)
    for feature, rows in enumerate(cardinalities):
        held: dict[int, list[int]] = {row: [] for row in range(rows)}
        for rank in range(ranks):
            router = Router(tiered, rank)
            for block in tiered.blocks(rank):
                if block.feature != feature:
                    continue
                of_block = range(block.first, block.first + block.rows * block.step, block.step)
                is_tail = block.place >= tiered.first_tail
                assert all((row >= hot[feature]) == is_tail for row in of_block)
                for offset, row in enumerate(of_block):
                    held[row].append(rank)
                    if plain.exchanges:
                        key = router.keys(torch.tensor([row]), torch.tensor([feature]))
                        owner = ranks if plain.features[feature].kind == "replicated" else rank
                        assert key.tolist() == [owner * router.span + block.place + offset]
                    else:
                        rows_of_id = router.replicated_rows(torch.tensor([row]), torch.tensor([feature]))
                        assert rows_of_id.tolist() == [block.place + offset]
        copies = ranks if plain.features[feature].kind == "replicated" else 1
        assert all(len(ranks_of_row) == copies for ranks_of_row in held.values())
    for rank in range(ranks):
        places = [
            place for block in tiered.blocks(rank) for place in range(block.place, block.place + block.rows)
        ]
        assert len(set(places)) == len(places) == plain.rows_of(rank)
        assert max(places, default=0) < tiered.end_of(rank) or not places


@settings(max_examples=60)
@given(budget=st.integers(0, 3000), ranks=st.integers(2, 4), placement=st.sampled_from(list(PLACEMENTS)))
def test_no_rank_holds_more_than_its_bytes_and_none_could_hold_more(
    budget: int, ranks: int, placement: str
) -> None:
    cardinalities = (40, 9, 150)
    shape = TableShape(cardinalities, 12, (1, 1, 2))
    plain = plan_placement(shape, ranks, Embeddings.model_validate(PLACEMENTS[placement]))
    table = PlannedTable(plain, 12, shape.lookups, ("a", "b", "c"))
    counts = {name: np.arange(rows, 0, -1) for name, rows in zip("abc", cardinalities, strict=True)}
    tiers = choose_tiers([table], counts, budget, pinned=False)
    if tiers is None:
        assert max(plain.rows_of(rank) for rank in range(ranks)) * 12 <= budget
        return
    (hot,) = tiers.hot

    def bytes_of(hot: tuple[int, ...]) -> list[int]:
        tiered = Placement(cardinalities, plain.features, ranks, hot)
        return [tiered.hot_rows_of(rank) * 12 for rank in range(ranks)]

    assert max(bytes_of(hot)) <= budget
    for feature, rows in enumerate(cardinalities):
        if hot[feature] < rows:
            more = tuple(first + (place == feature) for place, first in enumerate(hot))
            assert max(bytes_of(more)) > budget


def test_a_table_that_is_hot_as_a_whole_has_no_tail() -> None:
    """And its lookups do not count: they are hot anyway."""
    wide, narrow = one_table([[9, 1]], row_bytes=100), one_table([[5, 5]], row_bytes=1)
    tiers = choose_tiers([wide, narrow], {"C0": np.array([9, 1])}, 102, pinned=False)
    assert tiers is not None
    assert tiers.hot == ((1,), (2,))
    assert tiers.expected == pytest.approx(0.9)
    spec, config = make_spec(2, [40, 30]), variant("wide_and_deep")
    tables = planned_tables(config, spec, Embeddings())
    hot = tuple(
        tuple(rows // (1 + number) for rows in table.placement.cardinalities)
        for number, table in enumerate(tables)
    )
    model = build_model(config, spec, 7, Embeddings(), tiers=Tiers(hot, pinned=False, expected=0.5))
    assert [table.tail is None for table in tables_of(model).values()].count(True) == 1


def test_a_training_reports_where_its_rows_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The split and the hit rate are logged, and every history entry has the hit rate."""
    caplog.set_level(logging.INFO, "nightrank")
    spec = make_spec(2, [40_000, 5])
    config = variant("dlrm", embedding_dim=16, bottom_mlp=[8, 16])
    train = Train.model_validate(
        {"device": "cpu", "num_ranks": 1, "embedding_memory": "auto", "embedding_memory_mib": 1}
    )
    tiers = plan_tiers(config, spec, train, IdCounts(), ALONE, CPU)
    assert tiers is not None
    table = planned_tables(config, spec, train.embeddings)[0]
    assert table.row_bytes == 16 * 4 + 4
    assert sum(tiers.hot[0]) == 2**20 // table.row_bytes
    assert "at most 1048576 of the 2720340 bytes of a rank are on the device" in caplog.text
    assert "C0" in caplog.text


def test_enough_memory_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nightrank")
    plan = random_plan(
        LakePaths(str(tmp_path)), device="cpu", embedding_memory="auto", embedding_memory_mib=64
    )
    description = train_in_process(plan)
    assert "all embedding rows are on the device" in caplog.text
    assert all("hot_share" not in entry for entry in description["history"])


def test_a_cpu_needs_a_number_of_bytes() -> None:
    with pytest.raises(ValueError, match="embedding_memory=auto with device=cpu needs embedding_memory_mib"):
        Train(device="cpu", embedding_memory="auto")
    with pytest.raises(ValueError, match="embedding_memory_mib needs embedding_memory=auto"):
        Train(embedding_memory_mib=3)
    train = Train(num_ranks=1, embedding_memory="auto")
    with pytest.raises(ConfigError, match=r"on a CPU needs train\.embedding_memory_mib") as caught:
        plan_tiers(variant("dlrm"), make_spec(2, [5]), train, IdCounts(), ALONE, CPU)
    assert "train.embedding_memory_mib" in str(caught.value.remedy)
