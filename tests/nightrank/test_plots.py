"""Plots of models: the drawn data equal those of scikit-learn, and importance finds what was planted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import util
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.inspection import permutation_importance
from sklearn.metrics import (
    auc,
    average_precision_score,
    log_loss,
    precision_recall_curve,
    roc_auc_score,
    roc_curve,
)

import nightrank
from nightrank import frames, plots
from scoring.model.model_info import ModelInfo
from scoring.model.predictor import Predictor
from storage.paths import LakePaths
from tests.processes import ROOT
from training.checkpoints.model import load_model
from training.embeddings.table import tables_of

GROUPS: list[dict[str, Any]] = [
    {"columns": ["shop", "noise"], "kind": "categorical", "ops": ["categorify"]},
    {"columns": ["price"], "kind": "dense", "ops": ["fill_median", "normalize"]},
]
TRAIN: dict[str, Any] = {"global_batch_size": 128, "num_shards": 4, "epochs": 4, "device": "cpu"}
COLUMNS = ["shop", "noise", "price"]


def make_rows(count: int, seed: int) -> pd.DataFrame:
    """Clicks that depend much on the shop, less on the price, and not on `noise`. Some prices are missing."""
    rng = np.random.default_rng(seed)
    shop, price = rng.integers(0, 4, count), rng.normal(5.0, 1.0, count)
    logit = np.array([-2.5, -1.0, 1.0, 2.5])[shop] - 0.8 * (price - 5.0)
    label = (rng.random(count) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    price[rng.random(count) < 0.05] = np.nan
    return pd.DataFrame(
        {
            "label": label,
            "shop": [f"s{value}" for value in shop],
            "noise": [f"n{value}" for value in rng.integers(0, 4, count)],
            "price": price,
        },
        index=rng.permutation(count),
    )


ROWS: Any = make_rows(4000, 0)
OTHERS: Any = make_rows(1500, 1)
LABELS = OTHERS["label"]


@pytest.fixture(scope="module")
def model() -> nightrank.Model:
    workflow = nightrank.Workflow(GROUPS).fit(ROWS)
    return nightrank.train(
        workflow, ROWS, model={"architecture": "logistic_regression"}, train=TRAIN, validation=OTHERS
    )


@pytest.fixture(scope="module")
def scores(model: nightrank.Model) -> np.ndarray:
    return np.asarray(model.score(OTHERS), dtype=np.float64)


@pytest.fixture(autouse=True)
def figures() -> Iterator[None]:
    matplotlib.use("Agg")
    yield
    plt.close("all")


def described(model: nightrank.Model, **changed: Any) -> nightrank.Model:
    """The same model with other values in model.json."""
    info = model._info
    description = {**info.description, **changed}
    return nightrank.Model(
        LakePaths("none"), ModelInfo(info.path, info.version, info.spec, description), workflow=model.workflow
    )


def data(line: Any) -> np.ndarray:
    return np.column_stack(line.get_data())


def test_history_has_the_loss_and_the_measures_of_each_epoch(model: nightrank.Model) -> None:
    axes: Any = model.plot_history()
    (right,) = [other for other in axes.figure.axes if other is not axes]
    loss, validation, best = axes.get_lines()
    steps = -(-len(ROWS) // 128)
    history = model.description["history"]
    np.testing.assert_allclose(data(loss), [(entry["step"] / steps, entry["loss"]) for entry in history])
    expected = [(entry["epoch"], entry["log_loss"]) for entry in model.metrics]
    assert len(expected) == TRAIN["epochs"]
    np.testing.assert_allclose(data(validation), expected)
    np.testing.assert_allclose(
        data(right.get_lines()[0]), [(entry["epoch"], entry["auc"]) for entry in model.metrics]
    )
    assert best.get_xdata()[0] == pytest.approx(model.kept["best_step"] / steps)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["training loss", "validation log loss", "validation AUC", "best step"]


def test_history_without_validation_rows_has_the_loss_only() -> None:
    workflow = nightrank.Workflow(GROUPS).fit(ROWS)
    alone = nightrank.train(workflow, ROWS, model={"architecture": "logistic_regression"}, train=TRAIN)
    axes: Any = alone.plot_history()
    assert len(axes.get_lines()) == len(axes.figure.axes) == 1


def test_history_leaves_out_measures_that_are_none(model: nightrank.Model) -> None:
    """A model whose scores are no probabilities has no log loss."""
    history = [
        {**entry, "validation": {**entry["validation"], "log_loss": None}}
        for entry in model.description["history"]
        if "validation" in entry
    ]
    axes: Any = described(model, history=history).plot_history()
    assert [line.get_label() for line in axes.get_lines()] == ["training loss", "best step"]
    assert len(axes.figure.axes) == 2


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 15))
def test_the_steps_of_an_epoch_are_found(steps: int, epochs: int, every: int) -> None:
    total = steps * epochs
    due = [step for step in range(1, total + 1) if step % every == 0 or step == total]
    history = [{"step": step, "epoch": (step - 1) // steps} for step in due]
    assert plots._steps_per_epoch(history) == steps


def test_calibration_is_that_of_scikit_learn(model: nightrank.Model) -> None:
    rng = np.random.default_rng(3)
    probabilities = rng.permutation(
        np.linspace(0.01, 0.9, 500) ** 2
    )  # distinct, so that all tenths are equal
    labels = (rng.random(500) < probabilities).astype(int)
    curve, diagonal = plots.draw_calibration(labels, probabilities, None).get_lines()
    rates, means = calibration_curve(labels, probabilities, n_bins=10, strategy="quantile")
    np.testing.assert_allclose(data(curve), np.column_stack([means, rates]))
    error = f"{np.abs(means - rates).mean():.4f}"
    assert curve.get_label() == f"expected error {error}, log loss {log_loss(labels, probabilities):.4f}"
    assert data(diagonal).tolist() == [[0, 0], [max(*means, *rates)] * 2]


def test_calibration_of_a_model_has_all_rows(model: nightrank.Model, scores: np.ndarray) -> None:
    axes = model.plot_calibration(OTHERS, LABELS)
    means, rates = data(axes.get_lines()[0]).T
    assert (np.diff(means) > 0).all()
    deciles = model.description["metrics"]["validation"]["calibration"]["deciles"]  # of the same rows
    np.testing.assert_allclose(means, [tenth["mean_probability"] for tenth in deciles], rtol=1e-5)
    np.testing.assert_allclose(rates, [tenth["click_rate"] for tenth in deciles])


def test_curves_are_those_of_scikit_learn(model: nightrank.Model, scores: np.ndarray) -> None:
    curve, _ = model.plot_roc(OTHERS, LABELS).get_lines()
    false, true, _ = roc_curve(LABELS, scores, drop_intermediate=False)
    np.testing.assert_allclose(data(curve), np.column_stack([false, true]))
    assert curve.get_label() == f"AUC {roc_auc_score(LABELS, scores):.4f}"
    curve, share = model.plot_precision_recall(OTHERS, LABELS).get_lines()
    precision, recall, _ = precision_recall_curve(LABELS, scores)
    np.testing.assert_allclose(data(curve), np.column_stack([recall, precision]))
    assert curve.get_label() == f"average precision {average_precision_score(LABELS, scores):.4f}"
    assert curve.get_drawstyle() == "steps-post"
    np.testing.assert_allclose(data(share)[:, 1], LABELS.mean())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=2, max_size=40))
def test_curves_of_equal_scores_are_those_of_scikit_learn(rows: list[tuple[bool, int]]) -> None:
    labels, scores = np.array(rows, dtype=float).T
    labels[:2] = 0, 1  # both classes
    points = roc_curve(labels, scores, drop_intermediate=False)
    np.testing.assert_allclose(plots.roc_points(labels, scores), points[:2])
    precision, recall, _ = precision_recall_curve(labels, scores)
    np.testing.assert_allclose(plots.precision_recall_points(labels, scores), [recall, precision])


def test_high_logits_are_no_ties_of_a_curve(
    model: nightrank.Model, scores: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float32 rounds the sigmoids of logits above 17 to 1."""
    logits = Predictor.logits
    monkeypatch.setattr(Predictor, "logits", lambda *arguments: logits(*arguments) + 20)
    assert set(model.score(OTHERS)) == {1.0}
    curve, _ = model.plot_roc(OTHERS, LABELS).get_lines()
    assert auc(*curve.get_data()) == pytest.approx(roc_auc_score(LABELS, scores), abs=1e-4)


