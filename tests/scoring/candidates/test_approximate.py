"""Approximate search against exact search in NumPy: recall, exclusions, repeatability, and the table of clusters."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from conf.errors import DataError
from conf.types import Generate, ModelConfig, MultiHot
from etl.synthetic.click_probability import FEATURES
from etl.synthetic.impressions import ClickWorld, draw_impressions, world_of_day
from scoring.candidates.retrieval import (
    CLUSTERED,
    ApproximateSearch,
    Retriever,
    cluster_batches,
    clusters_of,
    faiss_threads,
    load_retriever,
    number_of_clusters,
    read_clusters,
)
from scoring.candidates.retrieved import clustered_items, is_approximate, retrieved_items
from scoring.candidates.sources.retrieval import Settings as Retrieval
from scoring.model.predictor import Predictor, load_predictor
from scoring.ranking.pairs import context_side
from scoring.requests import ModelRequest, RetrievalRequest
from storage.feature_spec import Feature, FeatureSpec
from tests.scoring.reference_scores import CONTEXT, SPEC, ReferenceScores, write_model
from training.models import build_model

Vectors = NDArray[np.float32]

ITEMS, EDGE = 2_000, 8


def mixture(rows: int, seed: int) -> Vectors:
    """Vectors around 30 common centres, with lengths that differ."""
    centres = np.random.default_rng(9).standard_normal((30, EDGE))
    draw = np.random.default_rng(seed)
    near = centres[draw.integers(0, 30, rows)] + 0.4 * draw.standard_normal((rows, EDGE))
    return (near * np.exp(0.3 * draw.standard_normal((rows, 1)))).astype(np.float32)


@pytest.fixture(scope="module")
def items() -> Vectors:
    return mixture(ITEMS, 1)


@pytest.fixture(scope="module")
def clusters(items: Vectors) -> NDArray[np.int32]:
    return clusters_of(items)


def best_of(users: Vectors, items: Vectors, excluded: list[list[int]], n: int) -> list[list[int]]:
    """The n items with the largest dot products, by sorting all of them."""
    products = users.astype(np.float64) @ items.T.astype(np.float64)
    lists = []
    for row, out in zip(products, excluded, strict=True):
        row[out] = -np.inf
        order = np.lexsort((np.arange(len(items)), -row))
        lists.append(order[: min(n, len(items) - len(set(out)))].tolist())
    return lists


def retriever(users: Vectors, items: Vectors, n: int, search: ApproximateSearch | None) -> Retriever:
    """A retriever whose users' vectors are looked up by their feature `who`."""
    who = [feature.name for feature in SPEC.embedded].index("who")
    vectors = torch.from_numpy(users)
    towers: Any = SimpleNamespace(user_vectors=lambda dense, ids: vectors[ids[:, who]])
    predictor = Predictor(torch.nn.Identity(), SPEC, MultiHot(), "m1", torch.device("cpu"), 64)  # type: ignore[arg-type]
    context = context_side(CONTEXT, SPEC, MultiHot())
    return Retriever(predictor, towers, torch.from_numpy(items), context, n, 1 << 20, search)


def lists_of(searching: Retriever, excluded: list[list[int]]) -> list[list[int]]:
    """The lists of users with these excluded items."""
    frame = {
        "user_key": pa.array([f"u{index}" for index in range(len(excluded))]),
        "who": pa.array(range(len(excluded)), pa.int32()),
        "age": pa.array([0.0] * len(excluded), pa.float32()),
        "excluded": pa.array(excluded, pa.list_(pa.int32())),
    }
    batch = pa.RecordBatch.from_arrays(list(frame.values()), names=list(frame))
    return searching.retrieve(batch).column("candidates").to_pylist()


def test_the_clusters_are_numbered_without_gaps_and_the_same_each_time(
    items: Vectors, clusters: NDArray[np.int32]
) -> None:
    assert number_of_clusters(ITEMS) == 64  # 2 √2000 is 89; the nearest power of two by its logarithm is 64
    assert [number_of_clusters(count) for count in (0, 1, 3, 100_000, 1_000_000)] == [0, 1, 3, 512, 2_048]
    assert np.unique(clusters).tolist() == list(range(clusters.max() + 1))
    assert 50 < clusters.max() + 1 <= 64
    with faiss_threads(2):
        np.testing.assert_array_equal(clusters_of(items.copy()), clusters)
    of_equal = clusters_of(np.ones((50, 3), np.float32))
    assert np.unique(of_equal).tolist() == list(range(of_equal.max() + 1))


def test_reading_all_clusters_finds_what_sorting_finds(items: Vectors, clusters: NDArray[np.int32]) -> None:
    users, draw = mixture(300, 2), np.random.default_rng(3)
    excluded = [draw.permutation(ITEMS)[: draw.integers(0, 30)].tolist() for _ in range(300)]
    search = ApproximateSearch.of(items, clusters, len(items), 1)
    actual = lists_of(retriever(users, items, 20, search), excluded)
    assert actual == best_of(users, items, excluded, 20)


