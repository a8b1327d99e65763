"""Examples of every operator, fitted on generated rows: blocks, frames and the oracle give the same features."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from etl.ops import FRAME_OPERATORS, OPERATORS
from etl.raw.splits import DAY
from etl.workflow.chains import FittedChain
from etl.workflow.fitted_workflow import load_local
from storage.paths import LakePaths
from tests.etl.ops import oracle
from tests.etl.ops.case import Case, assert_same
from tests.etl.ops.examples import EXAMPLES, FRAME_EXAMPLES
from tests.etl.ops.on_blocks import features_of_blocks
from tests.etl.ops.rows import (
    DAYS,
    TEST_DAY,
    by_day,
    features_of,
    fit_rows,
    make_config,
    to_spark,
)


def test_assert_same_finds_differences() -> None:
    for mine, theirs in [
        (1, 2),
        (None, 0),
        (0.0, None),
        (1.0, 1.00001),
        ([1], [2]),
        (math.nan, 0.0),
        (math.inf, -1e39),
    ]:
        with pytest.raises(AssertionError, match="row 1"):
            assert_same({"a": [0, mine]}, {"a": [0, theirs]})
    with pytest.raises(AssertionError):
        assert_same({"a": [1]}, {"b": [1]})


@pytest.mark.every_operator
def test_every_operator_has_examples() -> None:
    where = "tests/etl/ops/examples.py"
    missing = sorted(set(OPERATORS) - set(EXAMPLES))
    assert missing == [], f'add the entry "{missing[0]}": (…), to EXAMPLES in {where}'
    missing = sorted(set(FRAME_OPERATORS) - set(FRAME_EXAMPLES))
    assert missing == [], f'add the entry "{missing[0]}": (…), to FRAME_EXAMPLES in {where}'
    unknown = {*EXAMPLES, *FRAME_EXAMPLES, *oracle.ORACLES} - {*OPERATORS, *FRAME_OPERATORS}
    assert unknown == set(), f"{where} or oracle.py has entries of operators that are not in etl/ops"
    for name in OPERATORS:
        assert (name in oracle.ORACLES) != (EXAMPLES[name][0].learn is not None), (
            f"give the first example of {name} in {where} a `learn`, or add {name} to ORACLES in "
            "tests/etl/ops/oracle.py, but not both"
        )
    for name, examples in EXAMPLES.items():
        for example in examples:
            assert name in [entry if isinstance(entry, str) else next(iter(entry)) for entry in example.ops]


@pytest.mark.every_operator
@pytest.mark.parametrize("coded", [True, False])
def test_features_are_the_oracles(any_case: Case, coded: bool) -> None:
    assert_same(features_of_blocks(any_case.workflow, any_case.by_row_id, coded=coded), any_case.expected)


@pytest.mark.every_operator
def test_frames_of_spark_learn_what_blocks_do(
    case: Case, spark: SparkSession, tmp_path: Path, op: str | None
) -> None:
    """One example of each operator that learns. A workflow of this example alone gives the same chains."""
    groups = [
        EXAMPLES[name][0].group()
        for name, (operator, _) in OPERATORS.items()
        if name == op or (op is None and operator.needs != "nothing")
    ]
    workflow = fit_rows(spark, make_config(tmp_path, groups), by_day(spark, case.train))
    mine, theirs = ({_json(chain) for chain in fitted.chains} for fitted in (workflow, case.workflow))
    assert len(mine) >= (1 if op else 11)
    assert mine <= theirs
    features = features_of(replace(workflow, engine="arrow"), to_spark(spark, case.rows))
    assert_same(features, {name: case.expected[name] for name in features})


@pytest.mark.every_operator
@pytest.mark.parametrize("engine", ["sql", "arrow"])
def test_features_of_frames_are_the_oracles(
    any_case: Case, spark: SparkSession, tmp_path: Path, engine: Any
) -> None:
    workflow = fit_rows(spark, make_config(tmp_path, any_case.groups), by_day(spark, any_case.train))
    features = features_of(replace(workflow, engine=engine), to_spark(spark, any_case.rows))
    assert_same(features, any_case.expected)


@pytest.mark.every_operator
def test_one_row_without_spark_is_encoded_as_a_row_of_another_day(any_case: Case) -> None:
    case = any_case
    workflow = load_local(LakePaths(case.config.lake), case.workflow.version)
    names = [feature.name for feature in workflow.spec.features]
    expected = case.expected
    others = [(place, row) for place, row in enumerate(case.by_row_id) if row[DAY] == TEST_DAY]
    for place, row in others[:20]:
        encoded = workflow.encode_values(row, names)
        assert_same(
            {name: [encoded[name]] for name in names}, {name: [expected[name][place]] for name in names}
        )


@pytest.mark.every_operator
def test_the_order_and_the_partitions_of_rows_do_not_matter(
    case: Case, spark: SparkSession, tmp_path: Path, op: str | None
) -> None:
    shuffled = random.Random(3).sample(case.rows, len(case.rows))
    frames = {
        day: frame.repartition(3, "C2") for day, frame in by_day(spark, shuffled).items() if day in DAYS
    }
    # What learns from rows; one example of it is enough.
    groups = [
        EXAMPLES[name][0].group()
        for name, (operator, _) in OPERATORS.items()
        if name == op or (op is None and operator.needs not in ("nothing", "external"))
    ]
    workflow = fit_rows(spark, make_config(tmp_path, groups), frames)
    mine, theirs = ({_json(chain) for chain in fitted.chains} for fitted in (workflow, case.workflow))
    assert len(mine) >= (1 if op else 20)
    assert mine <= theirs
    encoded = features_of(replace(workflow, engine="arrow"), to_spark(spark, shuffled).repartition(5))
    expected = case.expected
    assert_same(encoded, {name: expected[name] for name in encoded})


def _json(chain: FittedChain) -> str:
    return json.dumps(chain.to_json(), sort_keys=True)