def test_importance_finds_the_planted_column(model: nightrank.Model) -> None:
    result: Any = model.importance(OTHERS, LABELS)
    assert list(result) == ["feature", "auc_drop", "standard_deviation"]
    assert list(result["feature"]) == ["shop", "price", "noise"]
    drops = dict(zip(result["feature"], result["auc_drop"], strict=True))
    assert drops["shop"] > 0.2 > drops["price"] > 0.01
    assert abs(drops["noise"]) < 0.005
    assert (result["standard_deviation"] < 0.02).all()


def test_importance_is_the_drop_of_the_auc(model: nightrank.Model, scores: np.ndarray) -> None:
    result: Any = model.importance(OTHERS, LABELS, ["price"], repeats=3, seed=7)
    drops = []
    for repeat in range(3):
        order = np.random.default_rng([7, repeat]).permutation(len(OTHERS))
        permuted = OTHERS.assign(price=OTHERS["price"].to_numpy()[order])
        drops.append(roc_auc_score(LABELS, scores) - roc_auc_score(LABELS, model.score(permuted)))
    assert result["auc_drop"].tolist() == pytest.approx([np.mean(drops)])
    assert result["standard_deviation"].tolist() == pytest.approx([np.std(drops)])


def test_importance_agrees_with_scikit_learn() -> None:
    """scikit-learn draws other permutations, so the means agree up to their spread."""
    classifier = nightrank.ClickClassifier("logistic_regression", features=GROUPS, epochs=2)
    classifier.fit(ROWS[COLUMNS], ROWS["label"])
    theirs = permutation_importance(classifier, OTHERS[COLUMNS], LABELS, n_repeats=8, random_state=0)
    ours: Any = classifier.model_.importance(OTHERS, LABELS, repeats=8)
    means = ours.set_index("feature")["auc_drop"][COLUMNS]
    np.testing.assert_allclose(means, theirs.importances_mean, atol=0.01)


