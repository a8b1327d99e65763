"""nightrank.ClickClassifier predicts what nightrank.train predicts, and works with scikit-learn."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone, is_classifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score

import nightrank
from tests.processes import ROOT

SMALL: dict[str, Any] = {"epochs": 2, "batch_size": 128, "device": "cpu", "embedding_dim": 4}
LEARNED: dict[str, Any] = {**SMALL, "epochs": 5}
# The trainings of scikit-learn share two cores with this process.
SERIAL: dict[str, Any] = {"n_jobs": 1, "error_score": "raise"}


def make_rows(count: int, seed: int) -> tuple[Any, np.ndarray]:
    """Clicks that depend on user and item together. Some prices and lists are missing."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, 12, count), rng.integers(0, 9, count)
    clicks = (rng.random(count) < np.where((user + item) % 3 == 0, 0.85, 0.15)).astype(int)
    price = rng.gamma(2.0, 5.0, count)
    price[rng.random(count) < 0.1] = np.nan
    tags = [[f"t{tag}" for tag in rng.integers(0, 6, size)] or None for size in rng.integers(0, 4, count)]
    rows = pd.DataFrame(
        {
            "user": [f"u{value}" for value in user],
            "item": pd.Categorical([f"i{value}" for value in item]),
            "mobile": rng.random(count) < 0.5,
            "price": price,
            "tags": tags,
        },
        index=rng.permutation(count),
    )
    return rows, clicks


ROWS, CLICKS = make_rows(1200, 0)
OTHERS, OTHER_CLICKS = make_rows(400, 1)


@pytest.fixture(scope="module")
def fitted() -> nightrank.ClickClassifier:
    return nightrank.ClickClassifier(**LEARNED).fit(ROWS, CLICKS)


def test_it_predicts_what_train_predicts() -> None:
    groups: list[dict[str, Any]] = [
        {"columns": ["user", "item", "mobile"], "kind": "categorical", "ops": ["categorify"]},
        {"columns": ["user"], "kind": "dense", "ops": ["target_encoding"]},
        {"columns": ["price"], "kind": "dense", "ops": ["fill_median", "normalize"]},
    ]
    labelled = ROWS.assign(label=CLICKS)
    trained = nightrank.train(
        nightrank.Workflow(groups).fit(labelled),
        labelled,
        model={"architecture": "dlrm", "embedding_dim": 4, "bottom_mlp": [64, 4], "top_mlp": [64, 32]},
        train={
            "epochs": 2,
            "global_batch_size": 128,
            "device": "cpu",
        },
    )
    model = nightrank.ClickClassifier("dlrm", features=groups, **SMALL).fit(ROWS, CLICKS)
    expected = np.asarray(trained.score(OTHERS), np.float64)
    np.testing.assert_array_equal(model.predict_proba(OTHERS), np.stack([1 - expected, expected], axis=1))


