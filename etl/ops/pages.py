"""The pages docs/operators/*.md, which `make docs` generates from the docstrings of the operators."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path

from conf.reference import field_table
from etl.ops import FRAME_OPERATORS, OPERATORS
from etl.ops.base import Operator
from etl.ops.formula import FUNCTIONS
from etl.ops.frames import FrameOperator

# Family → (what its page is called, what it says first, its operators). Every operator is in exactly one.
FAMILIES: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "numbers": (
        "Numbers",
        "Fill what is missing, bring numbers into a range and onto one scale.",
        ("fill", "fill_median", "clip", "log1p", "normalize", "normalize_min_max"),
    ),
    "ids": (
        "Ids",
        "Turn values into ids of an embedding table, which categorical features are.",
        ("categorify", "hash_bucket", "hashed_cross", "bucketize"),
    ),
    "keys": (
        "Statistics by key",
        "Look a key up in a table that the training rows, or a table from outside, made.",
        ("target_encoding", "join_groupby", "join_external"),
    ),
    "lists": (
        "Lists",
        "Several values in one field: multi-hot features, or a fixed number of columns.",
        ("split_list", "list_slice", "list_similarity", "value_count"),
    ),
    "columns": (
        "Columns",
        "Compute, rename, measure and leave out whole columns.",
        ("expression", "rename", "data_stats", "drop_low_cardinality"),
    ),
    "rows": (
        "Rows",
        "The section `prepare`: leave rows out, compare them with each other, group them.",
        ("filter", "dropna", "difference_lag", "groupby"),
    ),
}
_HEAD = "<!-- Made from the docstrings of etl/ops by `make docs`; changes here are lost. -->\n"


def pages() -> dict[str, str]:
    """File name → text."""
    texts = {f"{family}.md": _page(title, intro, names) for family, (title, intro, names) in FAMILIES.items()}
    index = [_HEAD, "# Operators\n"]
    index.append(
        "This page is for everyone who writes the sections `features` and `prepare` of a configuration. "
        "An operator without parameters is its name (`log1p`), one with parameters is a mapping "
        "(`{clip: {min: 0}}`). The operators of a group run in order, "
        "on each column by itself unless an operator takes several columns. "
        "In Python the same chain is "
        '`["I1", "I2"] >> Clip(min=0) >> Log1p()`.\n'
    )
    index.append("| Page | Operators |\n|---|---|")
    index += [
        f"| [{title}]({family}.md) | {', '.join(f'`{name}`' for name in names)} |"
        for family, (title, _, names) in FAMILIES.items()
    ]
    return texts | {"README.md": "\n".join(index) + "\n"}


def _page(title: str, intro: str, names: tuple[str, ...]) -> str:
    parts = [_HEAD, f"# {title}\n", intro + "\n"]
    for name in names:
        operator = OPERATORS[name][0] if name in OPERATORS else FRAME_OPERATORS[name]
        parts += [f"## {name}\n", inspect.cleandoc(operator.__doc__ or "") + "\n", _facts(operator)]
        if name == "expression":
            parts.append(
                f"Functions: {', '.join(f'`{name}`' for name in [*FUNCTIONS, 'coalesce', 'is_null'])}.\n"
            )
    return "\n".join(parts)


def _facts(operator: type[Operator] | type[FrameOperator]) -> str:
    """The table of parameters, and what the operator accepts."""
    facts = [field_table(operator) if operator.model_fields else "No parameters.\n"]
    if not issubclass(operator, Operator):
        return "\n".join([*facts, "Computed by the sql engine.\n"])
    sentence = f"Takes: {', '.join(operator.takes)}."
    if OPERATORS[operator.name][1].sql_only:
        sentence += " Tables are computed by the sql engine alone."
    return "\n".join([*facts, sentence + "\n"])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in pages().items():
        (folder / file).write_text(text, encoding="utf-8")
