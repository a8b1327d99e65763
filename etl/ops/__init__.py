"""The operators of the sections `features` and `prepare`. Each has one file, which discovery.py finds.

Other packages may add operators (package_operators.py). OPERATORS and FRAME_OPERATORS do not contain them,
because they are imported only if a configuration or a stored workflow names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from conf.errors import ConfigError
from conf.plugins import OPERATOR, Plugin, digests_of
from etl.ops.base import Fitted, Operator, Pipeline, RowWise, Step, Type
from etl.ops.discovery import find_operators
from etl.ops.frames import FrameOperator, RowChanger, RowFilter
from etl.ops.package_operators import PackageOperator, package_operator
from etl.ops.parameters import Parameters
from etl.ops.training_statistics import MergeableStatistic, Moments, Statistics

_FOUND = find_operators()
# Operators for the section `features`, which transform columns.
OPERATORS: Mapping[str, tuple[type[Operator], type[Fitted]]] = _FOUND.of_columns
# Operators for the section `prepare`, which transform rows.
FRAME_OPERATORS: Mapping[str, type[FrameOperator]] = _FOUND.of_rows

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
        ConfigError: the operator is unknown, or a parameter is unknown, missing or not allowed. Or the
            operator of a package cannot be used (`package_operator`).
    """
    return cast(Operator, _from_config(entry, "features.ops", _of_columns(), Operator))


def frame_operator_from_config(entry: Entry) -> FrameOperator:
    """Creates the operator for an entry of `prepare`. Raises the errors of `operator_from_config`."""
    return cast(FrameOperator, _from_config(entry, "prepare", FRAME_OPERATORS, FrameOperator))


def column_operator(name: str) -> tuple[type[Operator], type[Fitted]]:
    """Returns the operator of columns with this name, and the type of its fitted step.

    Raises:
        ConfigError: the operator does not exist, or the operator of a package cannot be used.
    """
    if name in OPERATORS:
        return OPERATORS[name]
    of_package = _of_package(name)
    if of_package is None or of_package.fitted is None:
        raise _unknown(name, "features.ops", OPERATORS)
    return cast(type[Operator], of_package.operator), of_package.fitted


def operator_extension(name: str) -> Plugin | None:
    """Returns the extension that adds the operator; None for an operator of this folder.

    Raises:
        ConfigError: two operators have the name of an installed extension.
    """
    return None if name in OPERATORS else OPERATOR.find_in_package(name, _built_in())


def operator_digests(names: Iterable[str]) -> dict[str, str]:
    """Returns the digest of the code of each operator that another package adds, for versions and inputs.

    The result is empty if there are none. So versions that do not depend on other packages do not change.

    Args:
        names: the names of operators; a name may occur more than once.

    Raises:
        ConfigError: the operator of a package cannot be used.
    """
    return digests_of(operator_extension(name) for name in dict.fromkeys(names))


def stored_fitted_type(name: str, package: str | None) -> type[Fitted]:
    """Returns the type of a fitted step that a workflow contains.

    Args:
        name: the name of the operator.
        package: the package that had the operator when the workflow was fitted; None for this folder.

    Raises:
        ConfigError: the operator does not exist here, or is one of another package.
    """
    if package is None and name in OPERATORS:
        return OPERATORS[name][1]
    of_package = _of_package(name)
    if of_package is None or of_package.fitted is None:
        owner = f"the package {package}" if package else "another release"
        raise ConfigError(
            f"a workflow contains the operator {name!r} of {owner}, which is not installed here",
            f"install {package or 'that release'} in the environment of every process that computes features "
            "of this workflow, or fit a workflow without the operator",
        )
    if of_package.extension.package != package:
        owner = f"the package {package}" if package else "another release"
        raise ConfigError(
            f"a workflow contains the operator {name!r} of {owner}, but here it is "
            f"{of_package.extension.origin}",
            "install only the package with which the workflow was fitted, or fit a new workflow",
        )
    return of_package.fitted


def _built_in() -> dict[str, str]:
    """Maps each operator of this folder to its module."""
    return {name: operator.__module__ for name, operator in {**_of_columns(), **FRAME_OPERATORS}.items()}


def _of_columns() -> dict[str, type[Parameters]]:
    return {name: operator for name, (operator, _) in OPERATORS.items()}


def _of_package(name: str) -> PackageOperator | None:
    return package_operator(name, _built_in())


def _from_config(
    entry: Entry,
    where: str,
    known: Mapping[str, type[Parameters]],
    kind: type[Operator] | type[FrameOperator],
) -> Parameters:
    """Creates the operator for an entry of the section `where`.

    Args:
        known: the operators of the checkout for this section, by name.
        kind: the base class that an operator of a package needs in this section.
    """
    if isinstance(entry, Mapping) and len(entry) != 1:
        raise ConfigError(
            f"{where}: the entry {dict(entry)} has {len(entry)} operators", "write one operator per entry"
        )
    name, parameters = (entry, None) if isinstance(entry, str) else next(iter(entry.items()))
    operator_type = known.get(name)
    if operator_type is None:
        of_package = _of_package(name)
        if of_package is None or not issubclass(of_package.operator, kind):
            raise _unknown(name, where, known)
        operator_type = of_package.operator
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
    of_packages = set(OPERATOR.names(_built_in())) - set(_built_in())
    return ConfigError(
        f"{where} contains an unknown operator {name!r}", f"use one of {sorted({*known, *of_packages})}"
    )
