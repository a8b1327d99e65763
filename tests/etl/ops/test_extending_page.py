"""The examples of docs/extending.md are operators that discovery accepts and that compute what they say."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest

from etl.ops.base import Operator
from etl.ops.discovery import operator_in
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import Statistics

# tests/extensions tests the section about packages.
PAGE, _, _ = (
    (Path(__file__).parents[3] / "docs/extending.md")
    .read_text(encoding="utf-8")
    .partition("## From your own package")
)
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
NAMES = ["reciprocal", "subtract_maximum"]


@pytest.fixture
def modules() -> Iterator[dict[str, ModuleType]]:
    assert len(BLOCKS) == len(NAMES)
    examples = {}
    for name, text in zip(NAMES, BLOCKS, strict=True):
        examples[name] = sys.modules[f"page_{name}"] = ModuleType(f"page_{name}")
        exec(compile(text, f"docs/extending.md {name}", "exec"), examples[name].__dict__)
    yield examples
    for name in NAMES:
        del sys.modules[f"page_{name}"]


def computed(module: ModuleType, statistics: Statistics, values: list[int | None]) -> list[float | None]:
    kind, _ = operator_in(module)
    assert issubclass(kind, Operator)
    operator = kind()
    (step,) = operator.bind({"I1": "int"})
    (result,) = operator.fit(step, statistics).compute([pa.array(values, pa.int64())], LocalTables({}, 0))
    return result.to_pylist()


def test_the_operator_computes_what_its_table_says(modules: dict[str, ModuleType]) -> None:
    assert computed(modules["reciprocal"], Statistics(), [4, 0, None]) == [0.25, None, None]


def test_the_statistic_obeys_the_contract(modules: dict[str, ModuleType]) -> None:
    module = modules["subtract_maximum"]
    statistic = module.Largest()
    rng = np.random.default_rng(3)
    values = rng.integers(-(2**62), 2**62, 50)
    parts = [np.array([], np.int64), *np.split(values, [7, 20])]
    states = [statistic.measure(pa.array(part), np.ones(len(part), np.int64)) for part in parts]
    whole = statistic.measure(pa.array(values), np.ones(50, np.int64))
    for order in (states, states[::-1]):
        merged = b""
        for state in order:
            merged = statistic.merge(merged, state)
        assert merged == whole
    assert all(len(state) <= statistic.max_bytes for state in [*states, whole])
    assert statistic.result(whole) == values.max()
    assert computed(module, Statistics(merged=9), [10, None]) == [1.0, None]
