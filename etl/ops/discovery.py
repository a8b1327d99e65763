"""Finds the operators: every file of this folder that is not in `_SHARED_MODULES` contains one operator."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from conf.errors import ConfigError
from etl.ops.base import Fitted, Operator
from etl.ops.frames import FrameOperator

_FOLDER = "etl.ops"
# Modules of this folder that contain no operator.
_SHARED_MODULES = {
    "array_statistics",
    "base",
    "choose_engine",
    "discovery",
    "doubles",
    "formula",
    "frames",
    "keyed",
    "memory_tables",
    "package_operators",
    "pages",
    "parameters",
    "row_groups",
    "tables",
    "training_statistics",
    "xxhash64",
}


@dataclass(frozen=True)
class Operators:
    """The operators that were found, by name.

    Attributes:
        of_columns: operators for the section `features`, with the type of the fitted step.
        of_rows: operators for the section `prepare`.
    """

    of_columns: Mapping[str, tuple[type[Operator], type[Fitted]]]
    of_rows: Mapping[str, type[FrameOperator]]


def find_operators() -> Operators:
    """Imports the files of this folder, and returns their operators in the order of their names.

    Raises:
        ConfigError: a file does not contain one operator.
    """
    of_columns: dict[str, tuple[type[Operator], type[Fitted]]] = {}
    of_rows: dict[str, type[FrameOperator]] = {}
    for module in _modules():
        operator, fitted = operator_in(module)
        if issubclass(operator, FrameOperator):
            of_rows[operator.name] = operator
        elif fitted is not None:
            of_columns[operator.name] = operator, fitted
    return Operators(dict(sorted(of_columns.items())), dict(sorted(of_rows.items())))


def operator_in(module: ModuleType) -> tuple[type[Operator] | type[FrameOperator], type[Fitted] | None]:
    """Returns the operator that a module defines, and the type of its fitted step; None for `prepare`.

    These are classes of the module that set `name`. Both classes have the same name.

    Raises:
        ConfigError: the module does not define exactly one operator, or its classes do not fit together.
    """
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and "name" in vars(value)
    ]
    operators = [value for value in own if issubclass(value, Operator | FrameOperator)]
    fitted = [value for value in own if issubclass(value, Fitted)]
    if len(operators) != 1:
        raise ConfigError(
            f"{module.__name__} defines {len(operators)} operators, but it must define one",
            "define one subclass of Operator or FrameOperator that sets `name`; if the file has code that "
            "operators share, list it in _SHARED_MODULES of etl/ops/discovery.py",
        )
    operator = operators[0]
    if issubclass(operator, FrameOperator):
        return operator, None
    if [value.name for value in fitted] != [operator.name]:
        raise ConfigError(
            f"{module.__name__} defines the operator {operator.name} and the fitted steps "
            f"{[value.name for value in fitted]}",
            f"define one subclass of Fitted with the name {operator.name!r}",
        )
    return operator, fitted[0]


def _modules() -> Iterator[ModuleType]:
    """Yields the modules of the operators. They may be in a folder or in an archive."""
    folders = import_module(_FOLDER).__path__
    for name in sorted({module.name for module in pkgutil.iter_modules(folders)} - _SHARED_MODULES):
        yield import_module(f"{_FOLDER}.{name}")
