"""The feature plan refuses contradictory columns before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError
from etl.raw.layout_digest import GROUP_METHOD, METHOD
from etl.workflow.feature_plan import plan_of
from storage.manifest import digest_of
from tests.etl.cases import LOG, write_config
from tests.etl.prepare import random_logs

AGE = {"name": "age", "type": "int"}
USERS = {"path": "{data}/users.csv", "format": "csv", "columns": [{"name": "user", "type": "string"}, AGE]}
LAG_OF_ITEMS = {"difference_lag": {"by": ["user", "item"], "columns": ["I1"]}}


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
            {"negatives": {"per_positive": 1}, "prepare": [LAG_OF_ITEMS]},
            r"difference_lag reads \['item'\], which depend on the item of a row: `negatives` puts",
        ),
        (
            {
                "negatives": {"per_positive": 1},
                "prepare": [
                    {"groupby": {"by": ["user", "item"], "aggregates": {"I1": ["sum"]}}},
                    {"difference_lag": {"by": ["user"], "columns": ["I1_sum"]}},
                ],
            },
            "groupby comes before difference_lag: a row that `negatives` adds gets",
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


@pytest.mark.parametrize("name, is_refused", [("i1", True), ("lower", False)])
def test_names_of_columns_differ_in_more_than_case(tmp_path: Path, name: str, is_refused: bool) -> None:
    columns = [{"name": "user", "type": "string"}, {"name": name, "source": "i1", "type": "int"}]
    users = {"path": "users.csv", "format": "csv", "columns": columns}
    config = write_config(tmp_path, {"users": users, "scopes": {}})
    if not is_refused:
        assert {"I1", "lower"} <= plan_of(
            config
        ).columns.keys()  # the names in the files may be `I1` and `i1`
        return
    with pytest.raises(ConfigError, match=r"the columns \['I1', 'i1'\] have names that differ only .*"):
        plan_of(config)


def _dense(*columns: str, ops: list[Any]) -> dict[str, Any]:
    return {"columns": list(columns), "kind": "dense", "ops": [*ops, {"fill": {"value": 0}}]}


LAG = {"difference_lag": {"by": ["user"], "columns": ["label"]}}
SUMS = {"groupby": {"by": ["user", "item"], "aggregates": {"I1": ["max"], "label_difference_lag_1": ["sum"]}}}


@pytest.mark.parametrize(
    "prepare, feature, problem",
    [
        (
            [],
            _dense("C1", ops=[{"join_groupby": {"statistics": ["mean"], "of": ["label"]}}]),
            "join_groupby would compute features of a row from the label 'label' of this row",
        ),
        (
            [LAG],
            _dense("label_difference_lag_1", ops=[]),
            r"\['label_difference_lag_1'\], which operators of",
        ),
        (
            [{"difference_lag": {"by": ["label"], "columns": ["I1"]}}],
            _dense("I1_difference_lag_1", ops=[]),
            r"\['I1_difference_lag_1'\], which operators of `prepare` compute from the label",
        ),
        (
            [{"groupby": {"by": ["user", "item"], "aggregates": {"label": ["mean"]}}}],
            _dense("label_mean", ops=[]),
            r"\['label_mean'\]",
        ),
        ([LAG, SUMS], _dense("label_difference_lag_1_sum", ops=[]), r"\['label_difference_lag_1_sum'\]"),
        (
            [LAG],
            _dense("C1", ops=[{"target_encoding": {"target": "label_difference_lag_1"}}]),
            r"\['label_difference_lag_1'\]",
        ),
    ],
)
def test_features_that_contain_the_label_are_refused(
    tmp_path: Path, prepare: list[Any], feature: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        plan_of(write_config(tmp_path, {"prepare": prepare, "features": [feature], "scopes": {}}))


def test_operators_that_keep_the_label_from_the_features_may_read_it(tmp_path: Path) -> None:
    encoded = _dense("user", ops=[{"target_encoding": {"target": "label"}}])
    changes = {"prepare": [LAG, SUMS], "features": [encoded, _dense("I1_max", ops=[])], "scopes": {}}
    assert plan_of(write_config(tmp_path, changes)).features == ("user_te", "I1_max")


TIME = {"columns": ["event_time"], "kind": "dense", "ops": [{"rename": {"names": {"event_time": "t"}}}]}
LATEST = {"groupby": {"by": ["user", "item"], "aggregates": {"event_time": ["max"]}}}


@pytest.mark.parametrize("kind, unit", [("int", "s"), ("date", None), ("int", "us"), ("timestamp", None)])
@pytest.mark.parametrize(
    "prepare, feature",
    [
        ([], TIME),
        ([LATEST], {"columns": ["event_time_max"], "kind": "dense", "ops": [{"fill": {"value": 0}}]}),
    ],
)
def test_features_do_not_read_a_replaced_column(
    tmp_path: Path, prepare: list[Any], feature: dict[str, Any], kind: str, unit: str | None
) -> None:
    """The column `event_time` has µs, so a raw column of this name is read only if it also has µs."""
    log = {
        **LOG["log"],
        "columns": [*LOG["log"]["columns"], {"name": "event_time", "type": kind}],
        "event_time": {"column": "event_time", **({"unit": unit} if unit else {})},
    }
    config = write_config(tmp_path, {"log": log, "prepare": prepare, "features": [feature], "scopes": {}})
    if unit == "us" or kind == "timestamp":
        assert len(plan_of(config).features) == 1
        return
    with pytest.raises(ConfigError, match=r"read \['event_time.*which has other values") as refused:
        plan_of(config)
    assert "{name: time, source: event_time}" in refused.value.remedy


def test_without_negatives_differences_may_depend_on_the_item(tmp_path: Path) -> None:
    plan = plan_of(write_config(tmp_path, {"prepare": [LAG_OF_ITEMS], "scopes": {}}))
    assert "difference_lag" not in plan.methods
    by_user = {"difference_lag": {"by": ["user"], "columns": ["I1"]}}
    changes = {"prepare": [by_user], "negatives": {"per_positive": 1}, "scopes": {}}
    assert "difference_lag" in plan_of(write_config(tmp_path, changes)).methods


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
