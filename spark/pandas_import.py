"""Keeps pandas out of processes that do not need it.

pyarrow imports pandas when it first converts Python values, which takes a quarter of a second. pyarrow also
works without pandas.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


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

    pa.array([0]).to_pandas()  # pyarrow tries to import pandas again only in conversions that need it
