"""The modules of pyspark that operators use. A module is imported when one of its attributes is first used.

Operators have code for Spark and for Arrow in one file. A process that only encodes or scores Arrow tables
need not import pyspark. The import would take half a second, and the package may not be installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Window
    from pyspark.sql import functions as F
    from pyspark.sql import types as T
else:

    class _Lazy:
        """A proxy for a module, or for an object of a module. It has the same attributes."""

        def __init__(self, module: str, name: str | None = None) -> None:
            self._module = module
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            if attribute.startswith("__"):  # pickle, copy and doctest look up such attributes
                raise AttributeError(attribute)
            target = import_module(self._module)
            value = getattr(getattr(target, self._name) if self._name else target, attribute)
            setattr(self, attribute, value)
            return value

    F = _Lazy("pyspark.sql.functions")
    T = _Lazy("pyspark.sql.types")
    Window = _Lazy("pyspark.sql", "Window")

__all__ = ["F", "T", "Window"]
