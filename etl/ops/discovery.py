"""Finds operators by name: operators of the checkout (etl/operators), and operators of other packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import cast

from conf.errors import ConfigError
from conf.plugins import OPERATOR, Plugin
from etl.ops.base import Fitted, Operator
from etl.ops.frames import FrameOperator

# The class of an operator, and the class of its fitted step (None for an operator of `prepare`).
Found = tuple[type[Operator] | type[FrameOperator], type[Fitted] | None]


class ColumnOperators(Mapping[str, tuple[type[Operator], type[Fitted]]]):
    """The operators of the checkout for the section `features`, by name.

    The module of an operator is imported when the operator is used.
    """

    def __getitem__(self, name: str) -> tuple[type[Operator], type[Fitted]]:
        """Returns the class of an operator, and the class of its fitted step."""
        operator, fitted = _built_in(name)
        if fitted is None:
            raise KeyError(name)
        return cast(type[Operator], operator), fitted

    def __iter__(self) -> Iterator[str]:
        return (name for name in OPERATOR.built_in() if _built_in(name)[1] is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class FrameOperators(Mapping[str, type[FrameOperator]]):
    """The operators of the checkout for the section `prepare`, by name.

    The module of an operator is imported when the operator is used.
    """

    def __getitem__(self, name: str) -> type[FrameOperator]:
        """Returns the class of an operator."""
        operator, fitted = _built_in(name)
        if fitted is not None:
            raise KeyError(name)
        return cast(type[FrameOperator], operator)

    def __iter__(self) -> Iterator[str]:
        return (name for name in OPERATOR.built_in() if _built_in(name)[1] is None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def find_operator(name: str) -> tuple[Plugin, Found] | None:
    """Returns the operator named `name`, and imports its module; None if there is no such operator.

    Raises:
        ConfigError: two operators have this name, or the module of a package cannot be imported or does not
            contain one operator with this name.
    """
    plugin = OPERATOR.find(name)
    if plugin is None:
        return None
    if plugin.package is None:
        return plugin, _built_in(name)
    module = plugin.load()
    try:
        classes = operator_in(module)
    except ConfigError as error:
        raise _wrong(plugin, error.problem) from error
    if classes[0].name != name:
        raise _wrong(plugin, f"its operator is named {classes[0].name!r}")
    return plugin, classes


def operator_in(module: ModuleType) -> Found:
    """Returns the operator that a module defines, and the type of its fitted step; None for `prepare`.

    Both classes are defined in the module, and set `name` to the same value.

    Raises:
        ConfigError: the module does not define exactly one operator, or the fitted step does not belong to
            the operator.
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
            "define one subclass of Operator or FrameOperator that sets `name`; code that operators share "
            "belongs in etl/ops",
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


def _built_in(name: str) -> Found:
    """Returns the operator of the checkout named `name`. Raises KeyError if there is no such operator."""
    return _of_module(OPERATOR.built_in()[name], name)


@cache
def _of_module(module: str, name: str) -> Found:
    classes = operator_in(import_module(module))
    if classes[0].name != name:
        raise ConfigError(
            f"{module} defines the operator {classes[0].name!r}",
            "give the file the name of its operator",
        )
    return classes


def _wrong(plugin: Plugin, problem: str) -> ConfigError:
    return ConfigError(
        f"{plugin} is not an operator: {problem}",
        "let the module define one operator with the name of the entry point; docs/extending.md has an "
        "example",
    )
