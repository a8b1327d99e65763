"""The champion scores raw rows and makes lists, as the jobs do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from pandas.testing import assert_frame_equal
from sklearn.metrics import roc_auc_score

import nightrank
from tests.nightrank.conftest import RUN_DATE, World

pytestmark = pytest.mark.processes


def test_the_refit_serves_and_the_champion_was_measured(world: World) -> None:
    serving, champion = world.lake.champion(RUN_DATE), world.lake.champion(use_refit=False)
    assert serving.refit_of == champion.version != serving.version
    assert champion.refit_of is None
    assert serving.date == champion.date == RUN_DATE
    auc = champion.description["metrics"]["validation"]["auc"]
    features = len(champion.spec.features)
    assert repr(champion) == (
        f"Model('{champion.version}', dlrm, {features} features, validation AUC {auc:.4f}, served on {RUN_DATE})"
    )
    assert repr(serving) == f"Model('{serving.version}', dlrm, {features} features, served on {RUN_DATE})"
    with pytest.raises(nightrank.DataError, match="has no champion on 2026-01-03"):
        world.lake.champion("2026-01-03")


def test_scores_have_the_auc_of_the_training(world: World) -> None:
    """The champion was measured on the test day by evaluate_model; this is another path to the same figure."""
    champion, rows = world.lake.champion(use_refit=False), world.raw_rows()
    scores = champion.score(rows)
    assert isinstance(scores, pd.Series)
    assert (scores.name, scores.dtype) == ("probability", np.float32)
    auc = champion.description["metrics"]["test"]["auc"]
    assert roc_auc_score(rows["label"], scores) == pytest.approx(auc, abs=1e-5)
    shuffled = rows.sample(frac=1, random_state=1)
    again = champion.score(shuffled)
    assert again.index.equals(shuffled.index)
    np.testing.assert_allclose(again.sort_index(), scores, rtol=1e-5)


def test_scores_are_of_the_library_of_the_rows(world: World) -> None:
    champion, rows = world.lake.champion(), world.raw_rows().head(100)
    of_pandas = champion.score(rows)
    of_polars = champion.score(pl.from_pandas(rows.convert_dtypes()))
    of_arrow = champion.score(pa.Table.from_pandas(rows))
    assert isinstance(of_polars, pl.Series)
    assert isinstance(of_arrow, pa.ChunkedArray)
    np.testing.assert_array_equal(of_polars.to_numpy(), of_pandas)
    np.testing.assert_array_equal(of_arrow.to_numpy(), of_pandas)
    assert len(champion.score(rows.head(0))) == 0


def test_lists_equal_those_that_score_daily_published(world: World) -> None:
    """With the configuration of the jobs, for all users at once and for one."""
    published = world.lake.recommendations(RUN_DATE).pandas()
    model = nightrank.open(world.root, config=world.config).champion(RUN_DATE)
    assert set(published["model_version"]) == {model.version}
    users = published["user_id"].unique()
    assert len(users) > 100
    lists = model.recommend(users).to_pandas()
    assert_frame_equal(lists, published[list(lists)])
    some = [users[7], users[3], users[7]]
    of_some = model.recommend(some, k=4).to_pandas()
    wanted = published[published["position"] <= 4].set_index("user_id").loc[[users[7], users[3]]]
    assert_frame_equal(of_some.set_index("user_id"), wanted[list(of_some)[1:]])


def test_lists_without_a_configuration_need_the_context(world: World) -> None:
    published = world.lake.recommendations(RUN_DATE).pandas()
    model = world.lake.champion(RUN_DATE)
    users = published["user_id"].unique()[:20]
    with pytest.raises(nightrank.ConfigError, match="columns without a value: \\['C21'"):
        model.recommend(users)
    context = {"I11": 1, "I12": 90, "I13": 3, "C21": "b1dfab5b", "C22": "0ee73df9", "C23": "e377a9bf"}
    context |= {"C24": "133d22d9", "C25": "ae44923f", "C26": "31c65e05"}
    lists = model.recommend(users, context=context).to_pandas()
    assert_frame_equal(lists, published[published["user_id"].isin(users)].reset_index(drop=True)[list(lists)])
    other = model.recommend(users, context={**context, "I11": 10}).to_pandas()
    assert not other["score"].equals(lists["score"])
    configured = nightrank.open(world.root, config=world.config).champion(RUN_DATE)
    assert_frame_equal(configured.recommend(users, context={"I11": 10}).to_pandas(), other)


def test_unknown_users_are_named_or_left_out(world: World) -> None:
    model = nightrank.open(world.root, config=world.config).champion()
    (known,) = world.lake.users().arrow(["user_key"]).column("user_key").to_pylist()[:1]
    with pytest.raises(nightrank.DataError, match=r"1 of 2 users are not in users/.*: \['nobody'\]"):
        model.recommend([known, "nobody"])
    assert set(model.recommend(["nobody", known], unknown="skip").column("user_id").to_pylist()) == {known}
    assert len(model.recommend([], k=3)) == len(model.recommend([17], unknown="skip")) == 0
    for k, problem in ((0, "is smaller than 1"), (1.5, "is not an integer"), ("3", "is not an integer")):
        with pytest.raises(nightrank.ConfigError, match=f"k={k!r} {problem}"):
            model.recommend([known], k=k)  # type: ignore[arg-type]
    with pytest.raises(nightrank.ConfigError, match="unknown='ignore' is not allowed"):
        model.recommend([known], unknown="ignore")  # type: ignore[arg-type]
    with pytest.raises(nightrank.ConfigError, match=f"user_ids is the text '{known}', not a list"):
        model.recommend(known)


def test_scoring_keeps_the_threads_of_the_caller(world: World) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        world.lake.champion().score(world.raw_rows().head(5))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_names_of_models_must_be_clear(world: World) -> None:
    assert nightrank.open(world.root, name="generated").champion().date == RUN_DATE
    with pytest.raises(nightrank.DataError, match="has no champion"):
        nightrank.open(world.root, name="nothing").champion()


def test_a_champion_can_be_saved_elsewhere(world: World, tmp_path: Path) -> None:
    champion, rows = world.lake.champion(), world.raw_rows().head(100)
    champion.save(tmp_path / "copy")
    copy = nightrank.Model.load(tmp_path / "copy")
    np.testing.assert_array_equal(copy.score(rows), champion.score(rows))
    assert copy.description == champion.description
    with pytest.raises(nightrank.ConfigError, match="has no run date, so there are no candidates"):
        copy.recommend(["1"])
    metrics = world.lake.champion(use_refit=False).metrics
    assert (
        metrics[-1]["auc"] == world.lake.champion(use_refit=False).description["metrics"]["validation"]["auc"]
    )
    assert champion.metrics == []  # a refit has no validation rows
