"""What is refused before anything runs.

Bad parameters, columns of wrong types, chains that make no feature, duplicate names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError
from conf.load import load_config
from etl.operators.hash_bucket import HashBucket
from etl.ops import Statistics, frame_operator_from_config, operator_from_config
from etl.workflow.feature_plan import plan_of
from tests.etl.ops.rows import DAYS, by_day, fit_rows, make_config, make_rows

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "name, parameters, message",
    [
        ("fill", {"value": None}, "fill value=None"),
        ("fill", {"value": NAN}, "fill value=nan"),
        ("fill", {"value": [0]}, "fill value=[0]"),
        ("fill", {"indicator": "yes"}, "fill indicator='yes'"),
        ("fill", {"with": 0}, "does not take"),
        ("clip", {}, "neither `min` nor `max`"),
        ("clip", {"min": 2, "max": 1}, "min=2 is above max=1"),
        ("clip", {"min": "a"}, "clip min='a'"),
        ("clip", {"max": INF}, "clip max=inf"),
        ("bucketize", {"boundaries": []}, "boundaries=[]: "),
        ("bucketize", {"boundaries": [0, 0]}, "boundaries=[0, 0]: the limits must ascend"),
        ("bucketize", {"boundaries": [1, 0]}, "boundaries=[1, 0]: the limits must ascend"),
        ("bucketize", {"boundaries": [0, "1"]}, "boundaries.1='1'"),
        ("bucketize", {"boundaries": [NAN]}, "boundaries.0=nan"),
        ("bucketize", {"boundaries": 1}, "boundaries=1"),
        ("bucketize", {}, "bucketize needs the parameter boundaries"),
        ("categorify", {"min_count": 0}, "min_count=0"),
        ("categorify", {"min_count": 1.5}, "min_count=1.5"),
        ("categorify", {"min_count": {"C1": 0}}, "min_count.C1=0"),
        ("categorify", {"max_size": 0}, "max_size=0"),
        ("categorify", {"oov_buckets": 0}, "oov_buckets=0"),
        ("categorify", {"oov_buckets": True}, "oov_buckets=True"),
        ("categorify", {"max_age_days": 0}, "max_age_days=0"),
        ("categorify", {"share": 3}, "share=3"),
        ("categorify", {"values": []}, "is empty or contains a value twice"),
        ("categorify", {"values": ["a", "a"]}, "contains a value twice"),
        ("categorify", {"values": [1, "1"]}, "contains a value twice"),
        ("categorify", {"values": "abc"}, "values='abc'"),
        ("categorify", {"values": ["a"], "max_size": 3}, "max_age_days would have no effect"),
        ("categorify", {"values": ["a"], "min_count": 3}, "max_age_days would have no effect"),
        ("categorify", {"values": ["a"], "max_age_days": 3}, "max_age_days would have no effect"),
        ("hash_bucket", {}, "hash_bucket needs the parameter buckets"),
        ("hash_bucket", {"buckets": 0}, "buckets=0"),
        ("hash_bucket", {"buckets": 2**31}, f"buckets={2**31}"),
        ("hash_bucket", {"buckets": 1.5}, "buckets=1.5"),
        ("hashed_cross", {"buckets": 0}, "buckets=0"),
        ("hashed_cross", {"buckets": 5, "output": 3}, "output=3"),
        ("target_encoding", {"folds": 1}, "folds=1"),
        ("target_encoding", {"folds": 65}, "folds=65"),
        ("target_encoding", {"smoothing": -1}, "smoothing=-1"),
        ("target_encoding", {"smoothing": "a"}, "smoothing='a'"),
        (
            "join_groupby",
            {"statistics": ["median"], "of": ["I1"]},
            "statistics.0='median': Input should be 'count'",
        ),
        ("join_groupby", {"statistics": []}, "statistics=[]: "),
        ("join_groupby", {"statistics": ["sum"]}, "statistics=['sum'] needs numeric columns"),
        ("join_groupby", {"statistics": "sum"}, "statistics='sum'"),
        ("join_external", {"path": "p"}, "join_external needs the parameter columns"),
        ("join_external", {"path": "p", "columns": {}}, "columns={}: "),
        (
            "join_external",
            {"path": "p", "columns": {"a": "list<int>"}},
            "columns.a='list<int>': Input should be 'int'",
        ),
        ("join_external", {"path": "p", "columns": {"a": {"tpye": "int"}}}, "columns.a.tpye='int'"),
        ("join_external", {"path": "p", "columns": {"a": "int"}, "format": "xls"}, "format='xls'"),
        ("split_list", {"separator": ""}, "separator=''"),
        ("split_list", {"separator": 1}, "separator=1"),
        ("list_slice", {}, "list_slice needs the parameter length"),
        ("list_slice", {"length": 0}, "length=0"),
        ("list_slice", {"length": 1, "start": 0.5}, "start=0.5"),
        ("expression", {"output": "", "formula": "I1"}, "output='': "),
        ("expression", {"output": "a", "formula": 1}, "formula=1"),
        ("rename", {}, "neither `names` nor `prefix` nor `suffix`"),
        ("rename", {"names": ["a"]}, "names=['a']"),
        ("rename", {"names": {"a": 3}}, "rename names.a=3: Input should be a valid string"),
        ("categorify", {"values": ["a", True]}, "values.1=True"),
        ("hash_bucket", {"buckets": "5"}, "buckets='5': Input should be a valid integer"),
        ("log1p", {1: 2}, "parameters must be a mapping of names to values"),
        ("log1p", 3, "parameters must be a mapping of names to values"),
        ("drop_low_cardinality", {"min_cardinality": 0}, "min_cardinality=0"),
        ("winsorize", {"lower": -0.1}, "lower=-0.1"),
        ("winsorize", {"upper": 1.5}, "upper=1.5"),
        ("winsorize", {"lower": 0.5, "upper": 0.5}, "lower=0.5 is not below upper=0.5"),
        ("log1p", {"base": 2}, "does not take"),
        ("log", None, "unknown operator 'log'"),
    ],
)
def test_bad_parameters_are_refused_by_name_and_value(name: str, parameters: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        operator_from_config({name: parameters})
    assert name in str(refused.value)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "entry, message",
    [
        ({"filter": {"keep": 3}}, "filter keep=3"),
        ({"dropna": {"columns": []}}, "dropna columns=[]"),
        ({"dropna": {"columns": "I1"}}, "dropna columns='I1': it must be a list"),
        (
            {"difference_lag": {"by": ["C1"], "columns": ["I1"], "lag": 0}},
            "lag=0: it must be an integer other",
        ),
        (
            {"groupby": {"by": ["C1"], "aggregates": {"I1": ["total"]}}},
            "aggregates.I1.0='total': Input should",
        ),
        ({"groupby": {"by": ["C1"], "aggregates": {"I1": []}}}, "aggregates.I1=[]"),
        ({"groupby": {"by": ["C1"], "aggregates": {"I1": "sum"}}}, "aggregates.I1='sum': it must be a list"),
        ("sample", "prepare contains an unknown operator 'sample'"),
    ],
)
def test_bad_parameters_of_prepare_are_refused_by_name_and_value(entry: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        frame_operator_from_config(entry)
    assert message in str(refused.value)


def test_an_operator_written_in_python_is_checked_likewise() -> None:
    with pytest.raises(ConfigError, match="hash_bucket buckets=0"):
        HashBucket(buckets=0)


DENSE, IDS, LISTS = "dense", "categorical", "multi_hot"
SPLIT, HASH = "split_list", {"hash_bucket": {"buckets": 5}}


@pytest.mark.parametrize(
    "columns, kind, ops, message",
    [
        # Types an operator does not take.
        (["C1"], DENSE, ["fill"], "replace null in C1 by 0.0, but C1 is of type string"),
        (["I1"], DENSE, [{"fill": {"value": "a"}}], "replace null in I1 by 'a', but I1 is of type int"),
        *[
            (["C1"], DENSE, [operator], "takes columns of type int or float, but C1 is string")
            for operator in ["fill_median", {"clip": {"min": 0}}, "log1p", "normalize", "normalize_min_max"]
        ],
        (
            ["C1"],
            IDS,
            [{"bucketize": {"boundaries": [1]}}],
            "bucketize takes columns of type int or float or ints, but C1 is string",
        ),
        (
            ["X"],
            IDS,
            ["categorify"],
            "categorify takes columns of type int or string or ints or strings, but X is float",
        ),
        (
            ["X"],
            IDS,
            [HASH],
            "hash_bucket takes columns of type int or string or ints or strings, but X is float",
        ),
        (["X", "C1"], IDS, [{"hashed_cross": {"buckets": 5}}], "but X is float"),
        (["C1"], IDS, [{"hashed_cross": {"buckets": 5}}], "two columns or more, not ['C1']"),
        (["X"], DENSE, ["target_encoding"], "keys of type int or string, but X is float"),
        (["X"], DENSE, ["join_groupby"], "keys of type int or string, but X is float"),
        (["T"], DENSE, [SPLIT, "join_groupby"], "keys of type int or string, but T is strings"),
        (["I1"], LISTS, [SPLIT, HASH], "split_list takes columns of type string, but I1 is int"),
        (
            ["C1"],
            LISTS,
            [{"list_slice": {"length": 2}}, HASH],
            "list_slice takes columns of type ints or strings",
        ),
        (
            ["T"],
            IDS,
            [SPLIT, {"list_slice": {"length": 2, "columns": True}}],
            "lists of ids, but ['T'] are not",
        ),
        (
            ["C1"],
            LISTS,
            ["value_count", HASH],
            "value_count takes columns of type ints or strings, but C1 is string",
        ),
        (["T"], LISTS, [SPLIT, "drop_low_cardinality", HASH], "but T is strings"),
        (["I1"], DENSE, [{"expression": {"output": "a", "formula": "C1"}}], "no column C1"),
        (["I1", "C1"], DENSE, [{"expression": {"output": "a", "formula": "I1 + C1"}}], "not number, text"),
        (["I1"], DENSE, [{"expression": {"output": "a", "formula": "(I1"}}], "does not parse"),
        # What else they name is not there, or of a wrong type.
        (["K"], DENSE, [{"join_groupby": {"statistics": ["sum"], "of": ["nothing"]}}], "fit: nothing (not a"),
        (["K"], DENSE, [{"join_groupby": {"statistics": ["sum"], "of": ["C1"]}}], "do not fit: C1 (string)"),
        (["K"], DENSE, [{"target_encoding": {"target": "nothing"}}], "do not fit: nothing (not a column)"),
        *[
            (["K"], DENSE, [{"rename": {"suffix": "_of"}}, operator], "do not fit: C1 (string)")
            for operator in [
                {"join_groupby": {"statistics": ["sum"], "of": ["C1"]}},
                {"target_encoding": {"target": "C1"}},
            ]
        ],
        (["C1", "K"], IDS, [{"join_external": {"path": "p", "columns": {"a": "int"}}}, HASH], "one column"),
        (["C1"], IDS, [{"categorify": {"min_count": {"C2": 3}}}], "has no entry for C1"),
        (["I1"], DENSE, [{"rename": {"names": {"I2": "a"}}}], "['I2'], which are not in ['I1']"),
        # Chains that do not end in their kind of feature.
        (["C1"], DENSE, ["categorify"], "['C1'] would be ids or strings"),
        (["C1"], DENSE, ["data_stats"], "['C1'] would be ids or strings"),
        (["I1"], IDS, ["data_stats"], "a categorical feature must have ids"),
        (["T"], IDS, [SPLIT, HASH], "or add list_slice"),
        (["T"], LISTS, [SPLIT], "a multi_hot feature must have ids"),
        (["C1"], LISTS, ["categorify"], "a multi_hot feature must have ids"),
        (
            ["C1"],
            IDS,
            ["categorify", "categorify"],
            "2 operators categorify, but values can be encoded only once",
        ),
        (
            ["C1"],
            IDS,
            ["categorify", {"categorify": {"values": ["3"]}}],
            "2 operators categorify, but values can be encoded only once",
        ),
        # Names.
        (["I1", "I2"], DENSE, [{"rename": {"names": {"I1": "I2"}}}], "would replace ['I2']"),
        (["I1", "I2"], DENSE, [{"rename": {"names": {"I1": "I2", "I2": "I1"}}}], "would replace ['I2']"),
        (["I1", "I2"], DENSE, [{"rename": {"names": {"I1": "a", "I2": "a"}}}], "columns with equal names"),
        (["C1"], IDS, [{"rename": {"names": {"C1": "rare"}}}, "categorify"], "cannot be named rare"),
        (["C1"], IDS, [{"categorify": {"share": "vocabulary"}}], "cannot be named vocabulary"),
    ],
)
def test_groups_that_make_no_sense_are_refused(
    tmp_path: Path, columns: list[str], kind: str, ops: list[Any], message: str
) -> None:
    config = make_config(tmp_path, [{"columns": columns, "kind": kind, "ops": ops}])
    with pytest.raises(ConfigError) as refused:
        plan_of(config)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "groups, message",
    [
        (
            [(["I1"], DENSE, ["fill"]), (["I1"], DENSE, ["log1p"])],
            "two features have the same name: ['I1']",
        ),
        (
            [(["I1"], DENSE, ["fill"]), (["I2"], DENSE, ["fill", {"rename": {"names": {"I2": "i1"}}}])],
            "the features ['I1', 'i1'] have names that differ only in upper and lower case",
        ),
        (
            [(["I1"], DENSE, ["fill", {"rename": {"names": {"I1": "Label"}}}])],
            "features would add columns named ['Label'], which is not allowed",
        ),
        (
            [(["C1"], IDS, ["categorify"]), (["C1"], IDS, ["categorify", {"rename": {"suffix": "_b"}}])],
            "two vocabularies would be named C1",
        ),
        (
            [
                (["C1"], IDS, [{"categorify": {"share": "a"}}]),
                (["C2"], IDS, [{"categorify": {"share": "a", "min_count": 2}}]),
            ],
            "two vocabularies would be named a",
        ),
        (
            [
                (["K"], DENSE, ["target_encoding"]),
                (["K"], DENSE, [{"target_encoding": {"folds": 3}}, {"rename": {"suffix": "_3"}}]),
            ],
            "two tables of target_encoding would be named target_encoding_K_K_te",
        ),
    ],
)
def test_one_name_for_two_things_is_refused(tmp_path: Path, groups: list[tuple], message: str) -> None:
    config = make_config(
        tmp_path, [dict(zip(("columns", "kind", "ops"), group, strict=True)) for group in groups]
    )
    with pytest.raises(ConfigError) as refused:
        plan_of(config)
    assert message in str(refused.value)


@pytest.mark.parametrize("side", ["user", "item", "context"])
def test_scopes_of_unknown_features_are_refused(tmp_path: Path, side: str) -> None:
    group = {"columns": ["I1"], "kind": DENSE, "ops": ["fill", {"rename": {"suffix": "_a"}}]}
    plan_of(make_config(tmp_path, [group], scopes={side: ["I1_a"]}))
    with pytest.raises(ConfigError, match=r"the section `scopes` lists \['I1'\], which are not features"):
        plan_of(make_config(tmp_path, [group], scopes={side: ["I1"]}))


def test_errors_of_a_file_end_a_job_as_configuration_errors(tmp_path: Path) -> None:
    config = make_config(tmp_path, [{"columns": ["I1"], "kind": DENSE, "ops": [{"clip": {}}]}])
    (tmp_path / "config.yaml").write_text(config.model_dump_json(), encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        plan_of(load_config(str(tmp_path / "config.yaml")))
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    "columns, ops, message",
    [
        (["I5"], ["normalize"], "normalize cannot be fitted on I5: the column is null"),
        (["I5"], ["normalize_min_max"], "normalize_min_max cannot be fitted on I5: the column is null"),
        (["I5"], ["winsorize"], "winsorize cannot be fitted on I5: the column is null"),
        (["I5"], ["fill_median"], "fill_median cannot be fitted on I5: the column is null"),
        (["X"], ["normalize"], "the mean of X (chain 0 of features) cannot be computed"),
        (["K"], [{"target_encoding": {"target": "X"}}], "X has values of 5e30 or more"),
    ],
)
def test_columns_that_cannot_be_fitted_are_errors_of_data(
    spark: SparkSession, tmp_path: Path, columns: list[str], ops: list[Any], message: str
) -> None:
    config = make_config(tmp_path, [{"columns": columns, "kind": DENSE, "ops": ops}])
    with pytest.raises(DataError) as refused:
        fit_rows(spark, config, by_day(spark, make_rows(DAYS[0], 60, seed=1)))
    assert message in str(refused.value)


def test_a_range_beyond_a_double_is_an_error_of_data() -> None:
    operator = operator_from_config("normalize_min_max")
    (step,) = operator.bind({"x": "float"})
    with pytest.raises(
        DataError, match=r"normalize_min_max cannot be fitted on x: .* too large for a double"
    ):
        operator.fit(step, Statistics(aggregates={"min": -1.7e308, "max": 1.7e308}))


def test_a_workflow_without_a_feature_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    config = make_config(
        tmp_path, [{"columns": ["I4", "I5"], "kind": DENSE, "ops": ["drop_low_cardinality"]}]
    )
    with pytest.raises(ConfigError, match="removed every feature"):
        fit_rows(spark, config, by_day(spark, make_rows(DAYS[0], 10, seed=1)))
