"""Each rule of a row gives the values, and rejects the rows, that the documents say."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conf.raw_types import EventTime, Label
from conf.types import Keys
from etl.raw.row_rules import NANOSECONDS, RowRule, row_rules, time_rule
from etl.raw.text_values import integers, numbers

ARROW_TYPES = {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}
LONG = "é" * 128
VALUES: dict[str, list[Any]] = {
    "int": [None, 0, 1, 2, -1, 10**12, 2**63 - 1, -(2**63), 9_223_372_036_854, -9_223_372_036_855],
    "float": [None, 0.0, 1.0, 0.5, -1.0, 3.5, 1e30, -0.0],
    "string": [
        *[None, "0", "1", "+1", "1.0", ".5", "1e0", "1e39", "NaN", "1d", " 1", "x", "2", "4.0", "é\x7f"],
        *[
            "a\x00",
            "a\x1f",
            "a\x9f",
            LONG,
            LONG + "x",
            "\u2028",
            "1e400",
            "-",
            "1_0",
            "9" * 19,
            "17.0",
            "-3.",
            "17.\x85",
            "9" * 18 + ".000",
            "9223372036854775808.0",
            "9" * 20,
            "+7",
        ],
    ],
}


def rules_of(kind: str, threshold: float | None, unit: Any = "s") -> tuple[RowRule, ...]:
    label = Label(column="x", positive_at_least=threshold)
    keys = None if kind == "float" else Keys(user="x", item="y")  # an id is no float (conf/types.py)
    time = EventTime(column="x", unit=unit) if kind == "int" else None
    return row_rules({"x": kind, "y": kind}, label, keys, time)


def number_of(value: Any) -> float | None:
    """The number that a text or a number stands for; None without one. Written by hand from the documents."""
    if not isinstance(value, str):
        return None if value is None else float(value)
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", value, re.ASCII):
        return None
    return float(value) if abs(float(value)) <= np.finfo(np.float32).max else None


def integer_of(text: str | None) -> int | None:
    """The integer of 64 bits that a text stands for, perhaps with a fraction of zeros; None without one."""
    match = re.fullmatch(r"([+-]?\d+)(\.0*)?", text or "", re.ASCII)
    if not match or len(match[1].lstrip("+-")) > 19:
        return None
    value = int(match[1])
    return value if -(2**63) <= value < 2**63 else None


def is_rejected(reason: str, value: Any, threshold: float | None, unit: str) -> bool:
    """Whether a value breaks the rule of a reason."""
    kind = reason.split(":")[0]
    if kind == "label":
        number = number_of(value)
        return number is None or (threshold is None and number not in (0, 1))
    if kind in ("missing_key", "missing_time"):
        return value is None
    if kind == "key":
        control = value is not None and any(unicodedata.category(char) == "Cc" for char in value)
        return control or (value is not None and len(value.encode()) > 256)
    assert kind == "time_range"
    if value is None:
        return False
    return value == -(2**63) if unit == "ns" else abs(value) * NANOSECONDS[unit] // 1000 >= 2**63


def computed(output: str, value: Any, threshold: float | None, unit: str) -> Any:
    if output == "label":
        number = number_of(value)
        assert number is not None
        return number if threshold is None else float(number >= threshold)
    return str(value) if output != "event_time" else value * NANOSECONDS[unit] // 1000


@pytest.mark.parametrize("kind", ["int", "float", "string"])
@pytest.mark.parametrize("threshold", [None, 3.5])
@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_every_rule_is_that_of_the_documents(kind: str, threshold: float | None, unit: str) -> None:
    rules = rules_of(kind, threshold, unit)
    values = pa.array(VALUES[kind], ARROW_TYPES[kind])
    for rule in rules:
        good = [True] * len(values)
        for check in rule.checks:
            rejected = [bool(value) for value in check.rejects(values).to_pylist()]
            expected = [is_rejected(check.reason, value, threshold, unit) for value in VALUES[kind]]
            assert rejected == expected, check.reason
            assert any(rejected) or check.reason.startswith("time_range"), f"no value breaks {check.reason}"
            good = [is_good and not bad for is_good, bad in zip(good, rejected, strict=True)]
        found = rule.compute(values).to_pylist()
        for value, result, is_good in zip(VALUES[kind], found, good, strict=True):
            if is_good:
                assert result == computed(rule.output, value, threshold, unit), (rule.output, value)
        assert any(good)


def test_the_first_reason_is_that_of_the_label_then_of_keys_then_of_the_time() -> None:
    reasons = [check.reason for rule in rules_of("string", None) for check in rule.checks]
    assert reasons == ["label:x", "missing_key:x", "key:x", "missing_key:y", "key:y"]
    of_numbers = [check.reason for rule in rules_of("int", None) for check in rule.checks]
    assert of_numbers == ["label:x", "missing_key:x", "missing_key:y", "missing_time:x", "time_range:x"]


def test_texts_are_converted_to_numbers_by_the_rule() -> None:
    texts = pa.array(VALUES["string"], pa.string())
    expected = [integer_of(text) for text in VALUES["string"]]
    assert integers(texts).to_pylist() == expected
    assert numbers(texts).to_pylist() == [number_of(text) for text in VALUES["string"]]
    assert 7 in expected
    assert None in expected[1:]


def test_nanoseconds_are_rounded_down() -> None:
    rule = time_rule(EventTime(column="x", unit="ns"))
    values = [1_767_225_600_123_456_789, 999, 0, -1, -1000, -1001, 2**63 - 1, None]
    expected = [None if value is None else value // 1000 for value in values]
    assert rule.compute(pa.array(values)).to_pylist() == expected
