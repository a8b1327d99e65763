"""Decides which rank holds which rows of a table: a pure function of shapes, ranks and configuration.

Rows that all ranks hold cost every rank memory, and an all-gather of their gradients; rows that one rank holds cost an
exchange of vectors, and whoever has the hot ones works most. So under `auto`

    a small feature is replicated, unless the budget is needed for others;
    a feature larger than a share of what each rank should hold is spread by rows, and so are more, the largest first,
    until what each rank holds fits the budget;
    the others go to one rank each: the costliest first, to the rank that bears least so far. A feature's cost is its part
    of all bytes plus its part of all lookups (LPT rule, Graham 1969, SIAM Journal on Applied Mathematics 17: no rank
    bears more than the mean plus the costliest feature).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conf.errors import ConfigError
from conf.train_types import Embeddings
from training.embeddings.placement import Home, Placement, everywhere


@dataclass(frozen=True)
class TableShape:
    """What the planner knows of a table.

    Attributes:
        cardinalities: rows of each feature.
        row_bytes: bytes a row takes on the rank that holds it: its numbers and its optimiser's state.
        lookups: rows of each feature that a row of a batch asks for, at most.
    """

    cardinalities: tuple[int, ...]
    row_bytes: int
    lookups: tuple[int, ...]

    @property
    def feature_bytes(self) -> list[int]:
        return [rows * self.row_bytes for rows in self.cardinalities]


def plan_placement(shape: TableShape, ranks: int, settings: Embeddings) -> Placement:
    """The homes of all features. One rank holds everything, whatever the settings.

    Raises:
        ConfigError: what a rank would hold is more than `rank_max_bytes`.
    """
    placement = _place(shape, ranks, settings)
    budget = settings.rank_max_bytes
    most = max(placement.rows_of(rank) for rank in range(ranks)) * shape.row_bytes
    if budget is not None and most > budget:
        raise ConfigError(
            f"a rank would hold {most} bytes of an embedding table (train.embeddings.placement={settings.placement}, "
            f"{ranks} ranks, {sum(shape.cardinalities)} rows of {shape.row_bytes} bytes), "
            f"train.embeddings.rank_max_bytes={budget}",
            "train on more ranks, with placement auto or row_wise, or with model.embedding_storage=bf16",
        )
    return placement


def _place(shape: TableShape, ranks: int, settings: Embeddings) -> Placement:
    cardinalities = shape.cardinalities
    if ranks == 1 or settings.placement == "replicated":
        return everywhere(cardinalities, ranks)
    features = range(len(cardinalities))
    if settings.placement == "table_wise":
        return _assign(shape, ranks, replicated=set(), spread=set())
    if settings.placement == "row_wise":
        return _assign(shape, ranks, replicated=set(), spread=set(features))
    size = shape.feature_bytes
    replicated = {each for each in features if size[each] <= settings.replicated_max_bytes}
    placed = [each for each in features if each not in replicated]
    share = settings.row_wise_share * sum(size[each] for each in placed) / ranks
    spread = {each for each in placed if size[each] > share}
    placement = _assign(shape, ranks, replicated, spread)
    for each in sorted(features, key=lambda feature: (-size[feature], feature)):
        budget = settings.rank_max_bytes
        rows = max(placement.rows_of(rank) for rank in range(ranks))
        if budget is None or rows * shape.row_bytes <= budget:
            break
        replicated, spread = replicated - {each}, spread | {each}
        placement = _assign(shape, ranks, replicated, spread)
    return placement


def _assign(shape: TableShape, ranks: int, replicated: set[int], spread: set[int]) -> Placement:
    """Gives every feature that is neither replicated nor spread to one rank."""
    size, lookups = shape.feature_bytes, shape.lookups
    placed = [each for each in range(len(size)) if each not in replicated]
    all_bytes = max(sum(size[each] for each in placed), 1)
    all_lookups = max(sum(lookups[each] for each in placed), 1)
    cost = [size[each] / all_bytes + lookups[each] / all_lookups for each in range(len(size))]
    homes = {each: Home("replicated") for each in replicated}
    # Row 0 of the first goes to rank 0, of the second to rank 1, …: the hottest rows of all features do not meet.
    homes |= {each: Home("row_wise", index % ranks) for index, each in enumerate(sorted(spread))}
    borne = [0.0] * ranks
    for each in sorted(set(placed) - spread, key=lambda feature: (-cost[feature], feature)):
        rank = min(range(ranks), key=lambda candidate: (borne[candidate], candidate))
        homes[each] = Home("table_wise", rank)
        borne[rank] += cost[each]
    return Placement(shape.cardinalities, tuple(homes[each] for each in range(len(size))), ranks)


def describe(placement: Placement, shape: TableShape, names: Sequence[str]) -> str:
    """The plan as a table for the log: a line for each feature, then one for each rank."""
    homes = {"replicated": "every rank", "table_wise": "rank {}", "row_wise": "by rows, the first on rank {}"}
    width = max([len("feature"), *(len(each) for each in names)])
    lines = [f"{'feature':<{width}}  {'rows':>11}  {'MiB':>9}  {'lookups':>7}  held by"]
    features = zip(
        names, placement.cardinalities, shape.feature_bytes, shape.lookups, placement.homes, strict=True
    )
    for name, rows, size, lookups, home in features:
        held = homes[home.kind].format(home.rank)
        lines.append(f"{name:<{width}}  {rows:>11}  {size / 2**20:>9.2f}  {lookups:>7}  {held}")
    for rank in range(placement.ranks):
        rows = placement.rows_of(rank)
        line = f"{f'rank {rank}':<{width}}  {rows:>11}  {rows * shape.row_bytes / 2**20:>9.2f}"
        lines.append(f"{line}  {_lookups_of(placement, shape, rank):>7.1f}")
    return "\n".join(lines)


def _lookups_of(placement: Placement, shape: TableShape, rank: int) -> float:
    """Lookups a rank serves of each row of the global batch, hot rows taken for as many on one rank as on another."""
    shares = {"replicated": 1 / placement.ranks, "row_wise": 1 / placement.ranks}
    pairs = zip(placement.homes, shape.lookups, strict=True)
    return sum(lookups * shares.get(home.kind, float(home.rank == rank)) for home, lookups in pairs)
