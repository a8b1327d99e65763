"""Chains written in Python are those of a YAML file: the same groups, and the same workflow version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conf.types import FeatureGroup
from etl.operators.bucketize import Bucketize
from etl.operators.categorify import Categorify
from etl.operators.clip import Clip
from etl.operators.drop_low_cardinality import DropLowCardinality
from etl.operators.fill import Fill
from etl.operators.hash_bucket import HashBucket
from etl.operators.join_external import JoinExternal
from etl.operators.join_groupby import JoinGroupby
from etl.operators.list_slice import ListSlice
from etl.operators.log1p import Log1p
from etl.operators.normalize import Normalize
from etl.operators.rename import Rename
from etl.operators.split_list import SplitList
from etl.ops import OPERATORS, Pipeline, operator_from_config
from tests.etl.ops.examples import EXAMPLES, EXTERNAL_PATH
from tests.etl.ops.on_blocks import fit_blocks
from tests.etl.ops.rows import DAYS, make_config, make_rows

WRITTEN: list[tuple[Pipeline, str, dict[str, Any]]] = [
    (
        ["C1", "C2"] >> Categorify(min_count=15),
        "categorical",
        {"columns": ["C1", "C2"], "kind": "categorical", "ops": [{"categorify": {"min_count": 15}}]},
    ),
    (
        ["I1", "I2"] >> Fill(value=0) >> Clip(min=0) >> Log1p() >> Normalize(),
        "dense",
        {
            "columns": ["I{1..2}"],
            "kind": "dense",
            "ops": [{"fill": {"value": 0}}, {"clip": {"min": 0}}, "log1p", {"normalize": None}],
        },
    ),
    (
        ["X"] >> Bucketize(boundaries=(0, 10)) >> Rename(suffix="_bucket") >> DropLowCardinality(),
        "categorical",
        {
            "columns": ["X"],
            "kind": "categorical",
            "ops": [
                {"bucketize": {"boundaries": [0, 10]}},
                {"rename": {"suffix": "_bucket"}},
                {"drop_low_cardinality": {"min_cardinality": 2}},
            ],
        },
    ),
    (
        ["K"] >> JoinGroupby(statistics=("count", "mean"), of=("I1",)),
        "dense",
        {
            "columns": ["K"],
            "kind": "dense",
            "ops": [{"join_groupby": {"statistics": ["count", "mean"], "of": ["I1"]}}],
        },
    ),
    (
        ["T"] >> SplitList() >> HashBucket(buckets=9) >> ListSlice(length=2, columns=True),
        "categorical",
        {
            "columns": ["T"],
            "kind": "categorical",
            "ops": [
                "split_list",
                {"hash_bucket": {"buckets": 9}},
                {"list_slice": {"length": 2, "columns": True}},
            ],
        },
    ),
    (
        ["item"] >> JoinExternal(path=EXTERNAL_PATH, columns={"price": "float"}, format="csv"),
        "dense",
        {
            "columns": ["item"],
            "kind": "dense",
            "ops": [
                {"join_external": {"path": EXTERNAL_PATH, "columns": {"price": "float"}, "format": "csv"}}
            ],
        },
    ),
    (
        ["C3"] >> Categorify(values=("b", "né")),
        "categorical",
        {"columns": ["C3"], "kind": "categorical", "ops": [{"categorify": {"values": ["b", "né"]}}]},
    ),
]


def _versions(folder: Path, *ways: list[Any]) -> list[str]:
    rows = make_rows(DAYS[0], 20, seed=6)
    # One lake: the second way finds the first one's workflow, if its version is the same.
    configs = [make_config(folder, groups) for groups in ways]
    return [fit_blocks(config, rows, Path(config.lake))[1].version for config in configs]


def test_both_ways_of_writing_give_one_workflow(tmp_path: Path) -> None:
    # Without the table from outside: it is written anew with each configuration, and part of the version.
    written = [way for way in WRITTEN if "join_external" not in str(way)]
    in_python = [pipeline.feature(kind).model_dump() for pipeline, kind, _ in written]  # type: ignore[arg-type]
    in_yaml = [group for _, _, group in written]
    other = [*in_yaml[1:], {**in_yaml[0], "ops": [{"categorify": {"min_count": 14}}]}]
    mine, theirs, changed = _versions(tmp_path, in_python, in_yaml, other)
    assert mine == theirs != changed


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_an_operator_writes_the_entry_it_is_read_from(name: str) -> None:
    seen = 0
    for example in EXAMPLES[name]:
        for entry in example.ops:
            operator = operator_from_config(entry)
            written: Any = operator.config()
            # Through the configuration's types and JSON, as a digest sees it.
            group = FeatureGroup(columns=["a"], kind="dense", ops=[written]).model_dump(mode="json")
            assert operator_from_config(group["ops"][0]) == operator
            seen += operator.name == name
    assert seen


def test_a_pipeline_is_not_changed_by_what_is_put_behind_it() -> None:
    first = ["I1"] >> Fill()
    second = first >> Clip(min=0)
    assert first.operators == (Fill(),)
    assert second.operators == (Fill(), Clip(min=0))
