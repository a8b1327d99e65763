"""Compares two lakes: rows exactly, scores within 1e-5, and positions that depend on such scores."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from etl.ops.tables import RARE, VOCABULARY, workflow_table
from storage.dataset import read_dataset
from storage.paths import LakePaths, Partition
from tests.cluster.chain import RUN_DATE
from tests.etl.cases import read_rows
from training.registry.model_json import read_description
from training.registry.versions import challenger_of, model_path


def require_equal_features(first: Path, second: Path) -> None:
    """The raw days' quarantine, the workflow, features, users and items of the run date's dataset."""
    one, two = LakePaths(str(first)), LakePaths(str(second))
    datasets = [read_dataset(lake, RUN_DATE) for lake in (one, two)]
    assert datasets[0].digest == datasets[1].digest
    version = datasets[0].workflow_version
    compared = 0
    for mine, other in [
        *((lake.features(version).partition(day) for lake in (one, two)) for day in datasets[0].days),
        *((lake.quarantine.partition(day) for lake in (one, two)) for day in datasets[0].days),
        *((workflow_table(lake, version, name) for lake in (one, two)) for name in (VOCABULARY, RARE)),
        (lake.users(version).partition(RUN_DATE) for lake in (one, two)),
        (lake.items(version).partition(RUN_DATE) for lake in (one, two)),
    ]:
        compared += require_equal_rows(mine, other)
    assert compared > 10_000


def require_equal_rows(mine: Partition, other: Partition) -> int:
    """Two partitions hold the same rows in any order; says how many."""
    first, second = (read_rows(path) for path in (mine, other))
    # The file a line was in lies below the lake, which differs.
    first, second = (rows.drop(columns="source_file", errors="ignore") for rows in (first, second))
    order = [name for name in ("row_id", "column", "value", "user_key", "item_key") if name in first]
    first, second = (rows.sort_values(order, ignore_index=True) for rows in (first, second))
    pd.testing.assert_frame_equal(first, second, check_exact=True)
    return len(first)


def require_equal_models(first: Path, second: Path) -> None:
    """The same version was trained on the same rows, and measures the same."""
    models = []
    for path in (first, second):
        lake = LakePaths(str(path))
        version = challenger_of(lake, "generated", RUN_DATE)
        models.append((version, read_description(model_path(lake, "generated", version))))
    (mine, one), (other, two) = models
    assert mine == other
    assert one["steps"] == two["steps"]
    assert one["metrics"]["test"]["auc"] > 0.55
    for split in ("validation", "test"):
        for name in ("auc", "log_loss"):
            assert one["metrics"][split][name] == pytest.approx(two["metrics"][split][name], abs=2e-3)


def require_equal_lists(first: pd.DataFrame, second: pd.DataFrame, tolerance: float = 1e-5) -> None:
    """Requires equal users and lengths of lists that are sorted by user and position.

    Scores may differ by the tolerance. Items may differ only between scores that are as close.
    """
    assert first[["user_id", "position"]].equals(second[["user_id", "position"]])
    assert (first["score"] - second["score"]).abs().max() <= tolerance
    for place in first.index[first["item_id"] != second["item_id"]]:
        # The item the other lake has at this place stands in this one at a score that close, or just missed
        # the list.
        mine = first[first["user_id"] == first["user_id"][place]]
        there = mine.loc[mine["item_id"] == second["item_id"][place], "score"]
        assert all(abs(score - first["score"][place]) <= tolerance for score in there)