def test_it_learns_and_has_the_methods_of_a_classifier(fitted: nightrank.ClickClassifier) -> None:
    probabilities = fitted.predict_proba(OTHERS)
    assert probabilities.shape == (400, 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    auc = roc_auc_score(OTHER_CLICKS, probabilities[:, 1])
    assert fitted.score(OTHERS, OTHER_CLICKS) == pytest.approx(auc)
    assert auc > 0.7
    np.testing.assert_array_equal(fitted.predict(OTHERS), (probabilities[:, 1] >= 0.5).astype(int))
    assert fitted.classes_.tolist() == [0, 1]
    assert fitted.feature_names_in_.tolist() == list(ROWS.columns)
    assert {feature.kind for feature in fitted.workflow_.spec.features} == {
        "dense",
        "categorical",
        "multi_hot",
    }
    assert len(fitted.model_.metrics) == 0


def test_all_kinds_of_frames_and_labels_give_the_same_model(fitted: nightrank.ClickClassifier) -> None:
    expected = fitted.predict_proba(OTHERS)
    frames = [pl.from_pandas(ROWS), pa.Table.from_pandas(ROWS, preserve_index=False)]
    labels: list[Any] = [pl.Series(CLICKS == 1), pa.array(np.where(CLICKS == 1, "yes", "no").tolist())]
    others = [pl.from_pandas(OTHERS), pa.Table.from_pandas(OTHERS, preserve_index=False)]
    for rows, answers, later in zip(frames, labels, others, strict=True):
        model = nightrank.ClickClassifier(**LEARNED).fit(rows, answers)
        np.testing.assert_array_equal(model.predict_proba(later), expected)
    assert model.classes_.tolist() == ["no", "yes"]
    assert set(model.predict(later)) == {"no", "yes"}


def test_columns_with_integer_names_are_features() -> None:
    """pandas names the columns of an array 0, 1, …, as in a table of embeddings beside other columns."""
    noise = np.random.default_rng(0).normal(size=len(ROWS))
    array = np.stack([CLICKS + noise / 10, noise], axis=1)
    texts = pd.DataFrame({"noise": noise, "0": array[:, 0], "1": array[:, 1]})
    mixed = pd.concat([pd.DataFrame({"noise": noise}), pd.DataFrame(array)], axis=1)
    model = nightrank.ClickClassifier(**SMALL).fit(mixed, CLICKS)
    assert [feature.name for feature in model.workflow_.spec.features] == ["noise", "0", "1"]
    assert model.feature_names_in_.tolist() == ["noise", "0", "1"]
    assert model.score(mixed, CLICKS) > 0.9
    same = nightrank.ClickClassifier(**SMALL).fit(texts, CLICKS)
    np.testing.assert_array_equal(model.predict_proba(texts), same.predict_proba(texts))
    only = nightrank.ClickClassifier(**SMALL).fit(pd.DataFrame(array), CLICKS)
    assert only.score(pd.DataFrame(array), CLICKS) > 0.9
    with pytest.raises(nightrank.ConfigError, match=r"several columns named \['0', '1'\]"):
        nightrank.ClickClassifier(**SMALL).fit(pd.concat([texts, pd.DataFrame(array)], axis=1), CLICKS)


def test_validation_rows_choose_the_epoch() -> None:
    model = nightrank.ClickClassifier(**SMALL).fit(ROWS, CLICKS, validation=(OTHERS, OTHER_CLICKS))
    assert [entry["epoch"] for entry in model.model_.metrics] == [1, 2]
    best = max(entry["auc"] for entry in model.model_.metrics)
    assert model.score(OTHERS, OTHER_CLICKS) == pytest.approx(best, abs=1e-6)


def test_scikit_learn_copies_validates_and_searches(fitted: nightrank.ClickClassifier) -> None:
    model = nightrank.ClickClassifier("logistic_regression", epochs=2, batch_size=128, device="cpu")
    assert is_classifier(model)
    assert clone(model).get_params() == model.get_params()
    assert clone(fitted).get_params()["embedding_dim"] == 4
    scores = cross_val_score(model, ROWS, CLICKS, cv=2, **SERIAL)
    assert scores.shape == (2,)
    assert np.all(scores > 0.4)
    np.testing.assert_array_equal(
        cross_val_score(model, ROWS, CLICKS, cv=2, scoring="roc_auc", **SERIAL), scores
    )
    predicted = cross_val_predict(model, ROWS, CLICKS, cv=2, method="predict_proba")
    assert predicted.shape == (1200, 2)
    grid = {"embedding_learning_rate": [0.0001, 0.15], "embedding_dim": np.array([2])}
    search = GridSearchCV(nightrank.ClickClassifier(**SMALL), grid, cv=2, **SERIAL).fit(ROWS, CLICKS)
    first, second = search.cv_results_["mean_test_score"]
    assert first != second
    assert search.best_score_ == max(first, second)
    assert search.best_estimator_.model_.description["model"]["embedding_dim"] == 2
    auc = roc_auc_score(OTHER_CLICKS, search.predict_proba(OTHERS)[:, 1])
    assert search.score(OTHERS, OTHER_CLICKS) == pytest.approx(auc)


def test_parameters_and_copies(fitted: nightrank.ClickClassifier, tmp_path: Path) -> None:
    assert repr(nightrank.ClickClassifier()) == "ClickClassifier()"
    assert repr(fitted) == "ClickClassifier(batch_size=128, device='cpu', embedding_dim=4)"
    changed = clone(fitted).set_params(model="deepfm", seed=3, dropout=0.1)
    assert changed.get_params()["dropout"] == 0.1
    assert fitted.get_params()["model"] == "dlrm"
    expected = fitted.predict_proba(OTHERS)
    for copied in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        np.testing.assert_array_equal(copied.predict_proba(OTHERS), expected)
    fitted.model_.save(tmp_path / "saved")
    loaded: Any = nightrank.Model.load(tmp_path / "saved").score(OTHERS)
    np.testing.assert_array_equal(np.asarray(loaded, np.float64), expected[:, 1])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: nightrank.ClickClassifier(**SMALL).fit(ROWS, CLICKS * 0), r"1 distinct values: \[0\]"),
        (lambda: nightrank.ClickClassifier(**SMALL).fit(ROWS, np.arange(1200)), "1200 distinct values"),
        (lambda: nightrank.ClickClassifier(**SMALL).fit(ROWS, CLICKS[:5]), "one label per row"),
        (
            lambda: nightrank.ClickClassifier(**SMALL).fit(ROWS, np.where(CLICKS, np.nan, 0)),
            "labels are missing",
        ),
        (
            lambda: nightrank.ClickClassifier(**SMALL).fit(
                ROWS, ["yes" if click else np.nan for click in CLICKS]
            ),
            "labels are missing",
        ),
        (lambda: nightrank.ClickClassifier(**SMALL).fit(ROWS[:0], []), "0 distinct values"),
        (
            lambda: nightrank.ClickClassifier(**SMALL).fit(
                ROWS, CLICKS, validation=(OTHERS, OTHER_CLICKS + 1)
            ),
            r"the labels passed to `fit` are \[0, 1\]",
        ),
    ],
)
def test_unfit_data_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(nightrank.DataError, match=message):
        call()


