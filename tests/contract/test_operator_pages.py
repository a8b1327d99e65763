"""docs/operators is what the docstrings say, and misses no operator."""

from __future__ import annotations

from pathlib import Path

from etl.ops import FRAME_OPERATORS, OPERATORS
from etl.ops.pages import PAGES, pages

FOLDER = Path(__file__).parents[2] / "docs" / "operators"


def test_every_operator_is_on_one_page() -> None:
    operators = [*(operator for operator, _ in OPERATORS.values()), *FRAME_OPERATORS.values()]
    lost = [operator.name for operator in operators if getattr(operator, "page", None) not in PAGES]
    assert lost == [], f"set `page` of these operators to one of {list(PAGES)}"


def test_the_pages_are_up_to_date() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert written == pages(), "run `make docs`"


def test_every_operator_shows_what_it_does_in_a_table() -> None:
    operators = {**{name: operator for name, (operator, _) in OPERATORS.items()}, **FRAME_OPERATORS}
    assert [name for name, operator in operators.items() if "|---" not in (operator.__doc__ or "")] == []


def test_every_parameter_is_described() -> None:
    operators = [*(operator for operator, _ in OPERATORS.values()), *FRAME_OPERATORS.values()]
    bare = [
        f"{operator.name}.{name}"
        for operator in operators
        for name, field in operator.model_fields.items()
        if not field.description
    ]
    assert bare == []
