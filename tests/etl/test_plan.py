"""The feature plan refuses contradictory columns before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError
from etl.raw.layout_digest import GROUP_METHOD, METHOD
from etl.workflow.feature_plan import plan_of
from storage.manifest import digest_of
from tests.etl.cases import write_config
from tests.etl.prepare import random_logs

AGE = {"name": "age", "type": "int"}
USERS = {"path": "{data}/users.csv", "format": "csv", "columns": [{"name": "user", "type": "string"}, AGE]}


def named(column: str, feature: str) -> list[dict[str, Any]]:
    """The section `features` with one column, whose feature has another name."""
    return [{"columns": [column], "kind": "dense", "ops": ["fill", {"rename": {"names": {column: feature}}}]}]


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"scopes": {"user": ["I9"]}}, r"the section `scopes` lists \['I9'\], which are not features"),
        (
            {"features": [{"columns": ["label"], "kind": "dense", "ops": ["fill"]}], "scopes": {}},
            r"features are computed from \['label'\], which is the label",
        ),
        (
            {"users": USERS, "scopes": {"user": ["I2"]}},
            r"scopes\.user lists \['I2'\], which are computed from columns that are not in users\.columns",
        ),
        (
            {"features": named("I1", "item_index"), "scopes": {"item": ["item_index"]}},
            r"scopes\.item lists \['item_index'\], but the tables from which lists are made have internal",
        ),
        (
            {"features": named("I1", "Sources"), "scopes": {"user": ["Sources"]}},
            r"scopes\.user lists \['Sources'\], but the tables from which lists are made have internal",
        ),
        (
            {"negatives": {"per_positive": 1}, "scopes": {"item": ["I1"]}},
            r"puts another item into a row, but scopes\.item lists \['I1'\]",
        ),
        (
            {"prepare": [{"groupby": {"by": ["user"], "aggregates": {"I1": ["sum"]}}}]},
            r"`prepare` drops the key columns \['item'\]",
        ),
    ],
)
def test_contradictory_columns_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        plan_of(write_config(tmp_path, changes))


def test_operators_of_single_columns_give_one_chain_per_column(tmp_path: Path) -> None:
    features = [
        {"columns": ["I{1..2}"], "kind": "dense", "ops": ["log1p"]},
        {
            "columns": ["C1", "C2", "C3"],
            "kind": "categorical",
            "ops": [{"rename": {"suffix": "_id"}}, "categorify"],
        },
        {"columns": ["C1", "C2"], "kind": "categorical", "ops": [{"hashed_cross": {"buckets": 9}}]},
    ]
    planned = plan_of(write_config(tmp_path, {"features": features, "scopes": {}}))
    assert [chain.inputs for chain in planned.chains] == [
        ("I1",),
        ("I2",),
        ("C1",),
        ("C2",),
        ("C3",),
        ("C1", "C2"),
    ]
    assert planned.features == ("I1", "I2", "C1_id", "C2_id", "C3_id", "C1_x_C2")


@pytest.mark.parametrize(
    "name, changes, problem",
    [
        (
            "groups",
            {"history": {"length": 4, "days": 2, "ages": "history"}},
            r"history\.ages='history' is the name of another column",
        ),
        (
            "groups",
            {"history": {"length": 4, "days": 2, "ages": "price"}},
            r"history\.ages='price' is the name of another column",
        ),
        (
            "without times",
            {"history": {"length": 4, "days": 2, "ages": "ages"}},
            r"history\.ages='ages' is computed from the times of clicks, but log\.event_time is not set",
        ),
        (
            "groups",
            {
                "items": None,
                "features": [random_logs.WHAT, random_logs.HISTORY, random_logs.AGES],
                "scopes": {"user": ["history"], "item": ["ages"]},
            },
            r"\['ages'\], which are computed from the history of the user \(ages, history\)",
        ),
    ],
)
def test_ages_that_do_not_fit_are_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        plan_of(random_logs.write_config(tmp_path, name, changes))


def test_rows_of_earlier_releases_stay_valid_without_ages(tmp_path: Path) -> None:
    """The setting `ages` is in the digest of the method only if it is set."""
    history = {"column": "history", "length": 4, "days": 2}
    for name, expected in (("groups", {**history, "ages": "ages"}), ("json lines", history)):
        config = random_logs.write_config(tmp_path, name)
        method = GROUP_METHOD if name == "groups" else METHOD
        assert plan_of(config).methods["history"] == f"{method}, {digest_of(expected)}"
