"""Decides which rank holds which rows of a table: a pure function of shapes, ranks and configuration.

Replicated rows take memory on all ranks, and their gradients need an all-gather. Rows on only one rank need
an exchange of vectors, and the rank with the frequent rows has the most work. The placement `auto` therefore
follows these rules:

* Small features (at most `replicated_max_bytes`) are replicated, unless the memory limit of a rank,
  `rank_max_bytes`, is too small for this.
* A feature is row-wise, which means that its rows are spread over all ranks, if its bytes are more than
  `row_wise_share` times the mean number of bytes per rank. While a rank holds more than its memory limit, the
  largest of the other features becomes row-wise too.
* Each other feature is placed on one rank. The features are assigned in descending order of cost, each to the
  rank with the lowest cost so far. The cost of a feature is its share of all bytes plus its share of all
  lookups. With this rule (LPT, Graham 1969, SIAM Journal on Applied Mathematics 17), the cost of a rank is at
  most the mean cost plus the highest cost of a feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from conf.embedding_types import Embeddings
from conf.errors import ConfigError
from training.embeddings.placed_rows import FeaturePlacement, Placement, replicate_all


@dataclass(frozen=True)
class TableShape:
    """The sizes of a table that determine its placement.

    Attributes:
        cardinalities: number of rows of each feature.
        row_bytes: bytes of memory that a row takes, for its numbers and its optimizer state.
        lookups: for each feature, the largest number of its rows that one row of a batch looks up.
    """

    cardinalities: tuple[int, ...]
    row_bytes: int
    lookups: tuple[int, ...]

    @property
    def feature_bytes(self) -> list[int]:
        """Returns the size of each feature's rows in bytes."""
        return [rows * self.row_bytes for rows in self.cardinalities]


def plan_placement(shape: TableShape, ranks: int, settings: Embeddings) -> Placement:
    """Returns the placement of all features. A single rank holds everything, whatever the settings are.

    Raises:
        ConfigError: a rank would hold more bytes of the table than `rank_max_bytes`.
    """
    placement = _place(shape, ranks, settings)
    max_bytes = settings.rank_max_bytes
    largest_bytes = max(placement.rows_of(rank) for rank in range(ranks)) * shape.row_bytes
    if max_bytes is not None and largest_bytes > max_bytes:
        raise ConfigError(
            f"a rank would hold {largest_bytes} bytes of an embedding table "
            f"(train.embeddings.placement={settings.placement}, {ranks} ranks, "
            f"{sum(shape.cardinalities)} rows of {shape.row_bytes} bytes), which is more than "
            f"train.embeddings.rank_max_bytes={max_bytes}",
            "raise train.num_ranks, set train.embeddings.placement to auto or row_wise, or set "
            "model.embedding_storage to bf16",
        )
    return placement


def _place(shape: TableShape, ranks: int, settings: Embeddings) -> Placement:
    cardinalities = shape.cardinalities
    if ranks == 1 or settings.placement == "replicated":
        return replicate_all(cardinalities, ranks)
    features = range(len(cardinalities))
    if settings.placement == "table_wise":
        return _assign(shape, ranks, replicated=set(), row_wise=set())
    if settings.placement == "row_wise":
        return _assign(shape, ranks, replicated=set(), row_wise=set(features))
    if settings.placement == "auto":
        return _place_by_size(shape, ranks, settings)
    assert_never(settings.placement)


def _place_by_size(shape: TableShape, ranks: int, settings: Embeddings) -> Placement:
    """Returns the placement `auto`, by the rules in the docstring of this module."""
    features = range(len(shape.cardinalities))
    sizes = shape.feature_bytes
    replicated = {feature for feature in features if sizes[feature] <= settings.replicated_max_bytes}
    placed = [feature for feature in features if feature not in replicated]
    share = settings.row_wise_share * sum(sizes[feature] for feature in placed) / ranks
    row_wise = {feature for feature in placed if sizes[feature] > share}
    placement = _assign(shape, ranks, replicated, row_wise)
    for feature in sorted(features, key=lambda feature: (-sizes[feature], feature)):
        max_bytes = settings.rank_max_bytes
        rows = max(placement.rows_of(rank) for rank in range(ranks))
        if max_bytes is None or rows * shape.row_bytes <= max_bytes:
            break
        replicated, row_wise = replicated - {feature}, row_wise | {feature}
        placement = _assign(shape, ranks, replicated, row_wise)
    return placement


def _assign(shape: TableShape, ranks: int, replicated: set[int], row_wise: set[int]) -> Placement:
    """Assigns each feature that is neither replicated nor row-wise to one rank."""
    sizes, lookups = shape.feature_bytes, shape.lookups
    features = range(len(sizes))
    placed = [feature for feature in features if feature not in replicated]
    all_bytes = max(sum(sizes[feature] for feature in placed), 1)
    all_lookups = max(sum(lookups[feature] for feature in placed), 1)
    costs = [sizes[feature] / all_bytes + lookups[feature] / all_lookups for feature in features]
    placements = {feature: FeaturePlacement("replicated") for feature in replicated}
    # Row 0 of the first row-wise feature is on rank 0, row 0 of the second one on rank 1, and so on, so that
    # no rank has all frequent rows.
    placements |= {
        feature: FeaturePlacement("row_wise", index % ranks) for index, feature in enumerate(sorted(row_wise))
    }
    rank_costs = [0.0] * ranks
    for feature in sorted(set(placed) - row_wise, key=lambda feature: (-costs[feature], feature)):
        rank = min(range(ranks), key=lambda candidate: (rank_costs[candidate], candidate))
        placements[feature] = FeaturePlacement("table_wise", rank)
        rank_costs[rank] += costs[feature]
    return Placement(shape.cardinalities, tuple(placements[feature] for feature in features), ranks)


def describe(placement: Placement, shape: TableShape, names: Sequence[str]) -> str:
    """Returns the placement as a table for the log: one line per feature, then one line per rank."""
    holders = {
        "replicated": "every rank",
        "table_wise": "rank {}",
        "row_wise": "by rows, the first on rank {}",
    }
    width = max([len("feature"), *(len(name) for name in names)])
    lines = [f"{'feature':<{width}}  {'rows':>11}  {'MiB':>9}  {'lookups':>7}  held by"]
    features = zip(
        names, placement.cardinalities, shape.feature_bytes, shape.lookups, placement.features, strict=True
    )
    for name, rows, size, lookups, feature in features:
        holder = holders[feature.kind].format(feature.rank)
        lines.append(f"{name:<{width}}  {rows:>11}  {size / 2**20:>9.2f}  {lookups:>7}  {holder}")
    for rank in range(placement.ranks):
        rows = placement.rows_of(rank)
        line = f"{f'rank {rank}':<{width}}  {rows:>11}  {rows * shape.row_bytes / 2**20:>9.2f}"
        lines.append(f"{line}  {_lookups_of(placement, shape, rank):>7.1f}")
    return "\n".join(lines)


def _lookups_of(placement: Placement, shape: TableShape, rank: int) -> float:
    """Returns a rank's number of lookups per row of the global batch, if all ids are equally frequent."""
    pairs = zip(placement.features, shape.lookups, strict=True)
    return sum(lookups * _share_of_lookups(feature, rank, placement.ranks) for feature, lookups in pairs)


def _share_of_lookups(feature: FeaturePlacement, rank: int, ranks: int) -> float:
    """Returns a rank's share of the lookups of one feature."""
    if feature.kind == "replicated" or feature.kind == "row_wise":
        return 1 / ranks
    if feature.kind == "table_wise":
        return float(feature.rank == rank)
    assert_never(feature.kind)
