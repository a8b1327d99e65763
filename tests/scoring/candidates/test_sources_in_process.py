"""Sources of candidates compute the same lists from tables in this process as from frames of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from conf.errors import DataError
from conf.types import Candidates
from jobs.build_candidates import run as build_candidates
from scoring.candidates import item_pairs, popular
from scoring.candidates.als import als_items, als_vectors
from scoring.candidates.als_vectors import first_vectors
from scoring.candidates.build import make_candidates
from scoring.candidates.candidate_tables import read_candidate_tables, segment_of
from scoring.candidates.clicks import clicked_items
from scoring.candidates.ease import ease_items, gram_matrix
from scoring.candidates.exclusions import Exclusions, exclude
from scoring.candidates.item_pairs import ClickMatrix, neighbour_table, pair_batches
from scoring.candidates.lists_in_spark import VectorStore
from scoring.candidates.source_tables import SourceTables
from scoring.candidates.sources.als import Settings as Als
from scoring.candidates.sources.covisitation import Settings as Covisitation
from scoring.candidates.sources.ease import Settings as Ease
from scoring.candidates.sources.item_knn import Settings as ItemKnn
from scoring.candidates.unite_sources import places_by_source
from scoring.evaluation.blend_fit import measured_pairs
from scoring.model import context_features
from scoring.model.champion import champion_and_dataset
from spark.rows import collected, frame_of
from storage.manifest import Manifest, read_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.scoring.candidates.test_candidate_jobs import SECTION, SOURCES, read_rows, write_tables
from tests.scoring.reference_scores import CONTEXT, ReferenceScores, write_model
from tests.scoring.scoring_lake import RUN_DATE, WORKFLOW, EncodedContext, make_config, publish_lake
from training.registry import mlflow_mirror
from training.registry.versions import ChampionDecision, record_decision, record_run

DAYS = [f"2026-01-0{day}" for day in range(1, 7)]
ALL_SOURCES: list[dict[str, Any]] = [
    {"source": "covisitation", "n": 4, "window_days": 4, "clicks_per_user": 5, "neighbours": 3},
    {"source": "item_knn", "n": 3, "shrink": 1.5, "neighbours": 6},
    {"source": "ease", "n": 3, "l2": 4.0},
    {"source": "als", "n": 3, "rank": 5, "iterations": 3},
    {"source": "popular", "n": 4, "segment": "country", "window_days": 5},
    {"source": "popular", "n": 6},
]


def random_log(seed: int, *, event_time: bool = False, weights: bool = False) -> pa.Table:
    """Rows of users u00 to u39 and items i00 to i24; some items are popular, and some are unknown."""
    draw = np.random.default_rng(seed)
    rows = 700
    item = np.minimum(draw.geometric(0.12, rows) - 1, 24)
    user = np.minimum(draw.geometric(0.06, rows) - 1, 39)
    columns = {
        "user_key": pa.array([f"u{number:02d}" for number in user]),
        "item_key": pa.array(["gone" if number == 7 else f"i{number:02d}" for number in item]),
        "label": pa.array((draw.random(rows) < 0.5).astype(np.float32)),
        "features_dt": pa.array(draw.choice(DAYS, rows)),
    }
    if event_time:
        seconds = draw.integers(0, 6 * 24, rows) * 3600  # some clicks of a user have the same time
        columns["event_time"] = pa.array((1_767_225_600 + seconds) * 1_000_000)
    if weights:
        columns["weight"] = pa.array(draw.choice(np.array([0.25, 1.0, 3.0], np.float32), rows))
    return pa.table(columns)


def items_of() -> pa.Table:
    keys = [f"i{number:02d}" for number in range(25) if number != 7]
    return pa.table({"item_index": pa.array(range(len(keys)), pa.int32()), "item_key": keys})


def segments_of(seed: int) -> pa.Table:
    """Countries of users; a few users have none, and nobody of the country `none` has a click."""
    draw = np.random.default_rng(seed)
    users = [f"u{number:02d}" for number in range(44)]
    countries: list[str | None] = [str(draw.choice(["at", "be", "ch"])) for _ in users[:38]]
    countries += [None, None, *["none"] * 4]
    return pa.table({"user_key": users, "segment": pa.array(countries, pa.string())})


def store_in(folder: Path) -> VectorStore:
    """Writes what sources publish, as two files."""

    def publish(source: str, rows: Any, *_: int) -> tuple[str, ...]:
        target = folder / source
        if not isinstance(rows, pa.Table):
            rows.repartition(2).write.parquet(str(target))
            return tuple(map(str, sorted(target.glob("*.parquet"))))
        target.mkdir(parents=True)
        half = len(rows) // 2
        for number, part in enumerate((rows.slice(half), rows.slice(0, half))):
            pq.write_table(part, target / f"{number}.parquet")
        return tuple(map(str, sorted(target.glob("*.parquet"))))

    return VectorStore(publish, "cpu", str(folder / "checkpoints"))


def rows_of(lists: pa.Table | DataFrame) -> dict[str, dict[str, Any]]:
    rows = lists.to_pylist() if isinstance(lists, pa.Table) else [row.asDict() for row in lists.collect()]
    return {row.pop("user_key"): row for row in rows}


def tables_of(
    form: SparkSession | None, log: pa.Table, seed: int, clicked: bool, folder: Path
) -> SourceTables:
    """The inputs of sources: as frames of a session, or as tables."""

    def rows(table: pa.Table) -> Any:
        if form is None:
            return table
        return form.createDataFrame(table.to_pandas(), _ddl(table)).persist()

    items, frame, segments = rows(items_of()), rows(log), rows(segments_of(seed))
    users = rows(segments_of(seed).select(["user_key"]))
    known = clicked_items(frame, items) if clicked else None
    return SourceTables(
        exclude(users, items, known, []),
        items,
        frame,
        DAYS[-1],
        {"country": segments},
        store=store_in(folder),
    )


def _ddl(table: pa.Table) -> str:
    names = {"int32": "int", "int64": "bigint"}
    return ", ".join(f"{field.name} {names.get(str(field.type), field.type)}" for field in table.schema)


def assert_same_lists(actual: Any, expected: Any) -> None:
    """Lists are equal, and scores up to rounding."""
    assert {*actual} == {*expected}
    for user, row in expected.items():
        assert {*actual[user]} == {*row}
        for name, value in row.items():
            if name.endswith("scores"):
                np.testing.assert_allclose(actual[user][name], value, rtol=1e-5, atol=1e-5)
            else:
                assert actual[user][name] == value, (user, name)


@pytest.mark.parametrize(
    "seed, options, clicked, most",
    [
        (1, {}, True, None),
        (2, {"event_time": True}, False, 9),
        (3, {"event_time": True, "weights": True}, True, 12),
    ],
)
def test_random_logs_give_the_lists_of_spark(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    options: dict[str, bool],
    clicked: bool,
    most: int | None,
) -> None:
    """Also if blocks of items, and of users, are small."""
    monkeypatch.setattr(item_pairs, "_BLOCK_ADDITIONS", 150)
    monkeypatch.setattr(popular, "_MATRIX_ELEMENTS", 64)
    log = random_log(seed, **options)
    config = Candidates.model_validate({"sources": ALL_SOURCES, "max": most})
    results = []
    for name, form in (("frames", spark), ("tables", None)):
        tables = tables_of(form, log, seed, clicked, tmp_path / name)
        united = make_candidates(config, tables, with_scores=True)
        assert isinstance(united, pa.Table) == (form is None)
        names = [source.name for source in config.sources]
        results.append((rows_of(united), places_by_source(united, names)))
    (by_spark, places), (in_process, places_here) = results
    assert_same_lists(in_process, by_spark)
    assert places_here == places
    plain = rows_of(make_candidates(config, tables_of(None, log, seed, clicked, tmp_path / "plain")))
    assert plain == {
        user: {name: value for name, value in row.items() if name != "source_scores"}
        for user, row in in_process.items()
    }
    assert len(by_spark) == 44
    for number in range(len(ALL_SOURCES)):
        assert any(number in row["sources"] for row in by_spark.values())


def test_vectors_of_als_are_those_of_mllib(spark: SparkSession, tmp_path: Path) -> None:
    log = random_log(9, weights=True)
    config = Als(source="als", rank=6, iterations=8, seed=11, regularization=0.3, alpha=3.0)
    fitted = []
    for form in (spark, None):
        tables = tables_of(form, log, 9, False, tmp_path)
        vectors = als_vectors(config, tables.rows, tables.items, str(tmp_path / "checkpoints"))
        assert vectors is not None
        sides = []
        for rows, key in zip(vectors, ("user_key", "item_index"), strict=True):
            table = rows if isinstance(rows, pa.Table) else pa.Table.from_pandas(rows.toPandas())
            ordered = table.sort_by(key)
            sides.append((ordered[key].to_pylist(), np.array(ordered["vector"].to_pylist(), np.float32)))
        fitted.append(sides)
    for (keys, vectors), (expected_keys, expected) in zip(fitted[1], fitted[0], strict=True):
        assert keys == expected_keys
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


def test_first_vectors_have_length_one_and_depend_on_the_seed() -> None:
    vectors = first_vectors(2_000, 10, 3, 5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert len(np.unique(vectors, axis=0)) == 2_000
    assert np.abs(vectors.mean(axis=0)).max() < 0.05
    assert not np.array_equal(vectors, first_vectors(2_000, 10, 3, 6))
    np.testing.assert_array_equal(vectors[:100], first_vectors(2_000, 10, 3, 5)[:100])


def test_an_undetermined_vector_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    """A user whose only weight is 0 has no penalty, and one item has fewer factors than the rank."""
    rows = pa.table(
        {
            "user_key": ["a", "b"],
            "item_key": ["i00", "i00"],
            "label": pa.array([1, 1], pa.float32()),
            "features_dt": [DAYS[0]] * 2,
            "weight": pa.array([0, 1], pa.float32()),
        }
    )
    config = Als(source="als", rank=4, iterations=1)
    with pytest.raises(DataError, match=r"source als[\s\S]*raise `regularization`"):
        als_vectors(config, rows, items_of(), str(tmp_path))


@pytest.mark.parametrize("blocks", [1, 40, 1 << 20])
def test_pairs_of_items_equal_dense_products(monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    monkeypatch.setattr(item_pairs, "_BLOCK_ADDITIONS", blocks)
    clicked = clicked_items(random_log(5), items_of())
    matrix = ClickMatrix.of(clicked)
    dense = matrix.clicks.toarray()
    gram = gram_matrix(pair_batches(clicked), matrix.items).numpy()
    np.testing.assert_array_equal(gram, dense.T @ dense)
    weights = np.arange(1, len(matrix.weights) + 1)
    weighted = ClickMatrix(matrix.items, matrix.clicks, weights)
    shared = np.zeros((len(matrix.items), len(matrix.items)), np.int64)
    for item, other, values in weighted.shared():
        assert (np.diff(item) >= 0).all()
        shared[item, other] = values
    np.testing.assert_array_equal(shared, dense.T @ np.diag(weights) @ dense)
    np.testing.assert_array_equal(weighted.norms(), dense.T @ weights)


def test_without_clicks_or_pairs_lists_are_empty(tmp_path: Path) -> None:
    log, users = random_log(6), pa.table({"user_key": ["u00", "u01"]})
    free = Exclusions(users.append_column("excluded", pa.nulls(2, pa.list_(pa.int32()))))
    shown = log.filter(pc.equal(log["label"], 0))
    store = store_in(tmp_path)
    assert len(ease_items(Ease(source="ease"), free, shown, items_of(), store)) == 0
    assert len(als_items(Als(source="als"), free, shown, items_of(), store)) == 0
    for source in (Covisitation(source="covisitation"), ItemKnn(source="item_knn")):
        config = Candidates.model_validate({"sources": [source.model_dump()]})
        tables = SourceTables(free, items_of(), shown, DAYS[-1], store=store)
        assert rows_of(make_candidates(config, tables)) == {
            user: {"candidates": [], "excluded": None, "sources": []} for user in ("u00", "u01")
        }
    assert len(neighbour_table(clicked_items(shown, items_of()), 5)) == 0
    every = log.set_column(2, "label", pa.array(np.ones(len(log), np.float32)))
    with pytest.raises(DataError, match=r"24 items have clicks, but max_items is 5"):
        ease_items(Ease(source="ease", max_items=5), free, every, items_of(), store)


def test_a_frame_is_collected_with_its_nulls_and_lists(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("a", 1, [1, 2]), (None, None, None)], "user_key string, n int, ids array<int>"
    )
    expected = [
        {"user_key": "a", "n": 1, "ids": [1, 2]},
        {"user_key": None, "n": None, "ids": None},
    ]
    assert collected(frame.coalesce(1)).to_pylist() == expected
    empty = collected(frame.where("n = 2"))
    assert (len(empty), empty.column_names) == (0, ["user_key", "n", "ids"])


def test_segments_are_equal_where_values_are(spark: SparkSession) -> None:
    rows = pa.table(
        {
            "user_key": ["a", "b", "c", "d"],
            "number": pa.array([1.5, -0.25, 1.5, 3.0], pa.float32()),
            "id": pa.array([7, None, 8, 7], pa.int32()),
            "ids": pa.array([[1, 2], [1], [1, 2], []], pa.list_(pa.int32())),
        }
    )

    def groups(found: Any) -> list[set[str]]:
        by_segment: dict[Any, set[str]] = {}
        for user, row in rows_of(found).items():
            if row["segment"] is not None:
                by_segment.setdefault(row["segment"], set()).add(user)
        return sorted(by_segment.values(), key=sorted)

    for name in ("number", "ids"):
        assert groups(segment_of(rows, name)) == groups(segment_of(frame_of(spark, rows.drop(["id"])), name))
    assert groups(segment_of(rows, "id")) == [{"a", "d"}, {"c"}]


@pytest.fixture(scope="module")
def lake(reference: ReferenceScores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakePaths]:
    """A lake with a champion, a retriever, and the tables of the section `candidates`."""
    config = publish_lake(tmp_path_factory.mktemp("lake"), reference)
    lake = LakePaths(config.lake)
    users = reference.users.user_key[:-1]
    attributes = pd.DataFrame(
        {
            "user": users,
            "country": [["at", "be", "ch"][n % 3] for n in range(len(users))],
            "age": [8 + n for n in range(len(users))],
        }
    )
    write_tables(config.lake, attributes)
    write_model(Path(lake.models("toy-retriever")) / "t1", "two_tower", version="t1")
    record_run(lake, "toy-retriever", RUN_DATE, "t1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
        patch.setattr(context_features, "load_local", lambda *_: EncodedContext())
        record_decision(lake, "toy", RUN_DATE, ChampionDecision("m2", None, True, "m2", "a test"))
        yield lake


def context_of(lake: LakePaths, session: SparkSession | None, **candidates: Any) -> RunContext:
    """The context of a job; without a session, it fails if one is opened."""
    score = {"k": 5, "context": CONTEXT, "device": "cpu", "blend": "auto"}
    config = make_config(Path(lake.root), candidates={**SECTION, **candidates}, score=score)
    return RunContext("test", config, RUN_DATE, _spark=session)


def without_files(manifest: Manifest) -> dict[str, Any]:
    names = ("schema", "rows", "rows_in", "dropped", "facts", "inputs")
    return {name: getattr(manifest, name) for name in names}


@pytest.mark.parametrize("search", ["exact", "approximate"])
def test_the_job_publishes_what_spark_publishes(lake: LakePaths, spark: SparkSession, search: str) -> None:
    sources = [
        {**source, "search": search} if source["source"] == "retrieval" else source for source in SOURCES
    ]
    results = []
    for session in (spark, None):
        context = context_of(lake, session, sources=sources)
        summary = build_candidates(context)
        assert context.started_spark is session
        published = {}
        for table in (lake.candidate_items(WORKFLOW), lake.candidates(WORKFLOW)):
            partition = table.partition(RUN_DATE)
            manifest = without_files(read_manifest(partition))
            manifest["inputs"].pop("candidate_items", None)  # a digest of files, whose names are random
            published[partition.table] = manifest
        rows = read_rows(lake.candidates(WORKFLOW).partition(RUN_DATE))
        lists = {row["user_key"]: row for row in rows.to_dict("records")}
        for row in lists.values():
            row.pop("user_key")
            for name in ("candidates", "sources"):
                row[name] = list(row[name])
        results.append((summary.facts, published, lists))
    (facts, published, lists), (facts_here, published_here, lists_here) = results
    assert facts_here == facts
    assert facts["retrieval_search"] == search
    assert published_here == published
    assert_same_lists(lists_here, lists)
    assert all(count > 0 for count in facts["places_by_source"].values())


def test_pairs_for_a_blend_are_those_of_spark(lake: LakePaths, spark: SparkSession) -> None:
    measured = []
    for session in (spark, None):
        context = context_of(lake, session)
        context.in_process = session is None
        model, dataset = champion_and_dataset(context)
        pairs = measured_pairs(context, dataset, model, read_candidate_tables(context, WORKFLOW))
        assert context.started_spark is session
        assert pairs is not None
        measured.append(pairs)
    by_spark, in_process = measured
    assert len(by_spark.positives) > 20
    for name in ("starts", "items", "clicked", "positives", "folds"):
        np.testing.assert_array_equal(getattr(in_process, name), getattr(by_spark, name))
    np.testing.assert_allclose(in_process.logits, by_spark.logits, atol=1e-5)
    np.testing.assert_allclose(in_process.scores, by_spark.scores, rtol=1e-5, atol=1e-5)