def test_fewer_clusters_find_most_of_the_best_items_with_their_scores(
    items: Vectors, clusters: NDArray[np.int32]
) -> None:
    users = mixture(200, 4)
    recalls = []
    for probes in (1, 4, 16, 64):
        scores, nearest = ApproximateSearch.of(items, clusters, probes, 1).search(users, 20)
        products = np.take_along_axis(users @ items.T, nearest.clip(0), axis=1)
        np.testing.assert_allclose(scores[nearest >= 0], products[nearest >= 0], rtol=1e-4, atol=1e-4)
        best = best_of(users, items, [[]] * 200, 20)
        recalls.append(
            np.mean([len(set(a) & set(b)) / 20 for a, b in zip(nearest.tolist(), best, strict=True)])
        )
    assert recalls == sorted(recalls)
    assert recalls[0] < 0.8
    assert recalls[-1] > 0.99


def test_a_users_items_do_not_depend_on_the_other_users_or_the_threads(
    items: Vectors, clusters: NDArray[np.int32]
) -> None:
    users = mixture(200, 5)
    together = ApproximateSearch.of(items, clusters, 8, 2).search(users, 30)
    alone = [
        ApproximateSearch.of(items, clusters, 8, 1).search(users[row : row + 1], 30) for row in range(200)
    ]
    for part in (0, 1):
        np.testing.assert_array_equal(together[part], np.concatenate([of[part] for of in alone]))


def test_clusters_that_are_equally_near_are_chosen_without_regard_to_the_other_users() -> None:
    """All centroids have the same elements in other orders, so that only rounding decides between them."""
    draw = np.random.default_rng(11)
    elements = draw.standard_normal(64).astype(np.float32)
    items = np.stack([draw.permutation(elements) for _ in range(60)])
    users = np.repeat(draw.standard_normal((40, 1)), 64, axis=1).astype(np.float32)
    search = ApproximateSearch.of(items, np.arange(60, dtype=np.int32), 5, 1)
    _, together = search.search(users, 5)
    alone = np.concatenate([search.search(users[row : row + 1], 5)[1] for row in range(40)])
    np.testing.assert_array_equal(together, alone)


def test_a_user_whose_exclusions_leave_too_few_items_gets_those_of_the_exact_search(
    items: Vectors, clusters: NDArray[np.int32]
) -> None:
    users, n = mixture(4, 6), 10
    search = ApproximateSearch.of(items, clusters, 2, 1)
    near = search.search(users, ITEMS)[1]
    # Everything that the search can find for user 1, and all but five items for user 2, is excluded.
    excluded = [[], near[1][near[1] >= 0].tolist(), list(range(5, ITEMS)), near[3][:3].tolist()]
    actual = lists_of(retriever(users, items, n, search), excluded)
    exact = best_of(users, items, excluded, n)
    assert actual[1:3] == exact[1:3]
    assert [len(listed) for listed in actual] == [n, n, 5, n]
    assert actual[0] == near[0][:n].tolist()
    assert actual[3] == near[3][3 : 3 + n].tolist()
    for listed, out in zip(actual, excluded, strict=True):
        assert not set(listed) & set(out)


def test_vectors_that_are_not_finite_name_the_user_or_the_item(
    items: Vectors, clusters: NDArray[np.int32]
) -> None:
    users = mixture(3, 7)
    users[1, 2] = np.inf
    search = ApproximateSearch.of(items, clusters, 2, 1)
    with pytest.raises(DataError, match=r"retriever m1: the vector of user u1 has NaN or infinite elements"):
        lists_of(retriever(users, items, 5, search), [[]] * 3)
    broken = items[:9].copy()
    broken[4] = np.nan
    with pytest.raises(DataError, match=r"m1: the vector of the item with index 4 has NaN"):
        list(cluster_batches(broken, "retriever m1"))