def test_importance_depends_only_on_its_arguments(model: nightrank.Model) -> None:
    result: Any = model.importance(OTHERS, LABELS, repeats=2)
    again: Any = model.importance(OTHERS, LABELS, repeats=2)
    pd.testing.assert_frame_equal(again, result)
    alone: Any = model.importance(OTHERS, LABELS, ["noise"], repeats=2)
    assert alone.loc[0].to_dict() == result[result["feature"] == "noise"].iloc[0].to_dict()
    other: Any = model.importance(OTHERS, LABELS, repeats=2, seed=1)
    assert (other["auc_drop"] != result["auc_drop"]).all()


def test_importance_is_a_frame_of_the_library_of_the_rows(model: nightrank.Model) -> None:
    arrow = pa.Table.from_pandas(OTHERS, preserve_index=False)
    table: Any = model.importance(arrow, LABELS, repeats=1)
    frame: Any = model.importance(pl.from_pandas(OTHERS), pl.Series(LABELS.to_numpy()), repeats=1)
    assert isinstance(table, pa.Table)
    assert isinstance(frame, pl.DataFrame)
    pandas: Any = model.importance(OTHERS, LABELS, repeats=1)
    assert table.to_pylist() == frame.to_dicts() == pandas.to_dict("records")


def test_the_plot_of_importance_has_a_bar_for_each_column(model: nightrank.Model) -> None:
    axes: Any = model.plot_importance(OTHERS, LABELS, repeats=2, seed=3)
    result: Any = model.importance(OTHERS, LABELS, repeats=2, seed=3)
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], result["auc_drop"])
    assert [text.get_text() for text in axes.get_yticklabels()] == list(result["feature"])
    assert axes.yaxis_inverted()


