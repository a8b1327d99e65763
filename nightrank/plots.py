"""Draws plots of a model with matplotlib, and computes the numbers in the plots.

`Model` has a method for each plot.

The functions import matplotlib when they draw, so programs that only score do not need it. They draw on the
Axes of the caller, or on the Axes of a new figure. They do not show or save figures. Callers of `draw_…` call
`require_axes` first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from conf.errors import ConfigError, DataError
from metrics.clicks import count_scores, summarize
from nightrank import metrics
from nightrank.frames import require_packages

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]
_REFERENCE: Mapping[str, Any] = {"color": "lightgray", "zorder": 0}  # reference lines
_HEIGHT, _HEIGHT_OF_BAR = 1.2, 0.25  # heights of a figure with bars, in inches


# The training.


def draw_history(
    description: Mapping[str, Any], measured: Sequence[Mapping[str, Any]], ax: Axes | None
) -> Axes:
    """Draws the loss and the measures of the validation rows by epoch; see `Model.plot_history`.

    Args:
        description: the content of model.json.
        measured: the measures of the validation rows, from `Model.metrics`.
        ax: the Axes; None for a new figure.

    Raises:
        DataError: model.json has no history.
    """
    history = description.get("history") or ()
    if not history:
        raise DataError(
            f"model {description.get('version')} has no history of its training",
            "plot a model that this release trained",
        )
    axes = _axes(ax)
    steps = _steps_per_epoch(history)
    lines = axes.plot(
        [entry["step"] / steps for entry in history],
        [entry["loss"] for entry in history],
        color="C0",
        label="training loss",
    )
    lines += _draw_measure(axes, measured, steps, "log_loss", "C1", "validation log loss")
    axes.set(xlabel="epoch", ylabel="loss")
    axes.locator_params(axis="x", integer=True)
    if any(entry["auc"] is not None for entry in measured):
        right = axes.twinx()
        right.set_ylabel("AUC")
        lines += _draw_measure(right, measured, steps, "auc", "C2", "validation AUC")
    best = (description.get("kept") or {}).get("best_step")
    if best is not None:
        lines.append(axes.axvline(best / steps, linestyle=":", color="gray", label="best step"))
    _legend(axes, lines)
    return axes


def _draw_measure(
    axes: Axes, measured: Sequence[Mapping[str, Any]], steps: int, name: str, color: str, label: str
) -> list[Any]:
    """Draws a measure of the validation rows. Returns a list with its line; empty if there are no values."""
    points = [(entry["step"] / steps, entry[name]) for entry in measured if entry[name] is not None]
    return axes.plot(*zip(*points, strict=True), marker="o", color=color, label=label) if points else []


def _steps_per_epoch(history: Sequence[Mapping[str, Any]]) -> int:
    """Returns the smallest number of steps per epoch that is consistent with the history.

    model.json does not contain this number. With n steps per epoch, step s is in epoch ⌈s / n⌉ - 1, counted
    from 0. So n is at least s / (epoch + 1). At the last step of an epoch, this bound equals n. So the result
    is exact if an entry of the history, such as the last one, is at the end of an epoch.
    """
    return max(-(-int(entry["step"]) // (int(entry["epoch"]) + 1)) for entry in history)


# The predictions of rows.


def draw_calibration(labels: ArrayLike, probabilities: ArrayLike, ax: Axes | None) -> Axes:
    """Draws the share of clicks against the mean probability of ten groups; see `Model.plot_calibration`.

    Args:
        labels, probabilities: (N,) 0 or 1, and the predicted probability of 1.
        ax: the Axes; None for the Axes of a new figure.

    Raises:
        DataError: there are no rows, a label is not 0 or 1, or lengths differ.
    """
    loss = metrics.log_loss(labels, probabilities)  # this call also checks the arguments
    calibration = summarize(labels, probabilities)["calibration"]
    means = [tenth["mean_probability"] for tenth in calibration["deciles"]]
    rates = [tenth["click_rate"] for tenth in calibration["deciles"]]
    axes = _axes(ax)
    label = f"expected error {calibration['expected_error']:.4f}, log loss {loss:.4f}"
    axes.plot(means, rates, marker="o", label=label)
    end = max(*means, *rates)
    axes.plot([0, end], [0, end], **_REFERENCE)
    axes.set(xlabel="mean probability", ylabel="share of clicks")
    _legend(axes)
    return axes


def draw_roc(labels: ArrayLike, scores: ArrayLike, ax: Axes | None) -> Axes:
    """Draws the ROC curve on `ax`; see `Model.plot_roc`. The other arguments are those of `roc_points`.

    Raises:
        DataError: all labels are equal, or `roc_points` raises this error.
    """
    area = metrics.auc(labels, scores)
    curve = roc_points(labels, scores)
    axes = _axes(ax)
    axes.plot(curve.x, curve.y, label=f"AUC {area:.4f}")
    axes.plot([0, 1], [0, 1], **_REFERENCE)
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    _legend(axes)
    return axes


def draw_precision_recall(labels: ArrayLike, scores: ArrayLike, ax: Axes | None) -> Axes:
    """Draws precision against recall; see `Model.plot_precision_recall`. Arguments are those of `draw_roc`.

    Raises:
        DataError: no label is 1, or `roc_points` raises this error.
    """
    mean = metrics.average_precision(labels, scores)
    curve = precision_recall_points(labels, scores)
    axes = _axes(ax)
    axes.plot(curve.x, curve.y, drawstyle="steps-post", label=f"average precision {mean:.4f}")
    rate = float(np.mean(np.asarray(labels, dtype=np.float64)))
    axes.plot([0, 1], [rate, rate], **_REFERENCE)
    axes.set(xlabel="recall", ylabel="precision")
    _legend(axes)
    return axes


class Curve(NamedTuple):
    """The points of a curve; `x` and `y` have shape (M,)."""

    x: Floats
    y: Floats


def roc_points(labels: ArrayLike, scores: ArrayLike) -> Curve:
    """Returns false positive rate (x) and true positive rate (y) for each threshold, from (0, 0) to (1, 1).

    A row is predicted positive if its score is at least the threshold. The thresholds are the distinct scores
    in descending order, after a threshold above all scores (T. Fawcett, Pattern Recognition Letters 27, 2006,
    algorithm 1), as in sklearn.metrics.roc_curve with drop_intermediate=False.

    Args:
        labels: (N,) 0 or 1, with both values.
        scores: (N,) finite numbers; a higher score means that label 1 is more likely.

    Raises:
        DataError: lengths differ, or a score is not finite.
    """
    counts = count_scores(labels, scores)
    true, false = (np.cumsum(column[::-1]) for column in (counts.positives, counts.negatives))
    return Curve(np.append(0.0, false / false[-1]), np.append(0.0, true / true[-1]))


def precision_recall_points(labels: ArrayLike, scores: ArrayLike) -> Curve:
    """Returns recall (x) and precision (y) for each threshold, from recall 1 to (0, 1).

    The thresholds are the distinct scores in ascending order. The last point is at recall 0 by convention, as
    in sklearn.metrics.precision_recall_curve. Arguments and errors are those of `roc_points`, but the labels
    need not contain 0.
    """
    counts = count_scores(labels, scores)
    true, rows = (np.cumsum(column[::-1])[::-1] for column in (counts.positives, counts.rows))
    return Curve(np.append(true / true[0], 0.0), np.append(true / rows, 1.0))


# Functions that compute and draw the importance of raw columns.

FEATURE, MEAN, DEVIATION = "feature", "auc_drop", "standard_deviation"


def permutation_importance(
    rows: pa.Table,
    labels: ArrayLike,
    score: Callable[[pa.Table], Any],
    columns: Sequence[str],
    repeats: int,
    seed: int,
) -> pa.Table:
    """Returns the drop of the AUC if the values of a column are permuted; see `Model.importance`.

    All columns get the same permutations, so the result for a column does not depend on which other columns
    are in `columns`.

    Args:
        rows: N raw rows.
        labels: (N,) 0 or 1.
        score: a function that returns the scores of rows, (N,).
        columns: names of columns of `rows`.
        repeats: number of permutations.
        seed: seed of the permutations.

    Raises:
        ConfigError: there are no columns, or `repeats` or `seed` is not an integer in its range.
        DataError: all labels are equal, a label is not 0 or 1, or lengths differ.
    """
    _require_integer("repeats", repeats, 1)
    _require_integer("seed", seed, 0)
    if not columns:
        raise ConfigError("columns is empty", "pass the names of raw columns, or None for all")
    whole = metrics.auc(labels, score(rows))
    orders = [np.random.default_rng([seed, repeat]).permutation(len(rows)) for repeat in range(repeats)]
    drops = np.array(
        [
            [whole - metrics.auc(labels, score(_permuted(rows, name, order))) for order in orders]
            for name in columns
        ]
    )  # (columns, repeats)
    means, deviations = drops.mean(axis=1), drops.std(axis=1)
    ranked = sorted(range(len(columns)), key=lambda place: (-means[place], columns[place]))
    values = {
        FEATURE: pa.array([columns[place] for place in ranked]),
        MEAN: pa.array(means[ranked]),
        DEVIATION: pa.array(deviations[ranked]),
    }
    return pa.table(values)


def _permuted(rows: pa.Table, name: str, order: NDArray[np.int64]) -> pa.Table:
    """Returns the rows with the values of one column permuted."""
    return rows.set_column(rows.schema.get_field_index(name), name, rows.column(name).take(pa.array(order)))


def _require_integer(name: str, value: object, least: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}={value!r} is not allowed", f"pass an integer of {least} or more")


def draw_importance(importance: pa.Table, ax: Axes | None) -> Axes:
    """Draws a bar for each row of the result of `permutation_importance`, the first one at the top."""
    axes = _axes(ax, height=_HEIGHT + _HEIGHT_OF_BAR * len(importance))
    names, means, deviations = (importance.column(name).to_pylist() for name in (FEATURE, MEAN, DEVIATION))
    axes.barh(names, means, xerr=deviations)
    axes.invert_yaxis()
    axes.set(xlabel="drop of the AUC (mean and standard deviation)")
    return axes


# Functions that draw embedding vectors, such as those of items, as points of a map.

_GROUPS_OF_MAP = 10  # the largest number of groups with a colour of their own


class Components(NamedTuple):
    """The first two principal components of vectors.

    Attributes:
        points: (N, 2) the coordinates of the vectors.
        shares: (2,) the share of the variance of each component.
    """

    points: Floats
    shares: Floats


def principal_components(vectors: ArrayLike) -> Components:
    """Returns the coordinates of vectors on their first two principal components.

    The vectors are centred and not scaled. The components are eigenvectors of the covariance matrix, whose
    size does not depend on the number of vectors (I. Jolliffe, Principal Component Analysis, 2002, chapter
    1). The sign of a component is chosen so that its entry with the largest absolute value is positive.
    Therefore the same vectors always have the same coordinates.

    Args:
        vectors: (N, E) finite numbers.

    Raises:
        DataError: there are fewer than three vectors, or fewer than two numbers in each, or all are equal.
    """
    matrix = np.asarray(vectors, dtype=np.float64)
    if matrix.ndim != 2 or len(matrix) < 3 or matrix.shape[1] < 2:
        raise DataError(
            f"vectors of the shape {matrix.shape} cannot be drawn as a map",
            "pass three or more vectors of two or more numbers",
        )
    centred = matrix - matrix.mean(axis=0)
    values, components = np.linalg.eigh(centred.T @ centred)  # ascending eigenvalues
    total = float(values.sum())
    if not total > 0:
        raise DataError(
            "all vectors are equal, so they cannot be drawn as a map",
            "train the model, or choose another feature",
        )
    first = components[:, [-1, -2]]  # (E, 2)
    largest = first[np.abs(first).argmax(axis=0), [0, 1]]
    first = first * np.where(largest < 0, -1.0, 1.0)
    return Components(centred @ first, np.maximum(values[[-1, -2]], 0.0) / total)


def draw_map(
    vectors: ArrayLike, names: Sequence[str], groups: Mapping[str, str] | None, labels: int, ax: Axes | None
) -> Axes:
    """Draws a point for each vector at its first two principal components; see `Model.plot_map`.

    Args:
        vectors: (N, E) finite numbers.
        names: the names of the vectors.
        groups: maps names to groups, which have colours; None for one colour.
        labels: number of points that are labelled; the first vectors are labelled.
        ax: the Axes; None for those of a new figure.

    Raises:
        DataError: see `principal_components`.
    """
    components = principal_components(vectors)
    points = components.points
    axes = _axes(ax)
    if groups is None:
        axes.scatter(points[:, 0], points[:, 1], s=12)
    else:
        of_points = np.array([groups.get(name, "") for name in names], dtype=object)
        sizes = {name: int((of_points == name).sum()) for name in set(of_points)}
        largest = sorted((one for one in sizes if one), key=lambda one: (-sizes[one], one))[:_GROUPS_OF_MAP]
        others = ~np.isin(of_points, largest)
        if others.any():
            axes.scatter(points[others, 0], points[others, 1], s=12, color="lightgray", label="others")
        for name in largest:
            chosen = of_points == name
            axes.scatter(points[chosen, 0], points[chosen, 1], s=12, label=name)
        _legend(axes)
    for name, (x, y) in zip(names[:labels], points[:labels], strict=True):
        axes.annotate(name, (x, y), xytext=(3, 3), textcoords="offset points", fontsize="small")
    first, second = (f"{share:.0%} of the variance" for share in components.shares)
    axes.set(xlabel=f"first component, {first}", ylabel=f"second component, {second}")
    return axes


# Axes.


def require_axes(ax: object) -> None:
    """Checks the argument `ax` of a plot. Callers do this before they score rows.

    Raises:
        ConfigError: matplotlib is not installed, or `ax` is not None and not an Axes.
    """
    require_packages(["matplotlib"], "plots", "a plot")
    from matplotlib.axes import Axes as MatplotlibAxes

    if ax is not None and not isinstance(ax, MatplotlibAxes):
        raise ConfigError(
            f"ax is of type {type(ax).__name__}, not Axes of matplotlib",
            "pass Axes, such as those of matplotlib.pyplot.gca()",
        )


def _axes(ax: Axes | None, height: float | None = None) -> Axes:
    """Returns `ax`, or the Axes of a new figure.

    Args:
        ax: the Axes of the caller, or None.
        height: the height of a new figure in inches; None for the default of matplotlib.
    """
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    width, usual = plt.rcParams["figure.figsize"]
    return plt.subplots(figsize=(width, height or usual), layout="constrained")[1]


def _legend(axes: Axes, lines: Sequence[Any] | None = None) -> None:
    """Adds a legend above the plot, where it does not hide a line.

    Args:
        axes: the Axes.
        lines: the lines in the legend; None for all lines of the Axes with a label.
    """
    axes.legend(handles=lines, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