def test_the_table_of_clusters_is_read_in_the_order_of_the_items(
    items: Vectors, clusters: NDArray[np.int32], tmp_path: Path
) -> None:
    table = pa.Table.from_batches(cluster_batches(items, "m1"), CLUSTERED)
    mixed = table.take(np.random.default_rng(8).permutation(ITEMS))
    files = (str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet"))
    pq.write_table(mixed.slice(0, 700), files[0])
    pq.write_table(mixed.slice(700), files[1])
    vectors, of_items = read_clusters(files)
    np.testing.assert_array_equal(vectors, items)
    np.testing.assert_array_equal(of_items, clusters)
    with pytest.raises(DataError, match=r"the values of item_index are not 0, 1, 2"):
        read_clusters(files[1:])


def encoded(world: ClickWorld, side: str, cardinalities: dict[str, int]) -> torch.Tensor:
    """The ids of all users or all items of a generated day, (rows, columns); 0 where the other side has its columns."""
    of_side = {"user": world.users, "item": world.items}[side]
    rows = len(next(iter(of_side.values())))
    columns = [
        of_side[name] - of_side[name].min() + 1 if name in of_side else np.zeros(rows, np.int64)
        for name in cardinalities
    ]
    return torch.from_numpy(np.stack(columns, axis=1))


def test_the_shipped_setting_finds_the_items_of_a_two_tower_model_on_the_generated_log() -> None:
    """The log has 60,000 items; the model learns from 160,000 impressions in one epoch."""
    day = world_of_day(Generate(users=3_000, items=60_000), date(2026, 1, 1))
    shown = draw_impressions(day, np.random.default_rng(1), 160_000, (0.0, 1.0), 0.0)
    chosen = [c for c in FEATURES if c.kind in ("key", "category") and c.side in ("user", "item")]
    of_day = day.users | day.items
    cardinalities = {c.name: int(np.ptp(of_day[c.name])) + 2 for c in chosen}
    spec = FeatureSpec(
        tuple(Feature(c.name, "categorical", "int32", c.side, cardinalities[c.name]) for c in chosen),
        ("row_id",),
        "w1",
    )
    model: Any = build_model(ModelConfig.model_validate({"architecture": "two_tower"}), spec, seed=1)
    ids = torch.from_numpy(
        np.stack([shown.values[name] - of_day[name].min() + 1 for name in cardinalities], axis=1)
    )
    labels, none = torch.from_numpy(shown.labels).float(), torch.zeros(160_000, 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(40):
        rows = torch.arange(step * 4_096, (step + 1) * 4_096) % len(labels)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            model(none[rows], ids[rows]).flatten(), labels[rows]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        of_users, of_items = encoded(day, "user", cardinalities), encoded(day, "item", cardinalities)
        users = model.user_vectors(torch.zeros(len(of_users), 0), of_users).numpy()[:200]
        items = model.item_vectors(torch.zeros(len(of_items), 0), of_items).numpy()
    source = Retrieval.model_validate({"source": "retrieval", "model": {"architecture": "two_tower"}})
    of_items, best = clusters_of(items), np.argpartition(-(users @ items.T), source.n, axis=1)[:, : source.n]

    def recall(probes: int) -> float:
        search = ApproximateSearch.of(items, of_items, probes, 1)
        _, nearest = search.search(users, source.n)
        assert search.index.nlist > 400
        return float(
            np.mean([len(np.intersect1d(*pair)) for pair in zip(nearest, best, strict=True)]) / source.n
        )

    assert recall(source.probes) >= 0.95
    assert recall(1) < 0.7  # the items of a user are not all in one cluster


@pytest.mark.parametrize(
    "search, items, device, approximate",
    [
        ("auto", 100_000, "cpu", False),
        ("auto", 100_001, "cpu", True),
        ("auto", 100_001, "cuda", False),
        ("exact", 100_001, "cpu", False),
        ("approximate", 3, "cpu", True),
        ("approximate", 3, "cuda", True),
        ("approximate", 0, "cpu", False),
    ],
)
def test_which_search_a_number_of_items_and_a_device_get(
    search: str, items: int, device: Any, approximate: bool
) -> None:
    section = {"source": "retrieval", "search": search, "model": {"architecture": "two_tower"}}
    no_session: Any = None
    assert is_approximate(no_session, Retrieval.model_validate(section), items, device) is approximate


def test_spark_publishes_and_searches_the_clusters(
    spark: SparkSession, reference: ReferenceScores, tmp_path: Path
) -> None:
    source = Retrieval.model_validate({"source": "retrieval", "model": {"architecture": "two_tower"}})
    assert is_approximate(spark, source, 100_001, "auto") is not torch.cuda.is_available()
    path = write_model(tmp_path / "towers", "two_tower", version="t1")
    model = ModelRequest(path, "cpu", 16)
    request = RetrievalRequest(model, reference.request.item_files, tuple(CONTEXT.items()), 6)
    clustered_items(spark, request).repartition(3).write.parquet(str(tmp_path / "clusters"))
    files = tuple(map(str, sorted((tmp_path / "clusters").glob("*.parquet"))))
    vectors, of_items = read_clusters(files)
    exact = load_retriever(request, load_predictor(model, None, 1))
    np.testing.assert_array_equal(vectors, exact.vectors.numpy())
    assert of_items.max() + 1 <= number_of_clusters(23)

    draw = np.random.default_rng(5)
    rows: list[Any] = reference.users[["user_key", "who", "age"]].to_dict("records")
    rows = [{**row, "excluded": draw.permutation(23)[: draw.integers(0, 23)].tolist()} for row in rows]
    users = spark.createDataFrame(rows, "user_key string, who int, age float, excluded array<int>")
    searching = replace(request, cluster_files=files, probes=16)
    lists = {
        asked: {row.user_key: row.candidates for row in retrieved_items(users, ["who", "age"], of).collect()}
        for asked, of in (("exact", request), ("approximate", searching))
    }
    assert lists["approximate"] == lists["exact"]
