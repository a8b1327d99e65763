"""Avoids slow imports: pyspark is imported at its first use, and imports of pandas can be refused.

Operators have code for Spark and for Arrow in one file. A process that only encodes or scores Arrow tables
need not import pyspark. The import would take half a second, and the package may not be installed. So `F`,
`T` and `Window` import a module of pyspark when one of its attributes is first used.

pyarrow imports pandas when it first converts Python values, which takes a quarter of a second. pyarrow also
works without pandas. So `refuse_pandas` keeps pandas out of processes that do not need it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Window
    from pyspark.sql import functions as F
    from pyspark.sql import types as T
else:

    class _Lazy:
        """A proxy for a module or an object in it; imports the module when an attribute is first used."""

        def __init__(self, module: str, name: str | None = None) -> None:
            self._module = module
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            if attribute.startswith("__"):  # pickle, copy and doctest look up such names
                raise AttributeError(attribute)
            target = import_module(self._module)
            value = getattr(getattr(target, self._name) if self._name else target, attribute)
            setattr(self, attribute, value)
            return value

    F = _Lazy("pyspark.sql.functions")
    T = _Lazy("pyspark.sql.types")
    Window = _Lazy("pyspark.sql", "Window")

__all__ = ["F", "T", "Window", "allow_pandas", "refuse_pandas"]


class _WithoutPandas(MetaPathFinder):
    """An import finder that refuses to import pandas."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this process must not import pandas", name=fullname)


_finder = _WithoutPandas()


def refuse_pandas() -> None:
    """Makes imports of pandas fail, unless pandas has been imported already."""
    if "pandas" not in sys.modules and _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def allow_pandas() -> None:
    """Allows imports of pandas again. Call this before PySpark runs a query, because PySpark needs pandas."""
    if _finder not in sys.meta_path:
        return
    sys.meta_path.remove(_finder)
    import pyarrow as pa

    pa.array([0]).to_pandas()  # makes pyarrow repeat its import of pandas