def test_unfit_rows_of_a_fitted_model_are_refused(fitted: nightrank.ClickClassifier) -> None:
    with pytest.raises(nightrank.DataError, match="user"):
        fitted.predict(OTHERS.drop(columns="user"))
    with pytest.raises(nightrank.DataError, match="needs both classes"):
        fitted.score(OTHERS, OTHER_CLICKS * 0)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: nightrank.ClickClassifier().predict(ROWS), "the click model is not fitted"),
        (
            lambda: nightrank.ClickClassifier("dlrmm").fit(ROWS, CLICKS),
            "model='dlrmm' is not an architecture",
        ),
        (lambda: nightrank.ClickClassifier("sasrec").fit(ROWS, CLICKS), "predicts no click probabilities"),
        (lambda: nightrank.ClickClassifier(depth=3).fit(ROWS, CLICKS), "depth"),
        (lambda: nightrank.ClickClassifier().fit(ROWS.to_numpy(), CLICKS), "is not a frame with columns"),
        (lambda: nightrank.ClickClassifier(types={"age": "int"}).fit(ROWS, CLICKS), "`types` contains"),
    ],
)
def test_wrong_arguments_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(nightrank.ConfigError, match=message):
        call()


WITHOUT_OTHERS = """
import sys
class Missing:  # as if these packages were not installed
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "petastorm", "horovod", "mlflow", "duckdb", "pandas", "sklearn"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import polars as pl
import nightrank
assert "torch" not in sys.modules
rows = pl.DataFrame({"a": ["x", "y", "x", "z"] * 50, "n": [1.5, 0.5, 2.0, 1.0] * 50})
clicks = [1, 0, 1, 0] * 50
model = nightrank.ClickClassifier("deepfm", epochs=3, batch_size=32, device="cpu", learning_rate=0.1)
print(model.fit(rows, clicks).score(rows, clicks))
"""


@pytest.mark.processes
def test_neither_spark_nor_scikit_learn_is_needed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_OTHERS], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "1.0\n", done.stderr
