"""`init` recognises clicks in several notations, and asks about columns whose values are not only 0 and 1."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from conf.errors import ConfigError
from jobs.new_config.configuration import new_config
from jobs.new_config.log_columns import Wishes
from jobs.new_config.questions import Questions

N = 600
RNG = np.random.default_rng(3)
CLICKS = RNG.random(N) < 0.2
USERS, ITEMS = RNG.integers(0, 50, N), RNG.integers(0, 40, N)
EMPTY = {"rows_without_value": "not_clicked"}
EVERY_ROW = "no column: every row is a click"


def _log(folder: Path, values: pa.Array, *, name: str = "clicked", form: str = "parquet") -> str:
    table = pa.table({"user_id": USERS, "item_id": ITEMS, name: values})
    path = str(folder / f"log.{form}")
    if form == "csv":
        csv.write_csv(table, path)
    else:
        parquet.write_table(table, path)
    return path


def _values(yes: Any, no: Any, kind: pa.DataType | None = None) -> pa.Array:
    return pa.array([yes if click else no for click in CLICKS], kind)


def _label(path: str, label: str | None = None) -> tuple[dict[str, Any] | None, list[str]]:
    questions = Questions(ask=False)
    config = new_config(Wishes(path, label=label), questions)
    return config.sections["log"].get("label"), questions.open


@pytest.mark.parametrize(
    "values, rule",
    [
        (_values("Y", "N"), {}),
        (_values("1", "0"), {}),
        (_values(Decimal(1), Decimal(0), pa.decimal128(1, 0)), {}),
        (_values(Decimal("1.0"), Decimal("0.0"), pa.decimal128(2, 1)), {}),
        (_values("ja", "nein"), {"positive": ["ja"]}),
        (_values("WAHR", "FALSCH"), {"positive": ["WAHR"]}),
    ],
)
def test_flags_are_labels_in_all_notations(tmp_path: Path, values: pa.Array, rule: dict[str, Any]) -> None:
    label, questions = _label(_log(tmp_path, values))
    assert (label, questions) == ({"column": "clicked", **rule}, [])


@pytest.mark.parametrize(
    "values, form, rule",
    [
        (_values(1.0, np.nan), "parquet", EMPTY),
        (_values(True, None), "parquet", EMPTY),
        (_values(1, None), "csv", EMPTY),
        (_values("Y", ""), "csv", EMPTY),
        (_values("x", None), "csv", {**EMPTY, "positive": ["x"]}),
        (_values(3, None), "csv", {**EMPTY, "positive_at_least": 3.0}),
        (_values(1, -1), "csv", {"positive_at_least": 1.0}),
        (pa.array(CLICKS * RNG.integers(1, 4, N)), "parquet", {"positive_at_least": 1.0}),
        (_values(2, 1), "parquet", {"positive_at_least": 2.0}),
        (_values("B", "A"), "parquet", {"positive": ["B"]}),
    ],
)
def test_other_values_of_a_flag_are_asked_about(
    tmp_path: Path, values: pa.Array, form: str, rule: dict[str, Any]
) -> None:
    label, questions = _label(_log(tmp_path, values, form=form))
    assert label == {"column": "clicked", **rule}
    assert [question.startswith("Which rows are clicks? clicked has ") for question in questions] == [True]
    assert EVERY_ROW in questions[0]


@pytest.mark.parametrize(
    "name, values",
    [
        ("click_rate", pa.array(RNG.random(N))),
        ("click_id", pa.array(RNG.integers(0, 9, N))),
        ("purchase_channel", _values("web", "app")),
        ("verified_purchase", _values(3, None)),
        ("purchase_amount", pa.array(RNG.integers(1, 90, N))),
    ],
)
def test_attributes_with_such_a_name_are_no_labels(tmp_path: Path, name: str, values: pa.Array) -> None:
    assert _label(_log(tmp_path, values, name=name)) == (None, [])


@pytest.mark.parametrize(
    "yes, no, rule",
    [
        ("ja", "nein", {"positive": ["ja"]}),
        ("true", "false", {}),
        ("Y", "N", {}),
        ("x", None, {**EMPTY, "positive": ["x"]}),
        (1, -1, {"positive_at_least": 1.0}),
    ],
)
def test_the_named_label_has_no_clicks_that_say_no(
    tmp_path: Path, yes: Any, no: Any, rule: dict[str, Any]
) -> None:
    path = _log(tmp_path, _values(yes, no), name="chosen")
    assert _label(path, label="chosen") == ({"column": "chosen", **rule}, [])


def test_two_unknown_texts_of_the_named_label_are_refused(tmp_path: Path) -> None:
    path = _log(tmp_path, _values("B", "A"))
    with pytest.raises(ConfigError, match=r"--label clicked: the column has the values \['A', 'B'\]"):
        _label(path, label="clicked")
