"""nightrank.Recommender makes the lists of the jobs, from frames, without anything from the future."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.sql import SparkSession
from sklearn.base import clone

import nightrank
from nightrank import frames
from nightrank.estimator import Training
from nightrank.interactions import iso_time, read_attributes, read_interactions, typed
from nightrank.recommender_lake import make_config
from storage.paths import LakePaths
from storage.publish import read_manifest
from tests.stages import run_retraining

ITEMS, USERS, START = 30, 60, 1_700_000_000
SMALL: dict[str, Any] = {"epochs": 2, "batch_size": 64, "refit": False, "device": "cpu"}


def make_interactions(seed: int = 0, length: int = 12) -> pd.DataFrame:
    """Each user walks along a circle of items, with a few other items between."""
    rng = np.random.default_rng(seed)
    start = rng.integers(0, ITEMS, USERS)[:, None]
    item = (start + np.arange(length)) % ITEMS
    item = np.where(rng.random(item.shape) < 0.1, rng.integers(0, ITEMS, item.shape), item)
    user = np.repeat(np.arange(USERS), length)
    time = START + (np.arange(length) * 3600 + np.arange(USERS)[:, None]).ravel()
    clicked = rng.random(len(user)) < np.where(item.ravel() % 3 == 0, 0.8, 0.3)
    return pd.DataFrame(
        {
            "user_id": [f"u{value:02d}" for value in user],
            "item_id": [f"i{value:02d}" for value in item.ravel()],
            "time": time,
            "clicked": clicked,
        }
    ).sort_values("time", ignore_index=True)


LOG: Any = make_interactions()


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(scope="module")
def fitted() -> nightrank.Recommender:
    """A sequence model that has learned to walk along the circle."""
    settings = {**SMALL, "epochs": np.int64(5), "learning_rate": 0.01, "embedding_dim": 32, "blocks": 1}
    return nightrank.Recommender("sasrec", **settings).fit(LOG)


def untyped(value: Any) -> Any:
    """A frame, of which mypy does not know the library."""
    return value


def lists_of(frame: Any, user: str) -> list[str]:
    return list(frame[frame["user_id"] == user]["item_id"])


@pytest.mark.processes
def test_the_lists_are_those_of_the_jobs(tmp_path: Path) -> None:
    """A run with the configuration that `fit` uses publishes the same lists."""
    training = Training("sasrec", 2, 64, 0.01, None, refit=True, device="cpu", seed=3, settings={"blocks": 1})
    log = read_interactions(LOG, "user_id", "item_id", "time", None)
    (tmp_path / "lake/raw").mkdir(parents=True)
    config = make_config(str(tmp_path / "lake"), {"interactions": log.rows}, training)
    pq.write_table(log.rows, tmp_path / "lake/raw/interactions.parquet")
    values = config.model_dump(mode="json", exclude_unset=True)
    values["train"]["refit"] = True
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    date = "2023-11-15"
    run_retraining(tmp_path / "config.yaml", date)
    lake = nightrank.open(str(tmp_path / "lake"))
    published = lake.recommendations(date).pandas().drop(columns=["model_version", "workflow_version"])
    settings: dict[str, Any] = {**SMALL, "refit": True, "seed": 3, "blocks": 1, "learning_rate": 0.01}
    lists = untyped(nightrank.Recommender("sasrec", **settings).fit(LOG).recommend())
    pd.testing.assert_frame_equal(lists, published, check_exact=False, rtol=1e-6)
    assert read_manifest(LakePaths(lake.root).recommendations.partition(date)).facts["refit_of"]


def test_it_learns_and_measures_later_interactions(fitted: nightrank.Recommender) -> None:
    last = LOG.groupby("user_id").tail(1)
    following = [f"i{(int(item[1:]) + 1) % ITEMS:02d}" for item in last["item_id"]]
    later = last.assign(item_id=following, time=last["time"] + 10**6)
    measured: Any = fitted.evaluate(later, k=3, replicates=200)
    assert measured["users"] + len(seen_before(later)) == USERS
    assert measured["unknown_users"] == 0
    assert measured["hit_rate"].value > 0.8
    assert measured["ndcg"].low < measured["ndcg"].value < measured["ndcg"].high
    assert measured["ndcg"].value <= measured["recall"].value == measured["hit_rate"].value
    assert measured["precision"].value == pytest.approx(measured["hit_rate"].value / 3)
    assert 0.5 < measured["coverage"] <= 1
    assert fitted.metrics[-1]["auc"] > 0.7
    strangers = later.assign(user_id="x" + later["user_id"])
    popular: Any = fitted.evaluate(strangers, k=3, replicates=200)
    assert popular["unknown_users"] == popular["users"] == USERS
    assert popular["hit_rate"].value < 0.3
    everything: Any = fitted.evaluate(later, k=3, exclude_seen=False, replicates=200)
    assert everything["users"] == USERS


def seen_before(later: Any) -> Any:
    return later.merge(LOG[["user_id", "item_id"]].drop_duplicates())


def test_what_is_measured_must_be_later(fitted: nightrank.Recommender) -> None:
    with pytest.raises(
        nightrank.DataError, match=r"column time: 2023-11-14.* is before 2023-11-15.*latest time"
    ):
        fitted.evaluate(LOG)
    with pytest.raises(nightrank.DataError, match="no user has a relevant item"):
        fitted.evaluate(LOG.assign(time=LOG["time"] + 10**6))


def test_seen_items_are_left_out_and_strangers_get_popular_items(fitted: nightrank.Recommender) -> None:
    lists = untyped(fitted.recommend(["u07", "stranger", "u03", "u07"], k=ITEMS))
    assert list(lists.columns) == ["user_id", "position", "item_id", "score", "reason"]
    assert list(lists["user_id"].unique()) == ["u07", "stranger", "u03"]
    for user, group in lists.groupby("user_id"):
        assert list(group["position"]) == list(range(1, len(group) + 1))
        seen = set(LOG[LOG["user_id"] == user]["item_id"])
        assert set(group["item_id"]) == {f"i{value:02d}" for value in range(ITEMS)} - seen
        assert set(group["reason"]) == {"popular" if user == "stranger" else "ranked"}
        assert group["score"].is_monotonic_decreasing
    counts = LOG["item_id"].value_counts()
    popular = lists[lists["user_id"] == "stranger"]
    np.testing.assert_allclose(popular["score"], np.log1p(counts[popular["item_id"]].to_numpy()), rtol=1e-6)
    again = untyped(fitted.recommend(["u07"], k=ITEMS, exclude_seen=False))
    assert len(again) == ITEMS
    assert lists_of(lists, "u07") == [item for item in again["item_id"] if item in lists_of(lists, "u07")]
    assert len(untyped(fitted.recommend(["stranger"], unknown="skip"))) == 0
    with pytest.raises(nightrank.DataError, match=r"1 of 2 users are not known from `fit`: \['stranger'\]"):
        fitted.recommend(["u07", "stranger"], unknown="raise")
    everybody = untyped(fitted.recommend(k=1))
    assert list(everybody["user_id"]) == sorted(LOG["user_id"].unique())
    assert len(untyped(fitted.recommend([], k=1))) == 0


def test_the_same_arguments_give_the_same_lists() -> None:
    settings: dict[str, Any] = {**SMALL, "epochs": 1, "embedding_dim": 16, "blocks": 1}
    first, again, other = (
        untyped(nightrank.Recommender("sasrec", seed=seed, **settings).fit(LOG).recommend())
        for seed in (1, 1, 2)
    )
    pd.testing.assert_frame_equal(first, again)
    assert not first["score"].equals(other["score"])


@pytest.mark.parametrize(
    "model, label",
    [
        ("mult_vae", None),
        ("two_tower", None),
        ("neumf", None),
        ("dlrm", None),
        ("dlrm", "clicked"),
        ("din", "clicked"),
    ],
)
def test_all_kinds_of_models_use_attributes(model: str, label: str | None) -> None:
    """Users and items that have only attributes get lists, and are in lists."""
    users = pd.DataFrame({"user_id": [f"u{value:02d}" for value in range(USERS)] + ["new"]})
    users["age"] = [None, *range(20, 20 + USERS)]
    users["country"] = pd.Categorical(["de", "fr", None] * (len(users) // 3) + ["de"] * (len(users) % 3))
    items = pl.DataFrame(
        {
            "item_id": [f"i{value:02d}" for value in range(ITEMS)] + ["new"],
            "price": [float(value) for value in range(ITEMS + 1)],
            "is_new": [False] * ITEMS + [True],
            "tags": [["a", "b"], ["c"], None] * 10 + [["a"]],
        }
    )
    recommender = nightrank.Recommender(model, label=label, **{**SMALL, "epochs": 1}).fit(LOG, users, items)
    lists = untyped(recommender.recommend(["new", "u01"], k=ITEMS + 1, exclude_seen=False))
    assert set(lists["reason"]) == {"ranked"}
    for user in ("new", "u01"):
        assert sorted(lists_of(lists, user)) == sorted(items["item_id"])
    if label is not None:  # items that were shown and not clicked are recommended again
        clicked = set(LOG[(LOG["user_id"] == "u01") & LOG["clicked"]]["item_id"])
        kept = untyped(recommender.recommend(["u01"], k=ITEMS + 1))
        assert set(kept["item_id"]) == {*items["item_id"]} - clicked


def test_attributes_may_have_integer_names() -> None:
    """pandas names the columns of an array 0, 1, …, as in a table of embeddings of the items."""
    ids = pd.DataFrame({"item_id": ["a", "b", "c"]})
    items = pd.concat([ids, pd.DataFrame(np.arange(6.0).reshape(3, 2))], axis=1)
    table = read_attributes("items", items, "item_id", pa.string())
    assert table.column_names == ["item", "item__0", "item__1"]
    assert table.column("item__1").to_pylist() == [1.0, 3.0, 5.0]


def test_attributes_may_have_the_names_of_internal_columns() -> None:
    """`reset_index` adds a column `index`, and the tables of the jobs have columns such as item_index."""
    names = ["index", "key", "id", "position", "score", "label", "split"]
    users = pd.DataFrame({"user_id": [f"u{value:02d}" for value in range(USERS)]})
    users = users.assign(**{name: range(USERS) for name in ("key", "candidates", "sources", "excluded")})
    items = pd.DataFrame({"item_id": [f"i{value:02d}" for value in range(ITEMS)]})
    items = items.assign(**{name: range(ITEMS) for name in names})
    recommender = nightrank.Recommender("neumf", **{**SMALL, "epochs": 1}).fit(LOG, users, items)
    lists = untyped(recommender.recommend(["u01"], k=ITEMS, exclude_seen=False))
    assert sorted(lists["item_id"]) == sorted(items["item_id"])


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_frames_and_ids_have_the_kind_of_the_interactions(kind: str) -> None:
    frame = LOG.assign(
        user=LOG["user_id"].str[1:].astype(np.int32),
        item=LOG["item_id"].str[1:].astype(np.uint8),
        at=pd.to_datetime(LOG["time"], unit="s"),
    )[["user", "item", "at"]]
    as_frame: dict[str, Callable[[Any], Any]] = {
        "pandas": lambda rows: rows,
        "polars": pl.from_pandas,
        "arrow": lambda rows: pa.Table.from_pandas(rows, preserve_index=False),
    }
    recommender = nightrank.Recommender("neumf", user="user", item="item", time="at", **SMALL)
    lists = untyped(recommender.fit(as_frame[kind](frame)).recommend(np.array([3, 999]), k=2))
    table = {
        "pandas": lambda: pa.Table.from_pandas(lists),
        "polars": lambda: lists.to_arrow(),
        "arrow": lambda: lists,
    }[kind]()
    assert type(lists).__module__.split(".")[0] == {"arrow": "pyarrow"}.get(kind, kind)
    assert [str(field.type) for field in table.schema][:3] == ["int32", "int32", "uint8"]
    assert table.column("user").to_pylist() == [3, 3, 999, 999]
    with pytest.raises(nightrank.DataError, match="the ids have the type string, but int32"):
        recommender.recommend(["3"])


def test_ids_that_do_not_fit_into_their_type_become_int64() -> None:
    """An unknown user may have any integer, and items may have ids that the interactions do not have."""
    ids = typed(pa.chunked_array([["3", "300", "-1"]]), "uint8")
    assert (str(ids.type), ids.to_pylist()) == ("int64", [3, 300, -1])
    assert str(typed(pa.chunked_array([["3", "255"]]), "uint8").type) == "uint8"


def test_times_reach_from_year_1_to_9999() -> None:
    days = pa.array([-719_162, 0, 2_932_896], pa.date32())
    rows = pa.table({"user": [1, 2, 3], "item": [1, 2, 3], "day": days})
    log = read_interactions(rows, "user", "item", "day", None)
    assert (log.first_time, log.last_time) == (-719_162 * 86_400 * 10**6, 2_932_896 * 86_400 * 10**6)
    assert iso_time(log.first_time) == "0001-01-01T00:00:00+00:00"
    assert iso_time(253_402_300_799_999_999) == "9999-12-31T23:59:59.999999+00:00"


def test_ids_in_categories_count_as_the_values_of_the_categories() -> None:
    """pandas and Polars store categories as codes; the caller passes, and gets, the values."""
    frame = LOG.assign(
        user_id=LOG["user_id"].str[1:].astype(int).astype("category"),
        item_id=LOG["item_id"].astype("category"),
    )
    recommender = nightrank.Recommender("neumf", **{**SMALL, "epochs": 1}).fit(frame)
    lists = untyped(recommender.recommend([3, 999], k=2))
    assert lists["user_id"].tolist() == [3, 3, 999, 999]
    later = frame.tail(5).assign(time=frame["time"].max() + 1)
    measured: Any = recommender.evaluate(later, replicates=10, exclude_seen=False)
    assert measured["users"] == later["user_id"].nunique()
    assert measured["unknown_users"] == 0
    with pytest.raises(nightrank.DataError, match="the ids have the type string, but int64"):
        recommender.recommend(["3"])


@pytest.mark.processes
def test_frames_of_spark_give_the_same_lists_as_arrow_tables(spark: SparkSession) -> None:
    items = pd.DataFrame({"item_id": ["i00", "new"], "price": [1.0, 2.0]})
    settings = {**SMALL, "epochs": 1}
    expected = nightrank.Recommender("neumf", **settings).fit(LOG, items=items).recommend(["u03", "x"])
    of_spark = nightrank.Recommender("neumf", **settings).fit(spark.createDataFrame(LOG), items=items)
    lists = untyped(of_spark.recommend(["u03", "x"]))
    pd.testing.assert_frame_equal(lists.to_pandas(), untyped(expected))


def test_rows_without_times_are_in_order() -> None:
    recommender = nightrank.Recommender("neumf", time=None, **SMALL)
    assert len(untyped(recommender.fit(LOG).recommend(["u01", "u02"], k=5))) == 10
    later = LOG.tail(5).assign(item_id="never seen")
    measured: Any = recommender.evaluate(later, replicates=10)
    assert measured["hit_rate"].value == 0


def test_saved_pickled_and_copied_recommenders_make_the_same_lists(
    fitted: nightrank.Recommender, tmp_path: Path, folders: Path
) -> None:
    expected = untyped(fitted.recommend(["u01", "stranger"]))
    fitted.save(tmp_path / "saved")
    loaded = nightrank.Recommender.load(tmp_path / "saved")
    pd.testing.assert_frame_equal(untyped(loaded.recommend(["u01", "stranger"])), expected)
    assert loaded.get_params() == fitted.get_params()
    assert loaded.metrics == fitted.metrics
    copied = [pickle.loads(pickle.dumps(loaded)), copy.deepcopy(fitted)]
    for one in copied:
        pd.testing.assert_frame_equal(untyped(one.recommend(["u01", "stranger"])), expected)
    assert len(list(folders.iterdir())) == 2
    del copied, one
    gc.collect()
    assert list(folders.iterdir()) == []
    with pytest.raises(nightrank.ConfigError, match="exists and is not empty"):
        fitted.save(tmp_path / "saved")
    with pytest.raises(nightrank.ConfigError, match="is a URI"):
        fitted.save("s3://bucket/folder")
    with pytest.raises(nightrank.DataError, match=r"has no recommender\.json"):
        nightrank.Recommender.load(tmp_path)
    unfitted = clone(fitted)
    assert unfitted.get_params() == fitted.get_params()
    with pytest.raises(nightrank.ConfigError, match="the recommender is not fitted"):
        unfitted.recommend(["u01"])
    assert repr(unfitted.set_params(epochs=10, user="customer", heads=2)) == (
        "Recommender(user='customer', batch_size=64, learning_rate=0.01, refit=False, device='cpu', "
        "embedding_dim=32, blocks=1, heads=2)"
    )


def test_a_failed_training_leaves_no_files(folders: Path) -> None:
    with pytest.raises(nightrank.ConfigError, match="heads"):
        nightrank.Recommender("sasrec", embedding_dim=30, heads=4, **SMALL).fit(LOG)
    of_workers = f"nightrank-{os.getuid()}"  # the folder of all local workers of a user
    assert [path for path in folders.iterdir() if path.name != of_workers] == []


def changed(**columns: Any) -> Any:
    return LOG.assign(**columns)


@pytest.mark.parametrize(
    "fit, message",
    [
        (lambda one: one.fit(LOG.drop(columns="time")), r"the interactions have no columns \['time'\]"),
        (lambda one: one.fit(LOG[:0]), "the interactions have no rows"),
        (
            lambda one: one.fit(changed(user_id=[None, *LOG["user_id"][1:]])),
            "user_id: 1 of 720 ids are missing",
        ),
        (
            lambda one: one.fit(changed(item_id=["", *LOG["item_id"][1:]])),
            "item_id: 1 of 720 ids are missing",
        ),
        (
            lambda one: one.fit(changed(item_id=["T-shirt\tred", *LOG["item_id"][1:]])),
            r"column item_id, row 0: 'T-shirt\\tred' is not an id \(1 of 720 rows\)",
        ),
        (lambda one: one.fit(changed(user_id="x" * 257)), r"user_id, row 0: 'x{60}'… is not an id \(720 of"),
        (lambda one: one.fit(changed(item_id=1.5)), "item_id has the type double, but ids must be"),
        (lambda one: one.fit(changed(time="today")), "time has the type string, but times must be"),
        (lambda one: one.fit(changed(time=LOG["time"] * 1000)), "but numbers must be seconds since 1970"),
        (
            lambda one: one.fit(changed(time=-8e10)),
            "column time, row 0: the time is outside the years 1 to 9999",
        ),
        (
            lambda one: one.fit(pa.table({**LOG, "time": pa.array([2**55] * 720, pa.timestamp("s"))})),
            "column time, row 0: the time is outside the years 1 to 9999",
        ),
        (
            lambda one: one.fit(pa.table({**LOG, "time": pa.array([3_000_000] * 720, pa.date32())})),
            "column time, row 0: the time is outside the years 1 to 9999",
        ),
        (lambda one: one.fit(changed(time=np.nan)), "time: 720 of 720 times are missing"),
        # In Arrow, NaN is a number, not a missing value.
        (
            lambda one: one.fit(pa.table({**LOG, "time": np.full(len(LOG), np.nan)})),
            "time: 720 of 720 times are missing",
        ),
        (lambda one: one.set_params(label="clicked").fit(changed(clicked=2)), "row 0: 2 is not 0 or 1"),
        (
            lambda one: one.fit(LOG, users=pd.DataFrame({"user_id": ["a", "a"]})),
            "the users contain user_id='a' more than once",
        ),
        (lambda one: one.fit(LOG, items=pd.DataFrame({"item_id": [1]})), "has the type int64, but string"),
        (
            lambda one: one.fit(LOG, items=pd.DataFrame({"id": [1]})),
            r"the items have no columns \['item_id'\]",
        ),
        (
            lambda one: one.fit(
                LOG, items=pd.DataFrame({"item_id": ["a"], "made": pd.to_datetime(["2020"])})
            ),
            "column made has the type timestamp",
        ),
        (
            lambda one: one.fit(LOG, items=pd.DataFrame({"item_id": ["a", "b"], "price": [1, np.inf]})),
            "column price of the items, row 1: inf is outside the range of float32",
        ),
        (
            lambda one: one.fit(LOG, users=pd.DataFrame({"user_id": ["a"], "age": [np.nan]})),
            "column age of the users has no numbers",
        ),
        (
            lambda one: one.fit(LOG, items=pd.DataFrame({"item_id": ["a\nb"]})),
            r"column item_id, row 0: 'a\\nb' is not an id",
        ),
    ],
)
def test_unfit_data_is_refused(fit: Callable[[nightrank.Recommender], object], message: str) -> None:
    with pytest.raises(nightrank.DataError, match=message):
        fit(nightrank.Recommender("neumf", **SMALL))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: nightrank.Recommender("sasrecc").fit(LOG), "model='sasrecc' is not an architecture"),
        (lambda: nightrank.Recommender("sasrec", blocs=3).fit(LOG), "blocs"),
        (lambda: nightrank.Recommender("sasrec", epochs=0).fit(LOG), "epochs"),
        (lambda: nightrank.Recommender("sasrec", batch_size="x").fit(LOG), "global_batch_size"),
        (lambda: nightrank.Recommender("sasrec", item="user_id").fit(LOG), "must have different names"),
        (lambda: nightrank.Recommender("sasrec").fit([1, 2]), "is not a frame"),  # type: ignore[arg-type]
        (
            lambda: nightrank.Recommender("neumf", **SMALL).fit(
                LOG, items=pd.DataFrame({"item_id": ["a"], "a.b": [1]})
            ),
            "column 'a.b' of the items: the name of an attribute must have at most 122 characters",
        ),
        (
            lambda: nightrank.Recommender("neumf", **SMALL).fit(
                LOG, users=pd.DataFrame({"user_id": ["a"], "a/b": [1]})
            ),
            "column 'a/b' of the users: the name of an attribute must have",
        ),
        (
            lambda: nightrank.Recommender("neumf", **SMALL).fit(
                LOG, items=pd.DataFrame({"item_id": ["a"], "Price": [1], "price": [1]})
            ),
            r"the items have the columns \['Price', 'price'\], whose names differ only in upper and lower",
        ),
    ],
)
def test_wrong_arguments_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(nightrank.ConfigError, match=message):
        call()


def test_wrong_arguments_of_fitted_recommenders_are_refused(fitted: nightrank.Recommender) -> None:
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: fitted.recommend("u01"), "is the text 'u01'"),
        (lambda: fitted.recommend(["u01"], k=0), "k=0 is smaller than 1"),
        (lambda: fitted.recommend(["u01"], k=None), "k is None"),  # type: ignore[arg-type]
        (lambda: fitted.recommend(["u01"], k=2**70), "is larger than 2"),
        (lambda: fitted.recommend(5), "users is 5, not a list of ids"),  # type: ignore[arg-type]
        (lambda: fitted.recommend(["u01"], unknown="guess"), "unknown='guess' is not allowed"),  # type: ignore[arg-type]
    ]
    for call, message in wrong:
        with pytest.raises(nightrank.ConfigError, match=message):
            call()
    with pytest.raises(nightrank.DataError, match="users have no common type"):
        fitted.recommend([2**64])


def test_the_packages_of_the_jobs_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "find_spec", lambda name: None if name in ("pyspark", "duckdb") else object())
    with pytest.raises(nightrank.ConfigError, match=r"needs the packages \['pyspark', 'duckdb'\]") as caught:
        nightrank.Recommender("sasrec").fit(LOG)
    assert caught.value.remedy == "pip install 'nightrank[recommender]'"
