"""Runs on real samples, which are not part of the project: lists and probabilities against NumPy and pandas.

The expected lists are computed from the weights, the published feature rows and the raw log, for every user
and film.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from storage.dataset import read_dataset
from storage.feature_spec import FeatureSpec
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths
from tests.e2e.test_runs import ROOT, rows, run_stages
from tests.etl import oracle
from training.checkpoints import load_model
from training.registry.versions import champion_as_of

DATA = ROOT.parent / "shared/data"
MOVIELENS, CRITEO = "1998-04-23", "2014-05-14"


class NumpyDLRM:
    """The champion of a run, from the equations of Naumov et al. 2019, many rows at once, in float64."""

    def __init__(self, lake: LakePaths, name: str, run_date: str) -> None:
        version = champion_as_of(lake, name, run_date)
        loaded = load_model(f"{lake.models(name)}/{version}", torch.device("cpu"))
        self.version = version
        self.spec: FeatureSpec = loaded.spec
        self._state = {
            key: tensor.numpy().astype(np.float64) for key, tensor in loaded.model.state_dict().items()
        }
        self._first = np.cumsum([0, *self.spec.cardinalities])
        self._means: dict[tuple[int, tuple[int, ...]], NDArray[np.float64]] = {}

    def probabilities(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """(P,) of rows with the spec's feature columns."""
        dense = frame[[feature.name for feature in self.spec.dense]].to_numpy(np.float64)
        vectors = np.stack([self._mlp("bottom", dense), *self._embedded(frame)], axis=1)  # (P, F, E)
        dots = np.einsum("pie,pje->pij", vectors, vectors)
        below = np.tril_indices(vectors.shape[1], -1)
        top = self._mlp("top", np.concatenate([vectors[:, 0], dots[:, below[0], below[1]]], axis=1))
        logits = top @ self._state["logit.weight"][0] + self._state["logit.bias"][0]
        return 1 / (1 + np.exp(-logits))

    def _embedded(self, frame: pd.DataFrame) -> list[NDArray[np.float64]]:
        table, vectors = self._state["embedding.weight"], []
        for place, feature in enumerate(self.spec.embedded):
            column, first = frame[feature.name], self._first[place]
            if feature.kind == "multi_hot":
                vectors.append(np.stack([self._mean(first, tuple(ids)) for ids in column]))
            else:
                vectors.append(table[first + column.to_numpy()])
        return vectors

    def _mean(self, first: int, ids: tuple[int, ...]) -> NDArray[np.float64]:
        """(E,) of the values of one row; films share few combinations of genres."""
        if (first, ids) not in self._means:
            table = self._state["embedding.weight"]
            mean = table[first + np.asarray(ids)].mean(0) if ids else np.zeros(table.shape[1])
            self._means[first, ids] = mean
        return self._means[first, ids]

    def _mlp(self, name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
        layers = sorted({int(key.split(".")[1]) for key in self._state if key.startswith(f"{name}.")})
        for layer in layers:
            weight, bias = self._state[f"{name}.{layer}.weight"], self._state[f"{name}.{layer}.bias"]
            values = np.maximum(values @ weight.T + bias, 0)
        return values


@pytest.mark.timeout(600)
@pytest.mark.skipif(not (DATA / "ml-100k").is_dir(), reason="MovieLens 100k is not beside the checkout")
def test_movielens_lists_equal_every_user_times_every_film(compiling: SparkSession, tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path / "lake"))
    overrides = [
        f"lake={lake.root}",
        f"data={DATA / 'ml-100k'}",
        "train.epochs=1",
        "negatives.per_positive=1",
        "negatives.train=true",
        "model=../models/dlrm_small.yaml",
        "history.length=20",
        # The model alone ranks every film, so that the oracle need not blend.
        "score.blend=none",
        "candidates.sources=[{source: all_items}]",
    ]
    run_stages(compiling, MOVIELENS, overrides, "conf/datasets/movielens.yaml")
    lists = rows(lake.recommendations.partition(MOVIELENS))
    measured = read_manifest(lake.measures.partition(MOVIELENS)).facts
    assert measured["against"] == "test_split"
    assert 0 < measured["hit_rate"] < 1
    page = Path(lake.report(MOVIELENS)).read_text()
    assert all(word in page for word in ("Hit rate", "NDCG", "overage"))

    model = NumpyDLRM(lake, "movielens", MOVIELENS)
    workflow = read_dataset(lake, MOVIELENS).workflow_version
    users = rows(lake.users(workflow).partition(MOVIELENS))
    items = rows(lake.items(workflow).partition(MOVIELENS))
    assert (len(users), len(items)) == (943, 1682)
    log = pd.read_csv(DATA / "ml-100k/ml-100k.inter", sep="\t", dtype={0: str, 1: str})
    log.columns = ["user", "item", "rating", "at"]
    liked_films = dict(list(log[log.rating >= 4].groupby("user")))
    by_user = dict(list(lists.sort_values(["user_id", "position"]).groupby("user_id")))
    hits = 0
    log["split"] = oracle.split_leave_last_out(
        log.assign(user_key=log.user, event_time=log["at"], row_id=log.index, label=log.rating >= 4)
    )
    rated = log[log.split != "test"].groupby("user")["item"].agg(list)
    id_of = dict(zip(items.item_key, items.item_id, strict=True))
    for user in users.to_dict("records"):
        liked = liked_films[user["user_key"]] if user["user_key"] in liked_films else log[:0]
        # The history with which a list is scored has the liked films before the test, the latest one first.
        known = liked.sort_values("at", kind="stable")["item"].tolist()[:-1]
        assert list(user["history"]) == [id_of[film] for film in known[:-21:-1]]
        pairs = items.assign(
            **{name: [value] * len(items) for name, value in user.items() if name not in items}
        )
        scores = pd.Series(model.probabilities(pairs), index=items["item_key"])
        user_rows = by_user[user["user_key"]]
        assert list(user_rows["position"]) == list(range(1, 11))
        np.testing.assert_allclose(user_rows["score"], scores[user_rows["item_id"]], atol=1e-5)
        # A user's latest liked film is the test; films that they rated before are not offered again.
        test = liked.sort_values("at", kind="stable")["item"].tail(1)
        best = scores.drop(rated.get(user["user_key"], [])).nlargest(10)
        assert not set(user_rows["item_id"]) & set(rated.get(user["user_key"], []))
        np.testing.assert_allclose(user_rows["score"], best, atol=1e-5)
        hits += len(set(user_rows["item_id"]) & set(test))
    assert measured["hit_rate"] * measured["users"] == pytest.approx(hits, abs=0.5)
    assert set(lists["model_version"]) == {model.version}
    features = lake.features(workflow).partition(MOVIELENS)
    drawn = pd.concat(
        [pq.read_table(path).to_pandas() for path in data_files(features, read_manifest(features), "train")]
    )
    _assert_held_out_films_are_drawn(drawn[drawn.row_id % 2 == 1], log)


