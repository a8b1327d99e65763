"""Published lists of a run with business rules against plain Python; checks of the rules' tables."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from conf.errors import ConfigError, DataError
from scoring.rules.attributes import read_rules
from storage.manifest import read_manifest
from tests.delivery.conftest import PublishedRuns, score_section
from tests.scoring.rules.oracle import PlainRules, list_of
from tests.scoring.scoring_lake import DAYS, RUN_DATE, feature_rows

SHELF = {"path": "{lake}/shelves.csv", "format": "csv", "key": "sku", "column": "shelf"}


def rules(attribute: dict[str, str], **values: float) -> dict[str, Any]:
    """The section `score` with a boost by an attribute."""
    boost = {"attribute": "shelf", "values": values or {"s1": 1.5}}
    return score_section(rules={"attributes": {"shelf": attribute}, "boost": boost})


def test_published_lists_equal_the_plain_walk(runs: PublishedRuns) -> None:
    reference, lists = runs.reference, runs.lists
    rows = pd.concat([feature_rows(reference, day).to_pandas() for day in range(len(DAYS) - 1)])
    clicked = rows[rows.label == 1].groupby("user_key").item_key.agg(set).to_dict()
    shelves = {item: f"s{index % 3}" for index, item in enumerate(reference.items.item_key)}
    plain = PlainRules(boosts={"s1": 1.5}, values=shelves, explore=1, salt=f"0|{RUN_DATE}")
    probabilities = reference.probabilities.astype(np.float32)
    expected = []
    for row, user in enumerate(reference.users.user_key):
        scored = [
            (item, float(probabilities[row, index]))
            for index, item in enumerate(reference.items.item_key)
            if item not in clicked.get(user, set())
        ]
        chosen = list_of(plain, user, scored, 5)
        expected += [(user, place, item, reason) for place, (item, reason) in enumerate(chosen, start=1)]
    actual = lists.sort_values(["user_id", "position"])
    columns = ["user_id", "position", "item_id", "reason"]
    assert [tuple(row) for row in actual[columns].itertuples(index=False)] == expected
    assert set(actual.reason) == {"ranked", "explore", "boost:s1"}


def test_the_manifest_follows_the_table_of_attributes(runs: PublishedRuns, tmp_path: Path) -> None:
    inputs = read_manifest(runs.lake.recommendations.partition(RUN_DATE)).inputs
    _, digests = read_rules(runs.job(RUN_DATE, score=rules(SHELF)))
    assert inputs["rules"] == digests["rules"]
    table, path = pd.read_csv(f"{runs.lake.root}/shelves.csv"), tmp_path / "shelves.csv"
    actual_digests = []
    for rows in (table, table.iloc[::-1], table.assign(shelf="s1")):
        rows.to_csv(path, index=False)
        actual_digests.append(read_rules(runs.job(RUN_DATE, score=rules({**SHELF, "path": str(path)})))[1])
    assert actual_digests[0] == actual_digests[1] != actual_digests[2]  # the order of the rows does not count
    assert read_rules(runs.job(RUN_DATE)) == (None, {})


def test_wrong_tables_are_found_by_the_driver(
    runs: PublishedRuns, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match=r"there is no file at .*shelves-2026-01-05\.csv"):
        read_rules(runs.job(RUN_DATE, score=rules({**SHELF, "path": "{lake}/shelves-{date}.csv"})))
    with pytest.raises(DataError, match=r"no columns \['rack'\]"):
        read_rules(runs.job(RUN_DATE, score=rules({**SHELF, "column": "rack"})))
    twice = tmp_path / "twice.csv"
    twice.write_text("sku,shelf\ni001,s1\ni001,s2\n")
    with pytest.raises(DataError, match="such as 'i001'"):
        read_rules(runs.job(RUN_DATE, score=rules({**SHELF, "path": str(twice)})))
    with caplog.at_level(logging.WARNING, "nightrank"):
        read_rules(runs.job(RUN_DATE, score=rules(SHELF, s1=2.0, s9=2.0)))
    assert "shelf=['s9']" in caplog.text
