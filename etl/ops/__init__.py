"""Finds the operators of the sections `features` and `prepare` by name.

This package also contains the code that operators share. Each file of etl/operators is one operator. Other
Python packages may add operators. A module is imported only if a configuration or a stored workflow uses its
operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, cast

from conf.errors import ConfigError
from conf.plugins import OPERATOR, Plugin, digests_of
from etl.ops.base import (
    Fitted,
    FrameOperator,
    Operator,
    Parameters,
    Pipeline,
    RowChanger,
    RowFilter,
    RowWise,
    Step,
    Type,
)
from etl.ops.training_statistics import MergeableStatistic, Moments, Statistics

# The class of an operator, and the class of its fitted step (None for an operator of `prepare`).
Found = tuple[type[Operator] | type[FrameOperator], type[Fitted] | None]


class ColumnOperators(Mapping[str, tuple[type[Operator], type[Fitted]]]):
    """The operators of etl/operators for the section `features`, by name.

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
    """The operators of etl/operators for the section `prepare`, by name.

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
    """Returns the operator named `name`; None if it does not exist. Imports the operator's module.

    Raises:
        ConfigError: two operators have this name, the operator's module cannot be imported, or this module
            does not contain exactly one operator with this name.
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
    """Returns the class of the operator that a module defines, and the class of its fitted step.

    The module defines both classes, and both set `name` to the same value. An operator of the section
    `prepare` has no fitted step, so the second result is None.

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
            f"{module.__name__} defines the operator {operator.name}, but not exactly one fitted step (with "
            f"this name); its fitted steps are {[value.name for value in fitted]}",
            f"define one subclass of Fitted with the name {operator.name!r}",
        )
    return operator, fitted[0]


def _built_in(name: str) -> Found:
    """Returns the operator of etl/operators named `name`. Raises KeyError if there is no such operator."""
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
        "define exactly one operator in the module, and give it the name of the entry point; "
        "docs/extending.md has an example",
    )


# The functions below create the operators of the sections `features` and `prepare` from a configuration.

# Operators for the section `features`, which transform columns.
OPERATORS: Mapping[str, tuple[type[Operator], type[Fitted]]] = ColumnOperators()
# Operators for the section `prepare`, which transform rows.
FRAME_OPERATORS: Mapping[str, type[FrameOperator]] = FrameOperators()

__all__ = [
    "FRAME_OPERATORS",
    "OPERATORS",
    "Fitted",
    "FrameOperator",
    "MergeableStatistic",
    "Moments",
    "Operator",
    "Pipeline",
    "RowChanger",
    "RowFilter",
    "RowWise",
    "Statistics",
    "Step",
    "Type",
    "column_operator",
    "frame_operator_from_config",
    "operator_digests",
    "operator_extension",
    "operator_from_config",
    "stored_fitted_type",
]

Entry = str | Mapping[str, Mapping[str, Any] | None]


def operator_from_config(entry: Entry) -> Operator:
    """Creates the operator for an entry of `features.ops`, such as `log1p` or `{clip: {min: 0}}`.

    Raises:
        ConfigError: the operator does not exist, or it belongs to an installed package and cannot be used
            (`find_operator`), or a parameter is unknown, missing or not allowed.
    """
    return cast(Operator, _from_config(entry, "features.ops", OPERATORS, Operator))


def frame_operator_from_config(entry: Entry) -> FrameOperator:
    """Creates the operator for an entry of `prepare`. Raises the errors of `operator_from_config`."""
    return cast(FrameOperator, _from_config(entry, "prepare", FRAME_OPERATORS, FrameOperator))


def column_operator(name: str) -> tuple[type[Operator], type[Fitted]]:
    """Returns the operator of the section `features` named `name`, and the type of its fitted step.

    Raises:
        ConfigError: the operator does not exist, or it belongs to an installed package and cannot be used
            (`find_operator`).
    """
    plugin_and_classes = find_operator(name)
    if plugin_and_classes is None or plugin_and_classes[1][1] is None:
        raise _unknown(name, "features.ops", OPERATORS)
    return cast(type[Operator], plugin_and_classes[1][0]), plugin_and_classes[1][1]


def operator_extension(name: str) -> Plugin | None:
    """Returns the installed plug-in that adds the operator `name`; None if the operator is in etl/operators.

    Raises:
        ConfigError: a plug-in of an installed package has the same name as another operator.
    """
    return OPERATOR.find_in_package(name)


def operator_digests(names: Iterable[str]) -> dict[str, str]:
    """Returns the digest of the code of each operator in `names` that an installed package adds.

    Workflow versions and the inputs of tables depend on these digests. Operators of etl/operators have no
    digest in the result. So installing a package does not change the version of a workflow that does not use
    the package.

    Args:
        names: the names of operators; a name may occur more than once.

    Raises:
        ConfigError: two operators have the same name, or the module of a package cannot be imported.
    """
    return digests_of(operator_extension(name) for name in dict.fromkeys(names))


def stored_fitted_type(name: str, package: str | None) -> type[Fitted]:
    """Returns the type of a fitted step that a workflow contains.

    Args:
        name: the name of the operator, such as `categorify`.
        package: the package that had the operator when the workflow was fitted; None for an operator of
            etl/operators.

    Raises:
        ConfigError: the operator is not installed, or another package or etl/operators has an operator with
            this name.
    """
    plugin_and_classes = find_operator(name)
    fitted = plugin_and_classes and plugin_and_classes[1][1]
    if plugin_and_classes is None or fitted is None:
        owner = f"the package {package}" if package else "another release"
        raise ConfigError(
            f"a workflow contains the operator {name!r} of {owner}, which is not installed here",
            f"install {package or 'that release'} in the environment of every process that computes features "
            "of this workflow, or fit a workflow without the operator",
        )
    plugin = plugin_and_classes[0]
    if plugin.package != package:
        owner = f"the package {package}" if package else "another release"
        raise ConfigError(
            f"a workflow contains the operator {name!r} of {owner}, but the installed operator is "
            f"{plugin.origin}",
            "install only the package with which the workflow was fitted, or fit a new workflow",
        )
    return fitted


def _from_config(
    entry: Entry,
    where: str,
    known: Mapping[str, Any],
    kind: type[Operator] | type[FrameOperator],
) -> Parameters:
    """Creates the operator for an entry of the configuration's section `where`.

    Args:
        known: the operators of etl/operators for this section, by name.
        kind: the base class of the operators of this section.
    """
    if isinstance(entry, Mapping) and len(entry) != 1:
        raise ConfigError(
            f"{where}: the entry {dict(entry)} has {len(entry)} operators", "write one operator per entry"
        )
    name, parameters = (entry, None) if isinstance(entry, str) else next(iter(entry.items()))
    plugin_and_classes = find_operator(name)
    if plugin_and_classes is None or not issubclass(plugin_and_classes[1][0], kind):
        raise _unknown(name, where, known)
    operator_type: type[Parameters] = plugin_and_classes[1][0]
    parameters = {} if parameters is None else parameters
    if not isinstance(parameters, Mapping) or not all(isinstance(key, str) for key in parameters):
        raise ConfigError(
            f"{where}: {name} has the parameters {parameters!r}, but parameters must be a mapping of names "
            "to values",
            f"write {name}: {{parameter: value}}; docs/operators describes the parameters",
        )
    try:
        operator: Parameters = operator_type(**parameters)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.problem}", error.remedy) from error
    return operator


def _unknown(name: str, where: str, known: Mapping[str, Any]) -> ConfigError:
    of_packages = OPERATOR.of_packages()
    return ConfigError(
        f"{where} contains an unknown operator {name!r}", f"use one of {sorted({*known, *of_packages})}"
    )
