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

# Family → (title of its page, first sentence, operators). Every operator must be in exactly one family.
FAMILIES: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "numbers": (
        "Numbers",
        "Fill missing values, limit numbers to a range, and scale them.",
        ("fill", "fill_median", "clip", "log1p", "normalize", "normalize_min_max"),
    ),
    "ids": (
        "Ids",
        "Replace values by ids of an embedding table, as categorical features need them.",
        ("categorify", "hash_bucket", "hashed_cross", "bucketize"),
    ),
    "keys": (
        "Statistics by key",
        "Look up a key in a table of statistics of the training rows, or in an external table.",
        ("target_encoding", "join_groupby", "join_external"),
    ),
    "lists": (
        "Lists",
        "Process fields with several values: as multi-hot features, or as a fixed number of columns.",
        ("split_list", "list_slice", "list_similarity", "value_count"),
    ),
    "columns": (
        "Columns",
        "Compute, rename and remove columns, or store their statistics.",
        ("expression", "rename", "data_stats", "drop_low_cardinality"),
    ),
    "rows": (
        "Rows",
        "Operators for the section `prepare`: drop rows, compare them with earlier ones, combine them.",
        ("filter", "dropna", "difference_lag", "groupby"),
    ),
}
_HEAD = "<!-- Made from the docstrings of etl/ops by `make docs`; changes here are lost. -->\n"


def pages() -> dict[str, str]:
    """Returns file name → text of the page."""
    texts = {f"{family}.md": _page(title, intro, names) for family, (title, intro, names) in FAMILIES.items()}
    index = [_HEAD, "# Operators\n"]
    index.append(
        "These pages are for everyone who writes the sections `features` and `prepare` of a configuration. "
        "Write an operator without parameters as its name (`log1p`), and one with parameters as a mapping "
        "(`{clip: {min: 0}}`). The operators of a group run in order, "
        "on each column separately, unless an operator combines several columns. "
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
        sentence += " Rows of tables are computed only by the sql engine."
    return "\n".join([*facts, sentence + "\n"])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in pages().items():
        (folder / file).write_text(text, encoding="utf-8")
