"""Operators of other packages: entry points of the group `nightrank.operators` (conf/plugins.py).

The module of such an operator has the contract of a file in this folder. Its operator has the name of the
entry point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from conf.errors import ConfigError
from conf.plugins import OPERATOR, Plugin
from etl.ops.base import Fitted, Operator
from etl.ops.discovery import operator_in
from etl.ops.frames import FrameOperator


@dataclass(frozen=True)
class PackageOperator:
    """An operator of another package.

    Attributes:
        extension: the entry point that names its module.
        operator: the class of the operator.
        fitted: the class of its fitted step; None for an operator of the section `prepare`.
    """

    extension: Plugin
    operator: type[Operator] | type[FrameOperator]
    fitted: type[Fitted] | None


def package_operator(name: str, built_in: Mapping[str, str]) -> PackageOperator | None:
    """Returns the operator of another package, and imports its module; None if there is none.

    Args:
        name: the name of the operator.
        built_in: maps the names of the operators in this folder to their modules.

    Raises:
        ConfigError: two operators have this name, or the module cannot be imported or does not contain one
            operator with this name.
    """
    extension = OPERATOR.find_in_package(name, built_in)
    if extension is None:
        return None
    module = extension.load()
    try:
        operator, fitted = operator_in(module)
    except ConfigError as error:
        raise _wrong(extension, error.problem) from error
    if operator.name != name:
        raise _wrong(extension, f"its operator is named {operator.name!r}")
    return PackageOperator(extension, operator, fitted)


def _wrong(extension: Plugin, problem: str) -> ConfigError:
    return ConfigError(
        f"{extension} is not an operator: {problem}",
        "let the module define one operator with the name of the entry point; docs/extending.md has an "
        "example",
    )