def _assert_held_out_films_are_drawn(drawn: pd.DataFrame, log: pd.DataFrame) -> None:
    """Checks how often held-out films are drawn: with one draw a positive, one in the number of train films.

    Args:
        drawn: user_key, item_key.
        log: in the order of the file, with its split.
    """
    train, test = log[log.split == "train"], log[(log.split == "test") & (log.rating >= 4)]
    held_out = test.set_index("user")["item"]
    positives = train[train.rating >= 4].groupby("user").size()
    films = set(train.item)
    expected = sum(positives.get(user, 0) / len(films) for user, film in held_out.items() if film in films)
    hits = (drawn.item_key == drawn.user_key.map(held_out)).sum()
    assert abs(hits - expected) < 4 * expected**0.5, (hits, expected)


@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not (DATA / "criteo_kaggle_sample").is_dir(), reason="Criteo's sample is not beside the checkout"
)
def test_criteo_rows_have_the_probability_numpy_gives_them(compiling: SparkSession, tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path / "lake"))
    overrides = [f"lake={lake.root}", f"data={DATA / 'criteo_kaggle_sample'}", "train.epochs=1"]
    run_stages(compiling, CRITEO, overrides, "conf/datasets/criteo.yaml")
    scores = rows(lake.scores.partition(CRITEO)).set_index("row_id")["probability"].sort_index()
    assert list(scores.index) == list(range(1799, 1999))  # the last tenth of 1,999 rows
    model = NumpyDLRM(lake, "criteo", CRITEO)
    dataset = read_dataset(lake, CRITEO)
    features = pd.concat(
        [
            rows(lake.features(dataset.workflow_version).partition(member.dt))
            for member in dataset.splits["test"]
        ]
    )
    features = features.set_index("row_id").loc[scores.index]
    np.testing.assert_allclose(scores, model.probabilities(features), atol=1e-5)
