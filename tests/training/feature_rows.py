"""Makes random feature rows and their spec. It needs neither Spark nor files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from conf.types import Scope
from storage.feature_spec import Feature, FeatureSpec

SCOPES: tuple[Scope, ...] = ("user", "item", "context")


def make_spec(
    num_dense: int, cardinalities: list[int], workflow_version: str = "w1", lists: Sequence[int] = ()
) -> FeatureSpec:
    """A spec with I0…, C0… of these cardinalities, and L0…, lists of ids; scopes alternate."""
    dense = [Feature(f"I{i}", "dense", "float32", SCOPES[i % 3]) for i in range(num_dense)]
    categorical = [
        Feature(f"C{i}", "categorical", "int32", SCOPES[i % 3], n) for i, n in enumerate(cardinalities)
    ]
    multi_hot = [Feature(f"L{i}", "multi_hot", "list<int32>", SCOPES[i % 3], n) for i, n in enumerate(lists)]
    return FeatureSpec((*multi_hot, *dense, *categorical), ("row_id",), workflow_version)


@dataclass(frozen=True)
class Rows:
    """Feature rows: labels (N,), dense (N, D), categorical (N, C), and N lists of ids a list feature.

    keys: the users and the items of the rows, as strings; empty for a table without keys. row_id begins at
    first_row.
    """

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    categorical: NDArray[np.int32]
    lists: tuple[list[list[int]], ...] = ()
    keys: tuple[list[str], ...] = ()
    first_row: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, first: int, count: int) -> Rows:
        chosen = slice(first, first + count)
        lists = tuple(lists[chosen] for lists in self.lists)
        keys = tuple(values[chosen] for values in self.keys)
        first_row = self.first_row + first
        return Rows(self.labels[chosen], self.dense[chosen], self.categorical[chosen], lists, keys, first_row)

    def ids(self, row: int, length: int) -> list[list[int]]:
        """The ids of every feature made of ids, in one row: a list each, its first `length` ids."""
        return [[int(value)] for value in self.categorical[row]] + [ids[row][:length] for ids in self.lists]

    def tensors(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Model inputs, lists padded to `length` columns of ids."""
        single = self.categorical.shape[1]
        padded = []
        for row in range(len(self)):
            ids = self.ids(row, length)
            padded.append([value for values in ids[:single] for value in values])
            for values in ids[single:]:
                padded[row] += [*values, *[0] * (length - len(values))]
        width = self.categorical.shape[1] + length * len(self.lists)
        return torch.from_numpy(self.dense), torch.tensor(padded, dtype=torch.int64).view(len(self), width)


def random_rows(spec: FeatureSpec, rows: int, seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    ids = [rng.integers(0, feature.cardinality, rows) for feature in spec.categorical]
    lists = [
        [rng.integers(1, feature.cardinality, rng.integers(0, 6)).tolist() for _ in range(rows)]
        for feature in spec.multi_hot
    ]
    return Rows(
        rng.integers(0, 2, rows).astype(np.float32),
        rng.normal(size=(rows, len(spec.dense))).astype(np.float32),
        np.stack(ids, axis=1).astype(np.int32) if ids else np.zeros((rows, 0), np.int32),
        tuple(lists),
    )


def segment_rows(rows: int, seed: int, size: int = 8) -> tuple[FeatureSpec, Rows]:
    """Clicks that depend only on segment × category, each with `size` values; and two columns of noise.

    Each segment likes half of the categories and each category is liked by half of the segments, so that
    neither says anything by itself: no linear model can rank these rows. The best AUC is that of the true
    probabilities.
    """
    spec = make_spec(2, [size + 3, size + 3, 50])
    rng = np.random.default_rng(seed)
    segment, category = rng.integers(0, size, rows), rng.integers(0, size, rows)
    likes = (segment + category) % size < size // 2
    labels = (rng.random(rows) < np.where(likes, 0.8, 0.2)).astype(np.float32)
    categorical = np.stack([segment + 3, category + 3, rng.integers(3, 50, rows)], axis=1).astype(np.int32)
    return spec, Rows(labels, rng.normal(size=(rows, 2)).astype(np.float32), categorical)


def wish_rows(rows: int, seed: int, size: int = 8) -> tuple[FeatureSpec, Rows]:
    """Clicks that depend on whether a row's list of 2 to 4 wishes has its category; and two columns of noise.

    Neither the category nor a wish says anything by itself: no linear model can rank these rows.
    """
    spec = make_spec(2, [size + 3], lists=[size + 3])
    rng = np.random.default_rng(seed)
    category = rng.integers(0, size, rows)
    orders = 3 + rng.random((rows, size)).argsort(axis=1)
    wishes = [order[:length].tolist() for order, length in zip(orders, rng.integers(2, 5, rows), strict=True)]
    wanted = np.array([value + 3 in liked for value, liked in zip(category, wishes, strict=True)])
    labels = (rng.random(rows) < np.where(wanted, 0.85, 0.15)).astype(np.float32)
    dense = rng.normal(size=(rows, 2)).astype(np.float32)
    return spec, Rows(labels, dense, (category[:, None] + 3).astype(np.int32), (wishes,))
