"""Workflows with the examples of operators, fitted once for all tests; the option `--op NAME`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from etl.ops import FRAME_OPERATORS, OPERATORS
from etl.raw.splits import DAY
from tests.etl.ops.case import GROUPS, Case
from tests.etl.ops.examples import EXAMPLES
from tests.etl.ops.on_blocks import fit_blocks
from tests.etl.ops.rows import DAYS, TEST_DAY, make_config, make_rows


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--op", metavar="NAME", help="run only the tests of this operator")


def pytest_configure(config: pytest.Config) -> None:
    name, known = config.getoption("op", None), sorted([*OPERATORS, *FRAME_OPERATORS])
    if name is not None and name not in known:
        raise pytest.UsageError(f"--op {name}: there is no such operator; use one of {', '.join(known)}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    name = config.getoption("op", None)
    if name is None:
        return
    kept = [item for item in items if is_about(item, name)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def is_about(item: pytest.Item, name: str) -> bool:
    """Whether a test holds for every operator, so for this one, or has a parameter that names this operator."""
    if item.get_closest_marker("every_operator"):
        return name in OPERATORS
    call = getattr(item, "callspec", None)
    return call is not None and any(_names(value, name) for value in call.params.values())


def _names(value: Any, name: str) -> bool:
    """Whether a parameter is the operator's name or an entry of it, or a list with such an entry."""
    if isinstance(value, list | tuple):
        return any(_names(part, name) for part in value)
    return value == name or (isinstance(value, dict) and (name in value or _names(value.get("ops"), name)))


@pytest.fixture(scope="session")
def op(pytestconfig: pytest.Config) -> str | None:
    """The operator to which the run is limited; None for all."""
    name: str | None = pytestconfig.getoption("op", None)
    return name


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory, op: str | None) -> Case:
    """Every example, or those of one operator."""
    groups = [example.group() for example in EXAMPLES[op]] if op else GROUPS
    return _fitted(tmp_path_factory.mktemp("case"), groups, seed=1, sizes=(90, 60, 40, 60))


@pytest.fixture(scope="session", params=[1, 2], ids=lambda seed: f"seed{seed}")
def any_case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, op: str | None
) -> Case:
    """The same, and one of hardly a row, without the tables of statistics a key."""
    if request.param == 1:
        return request.getfixturevalue("case")
    plain = [
        name
        for name, (operator, _) in OPERATORS.items()
        if operator.needs not in ("groups", "external") and op in (None, name)
    ]
    if not plain:
        pytest.skip(f"{op} is not in the case of hardly a row")
    groups = [example.group() for name in plain for example in EXAMPLES[name]]
    return _fitted(tmp_path_factory.mktemp("case"), groups, request.param, sizes=(7, 1, 3, 9))


def _fitted(folder: Path, groups: Sequence[Mapping[str, Any]], seed: int, sizes: Sequence[int]) -> Case:
    config = make_config(folder, groups)
    days = zip((*DAYS, TEST_DAY), sizes, strict=True)
    rows = [row for day, size in days for row in make_rows(day, size, seed)]
    rows = [
        {**row, "row_id": place} for place, row in enumerate(rows)
    ]  # the positions in a frame of all rows
    _, workflow = fit_blocks(config, [row for row in rows if row[DAY] != TEST_DAY], Path(config.lake))
    return Case(groups, config, workflow, rows)
