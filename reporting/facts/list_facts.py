"""Reads the lists of a run for the report: how often each item is recommended, and lists of a few users."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from conf.types import Negatives
from reporting.facts.parquet import MOST_ROWS, column, even_files, rows_where
from storage.dataset import Dataset
from storage.feature_spec import ITEM_KEY, LABEL, ROW_ID, USER_KEY
from storage.manifest import Manifest, data_files, is_published, read_manifest
from storage.paths import Lake, Partition


@dataclass(frozen=True)
class ItemCounts:
    """How often each item is recommended, counted in a sample of the list entries.

    Attributes:
        times: maps each item to the number of its list entries in the sample.
        rows: number of list entries in the sample.
        of_rows: number of all list entries.
    """

    times: Counter[str]
    rows: int
    of_rows: int


@dataclass(frozen=True)
class History:
    """The clicks and impressions of one user on the days of the dataset.

    Attributes:
        items: maps each item to two numbers: the user's clicks on the item, and the user's impressions of it.
    """

    items: dict[str, tuple[int, int]]

    def most_clicked(self, n: int) -> list[tuple[str, int, int]]:
        """Returns the n items with the most clicks, as tuples (item, clicks, impressions).

        If numbers of clicks are equal, the items are ordered by key.
        """
        clicked = [(item, clicks, shown) for item, (clicks, shown) in self.items.items() if clicks]
        return sorted(clicked, key=lambda row: (-row[1], row[0]))[:n]


@dataclass(frozen=True)
class UserList:
    """The list of one user.

    Attributes:
        user: the id of the user.
        entries: one tuple (position, item, score, reason) per list entry, ordered by position.
        history: the user's clicks and impressions; None if the dataset does not exist or has no user column.
    """

    user: str
    entries: list[tuple[int, str, float, str]]
    history: History | None


def count_items(partition: Partition, manifest: Manifest) -> ItemCounts:
    """Counts the items in evenly spread files that have at most about 5 million list entries together."""
    times: Counter[str] = Counter()
    for path in even_files(partition, manifest):
        for count in column(path, "item_id").value_counts().to_pylist():
            times[count["values"]] += count["counts"]
    return ItemCounts(times, sum(times.values()), manifest.rows)


def sample_lists(
    lake: Lake,
    partition: Partition,
    manifest: Manifest,
    dataset: Dataset | None,
    n: int,
    negatives: Negatives | None = None,
) -> list[UserList]:
    """Returns the lists of up to n users.

    The partition is sorted by user, and the users are evenly spread over it. A rerun chooses the same users.
    `negatives` is that of `histories`.
    """
    files = data_files(partition, manifest)
    if not manifest.rows:
        return []
    users = sorted(
        {_user_at(files, manifest, (2 * index + 1) * manifest.rows // (2 * n)) for index in range(n)}
    )
    reasoned = "reason" in dict(manifest.schema)  # lists of earlier releases have no reasons
    columns = ["user_id", "position", "item_id", "score", *(["reason"] if reasoned else [])]
    rows = rows_where(files, columns, pc.field("user_id").isin(users))
    known = histories(lake, dataset, users, negatives) if dataset is not None else {}
    lists: dict[str, list[tuple[int, str, float, str]]] = {user: [] for user in users}
    for row in rows:
        lists[str(row["user_id"])].append(
            (row["position"], row["item_id"], row["score"], row.get("reason", "ranked"))
        )
    return [UserList(user, sorted(lists[user]), known.get(user)) for user in users]


def _user_at(files: Sequence[str], manifest: Manifest, row: int) -> str:
    """Returns the user of the row with the index `row`.

    Row indices count over all files, in the order of the manifest.
    """
    for path, entry in zip(files, manifest.files, strict=True):
        if row < entry.rows:
            return str(column(path, "user_id")[row].as_py())
        row -= entry.rows
    raise ValueError(
        f"internal error, please report: row {row} is not among the {manifest.rows} rows of "
        f"{manifest.table} {manifest.partition}"
    )


def histories(
    lake: Lake, dataset: Dataset, users: list[str], negatives: Negatives | None = None
) -> dict[str, History]:
    """Returns the clicks and impressions of some users.

    About 5 million rows of the newest days of the dataset are read. The result maps each user to a History.
    It is empty if the dataset has no user column. Rows that `negatives` added do not count, because no user
    saw them.
    """
    files, left = [], MOST_ROWS
    members = sorted(
        (member for members in dataset.splits.values() for member in members),
        key=lambda m: m.dt,
        reverse=True,
    )
    for member in members:
        partition = lake.features(dataset.workflow_version).partition(member.dt)
        if left <= 0 or not is_published(partition):
            continue
        manifest = read_manifest(partition)
        if USER_KEY not in dict(manifest.schema):
            return {}
        files += data_files(partition, manifest, member.label)
        left -= sum(file.rows for file in manifest.split_files(member.label))
    by_user: dict[str, dict[str, tuple[int, int]]] = {user: {} for user in users}
    columns = [USER_KEY, ITEM_KEY, LABEL, *([ROW_ID] if negatives else [])]
    for row in rows_where(files, columns, pc.field(USER_KEY).isin(users)):
        if negatives and negatives.is_drawn(row[ROW_ID]):
            continue
        items = by_user[row[USER_KEY]]
        clicks, shown = items.get(row[ITEM_KEY], (0, 0))
        items[row[ITEM_KEY]] = (clicks + int(row[LABEL]), shown + 1)
    return {user: History(items) for user, items in by_user.items()}