def test_plots_are_drawn_on_given_axes_and_are_not_shown(
    model: nightrank.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plt, "show", lambda *_, **__: pytest.fail("shown"))
    _, grid = plt.subplots(5, 1)
    before = plt.get_fignums()
    assert model.plot_history(ax=grid[0]) is grid[0]
    assert model.plot_calibration(OTHERS, LABELS, ax=grid[1]) is grid[1]
    assert model.plot_roc(OTHERS, LABELS, ax=grid[2]) is grid[2]
    assert model.plot_precision_recall(OTHERS, LABELS, ax=grid[3]) is grid[3]
    assert model.plot_importance(OTHERS, LABELS, ["shop"], repeats=1, ax=grid[4]) is grid[4]
    assert plt.get_fignums() == before


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_is_an_error(model: nightrank.Model, label: int) -> None:
    labels = np.full(len(OTHERS), label)
    for method in (model.plot_roc, model.importance, model.plot_importance):
        with pytest.raises(nightrank.DataError, match="both classes"):
            method(OTHERS, labels)
    if not label:
        with pytest.raises(nightrank.DataError, match="no row is positive"):
            model.plot_precision_recall(OTHERS, labels)
    assert not plt.get_fignums()


def test_wrong_labels_are_errors(model: nightrank.Model) -> None:
    methods: list[Any] = [
        model.plot_calibration,
        model.plot_roc,
        model.plot_precision_recall,
        model.importance,
    ]
    for method in methods:
        with pytest.raises(nightrank.DataError, match="not 0 or 1"):
            method(OTHERS, LABELS + 1)
        with pytest.raises(nightrank.DataError, match="same length"):
            method(OTHERS, LABELS[:-1])
        with pytest.raises(nightrank.DataError, match="price"):
            method(OTHERS.drop(columns="price"), LABELS)
        with pytest.raises(nightrank.DataError):
            method(OTHERS[:0], LABELS[:0])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"columns": ["shop", "colour"]}, "colour"),
        ({"columns": "shop"}, "not a list"),
        ({"columns": []}, "empty"),
        ({"repeats": 0}, "repeats=0"),
        ({"repeats": 2.0}, "repeats=2.0"),
        ({"repeats": True}, "repeats=True"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_wrong_arguments_of_importance_are_errors(
    model: nightrank.Model, arguments: dict[str, Any], message: str
) -> None:
    for method in (model.importance, model.plot_importance):
        with pytest.raises(nightrank.ConfigError, match=message):
            method(OTHERS, LABELS, **arguments)
    with pytest.raises(nightrank.ConfigError, match="is not a frame"):
        model.importance([1, 2], LABELS)


@pytest.mark.parametrize("changed", [{"history": []}, {"history": None}])
def test_a_model_without_history_is_an_error(model: nightrank.Model, changed: dict[str, Any]) -> None:
    with pytest.raises(nightrank.DataError, match="no history"):
        described(model, **changed).plot_history()


def test_scores_that_are_no_probabilities_have_no_calibration(model: nightrank.Model) -> None:
    with pytest.raises(nightrank.ConfigError, match="not probabilities"):
        described(model, scores="ranking").plot_calibration(OTHERS, LABELS)


def methods_that_plot(model: nightrank.Model) -> list[Any]:
    return [
        model.plot_history,
        lambda **named: model.plot_calibration(OTHERS, LABELS, **named),
        lambda **named: model.plot_roc(OTHERS, LABELS, **named),
        lambda **named: model.plot_precision_recall(OTHERS, LABELS, **named),
        lambda **named: model.plot_importance(OTHERS, LABELS, **named),
    ]


def test_without_matplotlib_the_error_says_what_to_install(
    model: nightrank.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = util.find_spec
    monkeypatch.setattr(frames, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    for method in methods_that_plot(model):
        with pytest.raises(nightrank.ConfigError, match="matplotlib") as caught:
            method()
        assert caught.value.remedy == "pip install 'nightrank[plots]'"
    assert len(model.importance(OTHERS, LABELS, repeats=1)) == 3  # needs no matplotlib


def test_wrong_axes_are_errors(model: nightrank.Model) -> None:
    figure, _ = plt.subplots()
    for method in methods_that_plot(model):
        with pytest.raises(nightrank.ConfigError, match="of type Figure, not Axes"):
            method(ax=figure)


@pytest.mark.processes
def test_the_package_imports_matplotlib_only_for_a_plot_and_needs_no_display() -> None:
    code = (
        "import sys, nightrank, nightrank.model, nightrank.plots\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'matplotlib']\n"
        "axes = nightrank.plots.draw_roc([0, 1, 1], [0.1, 0.7, 0.2], None)\n"
        "axes.figure.savefig(sys.stdout.buffer, format='png')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "MPLBACKEND")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(b"\x89PNG")


# The map of vectors.


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 40), st.integers(2, 9), st.integers(0, 1_000))
def test_principal_components_equal_those_of_the_svd(count: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, width)) * np.geomspace(5.0, 0.5, width) + 3.0
    left, singular, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    components = plots.principal_components(vectors)
    expected = (left * singular)[:, :2]
    signs = np.sign((components.points * expected).sum(axis=0))
    np.testing.assert_allclose(components.points, expected * signs, atol=1e-6)
    np.testing.assert_allclose(components.shares, (singular**2 / (singular**2).sum())[:2], atol=1e-9)
    np.testing.assert_array_equal(plots.principal_components(vectors).points, components.points)


@pytest.mark.parametrize("vectors", [np.ones((9, 3)), np.ones((2, 3)), np.ones((9, 1))])
def test_vectors_without_a_map_are_refused(vectors: np.ndarray) -> None:
    with pytest.raises(nightrank.DataError, match="cannot be drawn as a map"):
        plots.principal_components(vectors)


@pytest.fixture(scope="module")
def embedded() -> nightrank.Model:
    workflow = nightrank.Workflow(GROUPS).fit(ROWS)
    model = {"architecture": "dlrm", "embedding_dim": 4, "bottom_mlp": [4], "top_mlp": [4]}
    return nightrank.train(workflow, ROWS, model=model, train={**TRAIN, "epochs": 1})


def test_vectors_are_those_that_the_model_looks_up(embedded: nightrank.Model) -> None:
    loaded = load_model(embedded._info.path, torch.device("cpu"))
    (table,) = tables_of(loaded.model).values()
    for place, feature in enumerate(("shop", "noise")):
        vectors = embedded.vectors(feature)
        texts = vectors["value"].to_pylist()
        assert sorted(texts) == sorted(set(ROWS[feature]))
        rows: Any = pd.DataFrame({"shop": "s0", "noise": "n0", "price": 1.0}, index=range(len(texts)))
        ids: Any = embedded.workflow.encode(rows.assign(**{feature: texts}), ["shop", "noise"])
        looked_up = table(torch.tensor(ids.to_numpy()))[:, place].detach().numpy()
        np.testing.assert_array_equal(np.array(vectors["vector"].to_pylist(), np.float32), looked_up)
    counts = ROWS["shop"].value_counts()
    assert embedded.vectors("shop", 2)["value"].to_pylist() == counts.index[:2].tolist()


def test_the_map_has_a_point_for_each_value(embedded: nightrank.Model) -> None:
    axes = embedded.plot_map("shop", groups={"s0": "old", "s1": "old", "s2": "new"}, labels=2)
    drawn = {one.get_label(): len(np.asarray(one.get_offsets())) for one in axes.collections}
    assert drawn == {"others": 1, "old": 2, "new": 1}
    assert [text.get_text() for text in axes.texts] == embedded.vectors("shop", 2)["value"].to_pylist()
    plt.close("all")


def test_a_model_without_vectors_has_no_map(model: nightrank.Model) -> None:
    with pytest.raises(nightrank.ConfigError, match="has no vectors of 'shop'"):
        model.vectors("shop")
    with pytest.raises(nightrank.ConfigError, match="'price' is not a feature with ids"):
        model.plot_map("price")
