"""Generates the pages docs/operators/*.md from the docstrings of the operators, for `make docs`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from conf.reference import field_table
from etl.ops import FRAME_OPERATORS, OPERATORS
from etl.ops.base import FrameOperator, Operator, RowChanger
from etl.ops.formula import FUNCTIONS

# Maps the name of a page to its title and its first sentence. The attribute `page` of an operator is such a
# name.
PAGES: Mapping[str, tuple[str, str]] = {
    "numbers": (
        "Numbers",
        "Fill missing values, limit numbers to a range, and scale them.",
    ),
    "ids": (
        "Ids",
        "Replace values by ids, which are row numbers of an embedding table. Categorical features must be "
        "ids.",
    ),
    "keys": (
        "Statistics by key",
        "Look up a key in a table of statistics of the training rows, or in an external table.",
    ),
    "lists": (
        "Lists",
        "Convert fields with several values to multi-hot features or to a fixed number of columns, and "
        "compare them.",
    ),
    "columns": (
        "Columns",
        "Compute, rename and remove columns, or store their statistics.",
    ),
    "rows": (
        "Rows",
        "Drop rows, compare rows with earlier rows, and combine rows. These operators are for the section "
        "`prepare`.",
    ),
}
_FILTERS = "Tasks apply this filter when they parse rows, on one machine and on clusters.\n"
_FORMS = (
    "On one machine, tasks apply this operator to Arrow tables when they "
    "[prepare rows](../roads.md). On a cluster, Spark applies it to frames.\n"
)
_HEAD = "<!-- Generated from the docstrings of etl/operators. `make docs` overwrites changes. -->\n"


def _operators() -> dict[str, type[Operator] | type[FrameOperator]]:
    """Returns a mapping from the name of each operator in etl/operators to its class."""
    return {**{name: operator for name, (operator, _) in OPERATORS.items()}, **FRAME_OPERATORS}


def pages() -> dict[str, str]:
    """Returns a mapping from the file name of each page to the text of the page."""
    names = {
        page: sorted(name for name, operator in _operators().items() if operator.page == page)
        for page in PAGES
    }
    texts = {f"{page}.md": _page(title, intro, names[page]) for page, (title, intro) in PAGES.items()}
    index = [_HEAD, "# Operators\n"]
    index.append(
        "These pages are for everyone who writes the sections `features` and `prepare` of a configuration. "
        "Write an operator without parameters as its name (`log1p`), and one with parameters as a mapping "
        "(`{clip: {min: 0}}`). The operators of a group run in order, "
        "on each column separately, unless an operator combines several columns. "
        'In Python, `["I1", "I2"] >> Clip(min=0) >> Log1p()` is a group with the columns I1 and I2 and these '
        "two operators.\n\n"
        "The line *Takes* of an operator lists the types of columns that it accepts: `int`, `float`, "
        "`string`, `ints` (lists of integers) and `strings` (lists of strings). "
        "One of two engines computes the features: `sql` uses Spark expressions and joins, and `arrow` uses "
        "Arrow arrays in Python workers. "
        "Three ids are reserved: 0 (PAD_ID) fills empty positions, 1 (NULL_ID) stands for null, and "
        "2 (OOV_ID) stands for values that are not in a vocabulary.\n"
    )
    index.append("| Page | Operators |\n|---|---|")
    index += [
        f"| [{title}]({page}.md) | {', '.join(f'`{name}`' for name in names[page])} |"
        for page, (title, _) in PAGES.items()
    ]
    return texts | {"README.md": "\n".join(index) + "\n"}


def _page(title: str, intro: str, names: Sequence[str]) -> str:
    parts = [_HEAD, f"# {title}\n", intro + "\n"]
    for name in names:
        operator = _operators()[name]
        parts += [f"## {name}\n", inspect.cleandoc(operator.__doc__ or "") + "\n", _facts(operator)]
        if name == "expression":
            parts.append(
                f"Functions: {', '.join(f'`{name}`' for name in [*FUNCTIONS, 'coalesce', 'is_null'])}.\n"
            )
    return "\n".join(parts)


def _facts(operator: type[Operator] | type[FrameOperator]) -> str:
    """Returns the table of an operator's parameters, and sentences about the columns that it accepts."""
    facts = [field_table(operator) if operator.model_fields else "No parameters.\n"]
    for name, info in operator.model_fields.items():
        for section in _sections(info.annotation):
            facts.append(f"### `{operator.name}.{name}`\n\n{inspect.cleandoc(section.__doc__ or '')}\n")
            facts.append(field_table(section))
    if not issubclass(operator, Operator):
        return "\n".join([*facts, _FORMS if issubclass(operator, RowChanger) else _FILTERS])
    sentence = f"Takes: {', '.join(operator.takes)}."
    if OPERATORS[operator.name][1].out_of_fold:
        sentence += " In Spark frames, the engine `sql` always computes the features of this operator."
    return "\n".join([*facts, sentence + "\n"])


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yields the classes of settings (pydantic models) that occur in the type of a parameter."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in pages().items():
        (folder / file).write_text(text, encoding="utf-8")
